"""The smallest verified point of every sample in every norm, whichever attack it is from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pdpgd.evaluation.referee import Verdicts

Measure = Callable[[Tensor, str], Tensor]
"""(points, norm) -> the size of each."""


class Standing:
    """One norm's best points so far; size inf where there is none."""

    def __init__(self, points: Tensor) -> None:
        count = len(points)
        self.points = points.clone()
        self.size = torch.full((count,), torch.inf, dtype=torch.float64, device=points.device)
        self.margin = points.new_full((count,), torch.inf, dtype=torch.float64)
        self.prediction = torch.full((count,), -1, device=points.device)
        self.fragile = torch.zeros(count, dtype=torch.bool, device=points.device)
        self.confidence = points.new_full((count,), torch.nan, dtype=torch.float64)
        self.source = np.full(count, "", dtype=object)

    @property
    def found(self) -> Tensor:
        return self.size.isfinite()

    def enter(self, source: str, points: Tensor, size: Tensor, verdicts: Verdicts) -> None:
        """Take each verified point that is smaller than what there is."""
        better = verdicts.valid & (size < self.size)
        self.points[better], self.size[better] = points[better], size[better]
        self.margin[better], self.prediction[better] = verdicts.margin[better].double(), verdicts.prediction[better]
        self.fragile[better], self.confidence[better] = verdicts.fragile[better], verdicts.confidence[better].double()
        self.source[better.cpu().numpy()] = source


class Standings:
    """Every point is measured in every norm, whichever it was looked for in."""

    def __init__(self, norms: tuple[str, ...], points: Tensor, measure: Measure) -> None:
        self._measure = measure
        self._norms = {norm: Standing(points) for norm in norms}

    def __getitem__(self, norm: str) -> Standing:
        return self._norms[norm]

    def enter(self, source: str, points: Tensor, verdicts: Verdicts) -> None:
        for norm, standing in self._norms.items():
            standing.enter(source, points, self._measure(points, norm), verdicts)

    def beaten_by(self, points: Tensor) -> Tensor:
        """Which points would be smaller than what there is, in any norm."""
        smaller = [self._measure(points, norm) < standing.size for norm, standing in self._norms.items()]
        return torch.stack(smaller).any(0)
