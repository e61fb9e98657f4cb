"""Images and labels in one .npz file."""

from __future__ import annotations

import gzip
import io
import lzma
import math
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.data.dataset import ArraySamples, numbered_classes
from pdpgd.data.download import check_size
from pdpgd.errors import LoadError

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
        raise LoadError(f"{path}: corrupt: expected an .npz file (a zip archive), got {error}") from error
    except MemoryError as error:
        raise LoadError(f"{path}: expected arrays that fit into the memory, got larger ones") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error})") from error


def _check_zip(path: Path, content: BinaryIO) -> None:
    """numpy takes what is no zip archive for another of its formats, and explains that one."""
    start = content.read(4)
    content.seek(0)
    if start not in ZIP_STARTS:
        raise LoadError(f"{path}: expected an .npz file (a zip archive), got a file that starts with {start!r}")


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
                raise LoadError(
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
        raise LoadError(
            f"{path}: expected arrays {' and '.join(NAMES)}, got no {' and no '.join(missing)} "
            f"(it has: {', '.join(names) or 'nothing'})"
        )


def _array(path: Path, file: Any, name: str) -> Array:
    try:
        array = file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise LoadError(
                f"{path}: refused: expected {name} as an array of numbers, got one of pickled objects"
            ) from error
        raise LoadError(f"{path}: corrupt: expected {name} as a whole array, got {error}") from error
    if not isinstance(array, np.ndarray):
        raise LoadError(f"{path}: corrupt: expected {name} as an array, got {type(array).__name__}")
    return array


def _pixels(path: Path, images: Array) -> Tensor:
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise LoadError(f"{path}: expected images as uint8 (0 to 255) or as floats (0 to 1), got {images.dtype}")
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(_channels_first(path, images)))


def _channels_first(path: Path, images: Array) -> Array:
    if images.ndim == 3:
        return images[:, np.newaxis]
    if images.ndim != 4:
        raise LoadError(f"{path}: expected images of shape {LAYOUTS}, got {images.shape}")
    before, after = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
    if before == after:
        what = "which may be read both ways" if before else "which has neither"
        raise LoadError(f"{path}: expected images of shape {LAYOUTS}, got {images.shape}, {what}")
    return images if before else images.transpose(0, 3, 1, 2)


def _labels(path: Path, labels: Array) -> Tensor:
    if labels.dtype.kind not in "iu":
        raise LoadError(f"{path}: expected labels as integers, got {labels.dtype}")
    if labels.ndim != 1:
        raise LoadError(f"{path}: expected labels of shape (samples,), got {labels.shape}")
    return torch.from_numpy(labels.astype(np.int64))


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
        raise LoadError(f"{path}: corrupt gzip: expected a whole packed idx file, got {error}") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error})") from error
    except MemoryError as error:
        raise LoadError(f"{path}: expected data that fits into the memory, got more") from error


def read_idx_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Images as uint8 of shape (samples, 1, height, width) and their labels as int64."""
    pixels, classes = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if len(pixels) != len(classes):
        raise LoadError(
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
        raise LoadError(f"{path}: truncated: expected {expected} bytes of data for shape {shape}, got {len(content)}")
    if len(content) > expected:
        raise LoadError(
            f"{path}: trailing bytes: expected {expected} bytes of data for shape {shape}, got {len(content)} or more"
        )
    if expected == 0:
        raise LoadError(f"{path}: empty: expected at least one sample, got shape {shape}")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


def _header(dimensions: int) -> int:
    """Its length: the magic number, and a size for each dimension."""
    return 4 + 4 * dimensions


def _shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    if len(content) < 4:
        raise LoadError(f"{path}: truncated: expected a header of {_header(dimensions)} bytes, got {len(content)}")
    if content[:3] != bytes((0, 0, UNSIGNED_BYTES)):
        raise LoadError(
            f"{path}: bad magic number: expected 00 00 08 {dimensions:02x} (idx, unsigned bytes), "
            f"got {content[:4].hex(' ')}"
        )
    if content[3] != dimensions:
        raise LoadError(f"{path}: wrong number of dimensions: expected {dimensions}, got {content[3]}")
    if len(content) < _header(dimensions):
        raise LoadError(f"{path}: truncated: expected a header of {_header(dimensions)} bytes, got {len(content)}")
    return tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))


FOLDER = "cifar-10-batches-py"
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
SIDE = 32

# Taken from an array, not from numpy's modules: the module that the published files name is deprecated.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def read_cifar10(path: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images as uint8 of shape (samples, 3, 32, 32) and labels as int64, from the folder of batches or the archive."""
    contents = _from_folder(path, split) if path.is_dir() else _from_archive(path, split)
    images, labels = zip(*(_batch(place, content) for place, content in contents), strict=True)
    return torch.cat(images), torch.cat(labels)


def load_arrays(place: str, content: bytes) -> object:
    """Unpickle plain containers and numpy arrays; anything else that the pickle names is refused, not imported."""
    try:
        # Python 2 wrote the published files: their bytes come as text, one character a byte.
        return _ArraysOnly(place, io.BytesIO(content)).load()
    except LoadError:
        raise
    except Exception as error:  # A broken pickle may raise nearly anything.
        raise LoadError(f"{place}: corrupt: expected a pickle, got {type(error).__name__}: {error}") from error


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, place: str, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin1")
        self.place = place

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise LoadError(
                f"{self.place}: refused: expected numpy arrays and plain containers only, got a pickle that asks for "
                f"{module}.{name}; nothing of that was run"
            )
        return ALLOWED[module, name]


def _from_folder(folder: Path, split: str) -> Iterator[tuple[str, bytes]]:
    for name in BATCHES[split]:
        try:
            yield str(folder / name), (folder / name).read_bytes()
        except OSError as error:
            raise LoadError(f"{folder / name}: cannot be read ({error})") from error


def _from_archive(path: Path, split: str) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for name in BATCHES[split]:
                member = archive.extractfile(f"{FOLDER}/{name}")
                if member is None:
                    raise LoadError(f"{path}: expected a file {FOLDER}/{name} in it, got something else")
                place = f"{path}:{FOLDER}/{name}"
                check_size(place, packed=path.stat().st_size, unpacked=archive.getmember(f"{FOLDER}/{name}").size)
                yield place, member.read()
    except KeyError as error:
        raise LoadError(f"{path}: expected CIFAR-10's batches in it, got none ({error})") from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise LoadError(f"{path}: corrupt: expected a tar archive, got {error}") from error


def _batch(place: str, content: bytes) -> tuple[Tensor, Tensor]:
    batch = load_arrays(place, content)
    if not isinstance(batch, dict):
        raise LoadError(f"{place}: expected a dict with data and labels, got {type(batch).__name__}")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE * SIDE,):
        raise LoadError(f"{place}: expected data as uint8 of shape (samples, 3072), got {_described(data)}")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise LoadError(f"{place}: expected labels as a list of integers 0 to 9, got {_described(labels)}")
    if len(data) != len(labels):
        raise LoadError(f"{place}: labels do not match: expected {len(data)}, one an image, got {len(labels)}")
    return torch.from_numpy(data.reshape(-1, 3, SIDE, SIDE).copy()), torch.tensor(labels, dtype=torch.long)


def _described(value: object) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
