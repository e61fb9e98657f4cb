"""One run of the two-player game on a batch of rows, each a start of a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pdpgd.attacks.config import GameConfig
from pdpgd.attacks.problem import Problem
from pdpgd.attacks.starts import random_rows
from pdpgd.classifier import Answer
from pdpgd.criteria import Criterion, surrogate_by_name
from pdpgd.game.dual import Dual
from pdpgd.game.incumbent import Incumbent
from pdpgd.game.primal import Adam
from pdpgd.game.schedules import exponential_decay, linear_decay

Inside = Callable[[Tensor], Tensor]


class Move(Protocol):
    """The primal player: from a perturbation and the surrogate's gradient to the next one.

    `inside` moves a perturbation into the box; what the move returns will be moved there in any case.
    """

    def __call__(
        self, delta: Tensor, gradient: Tensor, *, adam: Adam, dual: Dual, rate: float, inside: Inside
    ) -> Tensor: ...


@dataclass(frozen=True)
class Rows:
    """The starts that are played together: sample `samples[i]` of the problem, its restart `restarts[i]`."""

    samples: Tensor
    restarts: Tensor
    inputs: Tensor
    criterion: Criterion

    @classmethod
    def of(cls, problem: Problem, samples: Tensor, restarts: Tensor) -> Rows:
        return cls(samples, restarts, problem.inputs[samples], problem.criterion.select(samples))

    def select(self, keep: Tensor) -> Rows:
        return Rows(self.samples[keep], self.restarts[keep], self.inputs[keep], self.criterion.select(keep))


Watch = Callable[[int, Rows, Tensor, Tensor, Tensor], None]
"""Called after each iteration with its number, the rows in play, and their margin, best size and penalty."""


@contextmanager
def game_mode() -> Iterator[None]:
    """The game does its own differentiation, whatever gradient mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def play(
    problem: Problem,
    rows: Rows,
    delta: Tensor,
    penalty: Tensor,
    *,
    move: Move,
    config: GameConfig,
    watch: Watch,
) -> Incumbent:
    """Play config.steps iterations from `delta` and return the best point of each row."""
    surrogate = surrogate_by_name(config.surrogate)
    norm, box, classifier = problem.norm, problem.box, problem.classifier
    point = box.clip(rows.inputs + delta)
    delta = point - rows.inputs
    adam = Adam.start(delta, keras=config.keras_adam)
    dual = Dual.start(penalty, average=config.dual_average, floor=config.weight_floor)
    best = Incumbent.none(rows.inputs)
    place = torch.arange(len(point), device=point.device)  # of the rows still in play, among all

    for step in range(config.steps):
        progress = step / config.steps
        answer = classifier.margin_and_gradient(point, rows.samples, rows.criterion, surrogate)
        problem.ledger.add(rows.samples, forwards=1, backwards=1)
        best.improve(_candidate(point, norm.size(delta), answer.margin, answer.prediction, dual), at=place)

        # Simultaneous moves: both players answer the same point.
        gradient = _rescued(answer, problem, rows, step)
        rate = exponential_decay(config.primal_rate, config.primal_decay, progress)
        inside = partial(_inside, problem, rows)
        proposal = move(delta, gradient, adam=adam, dual=dual, rate=rate, inside=inside)
        point = box.clip(rows.inputs + proposal)
        delta = point - rows.inputs
        dual = dual.respond(answer.margin.sign(), rate=linear_decay(config.dual_rate, config.dual_decay, progress))
        watch(step, rows, answer.margin, best.size[place], dual.penalty)

        done = best.size[place] <= norm.smallest
        if norm.smallest > 0 and bool(done.any()):
            # No perturbation is smaller: these rows leave the batch.
            rows, adam, dual = rows.select(~done), adam.select(~done), dual.select(~done)
            point, delta, place = point[~done], delta[~done], place[~done]
            if len(place) == 0:
                return best

    # A point is judged before it is left, so the last one is still unjudged.
    logits = classifier.logits(point, rows.samples)
    problem.ledger.add(rows.samples, forwards=1)
    best.improve(_candidate(point, norm.size(delta), rows.criterion.margin(logits), logits.argmax(1), dual), at=place)
    return best


def _inside(problem: Problem, rows: Rows, delta: Tensor) -> Tensor:
    return problem.box.clip(rows.inputs + delta) - rows.inputs


def _candidate(point: Tensor, size: Tensor, margin: Tensor, prediction: Tensor, dual: Dual) -> Incumbent:
    """This point as a rival of the incumbent: of infinite size unless it is adversarial."""
    return Incumbent(size.masked_fill(margin >= 0, torch.inf), point, prediction, dual.penalty)


def _rescued(answer: Answer, problem: Problem, rows: Rows, step: int) -> Tensor:
    """The gradient, with a random direction for rows that are still right and see no slope at all."""
    if float(answer.steepness.amin()) > 0:
        return answer.gradient
    stuck = (answer.steepness == 0) & (answer.margin >= 0)
    if not bool(stuck.any()):
        return answer.gradient
    gradient = answer.gradient.clone()
    lost = rows.select(stuck)
    gradient[stuck] = random_rows(problem, lost.samples, lost.restarts, step + 1)
    return gradient
