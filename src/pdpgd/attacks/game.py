"""The two players of the game, lambda_1 ||r|| + lambda_2 L(x + r).

The primal player moves the perturbation; the dual player weighs the norm against the constraint. Neither knows a model
or a norm: they receive gradients and operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def exponential_decay(rate: float, final: float, progress: float) -> float:
    """Decay from rate to rate * final by equal factors."""
    return rate * math.pow(final, progress)


def linear_decay(rate: float, final: float, progress: float) -> float:
    """Decay from rate to rate * final by equal differences."""
    return rate * (1.0 - (1.0 - final) * progress)


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
        """Start at penalty = lambda_1 / lambda_2."""
        log_ratio = -penalty.clamp(floor, 1.0 / floor).log()
        return cls(log_ratio, torch.sigmoid(-log_ratio), torch.sigmoid(log_ratio), average, floor)

    @property
    def penalty(self) -> Tensor:
        """The ratio lambda_1 / lambda_2 of the averaged weights."""
        return self.norm_weight / self.constraint_weight

    def respond(self, sign: Tensor, *, rate: float) -> Dual:
        """Ascend on lambda_2 in the log domain by the sign of the margin: it grows until the point is adversarial."""
        limit = -math.log(self.floor)
        log_ratio = (self.log_ratio + rate * sign).clamp(-limit, limit)
        return replace(
            self,
            log_ratio=log_ratio,
            norm_weight=torch.lerp(torch.sigmoid(-log_ratio), self.norm_weight, self.average),
            constraint_weight=torch.lerp(torch.sigmoid(log_ratio), self.constraint_weight, self.average),
        )

    def select(self, rows: Tensor) -> Dual:
        """Return the given rows."""
        return replace(
            self,
            log_ratio=self.log_ratio[rows],
            norm_weight=self.norm_weight[rows],
            constraint_weight=self.constraint_weight[rows],
        )


# The authors' settings, which are Adam's defaults; epsilon as in torch and as in Keras.
MEAN_DECAY = 0.9
SQUARE_DECAY = 0.999
EPSILON = 1e-8
KERAS_EPSILON = 1e-7


@dataclass
class Adam:
    """Running moments of the gradient, updated in place because they are as large as the batch."""

    mean: Tensor
    square: Tensor
    moves: int = 0
    keras: bool = False
    """Whether epsilon is that of Keras: larger, and added in the step before sqrt(v) is bias-corrected."""

    @classmethod
    def start(cls, like: Tensor, *, keras: bool = False) -> Adam:
        """Start with zero moments."""
        return cls(torch.zeros_like(like), torch.zeros_like(like), keras=keras)

    def direction(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step -m / h at rate 1 and its metric h = sqrt(v) + eps, both bias-corrected."""
        self.moves += 1
        self.mean.lerp_(gradient, 1.0 - MEAN_DECAY)
        self.square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1.0 - SQUARE_DECAY)
        correction = 1.0 - SQUARE_DECAY**self.moves
        root = (self.square / correction).sqrt_()
        metric = root + (KERAS_EPSILON if self.keras else EPSILON)
        divisor = root.add_(KERAS_EPSILON / math.sqrt(correction)) if self.keras else metric
        step = (self.mean / divisor).div_(-(1.0 - MEAN_DECAY**self.moves))
        return step, metric

    def select(self, rows: Tensor) -> Adam:
        """Return the given rows."""
        return Adam(self.mean[rows], self.square[rows], self.moves, self.keras)
