"""Images and labels in one .npz file."""

from __future__ import annotations

import lzma
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.errors import SubjectError
from pdpgd.subjects.samples import ArraySamples, numbered_classes
from pdpgd.subjects.unpacking import check_size

NAMES = ("images", "labels")
CHANNELS = (1, 3)
LAYOUTS = "(samples, height, width), or with 1 or 3 channels before or after height and width"
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")

Array = NDArray[Any]


def read_npz(path: Path, *, name: str | None = None, classes: tuple[str, ...] | None = None) -> ArraySamples:
    """The arrays `images` and `labels` of a file; without `classes`, the classes are numbers.

    Images are uint8 (0 to 255) or floats (0 to 1), of shape (samples, height, width), or with 1 or 3 channels
    (samples, channels, height, width) or (samples, height, width, channels). Labels are integers, one an image.
    Pickled objects are never read.
    """
    arrays = _arrays(path)
    labels = _labels(path, arrays["labels"])
    return ArraySamples(
        name=name or path.stem,
        pixels=_pixels(path, arrays["images"]),
        labels=labels,
        classes=classes or numbered_classes(str(path), labels),
    )


def _arrays(path: Path) -> dict[str, Array]:
    try:
        # Opened here, for numpy forgets to close what turns out to be broken.
        with path.open("rb") as content:
            _check_zip(path, content)
            _check_sizes(path, content)
            with np.load(content, allow_pickle=False) as file:
                _check_names(path, file.files)
                return {name: _array(path, file, name) for name in NAMES}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        # RuntimeError: encrypted, or packed in a way that Python has not.
        raise SubjectError(f"{path}: corrupt: expected an .npz file (a zip archive), got {error}") from error
    except MemoryError as error:
        raise SubjectError(f"{path}: expected arrays that fit into the memory, got larger ones") from error
    except OSError as error:
        raise SubjectError(f"{path}: cannot be read ({error})") from error


def _check_zip(path: Path, content: BinaryIO) -> None:
    """numpy takes what is no zip archive for another of its formats, and explains that one."""
    start = content.read(4)
    content.seek(0)
    if start not in ZIP_STARTS:
        raise SubjectError(f"{path}: expected an .npz file (a zip archive), got a file that starts with {start!r}")


def _check_sizes(path: Path, content: BinaryIO) -> None:
    """What the archive and the header of each array announce, before numpy makes room for it."""
    whole = content.seek(0, os.SEEK_END)
    with zipfile.ZipFile(content) as archive:
        there = set(archive.namelist())
        # numpy takes either for the array.
        for entry in (entry for name in NAMES for entry in (name, f"{name}.npy") if entry in there):
            info = archive.getinfo(entry)
            check_size(f"{path}: {entry}", packed=min(info.compress_size, whole), unpacked=info.file_size)
            with archive.open(info) as member:
                announced = _announced(member)
            if announced is not None and announced != info.file_size:
                raise SubjectError(
                    f"{path}: corrupt: expected {entry} of {announced:,} bytes, as its header says, got "
                    f"{info.file_size:,}"
                )
    content.seek(0)


def _announced(member: IO[bytes]) -> int | None:
    """How long the array is by its header; None if that is numpy's to complain of."""
    try:
        version = np.lib.format.read_magic(member)
        # Later ones differ from the second in the encoding of the header alone.
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    except ValueError:
        return None
    return None if dtype.hasobject else member.tell() + math.prod(shape) * dtype.itemsize


def _check_names(path: Path, names: list[str]) -> None:
    missing = [name for name in NAMES if name not in names]
    if missing:
        raise SubjectError(
            f"{path}: expected arrays {' and '.join(NAMES)}, got no {' and no '.join(missing)} "
            f"(it has: {', '.join(names) or 'nothing'})"
        )


def _array(path: Path, file: Any, name: str) -> Array:
    try:
        array = file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise SubjectError(
                f"{path}: refused: expected {name} as an array of numbers, got one of pickled objects"
            ) from error
        raise SubjectError(f"{path}: corrupt: expected {name} as a whole array, got {error}") from error
    if not isinstance(array, np.ndarray):
        raise SubjectError(f"{path}: corrupt: expected {name} as an array, got {type(array).__name__}")
    return array


def _pixels(path: Path, images: Array) -> Tensor:
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise SubjectError(f"{path}: expected images as uint8 (0 to 255) or as floats (0 to 1), got {images.dtype}")
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(_channels_first(path, images)))


def _channels_first(path: Path, images: Array) -> Array:
    if images.ndim == 3:
        return images[:, np.newaxis]
    if images.ndim != 4:
        raise SubjectError(f"{path}: expected images of shape {LAYOUTS}, got {images.shape}")
    before, after = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
    if before == after:
        what = "which may be read both ways" if before else "which has neither"
        raise SubjectError(f"{path}: expected images of shape {LAYOUTS}, got {images.shape}, {what}")
    return images if before else images.transpose(0, 3, 1, 2)


def _labels(path: Path, labels: Array) -> Tensor:
    if labels.dtype.kind not in "iu":
        raise SubjectError(f"{path}: expected labels as integers, got {labels.dtype}")
    if labels.ndim != 1:
        raise SubjectError(f"{path}: expected labels of shape (samples,), got {labels.shape}")
    return torch.from_numpy(labels.astype(np.int64))
