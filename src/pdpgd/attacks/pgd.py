"""PGD (Madry et al. 2018): climb the loss inside a ball of a given radius.

    delta <- clip( Pi_ball( delta + rate * steepest(grad L) ) )

It answers "is there an adversarial point within this radius?", and is what trained models are checked with. A row that
was fooled is left alone; the size of its first adversarial point is reported as its distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.balls import check_ball, project, spread, steepest
from pdpgd.attacks.contract import AttackResult, Bounds
from pdpgd.attacks.loop import Rows, game_mode
from pdpgd.attacks.problem import Problem, pose
from pdpgd.attacks.restarts import batches, judge_inputs, summed_up
from pdpgd.attacks.starts import random_rows
from pdpgd.classifier import Model
from pdpgd.criteria import surrogate_by_name
from pdpgd.errors import expect_setting
from pdpgd.game.incumbent import Incumbent
from pdpgd.norms import Norm


@dataclass(frozen=True, kw_only=True)
class PGDConfig:
    """The settings of PGD."""

    radius: float
    """How far a point may go, in the units of the inputs."""
    steps: int = 40
    """Steps of a start. Madry et al.: 40 on MNIST."""
    restarts: int = 1
    rate: float = 2.5
    """The length of a step times the number of steps, over the radius. Madry et al."""
    surrogate: str = "cross-entropy"
    """What is climbed down; its direction is that of the usual cross-entropy."""
    max_batch: int = 256

    def __post_init__(self) -> None:
        surrogate_by_name(self.surrogate)
        expect_setting(self, "radius", "above 0", self.radius > 0)
        expect_setting(self, "rate", "above 0", self.rate > 0)
        for name in ("steps", "restarts", "max_batch"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", isinstance(value, int) and value >= 1)


def pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm,
    config: PGDConfig,
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    seed: int = 0,
    indices: Tensor | None = None,
) -> AttackResult:
    """Look for an adversarial point within `config.radius` of each input, in the linf or l2 norm."""
    check_ball(norm)
    problem = pose(model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=seed, indices=indices)
    with game_mode():
        prediction, margin = judge_inputs(problem, config.max_batch)
        wrong = margin < 0
        best = Incumbent.none(problem.inputs)
        for restart in range(config.restarts):
            still_right = ~wrong & best.size.isinf()
            for samples in batches(still_right.nonzero().flatten(), config.max_batch):
                rows = Rows.of(problem, samples, torch.full_like(samples, restart))
                best.improve(_climb(problem, rows, config), at=samples)
        return summed_up(problem, best, prediction, wrong)


def _climb(problem: Problem, rows: Rows, config: PGDConfig) -> Incumbent:
    """Climb from a random point of the ball; a row that is fooled leaves at once."""
    norm, radius = problem.norm, config.radius
    surrogate = surrogate_by_name(config.surrogate)
    rate = config.rate * radius / config.steps
    best = Incumbent.none(rows.inputs)
    place = torch.arange(len(rows.samples), device=rows.inputs.device)
    start = spread(random_rows(problem, rows.samples, rows.restarts), norm.name, radius)
    point = problem.box.clip(rows.inputs + start)

    for _ in range(config.steps):
        answer = problem.classifier.margin_and_gradient(point, rows.samples, rows.criterion, surrogate)
        problem.ledger.add(rows.samples, forwards=1, backwards=1)
        _note(best, norm, rows, point, answer.margin, answer.prediction, place)
        right = answer.margin >= 0
        delta, gradient = (point - rows.inputs)[right], answer.gradient[right]
        rows, place = rows.select(right), place[right]
        if len(place) == 0:
            return best
        delta = project(delta - rate * steepest(gradient, norm.name), norm.name, radius)
        point = problem.box.clip(rows.inputs + delta)

    # A point is judged before it is left, so the last one is still unjudged.
    logits = problem.classifier.logits(point, rows.samples)
    problem.ledger.add(rows.samples, forwards=1)
    _note(best, norm, rows, point, rows.criterion.margin(logits), logits.argmax(1), place)
    return best


def _note(
    best: Incumbent, norm: Norm, rows: Rows, point: Tensor, margin: Tensor, prediction: Tensor, place: Tensor
) -> None:
    size = norm.size(point - rows.inputs).masked_fill(margin >= 0, torch.inf)
    best.improve(Incumbent(size, point, prediction, torch.full_like(size, torch.nan)), at=place)
