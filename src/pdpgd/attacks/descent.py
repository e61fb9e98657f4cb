"""The books of a search: what it may spend, what it has found, and how that came about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.base import History, Observation, Observe, Problem, random_rows
from pdpgd.attacks.best import Best
from pdpgd.attacks.linearized import Linear, Propose, Trust, geometry_of
from pdpgd.attacks.primal_dual import Rows
from pdpgd.classifier import Answer, Lead
from pdpgd.criteria import Criterion, Surrogate, lead_over
from pdpgd.norms import size_l2
from pdpgd.tensors import flat, per_sample


class Search:
    """Queries the model, pays for it, and keeps the smallest adversarial point of each sample."""

    def __init__(self, problem: Problem, *, wrong: Tensor, budget: int, observe: Observe | None) -> None:
        self.problem = problem
        self.best = Best.none(problem.inputs)
        self._wrong, self._observe = wrong, observe
        self._total = budget * int((~wrong).sum())
        everyone = torch.arange(len(wrong), device=wrong.device)
        self._records: list[tuple[Tensor, Tensor, Tensor]] = []
        self._record(everyone)

    @property
    def spent(self) -> Tensor:
        return self.problem.ledger.forwards + self.problem.ledger.backwards

    def delta(self, rows: Rows) -> Tensor:
        """The best perturbation of each row's sample; zero where nothing was found."""
        return self.best.point[rows.samples] - rows.inputs

    def answer(self, rows: Rows, point: Tensor, pursue: Surrogate) -> Answer:
        """One forward and one backward pass."""
        answer = self.problem.classifier.margin_and_gradient(point, rows.samples, rows.criterion, pursue)
        self.problem.ledger.add(rows.samples, forwards=1, backwards=1)
        self._keep(rows, point, answer.margin, answer.prediction)
        return answer

    def look(self, rows: Rows, point: Tensor) -> None:
        """One forward pass."""
        logits = self.problem.classifier.logits(point, rows.samples)
        self.problem.ledger.add(rows.samples, forwards=1)
        self._keep(rows, point, rows.criterion.margin(logits), logits.argmax(1))

    def leads(self, rows: Rows, count: int) -> list[Lead]:
        """One forward pass at the inputs, and a backward pass for each of the first `count` runners-up."""
        leads = self.problem.classifier.leads(rows.inputs, rows.samples, rows.criterion.classes, count)
        self.problem.ledger.add(rows.samples, forwards=1, backwards=len(leads))
        self._record(rows.samples)
        return leads

    def history(self) -> History:
        longest = int(torch.cat([samples for samples, _, _ in self._records]).bincount().amax())
        passes = self.spent.new_zeros(len(self._wrong), longest)
        distances = self.best.size.new_full((len(self._wrong), longest), torch.inf)
        filled = torch.zeros_like(self.spent)
        for samples, spent, size in self._records:
            passes[samples, filled[samples]] = spent
            distances[samples, filled[samples]] = size
            filled[samples] += 1
        distances[self._wrong] = 0.0
        return History(passes.cummax(1).values, distances.cummin(1).values)

    def _keep(self, rows: Rows, point: Tensor, margin: Tensor, prediction: Tensor) -> None:
        size = self.problem.norm.size(point - rows.inputs)
        # The input itself was right; if it is not in this batch, that is float noise and no perturbation.
        size = size.masked_fill((margin >= 0) | (size == 0), torch.inf)
        nothing = torch.full_like(size, torch.nan)
        self.best.improve(Best(size, point, prediction, nothing), at=rows.samples)
        best = self._record(rows.samples)
        if self._observe is not None:
            done = int(self.spent.sum())
            self._observe(Observation("search", done, self._total, rows.samples, margin, best, nothing))

    def _record(self, samples: Tensor) -> Tensor:
        ledger, best = self.problem.ledger, self.best.size[samples]
        self._records.append((samples, ledger.forwards[samples] + ledger.backwards[samples], best))
        return best


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


# How long the noise of a hop is, over the perturbation it is added to.
HOP = 3.0


@dataclass(frozen=True)
class Tactic:
    """A start and the style of the descent from it."""

    name: str
    start: Callable[[Search, Rows], Tensor]
    style: Style
    counting: Style
    """Of the second part, in a norm that counts; the first goes down in the norm it is relaxed to."""
    relaxed: float = 0.6
    """The share of that first part."""


def from_input(search: Search, rows: Rows) -> Tensor:
    return torch.zeros_like(rows.inputs)


def from_anywhere(search: Search, rows: Rows) -> Tensor:
    return random_start(search.problem, rows)


def from_best(search: Search, rows: Rows) -> Tensor:
    return search.delta(rows)


def around_input(search: Search, rows: Rows) -> Tensor:
    """Noise as long as the best perturbation."""
    return _noise(search, rows, 1.0)


def around_best(search: Search, rows: Rows) -> Tensor:
    return search.delta(rows) + _noise(search, rows, HOP)


def _noise(search: Search, rows: Rows, length: float) -> Tensor:
    """As long as the best perturbation, times `length`; where there is none yet, a random start."""
    noise = random_start(search.problem, rows)
    best = size_l2(search.delta(rows))
    factor = torch.where(best > 0, length * best / size_l2(noise), 1.0)
    return noise * per_sample(factor, noise)


_QUICK = Style(trust=3.0, overshoot=0.25)
_QUICK_COUNT = Style(trust=1.0, overshoot=0.25)
_STEADY = Style(trust=0.6, overshoot=0.5, adaptive=False, memory=0.7)
_STEADY_COUNT = Style(trust=0.1, overshoot=0.1)

CLASS = Tactic("class", from_input, _QUICK, _QUICK_COUNT)
FAR = Tactic("far", from_anywhere, _QUICK, _QUICK_COUNT)
STEADY = Tactic("steady", from_anywhere, _STEADY, _STEADY_COUNT)
NEAR = Tactic("near", around_input, _QUICK, _QUICK_COUNT)
HOPPING = Tactic("hop", around_best, _STEADY, _STEADY_COUNT)
POLISH = Tactic("polish", from_best, Style(trust=0.3, overshoot=0.05), _STEADY_COUNT, relaxed=0.0)


def carry_out(tactic: Tactic, search: Search, rows: Rows, *, steps: int, pursue: Surrogate) -> None:
    """Descend by a tactic: `steps` forward and backward passes, and a forward pass for the last point."""
    norm = search.problem.norm
    delta = tactic.start(search, rows)
    if norm.relaxed is not None:
        first = round(tactic.relaxed * steps)
        delta = descend(
            search, rows, delta, propose=geometry_of(norm.relaxed), style=tactic.style, steps=first, pursue=pursue
        )
        style, steps = tactic.counting, steps - first
    else:
        style = tactic.style
    delta = descend(search, rows, delta, propose=geometry_of(norm), style=style, steps=steps, pursue=pursue)
    search.look(rows, search.problem.box.clip(rows.inputs + delta))
