"""The nets of the paper: from MATLAB files of their layout, found, downloaded or given, to the logits of TensorFlow."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from pdpgd import errors
from pdpgd.data.loading import load_data
from pdpgd.errors import InvalidInputError, LoadError, MissingExtraError, UnknownNameError
from pdpgd.evaluation.model_handle import NamedModel, checksum_of
from pdpgd.models import paper_nets
from pdpgd.models.architectures import ARCHITECTURES
from pdpgd.models.loading import is_factory, load_model
from pdpgd.models.normalization import Normalization
from pdpgd.models.paper_nets import PAPER_NETS
from pdpgd.models.weights import checksum
from support.server import serving
from support.tensorflow_nets import layout, logits, random_images, random_weights, write_mat

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:318c1147\nsize 13099128\n"
# Accuracy on the first 1000 test images, according to the paper.
CLEAN = {
    "mnist-plain": 0.987,
    "mnist-linf-at": 0.985,
    "mnist-l2-at": 0.987,
    "cifar10-plain": 0.894,
    "cifar10-linf-at": 0.804,
    "cifar10-l2-at": 0.807,
}


@pytest.fixture(scope="module")
def mat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file with the layout of `mnist-plain` and other weights."""
    return write_mat(tmp_path_factory.mktemp("mat") / "mnist_weights_plain.mat", random_weights("mnist-plain"))


@pytest.fixture
def home(cache: Path, mat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's folder of nets on a machine without any, and take `mat` for the published file."""
    published = replace(
        PAPER_NETS["mnist-plain"].file, sha256=checksum(mat), size=mat.stat().st_size, url="http://127.0.0.1:9/gone"
    )
    monkeypatch.setitem(PAPER_NETS, "mnist-plain", replace(PAPER_NETS["mnist-plain"], file=published))
    monkeypatch.setenv("PDPGD_DATA", str(tmp_path / "mine"))
    folder = tmp_path / "mine" / "paper-nets"
    folder.mkdir(parents=True)
    return folder


def complaint(path: Path | None = None, name: str = "mnist-plain") -> str:
    with pytest.raises(LoadError) as caught:
        load_model(f"paper:{name}", weights=path)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mnist-plain", "cifar10-plain", "cifar10-linf-at", "cifar10-l2-at"])
def test_a_net_computes_what_tensorflow_would(name: str, tmp_path: Path) -> None:
    """Compare to the bit: the sums are exact in float64."""
    weights = random_weights(name)
    model = load_model(f"paper:{name}", weights=write_mat(tmp_path / "some.mat", weights)).double()
    images = random_images(name, 2)
    expected = np.stack([logits(name, weights, image) for image in images])
    found = model(torch.from_numpy(images).permute(0, 3, 1, 2))
    assert np.ptp(expected) > 1
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", PAPER_NETS)
def test_the_layout_fills_the_published_number_of_bytes(name: str, tmp_path: Path) -> None:
    """One more array, a longer name or float64 would change the size."""
    zeros = {array: np.zeros(shape) for array, shape in layout(name).items()}
    path = write_mat(tmp_path / "zeros.mat", zeros)
    assert path.stat().st_size == PAPER_NETS[name].file.size
    assert not load_model(f"paper:{name}", weights=path)(
        torch.zeros(1, *ARCHITECTURES[PAPER_NETS[name].architecture].shape)
    ).any()


def test_the_files_are_those_of_the_papers_scripts_at_one_commit() -> None:
    files = {name: net.file for name, net in PAPER_NETS.items()}
    assert {name: file.name for name, file in files.items()} == {
        f"{dataset}-{kind}{'' if kind == 'plain' else '-at'}": f"{dataset}_weights_{kind}.mat"
        for dataset in ("mnist", "cifar10")
        for kind in ("plain", "linf", "l2")
    }
    bases = {
        (file.url or "").removesuffix(f"{file.name.partition('_')[0]}/models/{file.name}") for file in files.values()
    }
    assert bases == {"https://media.githubusercontent.com/media/aam-at/cpgd/c54c4cd6af4722925c92e6874d656c79583f5e0c/"}
    assert {len(bytes.fromhex(file.sha256 or "")) for file in files.values()} == {32}
    assert len({file.sha256 for file in files.values()}) == 6


@pytest.mark.parametrize("place", ["mnist_weights_plain.mat", "mnist/models/mnist_weights_plain.mat"])
def test_a_net_is_found_by_its_name_in_a_folder_or_a_clone(place: str, home: Path, mat: Path) -> None:
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(mat)
    assert paper_nets.place("mnist-plain") == path
    named, given = load_model("paper:mnist-plain"), load_model("paper:mnist-plain", weights=mat)
    assert not named.training
    assert all(torch.equal(one, other) for one, other in zip(named.parameters(), given.parameters(), strict=True))


def test_what_is_nowhere_is_downloaded_into_the_cache_with_its_sha256(
    home: Path, cache: Path, mat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    net = PAPER_NETS["mnist-plain"]
    with serving(mat.parent) as (base, asked):
        url = base + mat.name
        monkeypatch.setitem(PAPER_NETS, "mnist-plain", replace(net, file=replace(net.file, url=url, sha256="0" * 64)))
        assert f"paper:mnist-plain: wrong checksum: expected sha256 {'0' * 64} of {url}" in complaint()
        assert list((cache / "paper-nets").iterdir()) == []
        monkeypatch.setitem(PAPER_NETS, "mnist-plain", replace(net, file=replace(net.file, url=url)))
        load_model("paper:mnist-plain")
        load_model("paper:mnist-plain")
    assert len(asked) == 2
    assert paper_nets.place("mnist-plain") == cache / "paper-nets" / mat.name


def test_without_a_network_the_file_its_size_its_sha256_and_both_places_are_named(
    home: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/gone.mat"
    net = PAPER_NETS["mnist-plain"]
    monkeypatch.setitem(PAPER_NETS, "mnist-plain", replace(net, file=replace(net.file, url=url)))
    assert paper_nets.place("mnist-plain") is None
    message = complaint()
    assert message.startswith(f"paper:mnist-plain: not found on this machine, and {url} cannot be downloaded")
    assert f"\n  mnist_weights_plain.mat  (13,099,128 bytes, sha256 {net.file.sha256}, from {url})\n" in message
    assert f"\ninto {home}, or into {cache / 'paper-nets'}.\nA clone of https://github.com/aam-at/cpgd" in message


def test_a_file_in_place_that_is_not_the_published_one_is_refused_but_may_be_given_as_weights(
    home: Path, mat: Path
) -> None:
    content = bytearray(mat.read_bytes())
    content[-1] ^= 1
    path = home / mat.name
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    assert f"{checksum(mat)}, from http://127.0.0.1:9/gone), got sha256 {found}: it is cut short" in complaint()
    path.write_bytes(content[:-4])
    assert "expected the published file (13,099,128 bytes, sha256" in complaint()
    assert "got 13,099,124 bytes: it is cut short" in complaint()
    path.write_bytes(content)
    load_model("paper:mnist-plain", weights=path)


def test_a_git_lfs_pointer_is_distinguished_from_its_file(home: Path, mat: Path, tmp_path: Path) -> None:
    for path in (home / mat.name, tmp_path / "pointer.mat"):
        path.write_text(POINTER)
    for given in (None, tmp_path / "pointer.mat"):
        message = complaint(given)
        assert "expected a MATLAB file, got the git-lfs pointer" in message
        assert "git lfs pull" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"cut short, damaged or of another kind \(MatReadError"),
        (b"PK\x03\x04" + bytes(200), "cut short, damaged or of another kind"),
        # The beginning of version 7.3, which is HDF5.
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400), r"\(NotImplementedError: .*v7\.3"),
    ],
)
def test_a_file_that_is_none_of_matlabs_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.mat"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=rf"wrong\.mat: expected a MATLAB file up to version 7\.2, got .*{words}"):
        load_model("paper:mnist-plain", weights=path)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.5, "expected the arrays of paper:mnist-plain, got others: missing A.*, the file is cut short"),
        (1 - 1e-6, r"expected a MATLAB file up to version 7\.2, got one that is cut short"),
    ],
    ids=["half", "all but the end"],
)
def test_a_file_that_is_cut_short_is_named(share: float, words: str, mat: Path, tmp_path: Path) -> None:
    content = mat.read_bytes()
    path = tmp_path / "short.mat"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(LoadError, match=rf"short\.mat: {words}"):
        load_model("paper:mnist-plain", weights=path)


def test_a_file_that_is_missing_or_a_folder_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "no.mat") == f"{tmp_path / 'no.mat'}: expected a file, got none there"
    assert complaint(tmp_path) == f"{tmp_path}: expected a file, got a directory"


def test_arrays_that_are_missing_unexpected_or_of_another_shape_are_named(tmp_path: Path) -> None:
    weights = {array: np.zeros(shape) for array, shape in layout("mnist-plain").items()}
    del weights["A3"]
    path = write_mat(tmp_path / "other.mat", {**weights, "A1": np.zeros(33), "bA0": np.zeros(2)})
    assert complaint(path) == (
        f"{path}: expected the arrays of paper:mnist-plain, got others: missing A3 (if they should be there, "
        "the file is cut short); unexpected bA0; "
        "A1 expected (1, 32), got (1, 33)"
    )


def test_the_weights_of_the_plain_cifar_net_are_not_taken_for_a_trained_one(tmp_path: Path) -> None:
    path = write_mat(tmp_path / "plain.mat", {name: np.zeros(shape) for name, shape in layout("cifar10-plain").items()})
    message = complaint(path, "cifar10-linf-at")
    assert "missing A10, A11 " in message
    assert "A9 expected (1, 1200), got (1200, 10)" in message


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_numbers_that_are_not_floating_point_are_refused(dtype: type, tmp_path: Path) -> None:
    weights = {array: np.zeros(shape, np.float32) for array, shape in layout("mnist-plain").items()}
    path = tmp_path / "some.mat"
    scipy.io.savemat(path, {**weights, "A1": np.ones(32, dtype) * dtype(1j if dtype is np.complex64 else 1)})
    assert f"expected floating-point numbers in A1, got {np.dtype(dtype)}" in complaint(path)


def test_an_unknown_name_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown net of the paper: .*did you mean 'mnist-plain'"):
        load_model("paper:mnist-plane")
    with pytest.raises(InvalidInputError, match="model: expected paper:NAME, got no name"):
        load_model("paper:")


def test_a_normalization_is_refused_because_the_net_has_its_own(mat: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected none, as paper:mnist-plain normalizes its inputs itself"):
        load_model("paper:mnist-plain", weights=mat, normalization=Normalization((0.5,), (0.5,)))


def test_a_run_knows_the_net_by_its_name_its_file_and_its_weights(mat: Path) -> None:
    identity = NamedModel("paper:mnist-plain", weights=str(mat)).pinned().identity()
    assert identity == {
        "source": "paper:mnist-plain",
        "weights": str(mat),
        "normalisation": None,
        "sha256": checksum_of(load_model("paper:mnist-plain", weights=mat)),
    }
    # Not taken for Python code, whose weights may be drawn at random.
    assert not is_factory("paper:mnist-plain")


def test_without_scipy_the_extra_is_named_before_anything_is_downloaded(
    home: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = errors.importlib.import_module

    def without_scipy(module: str) -> object:
        if module.startswith("scipy"):
            raise ImportError(f"No module named {module!r}")
        return importing(module)

    monkeypatch.setattr(errors.importlib, "import_module", without_scipy)
    with pytest.raises(MissingExtraError, match=r"paper:mnist-plain needs scipy.io: pip install 'pdpgd\[paper\]'"):
        load_model("paper:mnist-plain")
    assert not cache.exists()


@pytest.mark.parametrize(("name", "share"), CLEAN.items())
def test_the_published_net_has_the_accuracy_that_the_paper_gives(name: str, share: float) -> None:
    """One of 1000 images may lie on a decision boundary and fall on either side."""
    if paper_nets.place(name) is None:
        pytest.skip(f"{PAPER_NETS[name].file.name} is not on this machine")
    try:
        samples = load_data("mnist-1000" if name.startswith("mnist") else "cifar10", download=False)
    except LoadError as error:
        pytest.skip(f"CIFAR-10 is not on this machine: {error}")
    images, labels = samples.batch(range(1000))
    model = load_model(f"paper:{name}")
    right = sum(
        int((model(part).argmax(1) == truth).sum())
        for part, truth in zip(images.split(100), labels.split(100), strict=True)
    )
    assert abs(right - round(1000 * share)) <= 1
