"""The idx format of MNIST and of the sets that took its place: a magic number, the sizes, the bytes."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from pdpgd.errors import SubjectError
from pdpgd.subjects.unpacking import check_size

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """The uint8 tensor in an idx file of so many dimensions, packed with gzip or plain, whatever its name says."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if not is_packed:
                return _read(path, file, dimensions, size)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read(path, unpacked, dimensions, size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SubjectError(f"{path}: corrupt gzip: expected a whole packed idx file, got {error}") from error
    except OSError as error:
        raise SubjectError(f"{path}: cannot be read ({error})") from error
    except MemoryError as error:
        raise SubjectError(f"{path}: expected data that fits into the memory, got more") from error


def read_idx_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Images as uint8 of shape (samples, 1, height, width) and their labels as int64."""
    pixels, classes = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if len(pixels) != len(classes):
        raise SubjectError(
            f"{labels}: labels do not match: expected {len(pixels)}, one for each image in {images}, got {len(classes)}"
        )
    return pixels.unsqueeze(1), classes.long()


def _read(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int, size: int) -> Tensor:
    """`size` is that of the file on disk."""
    shape = _shape(path, file.read(_header(dimensions)), dimensions)
    expected = math.prod(shape)
    if isinstance(file, gzip.GzipFile):
        check_size(str(path), packed=size, unpacked=expected)
        most = expected
    else:
        most = min(expected, size)
    # One byte more than is expected tells whether there are more; those are not read, for there may be no end of them.
    content = file.read(most + 1)
    if len(content) < expected:
        raise SubjectError(
            f"{path}: truncated: expected {expected} bytes of data for shape {shape}, got {len(content)}"
        )
    if len(content) > expected:
        raise SubjectError(
            f"{path}: trailing bytes: expected {expected} bytes of data for shape {shape}, got {len(content)} or more"
        )
    if expected == 0:
        raise SubjectError(f"{path}: empty: expected at least one sample, got shape {shape}")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


def _header(dimensions: int) -> int:
    """Its length: the magic number, and a size for each dimension."""
    return 4 + 4 * dimensions


def _shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    if len(content) < 4:
        raise SubjectError(f"{path}: truncated: expected a header of {_header(dimensions)} bytes, got {len(content)}")
    if content[:3] != bytes((0, 0, UNSIGNED_BYTES)):
        raise SubjectError(
            f"{path}: bad magic number: expected 00 00 08 {dimensions:02x} (idx, unsigned bytes), "
            f"got {content[:4].hex(' ')}"
        )
    if content[3] != dimensions:
        raise SubjectError(f"{path}: wrong number of dimensions: expected {dimensions}, got {content[3]}")
    if len(content) < _header(dimensions):
        raise SubjectError(f"{path}: truncated: expected a header of {_header(dimensions)} bytes, got {len(content)}")
    return tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))
