"""The smallest adversarial point so far, for each row of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Best:
    """Size inf means that nothing was found: the point is then the input, prediction and penalty mean nothing.

    Its tensors are written in place: few rows improve in an iteration, and a copy of all points would cost more than
    the rest of the bookkeeping.
    """

    size: Tensor
    point: Tensor
    prediction: Tensor
    penalty: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Best:
        rows = len(like)
        return cls(
            size=like.new_full((rows,), math.inf),
            point=like.clone(),
            prediction=torch.zeros(rows, dtype=torch.long, device=like.device),
            penalty=like.new_full((rows,), math.nan),
        )

    def improve(self, other: Best, at: Tensor) -> None:
        """Take over, in place, what of `other` is smaller; a tie keeps the elder.

        Row i of `other` is a rival of row `at[i]`; no two may be rivals of the same one.
        """
        # As places, not as a mask: a mask is turned into places again at each use.
        better = (other.size < self.size[at]).nonzero().squeeze(1)
        rows, winner = at[better], other.select(better)
        self.size.index_copy_(0, rows, winner.size)
        self.point.index_copy_(0, rows, winner.point)
        self.prediction.index_copy_(0, rows, winner.prediction)
        self.penalty.index_copy_(0, rows, winner.penalty)

    def select(self, rows: Tensor) -> Best:
        return Best(self.size[rows], self.point[rows], self.prediction[rows], self.penalty[rows])
