"""Readers of data files that hold images and labels: .npz, idx (MNIST) and CIFAR-10's batches.

None of them runs code of a file, and none allocates memory before the announced size was checked.
"""

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
from pdpgd.errors import LoadError

Array = NDArray[Any]

# Bytes that are unpacked whatever their compressed size: every machine that runs a model has them.
ALWAYS_UNPACKED = 2**28
# Maximum ratio of unpacked to packed bytes. Published images have 1 to 10; constant data has 200 to 1032.
MAX_RATIO = 100

# Arrays of an .npz file.
NPZ_ARRAYS = ("images", "labels")
CHANNELS = (1, 3)
LAYOUTS = "(samples, height, width), or with 1 or 3 channels before or after height and width"
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")


def read_npz(path: Path, *, name: str | None = None, classes: tuple[str, ...] | None = None) -> ArraySamples:
    """Read the arrays `images` and `labels` of an .npz file. Pickled objects are never loaded.

    Images are uint8 (0 to 255) or floats (0 to 1), of shape (samples, height, width), or with 1 or 3 channels
    (samples, channels, height, width) or (samples, height, width, channels). Labels are integers, one per image.

    Args:
        path: The file.
        name: Name of the data set; if None, the name of the file without its ending.
        classes: Names of the classes; if None, they are numbered.

    Returns:
        The samples, in memory.

    Raises:
        LoadError: The file is missing, damaged or too large for the memory, or its arrays are not images and labels.

    Example:
        >>> from pathlib import Path
        >>> samples = read_npz(Path("images.npz"), classes=("cat", "dog"))
        >>> [samples.classes[label] for label in samples.labels]
        ['cat', 'dog', 'cat', 'dog']
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
    """Read both arrays of an .npz file."""
    try:
        # Opened here because numpy does not close a file that turns out to be damaged.
        with path.open("rb") as content:
            _check_zip(path, content)
            _check_sizes(path, content)
            with np.load(content, allow_pickle=False) as file:
                _check_names(path, file.files)
                return {name: _array(path, file, name) for name in NPZ_ARRAYS}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        # RuntimeError: encrypted, or compressed by a method that Python lacks.
        raise LoadError(f"{path}: corrupt: expected an .npz file (a zip archive), got {error}") from error
    except MemoryError as error:
        raise LoadError(f"{path}: expected arrays that fit into memory, got larger ones") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error})") from error


def _check_zip(path: Path, content: BinaryIO) -> None:
    """Raise LoadError unless the file is a zip archive: numpy would take it for another of its formats."""
    start = content.read(4)
    content.seek(0)
    if start not in ZIP_STARTS:
        raise LoadError(f"{path}: expected an .npz file (a zip archive), got a file that starts with {start!r}")


def _check_sizes(path: Path, content: BinaryIO) -> None:
    """Check the sizes that the archive and the header of each array announce, before numpy allocates memory."""
    whole = content.seek(0, os.SEEK_END)
    with zipfile.ZipFile(content) as archive:
        there = set(archive.namelist())
        # numpy accepts either name for the array.
        for entry in (entry for name in NPZ_ARRAYS for entry in (name, f"{name}.npy") if entry in there):
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
    """Return the number of bytes that the header announces; None for a header that numpy will reject itself."""
    try:
        version = np.lib.format.read_magic(member)
        # Later versions differ from the second only in the encoding of the header.
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    except ValueError:
        return None
    return None if dtype.hasobject else member.tell() + math.prod(shape) * dtype.itemsize


def _check_names(path: Path, names: list[str]) -> None:
    """Raise LoadError unless both arrays are in the file."""
    missing = [name for name in NPZ_ARRAYS if name not in names]
    if missing:
        raise LoadError(
            f"{path}: expected arrays {' and '.join(NPZ_ARRAYS)}, got no {' and no '.join(missing)} "
            f"(it has: {', '.join(names) or 'nothing'})"
        )


def _array(path: Path, file: Any, name: str) -> Array:
    """Read one array; raise LoadError if it is damaged or pickled."""
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
    """Convert images to a tensor of uint8 or float32 with the channels first."""
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise LoadError(f"{path}: expected images as uint8 (0 to 255) or as floats (0 to 1), got {images.dtype}")
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(_channels_first(path, images)))


def _channels_first(path: Path, images: Array) -> Array:
    """Bring images to the shape (samples, channels, height, width)."""
    if images.ndim == 3:
        return images[:, np.newaxis]
    if images.ndim != 4:
        raise LoadError(f"{path}: expected images of shape {LAYOUTS}, got {images.shape}")
    before, after = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
    if before == after:
        what = "where both are possible" if before else "where neither is possible"
        raise LoadError(f"{path}: expected images of shape {LAYOUTS}, got {images.shape}, {what}")
    return images if before else images.transpose(0, 3, 1, 2)


def _labels(path: Path, labels: Array) -> Tensor:
    """Convert labels to int64."""
    if labels.dtype.kind not in "iu":
        raise LoadError(f"{path}: expected labels as integers, got {labels.dtype}")
    if labels.ndim != 1:
        raise LoadError(f"{path}: expected labels of shape (samples,), got {labels.shape}")
    return torch.from_numpy(labels.astype(np.int64))


GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Read the uint8 tensor of an idx file with the given number of dimensions, gzipped or not, whatever its name."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if not is_packed:
                return _read_idx(path, file, dimensions, size)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read_idx(path, unpacked, dimensions, size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LoadError(f"{path}: corrupt gzip: expected a whole packed idx file, got {error}") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error})") from error
    except MemoryError as error:
        raise LoadError(f"{path}: expected data that fits into memory, got more") from error


def read_idx_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Read images as uint8 of shape (samples, 1, height, width) and their labels as int64."""
    pixels, classes = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if len(pixels) != len(classes):
        raise LoadError(
            f"{labels}: labels do not match: expected {len(pixels)}, one for each image in {images}, got {len(classes)}"
        )
    return pixels.unsqueeze(1), classes.long()


def _read_idx(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int, size: int) -> Tensor:
    """Read the content of an idx file that is `size` bytes long on disk."""
    shape = _idx_shape(path, file.read(_idx_header_size(dimensions)), dimensions)
    expected = math.prod(shape)
    if isinstance(file, gzip.GzipFile):
        check_size(str(path), packed=size, unpacked=expected)
        most = expected
    else:
        most = min(expected, size)
    # One byte more than expected shows whether there are more. The rest is not read: it may be endless.
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


def _idx_header_size(dimensions: int) -> int:
    """Return the size of the header: the magic number, and the size of each dimension."""
    return 4 + 4 * dimensions


def _idx_shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    """Parse the header of an idx file."""
    if len(content) < 4:
        raise LoadError(
            f"{path}: truncated: expected a header of {_idx_header_size(dimensions)} bytes, got {len(content)}"
        )
    if content[:3] != bytes((0, 0, UNSIGNED_BYTES)):
        raise LoadError(
            f"{path}: bad magic number: expected 00 00 08 {dimensions:02x} (idx, unsigned bytes), "
            f"got {content[:4].hex(' ')}"
        )
    if content[3] != dimensions:
        raise LoadError(f"{path}: wrong number of dimensions: expected {dimensions}, got {content[3]}")
    if len(content) < _idx_header_size(dimensions):
        raise LoadError(
            f"{path}: truncated: expected a header of {_idx_header_size(dimensions)} bytes, got {len(content)}"
        )
    return tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))


CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
CIFAR_SIDE = 32

# Functions and classes that a batch may name. The first is taken from an array: the module of numpy that the published
# files name is deprecated.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
PICKLED_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def read_cifar10(path: Path, split: str) -> tuple[Tensor, Tensor]:
    """Read images as uint8 of shape (samples, 3, 32, 32) and labels as int64, from the folder or the archive."""
    contents = _from_folder(path, split) if path.is_dir() else _from_archive(path, split)
    images, labels = zip(*(_cifar_batch(place, content) for place, content in contents), strict=True)
    return torch.cat(images), torch.cat(labels)


def load_arrays(place: str, content: bytes) -> object:
    """Unpickle plain containers and numpy arrays; anything else that the pickle names is rejected, not imported."""
    try:
        # The published files were written by Python 2: their byte strings load as text, one character per byte.
        return _ArraysOnly(place, io.BytesIO(content)).load()
    except LoadError:
        raise
    except Exception as error:  # A damaged pickle may raise nearly anything.
        raise LoadError(f"{place}: corrupt: expected a pickle, got {type(error).__name__}: {error}") from error


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and plain containers, and rejects every other name."""

    def __init__(self, place: str, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin1")
        self.place = place

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLED_NAMES:
            raise LoadError(
                f"{self.place}: refused: expected numpy arrays and plain containers only, got a pickle that asks for "
                f"{module}.{name}; no code of it was run"
            )
        return PICKLED_NAMES[module, name]


def _from_folder(folder: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield place and content of each batch of a split."""
    for name in CIFAR_BATCHES[split]:
        try:
            yield str(folder / name), (folder / name).read_bytes()
        except OSError as error:
            raise LoadError(f"{folder / name}: cannot be read ({error})") from error


def _from_archive(path: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield place and content of each batch of a split, out of the tar archive."""
    try:
        with tarfile.open(path) as archive:
            for name in CIFAR_BATCHES[split]:
                member = archive.extractfile(f"{CIFAR_FOLDER}/{name}")
                if member is None:
                    raise LoadError(f"{path}: expected a file {CIFAR_FOLDER}/{name} in it, got something else")
                place = f"{path}:{CIFAR_FOLDER}/{name}"
                check_size(place, packed=path.stat().st_size, unpacked=archive.getmember(f"{CIFAR_FOLDER}/{name}").size)
                yield place, member.read()
    except KeyError as error:
        raise LoadError(f"{path}: expected CIFAR-10's batches in it, got none ({error})") from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise LoadError(f"{path}: corrupt: expected a tar archive, got {error}") from error


def _cifar_batch(place: str, content: bytes) -> tuple[Tensor, Tensor]:
    """Parse one batch of CIFAR-10."""
    batch = load_arrays(place, content)
    if not isinstance(batch, dict):
        raise LoadError(f"{place}: expected a dict with data and labels, got {type(batch).__name__}")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * CIFAR_SIDE * CIFAR_SIDE,):
        raise LoadError(f"{place}: expected data as uint8 of shape (samples, 3072), got {_described(data)}")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise LoadError(f"{place}: expected labels as a list of integers 0 to 9, got {_described(labels)}")
    if len(data) != len(labels):
        raise LoadError(f"{place}: labels do not match: expected {len(data)}, one per image, got {len(labels)}")
    return torch.from_numpy(data.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).copy()), torch.tensor(labels, dtype=torch.long)


def _described(value: object) -> str:
    """Describe a value for an error message."""
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def check_size(place: str, *, packed: int, unpacked: int) -> None:
    """Raise LoadError for data that is compressed more than images can be, or that does not fit into memory.

    Packed data is measured before it is unpacked: a small file may ask for more memory than there is.
    """
    if unpacked <= ALWAYS_UNPACKED:
        return
    if unpacked > MAX_RATIO * packed:
        raise LoadError(
            f"{place}: refused: expected at most {MAX_RATIO} times as many bytes unpacked as packed, got {packed:,} "
            f"that unpack to {unpacked:,}; if this is correct, save the data without compression"
        )
    available = available_memory()
    if available is not None and unpacked > available:
        raise LoadError(
            f"{place}: expected data that fits into the available memory of {available:,} bytes, got "
            f"{unpacked:,}; use fewer samples, or a folder of images, which is read on demand"
        )


def available_memory() -> int | None:
    """Return the available memory in bytes as Linux estimates it; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        return None
