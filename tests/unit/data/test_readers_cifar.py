from __future__ import annotations

import io
import pickle
import pickletools
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd import errors
from pdpgd.data import readers
from pdpgd.data.readers import CIFAR_BATCHES, CIFAR_FOLDER, read_cifar10
from support.data_files import cifar_batch, cifar_pixels

NAMES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


class WritesAFile:
    """A malicious object: when it is unpickled, it calls `open` and leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write six batches of two images each."""
    path = tmp_path / CIFAR_FOLDER
    path.mkdir()
    for place, name in enumerate(NAMES):
        (path / name).write_bytes(cifar_batch(cifar_pixels(2, seed=place), [place, 9]))
    return path


def test_the_written_batches_are_what_python_2_wrote() -> None:
    content = cifar_batch(cifar_pixels(2), [3, 8])
    named = {argument for opcode, argument, _ in pickletools.genops(content) if opcode.name == "GLOBAL"}
    assert named == {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}


def test_the_splits_are_read_in_order(folder: Path) -> None:
    pixels, labels = read_cifar10(folder, "train")
    assert labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    expected = np.concatenate([cifar_pixels(2, seed=place) for place in range(5)]).reshape(10, 3, 32, 32)
    assert torch.equal(pixels, torch.from_numpy(expected))
    assert read_cifar10(folder, "test")[1].tolist() == [5, 9]


def test_the_archive_reads_as_the_folder_does(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, CIFAR_FOLDER)
    for split in CIFAR_BATCHES:
        for from_archive, from_folder in zip(read_cifar10(archive, split), read_cifar10(folder, split), strict=True):
            assert torch.equal(from_archive, from_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CIFAR_FOLDER, archive.name]


@pytest.mark.parametrize("protocol", [3, 4])
def test_a_batch_that_python_3_saved_again_is_read_too(folder: Path, protocol: int) -> None:
    data = cifar_pixels(2)
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": data, b"labels": [1, 2]}, protocol=protocol))
    pixels, labels = read_cifar10(folder, "test")
    assert torch.equal(pixels, torch.from_numpy(data).reshape(2, 3, 32, 32))
    assert labels.tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # The attacker's open file is nobody's to close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_batch_is_refused_before_it_runs(folder: Path, tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "marker"
    content = pickle.dumps({"data": WritesAFile(marker), "labels": []}, protocol=protocol)
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(errors.LoadError, match=r"test_batch: refused: .* asks for (io|_io|__builtin__)\.open"):
        read_cifar10(folder, "test")
    assert not marker.exists()
    pickle.load(io.BytesIO(content))
    assert marker.exists(), "the pickle was not malicious, so the test showed nothing"


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("numpy", "load"), ("numpy", "ndarray.tofile"), ("builtins", "eval"), ("_codecs", "encode")],
)
def test_nothing_but_arrays_may_be_named(folder: Path, module: str, name: str) -> None:
    # Protocol 4 resolves dotted names: a check of the module alone would let methods of ndarray through.
    text = lambda value: b"\x8c" + bytes([len(value)]) + value.encode()  # noqa: E731
    (folder / "test_batch").write_bytes(b"\x80\x04" + text(module) + text(name) + b"\x93.")
    with pytest.raises(errors.LoadError, match=f"refused: .* asks for {module}.{name}"):
        read_cifar10(folder, "test")


GOOD = cifar_batch(cifar_pixels(2), [3, 8])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD[:-200], "corrupt: expected a pickle"),
        (b"", "corrupt: expected a pickle"),
        (b"not a pickle", "corrupt: expected a pickle"),
        (pickle.dumps([1, 2]), "expected a dict with data and labels, got list"),
        (pickle.dumps({"labels": []}), "expected data as uint8 .* got NoneType"),
        (cifar_batch(cifar_pixels(2)[:, :-1], [3, 8]), r"expected data .* \(samples, 3072\), got uint8 .* \(2, 3071\)"),
        (cifar_batch(cifar_pixels(2), [3]), "labels do not match: expected 2, one per image, got 1"),
        (cifar_batch(cifar_pixels(2), [3, 10]), "expected labels as a list of integers 0 to 9, got list"),
    ],
)
def test_each_defect_has_its_own_complaint(content: bytes, complaint: str, folder: Path) -> None:
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(errors.LoadError, match=f"test_batch: {complaint}"):
        read_cifar10(folder, "test")


def test_a_missing_batch_is_named(folder: Path) -> None:
    (folder / "data_batch_3").unlink()
    with pytest.raises(errors.LoadError, match="data_batch_3: cannot be read"):
        read_cifar10(folder, "train")


def test_a_damaged_archive_is_distinguished_from_one_without_batches(folder: Path, tmp_path: Path) -> None:
    whole, cut, other = (tmp_path / name for name in ("whole.tar.gz", "cut.tar.gz", "other.tar.gz"))
    with tarfile.open(whole, "w:gz") as file:
        file.add(folder, CIFAR_FOLDER)
    cut.write_bytes(whole.read_bytes()[:-5000])
    with tarfile.open(other, "w:gz") as file:
        file.add(folder / "test_batch", "readme")
    with pytest.raises(errors.LoadError, match=r"cut.tar.gz: corrupt: expected a tar archive"):
        read_cifar10(cut, "test")
    with pytest.raises(errors.LoadError, match=r"other.tar.gz: expected CIFAR-10's batches in it, got none"):
        read_cifar10(other, "test")


def test_an_archive_that_unpacks_to_more_than_images_do_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "ALWAYS_UNPACKED", 10_000)
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"{CIFAR_FOLDER}/test_batch")
        member.size = 10**6
        archive.addfile(member, io.BytesIO(bytes(10**6)))
    with pytest.raises(errors.LoadError, match="test_batch: refused: expected at most 100 times as many bytes"):
        read_cifar10(tmp_path / "bomb.tar.gz", "test")
