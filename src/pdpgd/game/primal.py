"""The primal player: Adam (Kingma & Ba 2015), whose diagonal scale is also the metric of the proximal step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
