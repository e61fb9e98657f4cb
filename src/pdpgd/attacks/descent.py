"""A single descent of `auto`: from a start down to the boundary, by steps on the linearized margin.

`Search` queries the model, counts the passes, and records the best point per sample and how it was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.auto_config import AutoConfig, Start, Style, Tactic
from pdpgd.attacks.base import History, Observation, Observe, random_rows
from pdpgd.attacks.best import Best
from pdpgd.attacks.blind_entries import BlindSlopes, Overheard
from pdpgd.attacks.frame import Attempt, Rows, differentiate, judge, look
from pdpgd.attacks.linearized import Linear, Trust, geometry_of
from pdpgd.classifier import Answer, Lead
from pdpgd.criteria import Criterion, Surrogate, cross_entropy, lead_over
from pdpgd.norms import Norm, size_l2
from pdpgd.tensors import clip, flat, per_sample


class Search:
    """Queries the model, counts every pass, and keeps the smallest adversarial point of each sample."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        budget: int,
        observe: Observe | None,
        config: AutoConfig,
        radii: tuple[float, ...] = (),
    ) -> None:
        self.problem, self.best, self.config = attempt.problem, attempt.best, config
        self.budget = budget
        self.radii = radii
        """The radii that are asked about, ascending; empty if the distance itself is."""
        self.hair = torch.zeros_like(attempt.best.size)
        """How far inside the box gradients are looked up, per sample: 0 unless its edge hides them."""
        self.blind: BlindSlopes | None = None
        """Estimated slopes of entries without a gradient, for the samples at hand; None if they have none."""
        self.doubt = config.rounding * attempt.rounding
        """Margin up to which a point may be classified correctly in another batch, per sample."""
        self.clear = torch.zeros_like(attempt.wrong)
        """Whether a point farther beyond the boundary than that was found, per sample."""
        self.lately = torch.full_like(attempt.best.size, torch.inf)
        """Size of the smallest adversarial point of the present descent per sample."""
        self._wrong, self._observe = attempt.wrong, observe
        self._total = budget * int((~attempt.wrong).sum())
        self._records: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._record(torch.arange(len(attempt.wrong), device=attempt.wrong.device))

    @property
    def spent(self) -> Tensor:
        """Forward plus backward passes spent per sample."""
        return self.problem.ledger.forwards + self.problem.ledger.backwards

    def left(self, samples: Tensor) -> Tensor:
        """Return how many passes of the budget are left per sample."""
        ledger = self.problem.ledger
        return self.budget - ledger.forwards[samples] - ledger.backwards[samples]

    def delta(self, rows: Rows) -> Tensor:
        """Return the best perturbation of each row's sample; zero where none was found."""
        return self.best.point[rows.samples] - rows.inputs

    def answer(self, rows: Rows, point: Tensor, pursue: Surrogate, *, hair: float = 0.0) -> Answer:
        """Differentiate at the points: one forward and one backward pass.

        With a hair, the gradient is that inside the box. Unless it is a fine one, the point itself is judged by a
        forward pass of its own.
        """
        inside = hair > 0
        if inside and self.is_fine(hair):
            point, inside = self.inside(point, hair), False
        heard = None
        if self.blind is not None:
            pursue = heard = Overheard(pursue)
        if inside:
            margin, prediction, loss = judge(self.problem, rows, point, pursue)
            slope = differentiate(self.problem, rows, self.inside(point, hair), pursue)
            answer = Answer(margin, prediction, loss, slope.gradient, slope.steepness)
        else:
            answer = differentiate(self.problem, rows, point, pursue)
        if self.blind is not None and heard is not None:
            answer = self.blind.complete(rows, point, answer, heard)
        self._keep(rows, point, answer.margin, answer.prediction)
        return answer

    def inside(self, points: Tensor, hair: float) -> Tensor:
        """Move points a hair inside the box."""
        box = self.problem.box
        hairs = hair * (box.high - box.low)
        return clip(points, box.low + hairs, box.high - hairs)

    def hair_of(self, samples: Tensor) -> float:
        """Return the hair of samples that have the same."""
        return float(self.hair[samples[:1]].amax()) if len(samples) else 0.0

    def step_cost(self, hair: float) -> int:
        """Return the passes per step of samples whose gradients are looked up that far inside the box."""
        return 3 if hair > 0 and not self.is_fine(hair) else 2

    def is_fine(self, hair: float) -> bool:
        """Return whether points that far inside the box compete themselves."""
        # A hair is kept in the precision of the inputs.
        return hair < 1.001 * self.config.fine_hair and not self.problem.norm.counts

    def unfinished(self, samples: Tensor) -> Tensor:
        """Return which samples are worth further passes: a smaller perturbation may exist, and is asked for."""
        goal = max(self.problem.norm.smallest, self.radii[0] if self.radii else 0.0)
        return self.best.size[samples] > goal

    def open_radius(self, samples: Tensor) -> Tensor:
        """Return the largest radius within which a sample is not fooled yet; the smallest one if it is in all.

        If no radii are asked about, it is one below the best size.
        """
        if not self.radii:
            return self.config.ball.below * self.best.size[samples]
        radii = self.best.size.new_tensor(self.radii)
        return radii[((self.best.size[samples, None] > radii).sum(1) - 1).clamp(min=0)]

    def look(self, rows: Rows, point: Tensor) -> None:
        """Judge the points: one forward pass."""
        self._keep(rows, point, *look(self.problem, rows, point))

    def ask(self, rows: Rows, point: Tensor) -> Tensor:
        """Judge the points and return their logits: one forward pass."""
        logits = self.problem.classifier.logits(point, rows.samples, check_later=True)
        self.problem.ledger.add(rows.samples, forwards=1)
        self._keep(rows, point, rows.criterion.margin(logits), logits.argmax(1))
        return logits

    def take(self, rows: Rows, candidates: Best) -> None:
        """Let points compete that were judged, and counted, elsewhere."""
        self.best.improve(candidates, at=rows.samples)
        self._record(rows.samples)

    def leads(self, rows: Rows, count: int) -> list[Lead]:
        """Differentiate the leads a hair inside the box: one forward pass, and one backward pass per runner-up."""
        points = self.inside(rows.inputs, self.config.hair)
        leads = self.problem.classifier.leads(points, rows.samples, rows.criterion.classes, count)
        self.problem.ledger.add(rows.samples, forwards=1, backwards=len(leads))
        self._record(rows.samples)
        return leads

    def history(self) -> History:
        """Return the best size against the passes spent."""
        longest = int(torch.cat([samples for samples, *_ in self._records]).bincount().amax())
        passes = self.spent.new_zeros(len(self._wrong), longest)
        distances = self.best.size.new_full((len(self._wrong), longest), torch.inf)
        filled = torch.zeros_like(self.spent)
        for samples, spent, size, clear in self._records:
            passes[samples, filled[samples]] = spent
            distances[samples, filled[samples]] = size.masked_fill(self.clear[samples] & ~clear, torch.inf)
            filled[samples] += 1
        distances[self._wrong] = 0.0
        return History(passes.cummax(1).values, distances.cummin(1).values)

    def _keep(self, rows: Rows, point: Tensor, margin: Tensor, prediction: Tensor) -> None:
        candidates = Best.candidates(point, self.problem.norm.size(point - rows.inputs), margin, prediction)
        self._prefer_clear(rows.samples, candidates, margin)
        self.best.improve(candidates, at=rows.samples)
        self.lately[rows.samples] = torch.minimum(self.lately[rows.samples], candidates.size)
        best = self._record(rows.samples)
        if self._observe is not None:
            done = int(self.spent.sum())
            self._observe(Observation("search", done, self._total, rows.samples, margin, best, candidates.penalty))

    def _prefer_clear(self, samples: Tensor, candidates: Best, margin: Tensor) -> None:
        """Let a point that is beyond the rounding of the logits win over any that is not, whatever their sizes."""
        clear, known = margin < -self.doubt[samples], self.clear[samples]
        candidates.size.masked_fill_(known & ~clear, torch.inf)
        first = clear & ~known & candidates.size.isfinite()
        self.best.size[samples] = self.best.size[samples].masked_fill(first, torch.inf)
        self.clear[samples] = known | first

    def _record(self, samples: Tensor) -> Tensor:
        ledger, best = self.problem.ledger, self.best.size[samples]
        spent = ledger.forwards[samples] + ledger.backwards[samples]
        self._records.append((samples, spent, best, self.clear[samples]))
        return best


@dataclass(frozen=True)
class Aim:
    """What a descent makes smaller: the margin, the lead over a given class per row, or the cross-entropy."""

    others: Tensor | None = None
    """The class to head for; None for the one with the highest logit."""
    soft: bool = False
    """Whether all classes count, by the cross-entropy."""

    def select(self, keep: Tensor) -> Aim:
        """Return the given rows."""
        return self if self.others is None else Aim(self.others[keep])

    def __call__(self, margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
        """Return the loss per row, as a `Surrogate`."""
        if self.soft:
            return cross_entropy(margin, logits, criterion)
        return margin if self.others is None else lead_over(logits, criterion.classes, self.others)


class Stage:
    """Rows that descend in one norm, and where they are; lengths are in units of the box's width."""

    def __init__(
        self, search: Search, rows: Rows, delta: Tensor, *, norm: Norm, style: Style, steps: int, aim: Aim
    ) -> None:
        self.search, self.rows, self.norm, self.style, self.aim = search, rows, norm, style, aim
        self.hair = search.hair_of(rows.samples)
        """How far inside the box gradients are looked up, which is the same for all rows."""
        self.cost = search.step_cost(self.hair)
        """Passes per step."""
        self.planned = steps
        """Number of steps over which the overshoot falls to 0."""
        self.made = 0
        self.stuck = False
        """Whether the gradients of some rows vanished when they were looked at last."""
        relaxed = norm is not search.problem.norm
        self.rule = search.config.relaxed_trust if relaxed else search.config.trust
        self._propose = geometry_of(norm, search.config)
        self.point = search.problem.box.clip(rows.inputs + delta)
        self.slope = torch.zeros_like(rows.inputs)
        self.trust = Trust(rows.inputs.new_full((len(rows.inputs),), style.trust))
        self.beyond = 2.0 * search.doubt[rows.samples]
        """How far beyond the boundary the steps of a row aim, as a margin."""
        self.promised = self.before = torch.zeros_like(self.trust.value)
        self.smallest = torch.full_like(self.trust.value, torch.inf)
        """Size of the smallest adversarial point of the stage per row."""

    def select(self, keep: Tensor) -> None:
        """Go on with the given rows only."""
        self.rows, self.aim = self.rows.select(keep), self.aim.select(keep)
        self.trust = Trust(self.trust.value[keep])
        for name in ("point", "slope", "beyond", "promised", "before", "smallest"):
            setattr(self, name, getattr(self, name)[keep])
        self._propose = geometry_of(self.norm, self.search.config)

    def advance(self, steps: int) -> None:
        """Make steps: one forward and one backward pass each."""
        problem, config = self.search.problem, self.search.config
        inputs, box, unit = self.rows.inputs, problem.box, problem.box.width
        low, high = (box.low - inputs) / unit, (box.high - inputs) / unit
        # Large blocks that are allocated anew are slow to write to, so their memory is used again.
        here = torch.empty_like(inputs)
        for step in range(self.made, self.made + steps):
            torch.sub(self.point, inputs, out=here).div_(unit)
            answer = self.search.answer(self.rows, self.point, self.aim, hair=self.hair)
            fooled = self.norm.size(here).masked_fill(answer.margin >= 0, torch.inf)
            self.smallest = torch.minimum(self.smallest, fooled)
            if self.style.adaptive and step > 0:
                self.trust = self.trust.judged(self.promised, answer.loss - self.before, self.rule)
            gradient = answer.gradient if unit == 1.0 else answer.gradient * unit
            torch.lerp(gradient, self.slope, self.style.memory if step > 0 else 0.0, out=self.slope)
            left = max(0.0, 1.0 - step / max(self.planned - 1, 1))
            overshoot = self.style.overshoot * left**config.overshoot_power
            linear = Linear.of(answer.loss + self.beyond, self.slope)
            there = self._propose(here, linear, self.trust.value, overshoot, low, high)
            self.promised, self.before = flat(torch.sub(there, here, out=here).mul_(self.slope)).sum(1), answer.loss
            point = box.clip(there.mul_(unit).add_(inputs))
            # A look at the gradients waits for the device. Where some vanished, they are looked at in every step.
            if self.stuck or step % config.check_every == 0:
                point, self.stuck = _rescued(point, answer, self.search, self.rows, step)
            self.point = point
        self.made += steps


def descend(
    search: Search, rows: Rows, delta: Tensor, *, norm: Norm, style: Style, steps: int, aim: Aim, reserve: int
) -> Tensor:
    """Descend from `delta` and return the last perturbation, which is not judged yet.

    A row that still progresses after the planned steps goes on, while more than `reserve` passes are left to it: how
    long a descent has to be depends on the model, and its progress tells.
    """
    config = search.config
    stage = Stage(search, rows, delta, norm=norm, style=style, steps=steps, aim=aim)
    block = min(config.extension_steps, steps)
    end = stage.point
    going = torch.arange(len(rows.samples), device=delta.device)
    while block > 0 and len(going):
        planned = stage.made + block < steps
        before = stage.smallest
        # Who is done is looked up now and then: it waits for the device.
        ahead = steps - block - stage.made
        stage.advance(block if not planned else min(config.check_every, ahead) if search.radii else ahead)
        end = end.index_copy(0, going, stage.point)
        if planned and not search.radii:
            continue
        if planned:
            keep = search.unfinished(stage.rows.samples)
        else:
            affordable = search.left(stage.rows.samples) - reserve >= stage.cost * block + 1
            keep = _progress(search, stage, before) & affordable
        chosen = keep.nonzero().squeeze(1)
        if len(chosen) < len(going):
            going = going[chosen]
            stage.select(chosen)
    return end - rows.inputs


def _progress(search: Search, stage: Stage, before: Tensor) -> Tensor:
    """Return which rows should go on: those that set the record and still improve.

    In a norm that counts, a row that has left the adversarial region goes on as well: its trust is falling until the
    linearization holds.
    """
    config, samples = search.config, stage.rows.samples
    record = (search.lately[samples] <= search.best.size[samples]) & search.unfinished(samples)
    improving = record & (stage.smallest < before * (1.0 - config.extension_gain))
    if stage.norm.counts and stage.made < config.extension_limit * stage.planned:
        improving |= stage.smallest.isinf()
    return improving


def _rescued(point: Tensor, answer: Answer, search: Search, rows: Rows, step: int) -> tuple[Tensor, bool]:
    """Move rows whose gradient vanishes and that are not adversarial yet to a fresh random point.

    Also returns whether there are such rows.
    """
    if float(answer.steepness.amin()) > 0:
        return point, False
    stuck = ((answer.steepness == 0) & (answer.margin >= 0)).nonzero().squeeze(1)
    if len(stuck) == 0:
        return point, False
    lost = rows.select(stuck)
    fresh = search.problem.box.clip(lost.inputs + random_start(search, lost, step + 1))
    return point.index_copy(0, stuck, fresh), True


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


def descend_by(tactic: Tactic, search: Search, rows: Rows, *, steps: int, aim: Aim, reserve: int = 0) -> None:
    """Descend by a tactic: `steps` forward and backward passes or more, and a forward pass for the last point.

    Longer descents leave `reserve` passes of the budget.
    """
    norm = search.problem.norm
    delta, style = _STARTS[tactic.start](search, rows), tactic.style
    if tactic.sparse is not None and norm.sparse and not norm.counts:
        style = tactic.sparse
    if norm.relaxed is not None:
        first = round(tactic.relaxed * steps)
        # Only the stage in the norm itself may take longer: how good its start is hardly matters.
        all_passes = search.budget
        delta = descend(search, rows, delta, norm=norm.relaxed, style=style, steps=first, aim=aim, reserve=all_passes)
        style, steps = tactic.counting, steps - first
    delta = descend(search, rows, delta, norm=norm, style=style, steps=steps, aim=aim, reserve=reserve)
    search.look(rows, search.problem.box.clip(rows.inputs + delta))
