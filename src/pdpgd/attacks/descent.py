"""A single descent of `auto`: from a start down to the boundary, by steps on the linearized margin.

`Search` queries the model, counts the passes, and records the best point per sample and how it was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pdpgd.attacks.base import History, Observation, Observe, random_rows
from pdpgd.attacks.best import Best
from pdpgd.attacks.config import AutoConfig, Start, Style, Tactic
from pdpgd.attacks.frame import Attempt, Rows, differentiate, look
from pdpgd.attacks.linearized import Linear, Propose, Trust, geometry_of
from pdpgd.classifier import Answer, Lead
from pdpgd.criteria import Criterion, Surrogate, lead_over
from pdpgd.norms import size_l2
from pdpgd.tensors import flat, per_sample


class Search:
    """Queries the model, counts every pass, and keeps the smallest adversarial point of each sample."""

    def __init__(self, attempt: Attempt, *, budget: int, observe: Observe | None, config: AutoConfig) -> None:
        self.problem, self.best, self.config = attempt.problem, attempt.best, config
        self._wrong, self._observe = attempt.wrong, observe
        self._total = budget * int((~attempt.wrong).sum())
        self._records: list[tuple[Tensor, Tensor, Tensor]] = []
        self._record(torch.arange(len(attempt.wrong), device=attempt.wrong.device))

    @property
    def spent(self) -> Tensor:
        """Forward plus backward passes spent per sample."""
        return self.problem.ledger.forwards + self.problem.ledger.backwards

    def delta(self, rows: Rows) -> Tensor:
        """Return the best perturbation of each row's sample; zero where none was found."""
        return self.best.point[rows.samples] - rows.inputs

    def answer(self, rows: Rows, point: Tensor, pursue: Surrogate) -> Answer:
        """Differentiate at the points: one forward and one backward pass."""
        answer = differentiate(self.problem, rows, point, pursue)
        self._keep(rows, point, answer.margin, answer.prediction)
        return answer

    def look(self, rows: Rows, point: Tensor) -> None:
        """Judge the points: one forward pass."""
        self._keep(rows, point, *look(self.problem, rows, point))

    def leads(self, rows: Rows, count: int) -> list[Lead]:
        """Differentiate the leads at the inputs: one forward pass, and one backward pass per runner-up."""
        leads = self.problem.classifier.leads(rows.inputs, rows.samples, rows.criterion.classes, count)
        self.problem.ledger.add(rows.samples, forwards=1, backwards=len(leads))
        self._record(rows.samples)
        return leads

    def history(self) -> History:
        """Return the best size against the passes spent."""
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
        candidates = Best.candidates(point, self.problem.norm.size(point - rows.inputs), margin, prediction)
        self.best.improve(candidates, at=rows.samples)
        best = self._record(rows.samples)
        if self._observe is not None:
            done = int(self.spent.sum())
            self._observe(Observation("search", done, self._total, rows.samples, margin, best, candidates.penalty))

    def _record(self, samples: Tensor) -> Tensor:
        ledger, best = self.problem.ledger, self.best.size[samples]
        self._records.append((samples, ledger.forwards[samples] + ledger.backwards[samples], best))
        return best


def margin_itself(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """Descend on the margin over the class with the highest logit."""
    return margin


def towards(others: Tensor) -> Surrogate:
    """Descend on the lead over a given class per sample instead of the margin."""

    def lead(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
        return lead_over(logits, criterion.classes, others)

    return lead


def descend(
    search: Search, rows: Rows, delta: Tensor, *, propose: Propose, style: Style, steps: int, pursue: Surrogate
) -> Tensor:
    """Descend from `delta` and return the last perturbation, which is not judged yet.

    Each step is one forward and one backward pass. Lengths are in units of the box's width.
    """
    inputs, box, config = rows.inputs, search.problem.box, search.config
    unit = box.width
    low, high = (box.low - inputs) / unit, (box.high - inputs) / unit
    trust = Trust(inputs.new_full((len(inputs),), style.trust))
    slope = torch.zeros_like(inputs)
    promised = before = torch.zeros_like(trust.value)

    point = box.clip(inputs + delta)
    for step in range(steps):
        here = (point - inputs) / unit
        answer = search.answer(rows, point, pursue)
        if style.adaptive and step > 0:
            trust = trust.judged(promised, answer.loss - before, config.trust)
        gradient = answer.gradient * unit
        slope = gradient if step == 0 else torch.lerp(gradient, slope, style.memory)
        linear = Linear.of(answer.loss, slope)
        left = 1.0 - step / max(steps - 1, 1)
        there = propose(here, linear, trust.value, style.overshoot * left**config.overshoot_power, low, high)
        point = box.clip(inputs + there * unit)
        promised, before = (flat(slope) * flat(there - here)).sum(1), answer.loss
        point = _rescued(point, answer, search, rows, step)
    return point - inputs


def _rescued(point: Tensor, answer: Answer, search: Search, rows: Rows, step: int) -> Tensor:
    """Move rows whose gradient vanishes and that are not adversarial yet to a fresh random point."""
    if float(answer.steepness.amin()) > 0:
        return point
    stuck = ((answer.steepness == 0) & (answer.margin >= 0)).nonzero().squeeze(1)
    if len(stuck) == 0:
        return point
    lost = rows.select(stuck)
    return point.index_copy(0, stuck, search.problem.box.clip(lost.inputs + random_start(search, lost, step + 1)))


def random_start(search: Search, rows: Rows, step: int = 0) -> Tensor:
    """Return a perturbation that is uniform within the start radius."""
    problem = search.problem
    return search.config.start_radius * problem.box.width * random_rows(problem, rows.samples, rows.restarts, step)


def _noise(search: Search, rows: Rows, scale: float) -> Tensor:
    """Return noise as long as the best perturbation, times `scale`; where there is none yet, a random start."""
    noise = random_start(search, rows)
    best = size_l2(search.delta(rows))
    factor = torch.where(best > 0, scale * best / size_l2(noise), 1.0)
    return noise * per_sample(factor, noise)


_STARTS: Mapping[Start, Callable[[Search, Rows], Tensor]] = {
    "input": lambda search, rows: torch.zeros_like(rows.inputs),
    "random": random_start,
    "around input": lambda search, rows: _noise(search, rows, search.config.near_scale),
    "best": lambda search, rows: search.delta(rows),
    "around best": lambda search, rows: search.delta(rows) + _noise(search, rows, search.config.hop_scale),
}


def descend_by(tactic: Tactic, search: Search, rows: Rows, *, steps: int, pursue: Surrogate) -> None:
    """Descend by a tactic: `steps` forward and backward passes, and a forward pass for the last point."""
    norm, config = search.problem.norm, search.config
    delta, style = _STARTS[tactic.start](search, rows), tactic.style
    if norm.relaxed is not None:
        propose, first = geometry_of(norm.relaxed, config), round(tactic.relaxed * steps)
        delta = descend(search, rows, delta, propose=propose, style=style, steps=first, pursue=pursue)
        style, steps = tactic.counting, steps - first
    delta = descend(search, rows, delta, propose=geometry_of(norm, config), style=style, steps=steps, pursue=pursue)
    search.look(rows, search.problem.box.clip(rows.inputs + delta))
