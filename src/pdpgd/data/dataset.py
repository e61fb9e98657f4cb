"""Labeled images: the protocol `Samples`, samples in memory, ranges of samples, and samples of torch data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from pdpgd.errors import FOREIGN_ERRORS, LoadError, PdpgdError, named

Rows = Sequence[int] | Tensor

# More classes than any data set of images has: a larger label is not a class.
MOST_CLASSES = 100_000


class Samples(Protocol):
    """Protocol of labeled images that are accessible in any order; `batch` reads only the rows it is given.

    `load_data` returns samples, and every function that takes samples accepts a user's own class of this shape.

    Example:
        >>> samples = pdpgd.load_data("mnist-1000")
        >>> images, labels = samples.batch(range(10))
        >>> images.shape
        torch.Size([10, 1, 28, 28])
    """

    @property
    def name(self) -> str:
        """Name of the data set."""
        ...

    @property
    def labels(self) -> Tensor:
        """Class of each sample, int64, shape (samples,)."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; a label is an index into it."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def first(self, count: int) -> Samples:
        """Return the first samples.

        Args:
            count: Their number.
        """
        ...

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Read some samples.

        Args:
            rows: Indices of the samples.

        Returns:
            Their images as float32 in [0, 1], of shape (rows, channels, height, width), and their labels.

        Raises:
            LoadError: An image cannot be read.
        """
        ...


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn exceptions of a user's own data set into a LoadError that names it."""
    try:
        yield
    except PdpgdError:
        raise
    except FOREIGN_ERRORS as error:
        raise LoadError(f"{name}: expected samples, got {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class ArraySamples:
    """Samples in memory, as uint8 (0 to 255) or float32 (0 to 1)."""

    name: str
    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or len(self.pixels) == 0:
            raise LoadError(
                f"{self.name}: expected images of shape (samples, channels, height, width), "
                f"got {tuple(self.pixels.shape)}"
            )
        if self.pixels.dtype not in (torch.uint8, torch.float32):
            raise LoadError(f"{self.name}: expected images as uint8 or float32, got {self.pixels.dtype}")
        check_range(self.name, self.pixels)
        check_labels(self.name, self.labels, self.classes, images=len(self.pixels))

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Read some samples; see `Samples.batch`."""
        rows = torch.as_tensor(rows)
        pixels = self.pixels[rows]
        images = pixels.float().div_(255) if pixels.dtype == torch.uint8 else pixels
        return images, self.labels[rows]

    def first(self, count: int) -> ArraySamples:
        """Return the first samples."""
        return ArraySamples(self.name, self.pixels[:count], self.labels[:count], self.classes)


@dataclass(frozen=True)
class SampleRange:
    """Consecutive samples of a larger set."""

    whole: Samples
    begin: int
    end: int

    @property
    def name(self) -> str:
        """Name of the whole set and the range."""
        return f"{self.whole.name}[{self.begin}:{self.end}]"

    @property
    def labels(self) -> Tensor:
        """Class of each sample."""
        return self.whole.labels[self.begin : self.end]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.whole.classes

    def __len__(self) -> int:
        return self.end - self.begin

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Read some samples; see `Samples.batch`."""
        return self.whole.batch(torch.as_tensor(rows) + self.begin)

    def first(self, count: int) -> SampleRange:
        """Return the first samples."""
        return SampleRange(self.whole, self.begin, min(self.end, self.begin + count))


def numbered_classes(name: str, labels: Tensor) -> tuple[str, ...]:
    """Name classes by their numbers, from 0 to the largest label."""
    greatest = int(labels.max()) if labels.numel() else 0
    if greatest >= MOST_CLASSES:
        raise LoadError(f"{name}: expected labels 0 to {MOST_CLASSES - 1}, got {greatest}")
    return tuple(str(label) for label in range(max(greatest, 0) + 1))


def check_labels(name: str, labels: Tensor, classes: tuple[str, ...], *, images: int) -> None:
    """Raise LoadError unless there is one int64 label per image, each an index into `classes`."""
    if labels.shape != (images,):
        raise LoadError(f"{name}: expected one label per image, got {tuple(labels.shape)} labels for {images} images")
    if labels.dtype != torch.int64:
        raise LoadError(f"{name}: expected labels as int64, got {labels.dtype}")
    wrong = (labels < 0) | (labels >= len(classes))
    if bool(wrong.any()):
        raise LoadError(
            f"{name}: expected labels 0 to {len(classes) - 1}, got {named(labels[wrong].tolist())} "
            f"for samples {named(wrong.nonzero().flatten().tolist())}"
        )


def check_range(name: str, pixels: Tensor) -> None:
    """Raise LoadError unless floats are in [0, 1]; NaN is not."""
    if pixels.dtype == torch.uint8 or bool(((pixels >= 0) & (pixels <= 1)).all()):
        return
    inside = ((pixels >= 0) & (pixels <= 1)).flatten(1).all(1)
    raise LoadError(
        f"{name}: expected values in [0, 1] (a normalization belongs in the model), got "
        f"{float(pixels.min()):.6g} to {float(pixels.max()):.6g}; outside it: samples "
        f"{named((~inside).nonzero().flatten().tolist())}"
    )


Source = Dataset[Any] | DataLoader[Any]


@dataclass(frozen=True)
class DatasetSamples:
    """Samples of a torch data set with a length; each is read when a batch contains it."""

    name: str
    dataset: Any
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        check_labels(self.name, self.labels, self.classes, images=len(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Read some samples; see `Samples.batch`."""
        rows = torch.as_tensor(rows)
        labels = self.labels[rows]
        with reading(self.name):
            pairs = [_pair(self.name, row, self.dataset[row]) for row in rows.tolist()]
        for row, expected, (_, label) in zip(rows.tolist(), labels.tolist(), pairs, strict=True):
            if label != expected:
                raise LoadError(
                    f"{self.name}: expected label {expected} of sample {row} again, got {label}: "
                    "its labels change between two readings, or its targets are not its labels"
                )
        return _stacked(self.name, [image for image, _ in pairs]), labels

    def first(self, count: int) -> DatasetSamples:
        """Return the first samples."""
        return replace(self, labels=self.labels[:count])


def wrap(source: Source, *, count: int | None = None) -> ArraySamples | DatasetSamples:
    """Make samples of a torch data set or loader that yields pairs of image and label.

    Images are float tensors in [0, 1] or uint8 tensors, of shape (channels, height, width). A data set with a length
    is read on demand; its labels are its `targets`, or are read once, which reads the whole data set. A loader or an
    IterableDataset is read into memory. The classes are its `classes`, or numbers.

    Args:
        source: The data set or loader.
        count: Maximum number of samples; the first ones are taken.

    Returns:
        The samples.

    Raises:
        LoadError: It yields something other than images in [0, 1] with integer labels, or fails.

    Example:
        >>> dataset = torch.utils.data.TensorDataset(images, labels)
        >>> samples = wrap(dataset, count=3)
        >>> samples.labels
        tensor([7, 2, 1])
    """
    dataset = source.dataset if isinstance(source, DataLoader) else source
    name = type(dataset).__name__
    with reading(name):
        if isinstance(source, DataLoader):
            return _in_memory(name, dataset, islice(_unbatched(name, source), count))
        if isinstance(source, IterableDataset):
            return _in_memory(name, dataset, islice(source, count))
        if not hasattr(source, "__len__"):
            raise LoadError(f"{name}: expected a data set with a length (__len__) or an IterableDataset, got neither")
        labels = _labels(name, source, count)
        return DatasetSamples(name, source, labels, _classes(name, dataset, labels))


def _in_memory(name: str, dataset: object, items: Iterable[object]) -> ArraySamples:
    """Read all items into memory."""
    pairs = [_pair(name, place, item) for place, item in enumerate(items)]
    if not pairs:
        raise LoadError(f"{name}: expected at least one sample, got none")
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    pixels = _stacked(name, [image for image, _ in pairs])
    return ArraySamples(name, pixels, labels, _classes(name, dataset, labels))


def _unbatched(name: str, loader: DataLoader[Any]) -> Iterator[object]:
    """Yield the samples of a loader one by one."""
    if loader.batch_size is None and loader.batch_sampler is None:
        yield from loader
        return
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or len(batch[0]) != len(batch[1]):
            raise LoadError(f"{name}: expected batches of (images, labels) of equal length, got {_described(batch)}")
        yield from zip(*batch, strict=True)


def _labels(name: str, dataset: Any, count: int | None) -> Tensor:
    """Return the labels of the first samples, from `targets` if possible."""
    size = len(dataset) if count is None else min(count, len(dataset))
    if size == 0:
        raise LoadError(f"{name}: expected at least one sample, got none")
    targets = _targets(dataset)
    if targets is not None:
        return targets[:size].long()
    return torch.tensor([_pair(name, row, dataset[row])[1] for row in range(size)], dtype=torch.long)


def _targets(dataset: Any) -> Tensor | None:
    """Return the attribute `targets` if it holds the labels: integers, one per sample, not transformed."""
    targets = getattr(dataset, "targets", None)
    if targets is None or getattr(dataset, "target_transform", None) is not None:
        return None
    try:
        column = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        return None
    whole = not (column.is_floating_point() or column.is_complex() or column.dtype == torch.bool)
    return column if whole and column.shape == (len(dataset),) else None


def _pair(name: str, place: int, item: object) -> tuple[Tensor, int]:
    """Check one sample, and return its image as float32 in [0, 1] with its label."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise LoadError(f"{name}: expected sample {place} as (image, label), got {_described(item)}")
    image, label = item
    if not isinstance(image, Tensor) or not (image.is_floating_point() or image.dtype == torch.uint8):
        raise LoadError(
            f"{name}: expected the image of sample {place} as a tensor of floats in [0, 1] or of uint8, got "
            f"{_described(image)}; give the data set a transform, such as torchvision.transforms.ToTensor()"
        )
    if image.ndim != 3:
        raise LoadError(
            f"{name}: expected the image of sample {place} of shape (channels, height, width), got {tuple(image.shape)}"
        )
    image = image.detach().cpu()
    image = image.float().div(255) if image.dtype == torch.uint8 else image.float()
    return image, _label(name, place, label)


def _label(name: str, place: int, label: object) -> int:
    """Check one label, and return it as an integer."""
    value = label.item() if isinstance(label, Tensor) and label.ndim == 0 else label
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise LoadError(f"{name}: expected the label of sample {place} as an integer, got {_described(label)}")
    return int(value)


def _stacked(name: str, images: list[Tensor]) -> Tensor:
    """Stack images of one shape, and check their range."""
    for image in images:
        if image.shape != images[0].shape:
            raise LoadError(
                f"{name}: expected images of one shape, got {tuple(images[0].shape)} and {tuple(image.shape)}"
            )
    pixels = torch.stack(images)
    check_range(name, pixels)
    return pixels


def _classes(name: str, dataset: object, labels: Tensor) -> tuple[str, ...]:
    """Return the names of the classes, also of the data set inside a Subset, or numbers."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    classes = getattr(dataset, "classes", None)
    return tuple(str(label) for label in classes) if classes else numbered_classes(name, labels)


def _described(value: object) -> str:
    """Describe a value for an error message."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}, shape {tuple(value.shape)}"
    return f"{type(value).__module__}.{type(value).__qualname__}"
