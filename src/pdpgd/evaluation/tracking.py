"""Tracking an attack: the smallest verified points per norm, and how its distances fell with the passes it spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.attacks.base import History, Observation
from pdpgd.errors import AttackError
from pdpgd.evaluation.referee import Verdicts
from pdpgd.runs.records import MARKS

Measure = Callable[[Tensor, str], Tensor]
"""(points, norm) -> size of the perturbation of each point."""

LAST = 0.2
"""The late gain is that of this last share of the iterations of a sample."""


class SmallestPoints:
    """The smallest verified points in one norm, one per sample; their size is inf where there is none."""

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
        """Which samples have a point."""
        return self.size.isfinite()

    def update(self, source: str, points: Tensor, size: Tensor, verdicts: Verdicts) -> None:
        """Replace each point by a verified one that is smaller."""
        better = verdicts.valid & (size < self.size)
        self.points[better], self.size[better] = points[better], size[better]
        self.margin[better], self.prediction[better] = verdicts.margin[better].double(), verdicts.prediction[better]
        self.fragile[better], self.confidence[better] = verdicts.fragile[better], verdicts.confidence[better].double()
        self.source[better.cpu().numpy()] = source


class SmallestPointsPerNorm:
    """The smallest verified points in every norm. Every point is measured in all norms, whichever was attacked."""

    def __init__(self, norms: tuple[str, ...], points: Tensor, measure: Measure) -> None:
        self._measure = measure
        self._norms = {norm: SmallestPoints(points) for norm in norms}

    def __getitem__(self, norm: str) -> SmallestPoints:
        return self._norms[norm]

    def update(self, source: str, points: Tensor, verdicts: Verdicts) -> None:
        """Replace each point, in each norm, by a verified one that is smaller."""
        for norm, smallest in self._norms.items():
            smallest.update(source, points, self._measure(points, norm), verdicts)

    def improved_by(self, points: Tensor) -> Tensor:
        """Return which of these points are smaller than the present ones in any norm."""
        smaller = [self._measure(points, norm) < smallest.size for norm, smallest in self._norms.items()]
        return torch.stack(smaller).any(0)


class DistanceLog:
    """Records the best distance of each sample in each iteration of an attack."""

    def __init__(self) -> None:
        self._samples: list[Tensor] = []
        self._sizes: list[Tensor] = []

    def record(self, seen: Observation) -> None:
        """Record an iteration; raise AttackError if the attack reports something else."""
        for name in ("samples", "size"):
            if not isinstance(getattr(seen, name, None), Tensor):
                raise AttackError(f"observe: expected an observation with the tensor {name}, got {type(seen).__name__}")
        if seen.samples.ndim != 1 or seen.samples.is_floating_point() or seen.size.shape != seen.samples.shape:
            raise AttackError(
                "observe: expected the positions of some samples and as many sizes, got "
                f"{tuple(seen.samples.shape)} of {seen.samples.dtype} and {tuple(seen.size.shape)}"
            )
        # Copies, since an attack may update its best sizes in place.
        self._samples.append(seen.samples.clone())
        self._sizes.append(seen.size.clone())

    def late_gain(self, samples: int, *, smallest: float) -> NDArray[np.float64]:
        """Compute 1 - (best at the end) / (best before the last fifth of the iterations) for each sample.

        Args:
            samples: Number of samples of the call.
            smallest: Smallest possible size in the norm; a sample that reached it cannot improve, and has no gain.

        Returns:
            The gains; nan where nothing was recorded or found.
        """
        gains = np.full(samples, np.nan)
        for sample, sizes in enumerate(self.per_sample(samples)):
            if len(sizes) == 0 or np.isinf(sizes.min()):
                continue
            before = sizes[: max(1, int(np.ceil((1 - LAST) * len(sizes))))].min()
            gains[sample] = 0.0 if sizes.min() <= smallest else 1.0 - sizes.min() / before
        return gains

    def per_sample(self, samples: int) -> list[NDArray[Any]]:
        """Return the recorded sizes of each sample, in their order."""
        if not self._samples:
            return [np.empty(0)] * samples
        rows = np.concatenate([part.cpu().numpy() for part in self._samples])
        if len(rows) and not 0 <= rows.min() <= rows.max() < samples:
            raise AttackError(
                f"observe: expected samples 0 to {samples - 1}, positions in the call, got {rows.min()} to {rows.max()}"
            )
        sizes = np.concatenate([part.detach().double().cpu().numpy() for part in self._sizes])
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], np.arange(1, samples))
        return np.split(sizes[order], bounds)


def trace_rows(
    history: History | None, logged: Sequence[NDArray[Any]], passes: NDArray[Any], final: NDArray[Any]
) -> NDArray[Any]:
    """Compute the best distance so far of each sample at the marks of a trace.

    Args:
        history: Distances and the passes they took, as the attack recorded them. Without it, the passes of a sample are
            spread evenly over its iterations.
        logged: Sizes per iteration, for each sample.
        passes: Number of passes that each sample took.
        final: Verified distance of each sample, with all its passes.

    Returns:
        Distances of shape (samples, marks); nan where the attack reports neither.
    """
    last = int(np.searchsorted(MARKS, passes.max(initial=1)))
    marks = MARKS[: last + 1]
    rows = np.full((len(passes), len(marks)), np.nan, dtype=np.float32)
    for row, (iterations, spent, end) in enumerate(zip(logged, passes, final, strict=True)):
        if history is not None:
            at, sizes = (column[row].detach().double().cpu().numpy() for column in (history.passes, history.distances))
        elif len(iterations) and spent > 0:
            at = spent * np.arange(1, len(iterations) + 1) / len(iterations)
            sizes = np.minimum.accumulate(iterations)
        else:
            continue
        reached = np.searchsorted(at, marks, side="right") - 1
        best = np.where(reached >= 0, sizes[np.maximum(reached, 0)], np.inf)
        # The final point is judged after the last iteration that was recorded.
        rows[row] = np.where(marks >= spent, np.minimum(best, end), best)
    return rows


def empty_trace(samples: int) -> NDArray[Any]:
    """Return the trace of samples that were not attacked."""
    return np.full((samples, 1), np.nan, dtype=np.float32)


def scattered(rows: NDArray[Any], places: NDArray[Any], samples: int) -> NDArray[Any]:
    """Put the rows of some samples at their places among all samples; the others are nan."""
    every = np.full((samples, rows.shape[1]), np.nan, dtype=np.float32)
    every[places] = rows
    return every
