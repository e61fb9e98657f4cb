"""Loading of data sets by name, by path, or from torch, and descriptions of the known ones."""

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


def load_data(
    source: str | Path | Dataset[Any] | DataLoader[Any],
    *,
    split: str = "test",
    count: int | None = None,
    root: str | Path | None = None,
    download: bool = True,
) -> Samples:
    """Load labeled images.

    Args:
        source: Name of a known data set (see `describe_data`); path of an .npz file with the arrays `images` and
            `labels` (see `read_npz`); path of a folder with one sub-folder of images per class (see `read_folder`);
            or a torch Dataset or DataLoader (see `wrap`). A known name has precedence over a path: write ./name for
            the path. NAME:ORDER is a known data set in another order, where it has one: restricted-imagenet:first,
            restricted-imagenet:paper (see `read_restricted_imagenet`).
        split: "test" or "train", for known data sets; other sources have one split.
        count: Number of samples; the first ones are taken. If None, all.
        root: Folder to search first for the files of a known data set. The next places are $PDPGD_DATA/NAME, the
            user's cache, and the folder of the operating system's packages.
        download: Whether the files of a known data set may be downloaded into the cache if they are in none of these.

    Returns:
        The samples; images are read into memory or, from a folder or a Dataset, on demand.

    Raises:
        InvalidInputError: `count` or `root` is impossible, or the data set has no such split.
        UnknownNameError: The name is unknown and no path.
        LoadError: A file is missing, damaged, or not what it was said to be.
        MissingExtraError: An optional library is needed, for images in folders or for a download.

    Example:
        >>> samples = pdpgd.load_data("mnist-1000", count=100)
        >>> images, labels = samples.batch(range(10))
        >>> len(samples), len(images)
        (100, 10)
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


@dataclass(frozen=True)
class DataDescription:
    """Facts about a known data set.

    Args:
        name: Its name.
        shape: Channels, height and width of an image.
        classes: Number of classes.
        train: Number of training samples; None where it is not fixed.
        test: Number of test samples; None where it is not fixed.
        license: License of the data.
        origin: Authors and home page.
        place: The folder that it is in on this machine, "embedded" or "not here".
    """

    name: str
    shape: tuple[int, int, int]
    classes: int
    train: int | None
    test: int | None
    license: str
    origin: str
    place: str


def describe_data() -> list[DataDescription]:
    """Describe every known data set, and where it is on this machine.

    Returns:
        One description per data set.

    Example:
        >>> [data.name for data in describe_data()]
        ['mnist-1000', 'mnist', 'fashion-mnist', 'cifar10', 'restricted-imagenet']
    """
    return [
        DataDescription(
            name=known.name,
            shape=known.shape,
            classes=len(known.classes),
            train=known.sizes.get("train", 0),
            test=known.sizes.get("test", 0),
            license=known.license,
            origin=known.origin,
            place=known.place(),
        )
        for known in DATA.values()
    ]


def _load_known(source: str, split: str, root: Path | None, download: bool) -> Read:
    """Load a data set that is known by its name, in the order that the name may ask for."""
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
    """Load an .npz file or a folder of images."""
    path = Path(source).expanduser()
    # Path.is_dir would raise an error for a name that is too long.
    if os.path.isdir(path):
        return read_folder(path)
    if os.path.isfile(path) and path.suffix == ".npz":
        return read_npz(path)
    if os.path.isfile(path):
        raise LoadError(f"{path}: expected an .npz file or a folder of images, got a file that ends in {path.suffix!r}")
    if isinstance(source, str) and path.name == source and not path.suffix:
        raise UnknownNameError("data set (and no such path)", source, DATA)
    raise LoadError(f"{path}: expected an .npz file or a folder of images, got nothing of that name")
