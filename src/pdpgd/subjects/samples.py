"""Images and their labels, as everything above this package sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pdpgd.errors import SubjectError, named

Rows = Sequence[int] | Tensor


class Samples(Protocol):
    """Labelled images that can be asked for in any order; `batch` reads only what it is asked for."""

    name: str
    labels: Tensor
    """The class of every sample, int64, shape (samples,)."""
    classes: tuple[str, ...]
    """The names of the classes; a label is a place in it."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The images of these rows as float32 in [0, 1], shape (rows, channels, height, width), and their labels."""
        ...


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
                f"{self.name}: expected images of shape (samples, channels, height, width), got {tuple(self.pixels.shape)}"
            )
        if self.pixels.dtype not in (torch.uint8, torch.float32):
            raise SubjectError(f"{self.name}: expected images as uint8 or float32, got {self.pixels.dtype}")
        if self.labels.shape != (len(self.pixels),):
            raise SubjectError(
                f"{self.name}: expected one label an image, got {tuple(self.labels.shape)} labels "
                f"for {len(self.pixels)} images"
            )
        wrong = (self.labels < 0) | (self.labels >= len(self.classes))
        if bool(wrong.any()):
            raise SubjectError(
                f"{self.name}: expected labels 0 to {len(self.classes) - 1}, got {named(self.labels[wrong].tolist())} "
                f"for samples {named(wrong.nonzero().flatten().tolist())}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(rows)
        pixels = self.pixels[rows]
        images = pixels.float().div_(255) if pixels.dtype == torch.uint8 else pixels
        return images, self.labels[rows]

    def first(self, count: int) -> ArraySamples:
        return ArraySamples(self.name, self.pixels[:count], self.labels[:count], self.classes)
