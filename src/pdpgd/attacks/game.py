"""The two players of the game, lambda_1 ||r|| + lambda_2 L(x + r).

The primal player moves the perturbation, the dual player weighs the norm against the constraint. Neither knows a model
or a norm: they are given gradients and operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def exponential_decay(rate: float, final: float, progress: float) -> float:
    """From rate to rate * final, by equal factors."""
    return rate * math.pow(final, progress)


def linear_decay(rate: float, final: float, progress: float) -> float:
    """From rate to rate * final, by equal differences."""
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


# The authors' settings, and Adam's own.
MEAN_DECAY = 0.9
SQUARE_DECAY = 0.999
EPSILON = 1e-8
KERAS_EPSILON = 1e-7


@dataclass
class Adam:
    """Running moments of the gradient. Updated in place: they are as large as the batch, and nobody else holds them."""

    mean: Tensor
    square: Tensor
    moves: int = 0
    keras: bool = False
    """Whether epsilon is Keras': larger, and in the step added before sqrt(v) is corrected for its zero start."""

    @classmethod
    def start(cls, like: Tensor, *, keras: bool = False) -> Adam:
        return cls(torch.zeros_like(like), torch.zeros_like(like), keras=keras)

    def direction(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The unit-rate step -m / h and its metric h = sqrt(v) + eps, both corrected for the zero start."""
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
        return Adam(self.mean[rows], self.square[rows], self.moves, self.keras)
