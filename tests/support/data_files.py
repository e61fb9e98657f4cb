"""Small data files in the formats of the published ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    """Encode an array of unsigned bytes in the idx format."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` different images of 28 x 28 pixels, and their labels."""
    images = np.arange(count * 28 * 28, dtype=np.uint32).reshape(count, 28, 28) * 7 % 251
    return images.astype(np.uint8), (np.arange(count) % 10).astype(np.uint8)


def write_idx_pair(folder: Path, prefix: str = "t10k", count: int = 5) -> tuple[Path, Path]:
    """Write gzipped images and labels, as MNIST is published."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = digits(count)
    paths = folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz"
    paths[0].write_bytes(gzip.compress(idx_bytes(images), mtime=0))
    paths[1].write_bytes(gzip.compress(idx_bytes(labels), mtime=0))
    return paths


def cifar_batch(data: np.ndarray, labels: list[int]) -> bytes:
    """Pickle a batch of CIFAR-10 opcode by opcode, as Python 2 and the numpy of its time did."""
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731
    number = lambda value: b"J" + struct.pack("<i", value)  # noqa: E731
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R("
        + number(1) + number(data.shape[0]) + number(data.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R("
        + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        + b"\x89T" + struct.pack("<i", data.nbytes) + data.tobytes() + b"tb"
    )  # fmt: skip
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def cifar_pixels(count: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)
