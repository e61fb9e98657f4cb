from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd import errors
from pdpgd.data import readers
from pdpgd.data.readers import read_idx, read_idx_pair
from support.data_files import digits, idx_bytes, write_idx_pair

IMAGES, LABELS = digits(3)
WHOLE = idx_bytes(IMAGES)


@pytest.mark.parametrize("content", [WHOLE, gzip.compress(WHOLE)], ids=["plain", "gz"])
@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images-idx3-ubyte.gz"])
def test_what_was_written_is_read_whatever_the_name_says(content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert torch.equal(read_idx(path, dimensions=3), torch.from_numpy(IMAGES))


def test_a_pair_has_a_channel_and_labels_of_int64(tmp_path: Path) -> None:
    pixels, labels = read_idx_pair(*write_idx_pair(tmp_path, count=3))
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels, torch.from_numpy(IMAGES).reshape(3, 1, 28, 28))
    assert labels.dtype == torch.int64
    assert labels.tolist() == LABELS.tolist()


PACKED = gzip.compress(WHOLE)
FLIPPED = PACKED[:100] + bytes([PACKED[100] ^ 0xFF]) + PACKED[101:]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (WHOLE[:-1], "truncated: expected 2352 bytes .* got 2351"),
        (WHOLE[:10], "truncated: expected a header of 16 bytes, got 10"),
        (WHOLE[:3], "truncated: expected a header of 16 bytes, got 3"),
        (b"", "truncated: expected a header of 16 bytes, got 0"),
        (WHOLE + b"\0", "trailing bytes: expected 2352 bytes .* got 2353"),
        (b"\x89PNG" + WHOLE[4:], "bad magic number: expected 00 00 08 03 .* got 89 50 4e 47"),
        (WHOLE[:2] + b"\x0d" + WHOLE[3:], "bad magic number: .* got 00 00 0d 03"),
        (idx_bytes(LABELS), "wrong number of dimensions: expected 3, got 1"),
        (idx_bytes(IMAGES[:0]), "empty: expected at least one sample"),
        (PACKED[:-30], "corrupt gzip"),
        (FLIPPED, "corrupt gzip"),
        (PACKED[:-8] + b"\0" * 8, "corrupt gzip"),
    ],
)
def test_each_defect_has_its_own_complaint(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(errors.LoadError, match=f"images: {complaint}"):
        read_idx(path, dimensions=3)


def test_labels_that_do_not_match_their_images_are_refused(tmp_path: Path) -> None:
    images, _ = write_idx_pair(tmp_path, count=3)
    labels = tmp_path / "labels"
    labels.write_bytes(idx_bytes(np.zeros(4)))
    with pytest.raises(errors.LoadError, match=r"labels do not match: expected 3, .* got 4"):
        read_idx_pair(images, labels)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.LoadError, match="nowhere: cannot be read"):
        read_idx(tmp_path / "nowhere", dimensions=3)


def header(*shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit, so that a test unpacks little."""
    monkeypatch.setattr(readers, "ALWAYS_UNPACKED", 10_000)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            gzip.compress(header(100, 100, 100) + bytes(10**6)),
            "refused: expected at most 100 times as many bytes unpacked as packed, got 1,0.. that unpack to 1,000,000; "
            "if this is correct, save the data without compression",
        ),
        (gzip.compress(header(2**32 - 1, 2**32 - 1, 2**32 - 1)), "refused: expected at most 100 times"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + b"few", r"truncated: expected \d+ bytes of data .*, got 3"),
        (
            gzip.compress(header(1, 2, 2) + bytes(10**6)),
            "trailing bytes: expected 4 bytes of data .*, got 5 or more",
        ),
    ],
    ids=["bomb", "announced, packed", "announced, plain", "behind the data"],
)
def test_a_file_that_unpacks_to_more_than_data_does_is_not_unpacked(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(errors.LoadError, match=f"images: {complaint}"):
            read_idx(path, dimensions=3)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_data_that_memory_has_no_room_for_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "ALWAYS_UNPACKED", 1000)
    monkeypatch.setattr(readers, "available_memory", lambda: 2000)
    path = tmp_path / "images"
    path.write_bytes(PACKED)
    with pytest.raises(errors.LoadError, match=r"fits into the available memory of 2,000 bytes, got 2,352"):
        read_idx(path, dimensions=3)


def test_the_available_memory_is_a_number_of_bytes_on_linux() -> None:
    available = readers.available_memory()
    assert available is None or 2**20 < available < 2**50
