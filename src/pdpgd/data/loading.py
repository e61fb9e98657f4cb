"""Data sets by name, by path, or as torch has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from pdpgd.data.dataset import ArraySamples, DatasetSamples, Samples, wrap
from pdpgd.data.folders import FolderSamples, read_folder
from pdpgd.data.known import DATA
from pdpgd.data.readers import read_npz
from pdpgd.errors import InvalidInputError, LoadError, UnknownNameError

SPLITS = ("test", "train")

Read = ArraySamples | FolderSamples | DatasetSamples


@dataclass(frozen=True)
class DataDescription:
    """What a user may want to know of a data set before loading it."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    train: int | None
    test: int | None
    licence: str
    origin: str
    place: str
    """The folder it is in on this machine, "embedded" or "not here"."""


def load_data(
    source: str | Path | Dataset[Any] | DataLoader[Any],
    *,
    split: str = "test",
    count: int | None = None,
    root: str | Path | None = None,
    download: bool = True,
) -> Samples:
    """The samples of a data set, or its first `count`.

    `source` is the name of a known data set (see `describe_data`), a path to an .npz file with arrays `images` and
    `labels` (see `arrays.read_npz`), a path to a folder with one sub-folder of images a class (see
    `folders.read_folder`), or a torch Dataset or DataLoader (see `wrapped.wrap`). A known name comes before a path of
    that name; write ./name for the path. NAME:ORDER is a known data set in another order, for those that have one:
    restricted-imagenet:first, restricted-imagenet:paper (see `restricted_imagenet`).

    `split`, `root` and `download` are for known data sets alone: a file, a folder or a loader has one split. The files
    of a known data set are looked for in `root`, in $PDPGD_DATA/<name>, in the user's cache, and where the operating
    system's packages put them; where they are in none of these, they are downloaded into the cache.
    """
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if count is not None and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
        raise InvalidInputError(f"count: expected an integer >= 1, got {count!r}")
    samples: Read
    if isinstance(source, Dataset | DataLoader):
        samples = wrap(source, count=count)
    elif isinstance(source, str) and source.partition(":")[0] in DATA:
        samples = _load_known(source, split, None if root is None else Path(root).expanduser(), download)
    elif isinstance(source, str | Path):
        samples = _load_path(source)
    else:
        raise InvalidInputError(
            f"source: expected a name, a path, a torch Dataset or a DataLoader, got {type(source).__name__}"
        )
    if count is not None and count > len(samples):
        raise InvalidInputError(f"count: expected at most {len(samples)}, all that {samples.name} has, got {count}")
    return samples if count is None else samples.first(count)


def describe_data() -> list[DataDescription]:
    """Every known data set, and where it is on this machine."""
    return [
        DataDescription(
            name=known.name,
            shape=known.shape,
            classes=len(known.classes),
            train=known.sizes.get("train", 0),
            test=known.sizes.get("test", 0),
            licence=known.licence,
            origin=known.origin,
            place=known.place(),
        )
        for known in DATA.values()
    ]


def _load_known(source: str, split: str, root: Path | None, download: bool) -> Read:
    name, colon, order = source.partition(":")
    known = DATA[name]
    if colon and order not in known.orders:
        raise UnknownNameError(
            f"data set {name} in another order", source, [name, *(f"{name}:{each}" for each in known.orders)]
        )
    if split not in known.sizes:
        raise InvalidInputError(f"split: expected {' or '.join(known.sizes)}, all that {known.name} has, got {split}")
    if known.read is None:
        with resources.as_file(resources.files(__package__) / "embedded" / f"{known.name}.npz") as path:
            return read_npz(path, classes=known.classes)
    reader = known.orders[order] if colon else known.read
    read = reader(known.wanted(split).obtained(root=root, download=download), split)
    if isinstance(read, FolderSamples):
        return read
    pixels, labels = read
    expected = (known.sizes[split], *known.shape)
    if pixels.shape != expected:
        raise LoadError(
            f"{known.name}: expected {split} images of shape {expected}, got {tuple(pixels.shape)}: not this data set"
        )
    return ArraySamples(known.name, pixels, labels, known.classes)


def _load_path(source: str | Path) -> Read:
    path = Path(source).expanduser()
    # Not path.is_dir, which raises an error where a name is too long.
    if os.path.isdir(path):
        return read_folder(path)
    if os.path.isfile(path) and path.suffix == ".npz":
        return read_npz(path)
    if os.path.isfile(path):
        raise LoadError(f"{path}: expected an .npz file or a folder of images, got a file that ends in {path.suffix!r}")
    if isinstance(source, str) and path.name == source and not path.suffix:
        raise UnknownNameError("data set (and no such path)", source, DATA)
    raise LoadError(f"{path}: expected an .npz file or a folder of images, got nothing of that name")
