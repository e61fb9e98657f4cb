"""SparseFool (Modas, Moosavi-Dezfooli & Frossard 2019): cross a linearized boundary along few coordinates.

    x_B = DeepFool(x_i)                                     the nearest point of the boundary, in l2
    w   = grad (z_k(x_B) - z_y)  at x_B                     the normal of the boundary there
    x_{i+1} = argmin ||x - x_i||_1  subject to  <w, x - (x_i + lambda (x_B - x_i))> = 0,  low <= x <= high

until the class changes. The argmin is greedy: coordinates of x_i in the order of |w|, each as far as necessary or as
the box allows. With a larger lambda the hyperplane lies farther behind the boundary: higher success, less sparsity.
DeepFool itself (Moosavi-Dezfooli, Fawzi & Frossard 2016) ignores the box, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.criteria import Box, Criterion, Surrogate, lead_over
from pdpgd.errors import expect_setting
from pdpgd.tensors import flat, length, per_sample

# A step of DeepFool goes this far beyond the linearized boundary, relative to the width of the box: a point on the
# boundary would not move otherwise. As in DeepFool's own code; in SparseFool's it is the minimum length of a step, and
# the hyperplane is crossed by 0.001 as well, which changes results by less than 1 % (docs/rivals.md).
NUDGE = 1e-4


@dataclass(frozen=True, kw_only=True)
class SparseFool(Preparable):
    """SparseFool for l1 and l0: one algorithm, measured in either norm. Untargeted only, as in the paper."""

    steps: int = 20
    """Maximum number of linearized boundaries per lambda. The paper's setting."""
    overshoot: float = 0.02
    """Share by which the perturbation is extended to cross the boundary, in DeepFool and at the end. The paper's."""
    lambdas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    """Tried in turn, each from the input, on samples not fooled before. The paper: "incremented from 1 to 5"."""
    candidates: int = 10
    """Classes that DeepFool considers: the label and the first runners-up. Moosavi-Dezfooli et al.: 10."""
    deepfool_steps: int = 50
    """Maximum number of steps of DeepFool; most points need two or three. Moosavi-Dezfooli et al.: 50."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("candidates", 2), ("deepfool_steps", 1)):
            value = getattr(self, name)
            expect_setting(self, name, f"an integer of at least {least}", isinstance(value, int) and value >= least)
        expect_setting(self, "overshoot", "at least 0", self.overshoot >= 0)
        ascending = list(self.lambdas) == sorted(set(self.lambdas)) and min(self.lambdas, default=0) > 0
        expect_setting(self, "lambdas", "numbers above 0 that ascend", ascending)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Reduce the steps if the budget is small; the attack stops when it has found something."""
        return {"steps": min(20, max(1, budget.passes // (3 * (1 + budget.classes))))}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings."""
        return {"steps": 20, "overshoot": 0.02, "lambdas": [1.0, 2.0, 3.0, 4.0, 5.0]}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        best = Best.none(task.inputs)
        for number, factor in enumerate(self.lambdas):
            rows = best.size.isinf().nonzero().flatten()
            if len(rows):
                best.improve(self._with_lambda(task.select(rows), factor), at=rows)
            task.report_progress((number + 1) / len(self.lambdas))
        return best

    def _with_lambda(self, task: Task, factor: float) -> Best:
        """Cross linearized boundaries until the class changes; a fooled row leaves at once."""
        box = task.problem.box
        best = Best.none(task.inputs)
        rows = torch.arange(len(task), device=task.samples.device)
        point = task.inputs
        for _ in range(self.steps):
            part = task.select(rows)
            beyond, normal = self._boundary(part, point)
            reached = _cross(point, normal, factor * (beyond - point), box)
            best.improve(self._judged(part, reached), at=rows)
            # A row that does not move has no gradient or no room, and would not move in the next step either.
            moved = (flat(reached) != flat(point)).any(1)
            open_rows = (moved & best.size[rows].isinf()).nonzero().flatten()
            rows, point = rows[open_rows], reached[open_rows]
            if len(rows) == 0:
                break
        return best

    def _judged(self, task: Task, points: Tensor) -> Best:
        """Judge the points, and where they are not adversarial, points slightly farther from the input.

        The paper's code judges only the farther points.
        """
        found = task.judged(points, task.logits(points))
        rows = found.size.isinf().nonzero().flatten()
        if len(rows):
            start = task.inputs[rows]
            farther = task.problem.box.clip(start + (1 + self.overshoot) * (points[rows] - start))
            found.improve(task.judged(farther, task.logits(farther, rows), rows), at=rows)
        return found

    def _boundary(self, task: Task, start: Tensor) -> tuple[Tensor, Tensor]:
        """Run DeepFool from `start`; return a point on the boundary per row, and its normal, away from the label."""
        point, other = start.clone(), task.labels.clone()
        rows = torch.arange(len(task), device=task.samples.device)
        for _ in range(self.deepfool_steps):
            part = task.select(rows)
            step, aim = self._nearest(part, point[rows])
            point[rows] += step
            other[rows] = aim
            farther = start[rows] + (1 + self.overshoot) * (point[rows] - start[rows])
            answer = part.logits(farther).argmax(1)
            fooled = answer != part.labels
            other[rows[fooled]] = answer[fooled]
            rows = rows[~fooled]
            if len(rows) == 0:
                break
        return point, self._normal(task, point, other)

    def _nearest(self, task: Task, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step to the nearest of the linearized boundaries z_y = z_k, and that class k."""
        width = task.problem.box.width
        leads = task.problem.classifier.leads(points, task.samples, task.labels, self.candidates - 1)
        task.problem.ledger.add(task.samples, forwards=1, backwards=len(leads))
        steepness = torch.stack([length(flat(lead.slope), 1).squeeze(1) for lead in leads])
        # A boundary farther away than the whole box is of no use, and without a gradient there is none.
        longest = width * points[0].numel() ** 0.5
        distance = (torch.stack([lead.lead for lead in leads]).abs() / steepness).clamp(max=longest)
        distance, nearest = distance.masked_fill(steepness == 0, torch.inf).min(0)
        rows = torch.arange(len(points), device=points.device)
        aim = torch.stack([lead.other for lead in leads])[nearest, rows]
        slope = torch.stack([lead.slope for lead in leads])[nearest, rows]
        pace = ((distance + NUDGE * width) / steepness[nearest, rows]).masked_fill(distance.isinf(), 0.0)
        return -per_sample(pace, slope) * slope, aim

    def _normal(self, task: Task, points: Tensor, other: Tensor) -> Tensor:
        """Return grad (z_other - z_y), normalized to length 1; zero where the gradient vanishes."""
        answer = task.problem.classifier.margin_and_gradient(points, task.samples, task.criterion, _lead_of(other))
        task.problem.ledger.add(task.samples, forwards=1, backwards=1)
        steepness = length(flat(answer.gradient), 1).squeeze(1).clamp(min=torch.finfo(points.dtype).tiny)
        return answer.gradient / per_sample(steepness, answer.gradient)


def _lead_of(other: Tensor) -> Surrogate:
    """Return the surrogate z_other - z_y, to be differentiated."""

    def lead(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
        return lead_over(logits, other, criterion.classes)

    return lead


def _cross(point: Tensor, normal: Tensor, way: Tensor, box: Box) -> Tensor:
    """Return the point in the box that is nearest to `point` in l1 and on the hyperplane through `point + way`.

    Where the box does not reach the hyperplane, return the point of the box nearest to the hyperplane.
    """
    need = (flat(normal) * flat(way)).sum(1, keepdim=True).abs()
    edge = torch.where(normal > 0, box.high, box.low)
    room = flat(edge - point).abs()
    steepness, order = flat(normal).abs().sort(dim=1, descending=True, stable=True)
    sorted_room = room.gather(1, order)
    gain = steepness * sorted_room
    # What remains to be covered by a coordinate once all coordinates before it are at the edge of the box.
    missing = need - (gain.cumsum(1) - gain)
    share = torch.where(gain > 0, missing / gain, 0.0).clamp(0.0, 1.0)
    share = torch.zeros_like(share).scatter(1, order, share).reshape(point.shape)
    # Use the edge itself: x + (high - x) may miss it by the last bit.
    return box.clip(torch.where(share < 1, point + share * (edge - point), edge))
