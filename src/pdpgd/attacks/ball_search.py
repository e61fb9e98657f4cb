"""The search of `auto` inside a ball: descend a loss with momentum, and halve the step where it stops to help.

    delta <- Pi( delta + (1 - m) (Pi(delta + step d) - delta) + m (delta - last delta) )

where d is the steepest direction, as long as the radius, and Pi the projection on ball and box (APGD, Croce & Hein
2020). Beside the descents toward the boundary it answers the question whether there is an adversarial example within a
radius: where gradients mislead, the way to it leads through points that look no nearer to the boundary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.attacks.auto_config import BallRule
from pdpgd.attacks.balls import Room, ball_of
from pdpgd.attacks.base import random_rows
from pdpgd.attacks.descent import Aim, Search
from pdpgd.attacks.frame import Rows
from pdpgd.classifier import Answer
from pdpgd.tensors import clip, per_row, per_sample

# Keeps points within the radius when they are rounded.
_INSIDE = 1 - 1e-6


def climb_in_ball(search: Search, rows: Rows, radius: Tensor, *, steps: int, aim: Aim, start: Tensor | None) -> None:
    """Descend a loss inside a ball around each input; the search keeps the best points.

    Args:
        search: Queries the model and keeps the best points.
        rows: The rows to search for; those that are fooled leave now and then.
        radius: Radius per row.
        steps: Number of steps, of one forward and one backward pass each; one more forward pass judges the last point.
        aim: The loss that is descended.
        start: Perturbation per row, which is projected on the ball; None draws a random one.
    """
    hair = search.hair_of(rows.samples)
    if search.is_fine(hair):
        # The points that compete are inside the box, and inside the ball all the same.
        radius = radius - search.problem.norm.size(search.inside(rows.inputs, hair) - rows.inputs)
    climb = _Climb(search, rows, radius, steps=steps, aim=aim, start=start)
    for step in range(steps):
        climb.advance(step, search.answer(climb.rows, climb.point, climb.aim, hair=hair))
        if step % search.config.check_every == 0:
            keep = search.unfinished(climb.rows.samples) & (search.best.size[climb.rows.samples] > climb.radius)
            chosen = keep.nonzero().squeeze(1)
            if len(chosen) == 0:
                return
            if len(chosen) < len(keep):
                climb.select(chosen)
    search.look(climb.rows, climb.point)


class _Climb:
    """Where the rows of a climb are, and how far they step."""

    _PER_ROW = ("radius", "delta", "last", "step", "loss", "least", "best_delta", "best_gradient", "gains", "halved")

    def __init__(
        self, search: Search, rows: Rows, radius: Tensor, *, steps: int, aim: Aim, start: Tensor | None
    ) -> None:
        self.rows, self.radius, self.aim = rows, radius, aim
        self._rule, self._box, self._ball = search.config.ball, search.problem.box, ball_of(search.problem.norm)
        if start is None:
            start = self._ball.begin(random_rows(search.problem, rows.samples, rows.restarts), self._room())
        self.delta = self.last = self._within(start)
        self.best_delta, self.best_gradient = self.delta, torch.zeros_like(self.delta)
        self.loss = self.least = torch.full_like(radius, torch.inf)
        self.step = torch.full_like(radius, self._rule.first_step)
        self.gains = torch.zeros_like(radius)
        """Steps since the last checkpoint that made the loss smaller."""
        self.halved = torch.ones_like(radius, dtype=torch.bool)
        """Whether the step was halved at the last checkpoint."""
        self._checkpoints = _checkpoints(steps, self._rule)
        self._before = self.least

    @property
    def point(self) -> Tensor:
        """The present points."""
        return self._box.clip(self.rows.inputs + self.delta)

    def select(self, keep: Tensor) -> None:
        """Go on with the given rows only."""
        self.rows, self.aim, self._before = self.rows.select(keep), self.aim.select(keep), self._before[keep]
        for name in self._PER_ROW:
            setattr(self, name, getattr(self, name)[keep])

    def advance(self, step: int, answer: Answer) -> None:
        """Note the loss at the present points, and move on."""
        rule = self._rule
        better = answer.loss < self.least
        self.gains += answer.loss < self.loss
        self.loss, self.least = answer.loss, torch.minimum(self.least, answer.loss)
        chosen = per_row(better, self.delta)
        self.best_delta = torch.where(chosen, self.delta, self.best_delta)
        self.best_gradient = torch.where(chosen, answer.gradient, self.best_gradient)
        delta, last, gradient = self.delta, self.last, answer.gradient
        since = self._checkpoints.get(step)
        if since is not None:
            stalled = (self.gains < rule.halved_below * since) | (~self.halved & (self.least >= self._before))
            self.step = torch.where(stalled, self.step / 2, self.step)
            back = per_row(stalled, delta)
            delta, gradient = torch.where(back, self.best_delta, delta), torch.where(back, self.best_gradient, gradient)
            last = torch.where(back, delta, last)
            self.gains, self.halved, self._before = torch.zeros_like(self.gains), stalled, self.least
        room = self._room()
        way = self._ball.ahead(delta, -gradient, room, rule.sparsity)
        target = self._within(delta + per_sample(self.step, delta) * way)
        momentum = rule.momentum if step > 0 else 0.0
        self.delta = self._within(torch.lerp(target, delta, momentum) + momentum * (delta - last))
        self.last = delta

    def _room(self) -> Room:
        low, high = self._box.low - self.rows.inputs, self._box.high - self.rows.inputs
        return Room(self.radius * _INSIDE, low, high, self._box.width)

    def _within(self, delta: Tensor) -> Tensor:
        room = self._room()
        return clip(self._ball.back(delta, room), room.low, room.high)


def _checkpoints(steps: int, rule: BallRule) -> dict[int, int]:
    """Return the steps at which the length of a step is reconsidered, and how many steps lie between."""
    interval, fall, least = (max(1, round(share * steps)) for share in rule.checkpoints)
    found, at = {}, interval
    while at < steps:
        found[at] = interval
        interval = max(interval - fall, least)
        at += interval
    return found
