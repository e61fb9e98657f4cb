"""The smallest adversarial point found so far for each row of a batch, and the rule for what may compete with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Best:
    """The best point per row; a size of inf means that none was found, and prediction and penalty mean nothing then.

    The tensors are updated in place.
    """

    size: Tensor
    point: Tensor
    prediction: Tensor
    penalty: Tensor
    roomy: Best | None = field(default=None, repr=False, compare=False)
    """The same memory with one more row, into which go the rows of others that are not smaller."""

    @classmethod
    def none(cls, like: Tensor) -> Best:
        """Return a record of nothing found yet: the inputs themselves, at size inf."""
        rows, device = len(like), like.device
        roomy = cls(
            size=like.new_full((rows + 1,), math.inf),
            point=torch.empty((rows + 1, *like.shape[1:]), dtype=like.dtype, device=device),
            prediction=torch.zeros(rows + 1, dtype=torch.long, device=device),
            penalty=like.new_full((rows + 1,), math.nan),
        )
        roomy.point[:rows] = like
        return cls(roomy.size[:rows], roomy.point[:rows], roomy.prediction[:rows], roomy.penalty[:rows], roomy)

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
        better = other.size < self.size[at]
        if self.roomy is None:
            # Indices instead of a mask: every use of a mask would convert it to indices again.
            better = better.nonzero().squeeze(1)
            self._write(at[better], other.select(better))
        else:
            # Which rows are better only the device knows: all are written, the others where nobody reads.
            self.roomy._write(torch.where(better, at, len(self.size)), other)

    def _write(self, rows: Tensor, other: Best) -> None:
        self.size.index_copy_(0, rows, other.size)
        self.point.index_copy_(0, rows, other.point)
        self.prediction.index_copy_(0, rows, other.prediction)
        self.penalty.index_copy_(0, rows, other.penalty)

    def select(self, rows: Tensor) -> Best:
        """Return the given rows."""
        return Best(self.size[rows], self.point[rows], self.prediction[rows], self.penalty[rows])
