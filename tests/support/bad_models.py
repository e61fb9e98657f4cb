"""Models that are bad on purpose: some whose robustness cannot be measured, and one that spoils a run at one sample."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Literal

import torch
from torch import Generator, Tensor, nn


class Dropping(nn.Module):
    """Dropout in train mode."""

    def __init__(self, model: nn.Module, generator: Generator) -> None:
        super().__init__()
        self.model, self.generator = model, generator

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.rand(x.shape, generator=self.generator) < 0.5
        logits: Tensor = self.model(2 * x * mask if self.training else x)
        return logits


class Probabilities(nn.Module):
    """A softmax where logits are expected."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        probabilities: Tensor = self.model(x).softmax(1)
        return probabilities


class Quantised(nn.Module):
    """Rounds its inputs to a few gray levels, so that the gradient is zero everywhere."""

    def __init__(self, model: nn.Module, levels: int) -> None:
        super().__init__()
        self.model, self.levels = model, levels
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * self.levels).round() / self.levels)
        return logits


class Noisy(nn.Module):
    """Adds noise to its logits."""

    def __init__(self, model: nn.Module, generator: Generator, deviation: float) -> None:
        super().__init__()
        self.model, self.generator, self.deviation = model, generator, deviation
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + self.deviation * torch.randn(logits.shape, generator=self.generator)


class Gregarious(nn.Module):
    """Logits that depend on the other samples of the batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits - 0.1 * logits.mean(0)


class NoSlope(nn.Module):
    """The logits of the model plus a term whose gradient is NaN, that of sqrt(|d|) at d = 0."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + (x - x.detach()).abs().sqrt().flatten(1).sum(1, keepdim=True) * torch.arange(logits.shape[1])


class Parity(nn.Module):
    """The class is the parity of the sum of all quarter gray levels."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        odd = (x * 1020).round().flatten(1).sum(1) % 2
        return torch.stack([1 - odd, odd], dim=1)


class Spoiling(nn.Module):
    """Calls a model, and fails as `how` says when it gets one particular clean sample.

    - raise, hang, die: as long as there is a file at `marker`;
    - die once: if there is no such file, which is created first, and not in the process that created the model.
    """

    def __init__(
        self, model: nn.Module, sample: Tensor, marker: Path, how: Literal["raise", "hang", "die", "die once"]
    ) -> None:
        super().__init__()
        self.model, self.sample, self.marker, self.how = model, sample, marker, how
        self.maker = os.getpid()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == self.sample).flatten(1).all(1).any()):
            self.spoil()
        logits: Tensor = self.model(x)
        return logits

    def spoil(self) -> None:
        if self.how == "die once":
            if os.getpid() != self.maker and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return
        while self.marker.exists():
            if self.how == "raise":
                raise RuntimeError("not this one")
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
