"""Turn an attack within a ball into one that returns distances: at a list of radii, or by a search over radii."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.errors import expect_setting

Ball = Callable[[Task, Tensor, int], Best]
"""(task, radius per sample, number of the start) -> a point within the radius per sample, of size inf if none."""

# First radius of a search, as a share of the distance to the farthest corner of the box.
FIRST = 1 / 32


@dataclass(frozen=True, kw_only=True)
class AtRadii:
    """Attack at each radius in turn, the smallest first; a sample fooled at one is not attacked at the next.

    The paper reports the robust accuracy at these radii for such attacks. Between them, the distances say little.
    """

    balls: tuple[tuple[float, Ball], ...]
    """Pairs of a radius and the attack at it."""
    restarts: int = 1
    """Starts per sample and radius."""

    def __post_init__(self) -> None:
        radii = [radius for radius, _ in self.balls]
        ascend = bool(radii) and radii == sorted(set(radii)) and radii[0] > 0
        expect_setting(self, "balls", "one or more radii above 0 that ascend", ascend)
        expect_setting(self, "restarts", "at least 1", self.restarts >= 1)

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task at each radius."""
        best = Best.none(task.inputs)
        for number, (radius, ball) in enumerate(self.balls):
            for restart in range(self.restarts):
                rows = best.size.isinf().nonzero().flatten()
                if len(rows):
                    at = best.size.new_full((len(rows),), radius)
                    best.improve(ball(task.select(rows), at, restart), at=rows)
            task.report_progress((number + 1) / len(self.balls))
        return best


@dataclass(frozen=True, kw_only=True)
class BySearch:
    """Find the smallest radius at which the attack succeeds, per sample: doubling, then bisection."""

    ball: Ball
    evaluations: int = 10
    """Number of radii tried per sample."""
    restarts: int = 1
    """Starts per sample and radius."""

    def __post_init__(self) -> None:
        for name in ("evaluations", "restarts"):
            expect_setting(self, name, "at least 1", getattr(self, name) >= 1)

    def __call__(self, task: Task) -> Best:
        """Search the smallest radius of each sample of a task."""
        norm, box = task.problem.norm, task.problem.box
        largest = norm.size(torch.maximum(task.inputs - box.low, box.high - task.inputs))
        low = torch.zeros_like(largest)
        best = Best.none(task.inputs)
        for number in range(self.evaluations):
            grown = torch.where(low > 0, 2 * low, FIRST * largest)
            radius = torch.where(best.size.isfinite(), (low + best.size) / 2, torch.minimum(grown, largest))
            if norm.smallest > 0:
                radius = radius.floor().clamp(min=norm.smallest)
            # Leave out samples with no radius left between failure and success, and those that withstood the whole box.
            rows = ((radius > low) & (radius < best.size) & (low < largest)).nonzero().flatten()
            if len(rows) == 0:
                break
            self._try(task, rows, radius, best)
            missed = rows[best.size[rows] > radius[rows] * (1 + 1e-5)]
            low[missed] = radius[missed]
            # A later attack may succeed within a radius at which an earlier one failed: that failure is then void.
            low = torch.where(low < best.size, low, best.size / 2)
            task.report_progress((number + 1) / self.evaluations)
        return best

    def _try(self, task: Task, rows: Tensor, radius: Tensor, best: Best) -> None:
        for restart in range(self.restarts):
            best.improve(self.ball(task.select(rows), radius[rows], restart), at=rows)
            rows = rows[best.size[rows] > radius[rows] * (1 + 1e-5)]
            if len(rows) == 0:
                return
