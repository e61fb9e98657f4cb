"""CIFAR-10 as it is published: pickles in a folder or in a tar archive, read without running what is in them."""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdpgd.errors import SubjectError
from pdpgd.subjects.unpacking import check_size

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
    except SubjectError:
        raise
    except Exception as error:  # A broken pickle may raise nearly anything.
        raise SubjectError(f"{place}: corrupt: expected a pickle, got {type(error).__name__}: {error}") from error


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, place: str, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin1")
        self.place = place

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise SubjectError(
                f"{self.place}: refused: expected numpy arrays and plain containers only, got a pickle that asks for "
                f"{module}.{name}; nothing of that was run"
            )
        return ALLOWED[module, name]


def _from_folder(folder: Path, split: str) -> Iterator[tuple[str, bytes]]:
    for name in BATCHES[split]:
        try:
            yield str(folder / name), (folder / name).read_bytes()
        except OSError as error:
            raise SubjectError(f"{folder / name}: cannot be read ({error})") from error


def _from_archive(path: Path, split: str) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for name in BATCHES[split]:
                member = archive.extractfile(f"{FOLDER}/{name}")
                if member is None:
                    raise SubjectError(f"{path}: expected a file {FOLDER}/{name} in it, got something else")
                place = f"{path}:{FOLDER}/{name}"
                check_size(place, packed=path.stat().st_size, unpacked=archive.getmember(f"{FOLDER}/{name}").size)
                yield place, member.read()
    except KeyError as error:
        raise SubjectError(f"{path}: expected CIFAR-10's batches in it, got none ({error})") from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise SubjectError(f"{path}: corrupt: expected a tar archive, got {error}") from error


def _batch(place: str, content: bytes) -> tuple[Tensor, Tensor]:
    batch = load_arrays(place, content)
    if not isinstance(batch, dict):
        raise SubjectError(f"{place}: expected a dict with data and labels, got {type(batch).__name__}")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE * SIDE,):
        raise SubjectError(f"{place}: expected data as uint8 of shape (samples, 3072), got {_described(data)}")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise SubjectError(f"{place}: expected labels as a list of integers 0 to 9, got {_described(labels)}")
    if len(data) != len(labels):
        raise SubjectError(f"{place}: labels do not match: expected {len(data)}, one an image, got {len(labels)}")
    return torch.from_numpy(data.reshape(-1, 3, SIDE, SIDE).copy()), torch.tensor(labels, dtype=torch.long)


def _described(value: object) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
