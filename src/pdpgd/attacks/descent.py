"""A descent: from a start to a small adversarial perturbation, by exact answers on the linearised margin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.geometry import Propose
from pdpgd.attacks.loop import Rows
from pdpgd.attacks.problem import Problem
from pdpgd.attacks.search import Search
from pdpgd.attacks.starts import random_rows
from pdpgd.classifier import Answer
from pdpgd.criteria import Criterion, Surrogate, lead_over
from pdpgd.game.linearised import Linear, Trust
from pdpgd.tensors import flat

# The overshoot falls to nothing with this power of what is left of the descent.
FALL = 3
# Half the width of a random start, in units of the box: the paper's for MNIST.
START_RADIUS = 0.5


@dataclass(frozen=True)
class Style:
    """How boldly a descent goes."""

    trust: float
    """In the linear model, at the beginning; see `geometry` for its unit."""
    overshoot: float
    """By what share of the present size the linear boundary is crossed at the beginning; at the end by nothing."""
    adaptive: bool = True
    """Whether the trust follows the errors of the linear model."""
    memory: float = 0.5
    """What the slope remembers of the one before: gradients that mislead do so in turns."""


def margin_itself(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    return margin


def towards(others: Tensor) -> Surrogate:
    """The lead over one class a sample, in place of the margin over the nearest."""

    def lead(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
        return lead_over(logits, criterion.classes, others)

    return lead


def random_start(problem: Problem, rows: Rows, step: int = 0) -> Tensor:
    return START_RADIUS * problem.box.width * random_rows(problem, rows.samples, rows.restarts, step)


def descend(
    search: Search, rows: Rows, delta: Tensor, *, propose: Propose, style: Style, steps: int, pursue: Surrogate
) -> Tensor:
    """Go down from `delta`; return the last perturbation, which is not judged yet.

    Each step is one forward and one backward pass. Lengths are in units of the box's width.
    """
    problem, inputs = search.problem, rows.inputs
    box, unit = problem.box, problem.box.width
    low, high = (box.low - inputs) / unit, (box.high - inputs) / unit
    trust = Trust(inputs.new_full((len(inputs),), style.trust))
    slope = torch.zeros_like(inputs)
    promised = before = torch.zeros_like(trust.value)

    point = box.clip(inputs + delta)
    for step in range(steps):
        here = (point - inputs) / unit
        answer = search.answer(rows, point, pursue)
        if style.adaptive and step > 0:
            trust = trust.judged(promised, answer.loss - before)
        gradient = answer.gradient * unit
        slope = gradient if step == 0 else torch.lerp(gradient, slope, style.memory)
        linear = Linear.of(answer.loss, slope)
        left = 1.0 - step / max(steps - 1, 1)
        there = propose(here, linear, trust.value, style.overshoot * left**FALL, low, high)
        point = box.clip(inputs + there * unit)
        promised, before = (flat(slope) * flat(there - here)).sum(1), answer.loss
        point = _rescued(point, answer, problem, rows, step)
    return point - inputs


def _rescued(point: Tensor, answer: Answer, problem: Problem, rows: Rows, step: int) -> Tensor:
    """A fresh random point for rows that are still right and see no slope at all."""
    if float(answer.steepness.amin()) > 0:
        return point
    stuck = ((answer.steepness == 0) & (answer.margin >= 0)).nonzero().squeeze(1)
    if len(stuck) == 0:
        return point
    lost = rows.select(stuck)
    return point.index_copy(0, stuck, problem.box.clip(lost.inputs + random_start(problem, lost, step + 1)))
