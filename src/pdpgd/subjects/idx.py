"""The idx format of MNIST and of the sets that took its place: a magic number, the sizes, the bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pdpgd.errors import SubjectError

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """The uint8 tensor in an idx file of so many dimensions, packed with gzip or plain, whatever its name says."""
    content = _unpacked(path)
    shape = _shape(path, content, dimensions)
    start = 4 + 4 * dimensions
    expected, got = math.prod(shape), len(content) - start
    if got < expected:
        raise SubjectError(f"{path}: truncated: expected {expected} bytes of data for shape {shape}, got {got}")
    if got > expected:
        raise SubjectError(f"{path}: trailing bytes: expected {expected} bytes of data for shape {shape}, got {got}")
    if expected == 0:
        raise SubjectError(f"{path}: empty: expected at least one sample, got shape {shape}")
    array = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(array.copy())


def read_idx_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Images as uint8 of shape (samples, 1, height, width) and their labels as int64."""
    pixels, classes = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if len(pixels) != len(classes):
        raise SubjectError(
            f"{labels}: labels do not match: expected {len(pixels)}, one for each image in {images}, got {len(classes)}"
        )
    return pixels.unsqueeze(1), classes.long()


def _unpacked(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SubjectError(f"{path}: corrupt gzip: expected a whole packed idx file, got {error}") from error
    except OSError as error:
        raise SubjectError(f"{path}: cannot be read ({error})") from error


def _shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    if len(content) < 4:
        raise SubjectError(f"{path}: truncated: expected a header of {4 + 4 * dimensions} bytes, got {len(content)}")
    if content[:3] != bytes((0, 0, UNSIGNED_BYTES)):
        raise SubjectError(
            f"{path}: bad magic number: expected 00 00 08 {dimensions:02x} (idx, unsigned bytes), "
            f"got {content[:4].hex(' ')}"
        )
    if content[3] != dimensions:
        raise SubjectError(f"{path}: wrong number of dimensions: expected {dimensions}, got {content[3]}")
    if len(content) < 4 + 4 * dimensions:
        raise SubjectError(f"{path}: truncated: expected a header of {4 + 4 * dimensions} bytes, got {len(content)}")
    return tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))
