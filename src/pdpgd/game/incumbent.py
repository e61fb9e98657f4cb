"""The smallest adversarial point so far, for each row of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.tensors import per_sample


@dataclass(frozen=True)
class Incumbent:
    """Size inf means that nothing was found; point, prediction and penalty then mean nothing."""

    size: Tensor
    point: Tensor
    prediction: Tensor
    penalty: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Incumbent:
        rows = len(like)
        return cls(
            size=like.new_full((rows,), math.inf),
            point=like.clone(),
            prediction=torch.zeros(rows, dtype=torch.long, device=like.device),
            penalty=like.new_full((rows,), math.nan),
        )

    def improved_by(self, other: Incumbent) -> Incumbent:
        """Row by row, the smaller of the two; a tie keeps the elder."""
        better = other.size < self.size
        return Incumbent(
            torch.where(better, other.size, self.size),
            torch.where(per_sample(better, self.point) != 0, other.point, self.point),
            torch.where(better, other.prediction, self.prediction),
            torch.where(better, other.penalty, self.penalty),
        )

    def select(self, rows: Tensor) -> Incumbent:
        return Incumbent(self.size[rows], self.point[rows], self.prediction[rows], self.penalty[rows])

    def write(self, rows: Tensor, other: Incumbent) -> None:
        """Put `other` in the place of these rows."""
        self.size[rows], self.point[rows] = other.size, other.point
        self.prediction[rows], self.penalty[rows] = other.prediction, other.penalty
