"""Nets of the paper, paper:NAME: their published MATLAB files of weights, found or downloaded, and the nets they fill.

SciPy reads MATLAB files without running code: the format holds numbers, text, and containers of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pdpgd.data.download import DataFile, Wanted
from pdpgd.errors import FOREIGN_ERRORS, LoadError, UnknownNameError, need
from pdpgd.models.architectures import ARCHITECTURES
from pdpgd.models.normalization import Normalization
from pdpgd.models.weights import checksum, unreadable

# Beginning of a git-lfs pointer, the small text that stands for a large file in a clone.
POINTER = b"version https://git-lfs.github.com/spec/"

Arrays = dict[str, npt.NDArray[np.float32]]
Shapes = Mapping[str, tuple[int, ...]]

FOLDER = "paper-nets"
"""Folder of the files in `$PDPGD_DATA` and in the cache."""
REPOSITORY = "https://github.com/aam-at/cpgd"
COMMIT = "c54c4cd6af4722925c92e6874d656c79583f5e0c"
# Where GitHub serves the files that git-lfs pointers stand for.
MEDIA = f"https://media.githubusercontent.com/media/aam-at/cpgd/{COMMIT}"
NOTE = f"A clone of {REPOSITORY}, made with git-lfs, may take the place of that folder."


@dataclass(frozen=True, kw_only=True)
class PaperNet:
    """A net of the paper: its file, and which arrays of the file are the weights of which layer.

    Args:
        architecture: Name of its architecture.
        file: The published file.
        arrays: Names of the arrays of kernel and bias for each layer with weights, in the order of the layers.
        bias_sign: -1 where the net subtracts the biases of the file.
        clean: Accuracy on the 10,000 test images according to the paper.
    """

    architecture: str
    file: DataFile
    arrays: tuple[tuple[str, str | None], ...]
    bias_sign: int = 1
    clean: float

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays: (height, width, inputs, outputs), (inputs, outputs) or (1, outputs)."""
        with torch.device("meta"):
            model = ARCHITECTURES[self.architecture].build()
        found: dict[str, tuple[int, ...]] = {}
        for layer, kernel, bias in self.layers(model):
            outputs, inputs, *size = layer.weight.shape
            found[kernel] = (*size, inputs, outputs)
            if bias is not None:
                found[bias] = (1, outputs)
        return found

    def layers(self, model: nn.Module) -> Iterator[tuple[nn.Conv2d | nn.Linear, str, str | None]]:
        """Yield the layers of the model that have weights, each with the names of its kernel and bias."""
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        for layer, (kernel, bias) in zip(layers, self.arrays, strict=True):
            yield layer, kernel, bias


def _mnist(kind: str, *, sha256: str, clean: float) -> PaperNet:
    """Describe an MNIST net."""
    return PaperNet(
        architecture="mnist-paper",
        file=_file("mnist", kind, sha256=sha256, size=13_099_128),
        arrays=tuple((f"A{2 * layer}", f"A{2 * layer + 1}") for layer in range(4)),
        clean=clean,
    )


def _cifar10_trained(kind: str, *, sha256: str, clean: float) -> PaperNet:
    """Describe an adversarially trained CIFAR-10 net."""
    return PaperNet(
        architecture=f"cifar10-paper-{kind}-at",
        file=_file("cifar10", kind, sha256=sha256, size=37_038_664),
        arrays=(*((f"A{layer}", None) for layer in range(8)), ("A8", "A9"), ("A10", "A11")),
        clean=clean,
    )


def _file(dataset: str, kind: str, *, sha256: str, size: int) -> DataFile:
    """Describe the published file of a net."""
    name = f"{dataset}_weights_{kind}.mat"
    path = f"{dataset}/models/{name}"
    # Its path in the repository is where a clone has it.
    return DataFile(name, url=f"{MEDIA}/{path}", also=(path,), sha256=sha256, size=size)


PAPER_NETS = {
    "mnist-plain": _mnist(
        "plain", sha256="318c11472d6bf4e26839a4e1e96bb635f0a18a183961ee72448b8fd973030678", clean=0.9917
    ),
    "mnist-linf-at": _mnist(
        "linf", sha256="b472f3a917a1b21910c0468b3d012be8c55eadcc9d6931b838b72c4b6d7868cd", clean=0.9853
    ),
    "mnist-l2-at": _mnist(
        "l2", sha256="92489d8ca561cb8300b5bcfa2c5166ebf762aa753f0a6b2e7ef2064f05c017d5", clean=0.9895
    ),
    "cifar10-plain": PaperNet(
        architecture="cifar10-paper",
        file=_file(
            "cifar10",
            "plain",
            sha256="6c8d36afa1708a6d98cd1a2f8c0bebfaa1d76cafd025c8ebffb5a1063516afcb",
            size=37_045_256,
        ),
        arrays=tuple((f"A{layer}", f"bA{layer}") for layer in range(10)),
        bias_sign=-1,
        clean=0.8838,
    ),
    "cifar10-linf-at": _cifar10_trained(
        "linf", sha256="c6946a7584ecd267f1ed49518cc0c54d3a96255ea506523f6c3634b295174f4f", clean=0.799
    ),
    "cifar10-l2-at": _cifar10_trained(
        "l2", sha256="84f0e8b20e9c8445818d76eced7584cee25b94de694f1f2be0b8e596883c9cf0", clean=0.8044
    ),
}


def build(name: str, *, weights: Path | None, trust_model_code: bool) -> nn.Module:
    """Build a net of the paper with its published weights.

    Args:
        name: A name of `PAPER_NETS`.
        weights: A MATLAB file of the same layout to read instead of the published one; its checksum is not compared.
        trust_model_code: Has no effect: no code runs.

    Returns:
        The net, from pixels in [0, 1] to logits.

    Raises:
        LoadError: The file can neither be found nor downloaded, is not the published one, or has other arrays.
        MissingExtraError: SciPy is not installed.
    """
    net = _named(name)
    # Before anything is downloaded.
    need("scipy.io", extra="paper", purpose=f"paper:{name}")
    path = published(name) if weights is None else weights
    arrays = read_arrays(path, net.shapes(), of=f"paper:{name}")
    model = ARCHITECTURES[net.architecture].untrained()
    _fill(model, net, arrays)
    return model


def own_normalization(name: str, model: nn.Module) -> Normalization | None:
    """Return None: a net that subtracts a mean does so itself."""
    return None


def published(name: str) -> Path:
    """Find or download the file of a net; raise LoadError if it is not the published one."""
    file = _named(name).file
    (path,) = _wanted(name).obtained()
    refuse_pointer(path)
    size = path.stat().st_size
    if size != file.size:
        got = f"{size:,} bytes"
    elif (found := checksum(path)) != file.sha256:
        got = f"sha256 {found}"
    else:
        return path
    raise LoadError(
        f"{path}: expected the published file ({file.facts()}), got {got}: it is cut short, damaged or another one; "
        f"remove it to have it downloaded, or give it as the weights (--weights {path}) if it is the one you mean"
    )


def place(name: str) -> Path | None:
    """Return the path of the file of a net on this machine; None if it is not here."""
    found = _wanted(name).found()
    return None if found is None else found[0]


def _named(name: str) -> PaperNet:
    """Look up a net by its name."""
    if name not in PAPER_NETS:
        raise UnknownNameError("net of the paper", name, PAPER_NETS)
    return PAPER_NETS[name]


def _wanted(name: str) -> Wanted:
    """Describe where to look for the file of a net."""
    return Wanted(FOLDER, (_named(name).file,), note=NOTE, title=f"paper:{name}")


def read_arrays(path: Path, shapes: Shapes, *, of: str) -> Arrays:
    """Read the arrays of a MATLAB file (up to version 7.2, not the HDF5 of 7.3).

    Args:
        path: The file.
        shapes: Names and shapes of the arrays that it must hold, and no others. A vector has the shape (1, n).
        of: Name of the net that the arrays belong to, for errors.

    Returns:
        The arrays in float32, by name.

    Raises:
        LoadError: The file is missing, a git-lfs pointer, damaged, not MATLAB's, or holds other arrays.
        MissingExtraError: SciPy is not installed.
    """
    refuse_pointer(path)
    library = need("scipy.io", extra="paper", purpose=f"reading {path.name}")
    try:
        found = {name: tuple(shape) for name, shape, _ in library.whosmat(path, appendmat=False)}
    except FOREIGN_ERRORS as error:
        raise _damaged(path, error) from error
    # Compared before the arrays are read: the wrong file may have any size.
    if faults := _differences(shapes, found):
        raise LoadError(f"{path}: expected the arrays of {of}, got others: {'; '.join(faults)}")
    try:
        content = library.loadmat(path, appendmat=False, variable_names=list(shapes))
    except FOREIGN_ERRORS as error:
        raise _damaged(path, error) from error
    for name in shapes:
        array = content[name]
        # Sparse arrays are not NumPy's.
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            raise LoadError(f"{path}: expected floating-point numbers in {name}, got {array.dtype}")
    return {name: np.ascontiguousarray(content[name], dtype=np.float32) for name in shapes}


def refuse_pointer(path: Path) -> None:
    """Raise LoadError if the file is a pointer to a large file that git-lfs has not fetched, or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(len(POINTER))
    except OSError as error:
        raise unreadable(path, error) from error
    if head == POINTER:
        raise LoadError(
            f"{path}: expected a MATLAB file, got the git-lfs pointer that stands for it in a clone; "
            "run `git lfs install` and `git lfs pull` in the clone, which replaces it by the file"
        )


def _damaged(path: Path, error: BaseException) -> LoadError:
    """Return the error for a file that SciPy cannot read."""
    return LoadError(
        f"{path}: expected a MATLAB file up to version 7.2, got one that is cut short, damaged or of another kind "
        f"({type(error).__name__}: {error})"
    )


def _differences(expected: Shapes, found: Shapes) -> list[str]:
    """Describe missing, unexpected and misshapen arrays."""
    missing = ", ".join(name for name in expected if name not in found)
    unexpected = ", ".join(name for name in found if name not in expected)
    return [
        *([f"missing {missing} (if they should be there, the file is cut short)"] if missing else []),
        *([f"unexpected {unexpected}"] if unexpected else []),
        *(
            f"{name} expected {shape}, got {found[name]}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
    ]


def _fill(model: nn.Module, net: PaperNet, arrays: Arrays) -> None:
    """Copy the arrays into the layers. TensorFlow has the outputs of a kernel last, and flattens channels last."""
    channels = 0
    for layer, kernel, bias in net.layers(model):
        weight = torch.from_numpy(arrays[kernel])
        if isinstance(layer, nn.Conv2d):
            weight = weight.permute(3, 2, 0, 1)
            channels = layer.out_channels
        else:
            weight = _columns_by_channel(weight.T, channels) if channels else weight.T
            channels = 0
        layer.weight.data.copy_(weight)
        assert (bias is None) == (layer.bias is None)
        if bias is not None and layer.bias is not None:
            layer.bias.data.copy_(net.bias_sign * torch.from_numpy(arrays[bias])[0])


def _columns_by_channel(weight: Tensor, channels: int) -> Tensor:
    """Reorder the columns of a dense layer from (position, channel) to (channel, position)."""
    return weight.reshape(len(weight), -1, channels).transpose(1, 2).flatten(1)
