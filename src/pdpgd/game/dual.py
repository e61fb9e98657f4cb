"""The dual player: how much the norm weighs against the constraint, sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dual:
    """Weights (lambda_1, lambda_2) on the 2-simplex, moved as log(lambda_2 / lambda_1).

    The primal player sees their moving averages, `norm_weight` and `constraint_weight`.
    """

    log_ratio: Tensor
    norm_weight: Tensor
    constraint_weight: Tensor
    average: float
    floor: float

    @classmethod
    def start(cls, penalty: Tensor, *, average: float, floor: float) -> Dual:
        """Begin at penalty = lambda_1 / lambda_2."""
        log_ratio = -penalty.clamp(floor, 1.0 / floor).log()
        return cls(log_ratio, torch.sigmoid(-log_ratio), torch.sigmoid(log_ratio), average, floor)

    @property
    def penalty(self) -> Tensor:
        """lambda_1 / lambda_2, of the averaged weights."""
        return self.norm_weight / self.constraint_weight

    def respond(self, sign: Tensor, *, rate: float) -> Dual:
        """Ascend on lambda_2 in the log domain by the sign of the margin: more weight while the model is right."""
        limit = -math.log(self.floor)
        log_ratio = (self.log_ratio + rate * sign).clamp(-limit, limit)
        return replace(
            self,
            log_ratio=log_ratio,
            norm_weight=torch.lerp(torch.sigmoid(-log_ratio), self.norm_weight, self.average),
            constraint_weight=torch.lerp(torch.sigmoid(log_ratio), self.constraint_weight, self.average),
        )

    def select(self, rows: Tensor) -> Dual:
        return replace(
            self,
            log_ratio=self.log_ratio[rows],
            norm_weight=self.norm_weight[rows],
            constraint_weight=self.constraint_weight[rows],
        )
