"""The smallest adversarial point found so far for each row of a batch, and the rule for what may compete with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Best:
    """The best point per row; a size of inf means that none was found, and prediction and penalty mean nothing then.

    The tensors are updated in place: few rows improve in one iteration, and copying all points would cost more than the
    rest of the bookkeeping.
    """

    size: Tensor
    point: Tensor
    prediction: Tensor
    penalty: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Best:
        """Return a record of nothing found yet: the inputs themselves, at size inf."""
        rows = len(like)
        return cls(
            size=like.new_full((rows,), math.inf),
            point=like.clone(),
            prediction=torch.zeros(rows, dtype=torch.long, device=like.device),
            penalty=like.new_full((rows,), math.nan),
        )

    @classmethod
    def candidates(
        cls, point: Tensor, size: Tensor, margin: Tensor, prediction: Tensor, penalty: Tensor | None = None
    ) -> Best:
        """Return the points as candidates: a point that does not count has size inf.

        A point counts if it is adversarial and not the input itself. The input was classified correctly; if it is
        misclassified in another batch, that is float noise and not a perturbation.
        """
        size = size.masked_fill((margin >= 0) | (size == 0), torch.inf)
        return cls(size, point, prediction, torch.full_like(size, torch.nan) if penalty is None else penalty)

    def improve(self, other: Best, at: Tensor) -> None:
        """Take over, in place, the rows of `other` that are smaller; ties keep the earlier point.

        Row i of `other` competes with row `at[i]`; the entries of `at` must be distinct.
        """
        # Indices instead of a mask: every use of a mask would convert it to indices again.
        better = (other.size < self.size[at]).nonzero().squeeze(1)
        rows, winner = at[better], other.select(better)
        self.size.index_copy_(0, rows, winner.size)
        self.point.index_copy_(0, rows, winner.point)
        self.prediction.index_copy_(0, rows, winner.prediction)
        self.penalty.index_copy_(0, rows, winner.penalty)

    def select(self, rows: Tensor) -> Best:
        """Return the given rows."""
        return Best(self.size[rows], self.point[rows], self.prediction[rows], self.penalty[rows])
