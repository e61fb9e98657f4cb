"""Images and their labels, as everything above this package sees them."""

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

# More classes than any data set of images has: a label above it is not a class.
MOST_CLASSES = 100_000


class Samples(Protocol):
    """Labelled images that can be asked for in any order; `batch` reads only what it is asked for."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Tensor:
        """The class of every sample, int64, shape (samples,)."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a label is a place in it."""
        ...

    def __len__(self) -> int: ...

    def first(self, count: int) -> Samples: ...

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The images of these rows as float32 in [0, 1], shape (rows, channels, height, width), and their labels."""
        ...


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what a user's own data set raises while it is read into an error that names it."""
    try:
        yield
    except PdpgdError:
        raise
    except FOREIGN_ERRORS as error:
        raise LoadError(f"{name}: expected samples, got {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class ArraySamples:
    """Samples that lie in memory: uint8 (0 to 255) or float32 (0 to 1)."""

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
        rows = torch.as_tensor(rows)
        pixels = self.pixels[rows]
        images = pixels.float().div_(255) if pixels.dtype == torch.uint8 else pixels
        return images, self.labels[rows]

    def first(self, count: int) -> ArraySamples:
        return ArraySamples(self.name, self.pixels[:count], self.labels[:count], self.classes)


@dataclass(frozen=True)
class SampleRange:
    """Some consecutive samples of others."""

    whole: Samples
    begin: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.whole.name}[{self.begin}:{self.end}]"

    @property
    def labels(self) -> Tensor:
        return self.whole.labels[self.begin : self.end]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.whole.classes

    def __len__(self) -> int:
        return self.end - self.begin

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self.whole.batch(torch.as_tensor(rows) + self.begin)

    def first(self, count: int) -> SampleRange:
        return SampleRange(self.whole, self.begin, min(self.end, self.begin + count))


def numbered_classes(name: str, labels: Tensor) -> tuple[str, ...]:
    """The names of classes that are known by their labels only: 0 up to the greatest label there is."""
    greatest = int(labels.max()) if labels.numel() else 0
    if greatest >= MOST_CLASSES:
        raise LoadError(f"{name}: expected labels 0 to {MOST_CLASSES - 1}, got {greatest}")
    return tuple(str(label) for label in range(max(greatest, 0) + 1))


def check_labels(name: str, labels: Tensor, classes: tuple[str, ...], *, images: int) -> None:
    """One label an image, int64, and each of them a place in `classes`."""
    if labels.shape != (images,):
        raise LoadError(f"{name}: expected one label an image, got {tuple(labels.shape)} labels for {images} images")
    if labels.dtype != torch.int64:
        raise LoadError(f"{name}: expected labels as int64, got {labels.dtype}")
    wrong = (labels < 0) | (labels >= len(classes))
    if bool(wrong.any()):
        raise LoadError(
            f"{name}: expected labels 0 to {len(classes) - 1}, got {named(labels[wrong].tolist())} "
            f"for samples {named(wrong.nonzero().flatten().tolist())}"
        )


def check_range(name: str, pixels: Tensor) -> None:
    """Floats lie in [0, 1]; a NaN does not."""
    if pixels.dtype == torch.uint8 or bool(((pixels >= 0) & (pixels <= 1)).all()):
        return
    inside = ((pixels >= 0) & (pixels <= 1)).flatten(1).all(1)
    raise LoadError(
        f"{name}: expected values in [0, 1] (a normalization belongs into the model), got "
        f"{float(pixels.min()):.6g} to {float(pixels.max()):.6g}; outside it: samples "
        f"{named((~inside).nonzero().flatten().tolist())}"
    )


Source = Dataset[Any] | DataLoader[Any]


@dataclass(frozen=True)
class DatasetSamples:
    """Samples of a torch data set that has a length; each is read when a batch asks for it."""

    name: str
    dataset: Any
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        check_labels(self.name, self.labels, self.classes, images=len(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(rows)
        labels = self.labels[rows]
        with reading(self.name):
            pairs = [_pair(self.name, row, self.dataset[row]) for row in rows.tolist()]
        for row, expected, (_, label) in zip(rows.tolist(), labels.tolist(), pairs, strict=True):
            if label != expected:
                raise LoadError(
                    f"{self.name}: expected label {expected} of sample {row} again, got {label}: "
                    "its labels change from one reading to the next, or its targets are not its labels"
                )
        return _stacked(self.name, [image for image, _ in pairs]), labels

    def first(self, count: int) -> DatasetSamples:
        return replace(self, labels=self.labels[:count])


def wrap(source: Source, *, count: int | None = None) -> ArraySamples | DatasetSamples:
    """Samples of a data set or a loader that gives pairs of image and label, at most the first `count` of them.

    Images are float tensors in [0, 1] or uint8 tensors, of shape (channels, height, width). A data set with a length
    stays where it is; its labels are its `targets`, or are read once, which reads it all. A loader, or an
    IterableDataset, is read into memory as far as `count`. The classes are its `classes`, or numbers.
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
    pairs = [_pair(name, place, item) for place, item in enumerate(items)]
    if not pairs:
        raise LoadError(f"{name}: expected at least one sample, got none")
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    pixels = _stacked(name, [image for image, _ in pairs])
    return ArraySamples(name, pixels, labels, _classes(name, dataset, labels))


def _unbatched(name: str, loader: DataLoader[Any]) -> Iterator[object]:
    if loader.batch_size is None and loader.batch_sampler is None:
        yield from loader
        return
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or len(batch[0]) != len(batch[1]):
            raise LoadError(f"{name}: expected batches of (images, labels), as many of each, got {_described(batch)}")
        yield from zip(*batch, strict=True)


def _labels(name: str, dataset: Any, count: int | None) -> Tensor:
    size = len(dataset) if count is None else min(count, len(dataset))
    if size == 0:
        raise LoadError(f"{name}: expected at least one sample, got none")
    targets = _targets(dataset)
    if targets is not None:
        return targets[:size].long()
    return torch.tensor([_pair(name, row, dataset[row])[1] for row in range(size)], dtype=torch.long)


def _targets(dataset: Any) -> Tensor | None:
    """The attribute `targets`, if it is what the samples are labelled with: integers, one a sample, not transformed."""
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
    value = label.item() if isinstance(label, Tensor) and label.ndim == 0 else label
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise LoadError(f"{name}: expected the label of sample {place} as an integer, got {_described(label)}")
    return int(value)


def _stacked(name: str, images: list[Tensor]) -> Tensor:
    for image in images:
        if image.shape != images[0].shape:
            raise LoadError(
                f"{name}: expected images of one shape, got {tuple(images[0].shape)} and {tuple(image.shape)}"
            )
    pixels = torch.stack(images)
    check_range(name, pixels)
    return pixels


def _classes(name: str, dataset: object, labels: Tensor) -> tuple[str, ...]:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    classes = getattr(dataset, "classes", None)
    return tuple(str(label) for label in classes) if classes else numbered_classes(name, labels)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}, shape {tuple(value.shape)}"
    return f"{type(value).__module__}.{type(value).__qualname__}"
