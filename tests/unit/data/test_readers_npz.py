from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd import errors
from pdpgd.data import readers
from pdpgd.data.readers import read_npz

RNG_SEED = 5
PIXELS = np.random.default_rng(RNG_SEED).integers(0, 256, (4, 3, 6, 5)).astype(np.uint8)
LABELS = np.array([0, 2, 1, 2])


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1), PIXELS),
        (PIXELS[:, 0], PIXELS[:, :1]),
        (PIXELS[:, :1], PIXELS[:, :1]),
        (PIXELS[:, 0, :, :, np.newaxis], PIXELS[:, :1]),
    ],
    ids=["channels first", "channels last", "no channel", "one channel first", "one channel last"],
)
def test_every_layout_is_read_as_channels_first(images: np.ndarray, expected: np.ndarray, tmp_path: Path) -> None:
    samples = read_npz(saved(tmp_path, images=images, labels=LABELS))
    assert torch.equal(samples.pixels, torch.from_numpy(expected))
    assert (samples.name, samples.classes, samples.labels.tolist()) == ("mine", ("0", "1", "2"), LABELS.tolist())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_become_float32_and_keep_their_values(dtype: str, tmp_path: Path) -> None:
    images = (PIXELS / 256).astype(dtype)
    batch, labels = read_npz(saved(tmp_path, images=images, labels=LABELS.astype(np.uint8))).batch([1, 3])
    assert batch.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(batch, torch.from_numpy(PIXELS[[1, 3]]).float() / 256)


NAN = np.where(np.arange(120).reshape(4, 6, 5) == 70, np.nan, 0.5)


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (PIXELS.astype(np.int64), LABELS, "expected images as uint8 .* got int64"),
        (PIXELS[0, 0], LABELS, r"expected images of shape .* got \(6, 5\)"),
        (PIXELS[:, [0, 1]], LABELS, r"got \(4, 2, 6, 5\), where neither is possible"),
        (PIXELS[..., :3], LABELS, r"got \(4, 3, 6, 3\), where both are possible"),
        (PIXELS.astype(np.float32), LABELS, r"expected values in \[0, 1\] .* got 0 to 25\d"),
        (PIXELS / 256 - 0.5, LABELS, r"expected values in \[0, 1\] .* got -0.5 to"),
        (NAN, LABELS, r"expected values in \[0, 1\] .* samples \[2\]"),
        (PIXELS[:0], LABELS[:0], "expected images of shape"),
        (PIXELS, LABELS[:3], r"expected one label per image, got \(3,\) labels for 4 images"),
        (PIXELS, LABELS.astype(float), "expected labels as integers, got float64"),
        (PIXELS, LABELS[:, np.newaxis], r"expected labels of shape \(samples,\), got \(4, 1\)"),
        (PIXELS, LABELS - 1, r"expected labels 0 to 1, got \[-1\] for samples \[0\]"),
        (PIXELS, LABELS * 10**9, "expected labels 0 to 99999, got 2000000000"),
        (PIXELS.astype(object), LABELS, "refused: expected images as an array of numbers, got one of pickled objects"),
        (PIXELS, LABELS.astype(object), "refused: expected labels as an array of numbers"),
    ],
)
def test_each_wrong_array_has_its_own_complaint(
    images: np.ndarray, labels: np.ndarray, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(errors.LoadError, match=complaint):
        read_npz(saved(tmp_path, images=images, labels=labels))


def test_a_missing_array_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(errors.LoadError, match=r"got no images \(it has: x, labels\)"):
        read_npz(saved(tmp_path, x=PIXELS, labels=LABELS))
    with pytest.raises(errors.LoadError, match=r"got no images and no labels \(it has: nothing\)"):
        read_npz(saved(tmp_path))


def test_what_is_no_zip_archive_is_distinguished_from_a_damaged_one(tmp_path: Path) -> None:
    path = saved(tmp_path, images=PIXELS, labels=LABELS)
    content = path.read_bytes()
    path.write_bytes(content[:-50])
    with pytest.raises(errors.LoadError, match=r"corrupt: expected an .npz file"):
        read_npz(path)
    path.write_bytes(content.replace(PIXELS.tobytes()[:50], bytes(50)))
    with pytest.raises(errors.LoadError, match=r"corrupt: expected an .npz file"):
        read_npz(path)
    np.save(tmp_path / "one.npy", PIXELS)
    for other in (b"", b"text", (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(other)
        with pytest.raises(errors.LoadError, match=r"expected an .npz file .* got a file that starts with"):
            read_npz(path)


def zipped(path: Path, *, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape: str, dtype: str = "|u1", version: bytes = b"\x01\x00") -> bytes:
    """Return the header of an array without its data."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + header


@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"], ids=["1", "2", "3"])
@pytest.mark.parametrize("shape", ["(1000000000000, 1, 28, 28)", "(4, 1, 28, 28)", "(-4, 1, 28, 28)"])
def test_an_array_that_is_not_as_long_as_its_header_says_is_refused_before_room_is_made_for_it(
    version: bytes, shape: str, tmp_path: Path
) -> None:
    path = zipped(tmp_path / "bomb.npz", images=npy(shape, version=version), labels=npy("(4,)", "<i8"))
    with pytest.raises(errors.LoadError, match=r"corrupt: expected images\.npy of -?[\d,]+ bytes, as its header says"):
        read_npz(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("shape", ["(1000, 1, 100, 100)", "nonsense"])
def test_a_file_that_unpacks_to_more_than_images_do_is_not_unpacked(
    method: int, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "ALWAYS_UNPACKED", 10**6)
    path = zipped(tmp_path / "bomb.npz", method=method, images=npy(shape) + bytes(10**7), labels=npy("(4,)", "<i8"))
    tracemalloc.start()
    try:
        with pytest.raises(errors.LoadError, match=r"images\.npy: refused: expected at most 100 times as many bytes"):
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_images_that_are_all_the_same_are_read_while_they_are_few(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "black.npz", images=np.zeros((1000, 1, 28, 28), np.uint8), labels=np.arange(1000) % 10
    )
    assert len(read_npz(tmp_path / "black.npz")) == 1000


def test_an_encrypted_archive_is_rejected(tmp_path: Path) -> None:
    path = saved(tmp_path, images=PIXELS, labels=LABELS)
    content = bytearray(path.read_bytes())
    for start in (b"PK\x03\x04", b"PK\x01\x02"):
        at, flags = content.find(start), 6 if start == b"PK\x03\x04" else 8
        content[at + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(errors.LoadError, match=r"corrupt: expected an .npz file .*, got .*encrypted"):
        read_npz(path)
