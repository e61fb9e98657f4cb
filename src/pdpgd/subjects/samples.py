"""Images and their labels, as everything above this package sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pdpgd.errors import FOREIGN_ERRORS, PdpgdError, SubjectError, named

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
        raise SubjectError(f"{name}: expected samples, got {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class ArraySamples:
    """Samples that lie in memory: uint8 (0 to 255) or float32 (0 to 1)."""

    name: str
    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or len(self.pixels) == 0:
            raise SubjectError(
                f"{self.name}: expected images of shape (samples, channels, height, width), "
                f"got {tuple(self.pixels.shape)}"
            )
        if self.pixels.dtype not in (torch.uint8, torch.float32):
            raise SubjectError(f"{self.name}: expected images as uint8 or float32, got {self.pixels.dtype}")
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
class Part:
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

    def first(self, count: int) -> Part:
        return Part(self.whole, self.begin, min(self.end, self.begin + count))


def numbered_classes(name: str, labels: Tensor) -> tuple[str, ...]:
    """The names of classes that are known by their labels only: 0 up to the greatest label there is."""
    greatest = int(labels.max()) if labels.numel() else 0
    if greatest >= MOST_CLASSES:
        raise SubjectError(f"{name}: expected labels 0 to {MOST_CLASSES - 1}, got {greatest}")
    return tuple(str(label) for label in range(max(greatest, 0) + 1))


def check_labels(name: str, labels: Tensor, classes: tuple[str, ...], *, images: int) -> None:
    """One label an image, int64, and each of them a place in `classes`."""
    if labels.shape != (images,):
        raise SubjectError(f"{name}: expected one label an image, got {tuple(labels.shape)} labels for {images} images")
    if labels.dtype != torch.int64:
        raise SubjectError(f"{name}: expected labels as int64, got {labels.dtype}")
    wrong = (labels < 0) | (labels >= len(classes))
    if bool(wrong.any()):
        raise SubjectError(
            f"{name}: expected labels 0 to {len(classes) - 1}, got {named(labels[wrong].tolist())} "
            f"for samples {named(wrong.nonzero().flatten().tolist())}"
        )


def check_range(name: str, pixels: Tensor) -> None:
    """Floats lie in [0, 1]; a NaN does not."""
    if pixels.dtype == torch.uint8 or bool(((pixels >= 0) & (pixels <= 1)).all()):
        return
    inside = ((pixels >= 0) & (pixels <= 1)).flatten(1).all(1)
    raise SubjectError(
        f"{name}: expected values in [0, 1] (a normalisation belongs into the model), got "
        f"{float(pixels.min()):.6g} to {float(pixels.max()):.6g}; outside it: samples "
        f"{named((~inside).nonzero().flatten().tolist())}"
    )
