"""Data sets and loaders of torch, as samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from pdpgd.errors import SubjectError
from pdpgd.subjects.samples import ArraySamples, Rows, check_labels, check_range, numbered_classes, reading

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
                raise SubjectError(
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
            raise SubjectError(
                f"{name}: expected a data set with a length (__len__) or an IterableDataset, got neither"
            )
        labels = _labels(name, source, count)
        return DatasetSamples(name, source, labels, _classes(name, dataset, labels))


def _in_memory(name: str, dataset: object, items: Iterable[object]) -> ArraySamples:
    pairs = [_pair(name, place, item) for place, item in enumerate(items)]
    if not pairs:
        raise SubjectError(f"{name}: expected at least one sample, got none")
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    pixels = _stacked(name, [image for image, _ in pairs])
    return ArraySamples(name, pixels, labels, _classes(name, dataset, labels))


def _unbatched(name: str, loader: DataLoader[Any]) -> Iterator[object]:
    if loader.batch_size is None and loader.batch_sampler is None:
        yield from loader
        return
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or len(batch[0]) != len(batch[1]):
            raise SubjectError(
                f"{name}: expected batches of (images, labels), as many of each, got {_described(batch)}"
            )
        yield from zip(*batch, strict=True)


def _labels(name: str, dataset: Any, count: int | None) -> Tensor:
    size = len(dataset) if count is None else min(count, len(dataset))
    if size == 0:
        raise SubjectError(f"{name}: expected at least one sample, got none")
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
        raise SubjectError(f"{name}: expected sample {place} as (image, label), got {_described(item)}")
    image, label = item
    if not isinstance(image, Tensor) or not (image.is_floating_point() or image.dtype == torch.uint8):
        raise SubjectError(
            f"{name}: expected the image of sample {place} as a tensor of floats in [0, 1] or of uint8, got "
            f"{_described(image)}; give the data set a transform, such as torchvision.transforms.ToTensor()"
        )
    if image.ndim != 3:
        raise SubjectError(
            f"{name}: expected the image of sample {place} of shape (channels, height, width), got {tuple(image.shape)}"
        )
    image = image.detach().cpu()
    image = image.float().div(255) if image.dtype == torch.uint8 else image.float()
    return image, _label(name, place, label)


def _label(name: str, place: int, label: object) -> int:
    value = label.item() if isinstance(label, Tensor) and label.ndim == 0 else label
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise SubjectError(f"{name}: expected the label of sample {place} as an integer, got {_described(label)}")
    return int(value)


def _stacked(name: str, images: list[Tensor]) -> Tensor:
    for image in images:
        if image.shape != images[0].shape:
            raise SubjectError(
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
