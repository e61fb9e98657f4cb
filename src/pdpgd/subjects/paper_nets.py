"""paper:NAME: the MNIST and CIFAR-10 nets of the paper, from the MATLAB files that its authors publish.

The files lie under git-lfs in the repository of the paper's code. They are the nets of the FAB attack
(https://github.com/fra31/fab-attack, which the paper names as their source and whose git-lfs pointers have the same
checksums). Neither repository has a licence, so the weights are downloaded and never shipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from pdpgd.errors import SubjectError, UnknownNameError
from pdpgd.extras import need
from pdpgd.subjects.architectures import ARCHITECTURES
from pdpgd.subjects.fetch import DataFile, Wanted
from pdpgd.subjects.matlab import Arrays, read_arrays, refuse_pointer
from pdpgd.subjects.normalise import Normalisation
from pdpgd.subjects.weights import checksum

FOLDER = "paper-nets"
"""In `$PDPGD_DATA` and in the cache."""
REPOSITORY = "https://github.com/aam-at/cpgd"
COMMIT = "c54c4cd6af4722925c92e6874d656c79583f5e0c"
# Where GitHub serves what a git-lfs pointer of a commit stands for.
MEDIA = f"https://media.githubusercontent.com/media/aam-at/cpgd/{COMMIT}"
NOTE = f"A clone of {REPOSITORY}, made with git-lfs, may also stand in the place of that folder."


@dataclass(frozen=True, kw_only=True)
class PaperNet:
    """A net of the paper: its file, and where in it the weights of each layer stand."""

    architecture: str
    file: DataFile
    arrays: tuple[tuple[str, str | None], ...]
    """The kernel and the bias of each layer that has weights, by the names of their arrays, in the order of layers."""
    bias_sign: int = 1
    """-1 where the file holds what the net subtracts."""
    clean: float
    """Accuracy on the 10,000 test images, as the paper gives it."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays in the file: (height, width, inputs, outputs), (inputs, outputs) or (1, outputs)."""
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
        """The layers of the model that have weights, each with the names of its kernel and bias."""
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        for layer, (kernel, bias) in zip(layers, self.arrays, strict=True):
            yield layer, kernel, bias


def _mnist(kind: str, *, sha256: str, clean: float) -> PaperNet:
    return PaperNet(
        architecture="mnist-paper",
        file=_file("mnist", kind, sha256=sha256, size=13_099_128),
        arrays=tuple((f"A{2 * layer}", f"A{2 * layer + 1}") for layer in range(4)),
        clean=clean,
    )


def _cifar10_trained(kind: str, *, sha256: str, clean: float) -> PaperNet:
    return PaperNet(
        architecture=f"cifar10-paper-{kind}-at",
        file=_file("cifar10", kind, sha256=sha256, size=37_038_664),
        arrays=(*((f"A{layer}", None) for layer in range(8)), ("A8", "A9"), ("A10", "A11")),
        clean=clean,
    )


def _file(dataset: str, kind: str, *, sha256: str, size: int) -> DataFile:
    name = f"{dataset}_weights_{kind}.mat"
    path = f"{dataset}/models/{name}"
    # By its path in the repository it is found in a clone.
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
        trust_model_code: Not needed: no code runs.

    Returns:
        The net, from pixels in [0, 1] to logits.

    Raises:
        SubjectError: The file can neither be found nor downloaded, is not the published one, or has other arrays.
    """
    net = _named(name)
    # Before anything is downloaded.
    need("scipy.io", extra="paper", purpose=f"paper:{name}")
    path = published(name) if weights is None else weights
    arrays = read_arrays(path, net.shapes(), of=f"paper:{name}")
    model = ARCHITECTURES[net.architecture].untrained()
    _fill(model, net, arrays)
    return model


def own_normalisation(name: str, model: nn.Module) -> Normalisation | None:
    """Always None: what a net subtracts from its inputs is inside it."""
    return None


def published(name: str) -> Path:
    """Find the file of a net on this machine, or download it; SubjectError if it is not the one that was published."""
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
    raise SubjectError(
        f"{path}: expected the published file ({file.facts()}), got {got}: it is cut short, damaged or another one; "
        f"remove it to have it downloaded, or give it as the weights (--weights {path}) if it is the one you mean"
    )


def place(name: str) -> Path | None:
    """Where the file of a net is on this machine; None if it is not here."""
    found = _wanted(name).found()
    return None if found is None else found[0]


def _named(name: str) -> PaperNet:
    if name not in PAPER_NETS:
        raise UnknownNameError("net of the paper", name, PAPER_NETS)
    return PAPER_NETS[name]


def _wanted(name: str) -> Wanted:
    return Wanted(FOLDER, (_named(name).file,), note=NOTE, title=f"paper:{name}")


def _fill(model: nn.Module, net: PaperNet, arrays: Arrays) -> None:
    """Put the arrays into the layers. TensorFlow has the outputs of a kernel last, and flattens the channels last."""
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
    """The columns of a dense layer that stand in the order (place, channel), in the order (channel, place)."""
    return weight.reshape(len(weight), -1, channels).transpose(1, 2).flatten(1)
