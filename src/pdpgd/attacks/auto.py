"""Take single changes back, as long as the point stays adversarial: forward passes only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, cycle, islice
from numbers import Integral

import torch
from torch import Tensor

from pdpgd.attacks.base import AttackResult, Bounds, Observe, StopAttack, pose
from pdpgd.attacks.descent import (
    CLASS,
    FAR,
    HOPPING,
    NEAR,
    POLISH,
    STEADY,
    Search,
    Tactic,
    carry_out,
    margin_itself,
    towards,
)
from pdpgd.attacks.linearized import nearness
from pdpgd.attacks.primal_dual import Rows, batches, game_mode, judge_inputs, summed_up
from pdpgd.classifier import Model
from pdpgd.criteria import Surrogate
from pdpgd.errors import InvalidInputError
from pdpgd.norms import Norm


def prune(search: Search, samples: Tensor, *, passes: int) -> None:
    """Try the changed pixels (entries, of a flat input) of the best points in turn, the smallest change first."""
    problem = search.problem
    changes = _changes(problem.inputs[samples], search.best.point[samples])
    order = changes.masked_fill(changes == 0, torch.inf).argsort(dim=1, stable=True)
    counts = (changes > 0).sum(1)
    for turn in range(min(passes, int(counts.amax()))):
        going = (turn < counts).nonzero().squeeze(1)
        rows = Rows.of(problem, samples[going], torch.zeros_like(going))
        point = search.best.point[rows.samples]
        back = torch.zeros_like(changes[going], dtype=torch.bool).scatter(1, order[going, turn, None], True)
        mask = back.view(len(going), *_pixels(point)) if point.ndim < 3 else back.view(len(going), 1, *_pixels(point))
        search.look(rows, torch.where(mask, rows.inputs, point))


def _pixels(points: Tensor) -> torch.Size:
    return points.shape[2:] if points.ndim > 2 else points.shape[1:]


def _changes(inputs: Tensor, points: Tensor) -> Tensor:
    change = (points - inputs).abs()
    return (change.amax(1) if change.ndim > 2 else change).flatten(1)


# First every kind of start, then hops from the best that they have found.
FIRST = (CLASS, STEADY, FAR, NEAR, CLASS, STEADY, STEADY)
THEN = (HOPPING,)
# Gradients of one descent, at least: with more, a budget gives more descents before it gives longer ones.
STEPS = 17
LONG_STEPS = 20
# The share of a budget that goes into the last descent, from the best point.
POLISH_SHARE = 0.1
# Passes from which on there are several descents, and budgets from which on the classes are ranked: with fewer, the
# ranking's backward passes would not be made up for by the forward passes that judge the ends of the descents.
SEVERAL_FROM = 90
RANKED_FROM = 110
# Runners-up that are ranked by their linearised distance: a backward pass each.
RANKED = 5
# Passes that are kept for trying single entries, in a norm that counts them.
PRUNING = 12
# A descent that makes the best smaller by less than this share did not improve it; after so many in a row a sample has
# converged.
WORTHWHILE = 1e-3
PATIENCE = 15


def auto(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm,
    budget: int = 1000,
    share: bool = False,
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    seed: int = 0,
    indices: Tensor | None = None,
    starts: Tensor | None = None,
    observe: Observe | None = None,
    max_batch: int = 256,
) -> AttackResult:
    """Find the smallest perturbation of each input that changes the model's answer, within a budget.

    `budget` is the number of forward plus backward passes that a sample may cost; one that has converged stops before.
    With `share`, the samples of the call share what is left then: the budget bounds their mean, and what is found
    depends on the samples that share. `norm`, `targets`, `bounds`, `seed`, `indices` and `starts` mean what they mean
    for `pdpgd`; `max_batch` bounds the samples that are worked on together, and so the memory.
    The result's `history` has the best so far against the passes; an `observe` hook that raises `StopAttack` ends the
    search, and the result is what was found until then.
    """
    budget, max_batch = _count("budget", budget), _count("max_batch", max_batch)
    problem = pose(
        model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=seed, indices=indices, starts=starts
    )
    with game_mode():
        clean = judge_inputs(problem, max_batch)
        wrong = clean.margin < 0
        search = Search(problem, wrong=wrong, budget=budget, observe=observe)
        campaign = _Campaign(search, budget, max_batch)
        try:
            campaign.run((~wrong).nonzero().flatten())
            if share:
                campaign.spend_what_is_left((~wrong).nonzero().flatten())
        except StopAttack:
            pass
        return summed_up(problem, search.best, clean.prediction, wrong, history=search.history())


def _count(name: str, value: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name}: expected an integer >= 1, got {value!r}")
    return int(value)


@dataclass(frozen=True)
class Plan:
    """How the passes of a sample are shared out; the same for all samples, whatever else is in their batch."""

    descents: int
    steps: int
    """Of each of them; 0 if there is no room for one."""
    polish: int
    """Steps of the last descent; 0 for none."""
    pruning: int
    """Forward passes at the end, in a norm that counts."""

    @classmethod
    def within(cls, passes: int, *, counts: bool) -> Plan:
        if passes < SEVERAL_FROM:
            steps = max(0, (passes - 1) // 2)
            return cls(1, steps, 0, passes - 2 * steps - 1 if steps else 0)
        kept = int(POLISH_SHARE * passes) + (PRUNING if counts else 0)
        descents = (passes - kept) // (2 * STEPS + 1)
        steps = ((passes - kept) // descents - 1) // 2
        left = passes - descents * (2 * steps + 1)
        polish = (left - (PRUNING if counts else 0) - 1) // 2
        return cls(descents, steps, polish, left - 2 * polish - 1)


class _Campaign:
    """The descents of one call."""

    def __init__(self, search: Search, budget: int, max_batch: int) -> None:
        self.search, self.budget, self.max_batch = search, budget, max_batch
        problem = search.problem
        self.counts = problem.norm.relaxed is not None
        rows = len(problem.inputs)
        self.idle = torch.zeros(rows, dtype=torch.long, device=problem.inputs.device)
        self.classes: Tensor | None = None
        """The runners-up of each sample, nearest first; None where the classes are not ranked."""

    def run(self, everyone: Tensor) -> None:
        """The whole budget of each sample, in batches."""
        starts = 0 if self.search.problem.starts is None else 1
        for samples in batches(everyone, self.max_batch):
            self._rank(samples)
            # All samples of a batch have spent the same until here.
            left = self.budget - int(self.search.spent[samples[0]])
            plan = Plan.within(left - starts, counts=self.counts)
            self._descents(samples, plan)
            if left > 0:
                self._judge_starts(samples)
            self._finish(samples, plan)

    def spend_what_is_left(self, everyone: Tensor) -> None:
        """More descents for the samples that have not converged, as long as the others' passes last."""
        cost = 2 * LONG_STEPS + 1
        left = self.budget * len(everyone) - int(self.search.spent[everyone].sum())
        number = self.budget  # beyond the descents that a budget has room for
        for tactic in cycle((HOPPING, HOPPING, HOPPING, STEADY, POLISH)):
            samples = self._unfinished(everyone)[: left // cost]
            if len(samples) == 0:
                return
            number += 1
            for batch in batches(samples, self.max_batch):
                self._descend(tactic, batch, number=number, steps=LONG_STEPS)
            left -= cost * len(samples)

    def _unfinished(self, samples: Tensor) -> Tensor:
        best = self.search.best.size[samples]
        return samples[(best > self.search.problem.norm.smallest) & (self.idle[samples] < PATIENCE)]

    def _judge_starts(self, samples: Tensor) -> None:
        """After the descents: a point of the same size counts as their own, and the last descent begins at the best."""
        starts = self.search.problem.starts
        if starts is not None:
            self.search.look(Rows.of(self.search.problem, samples, torch.zeros_like(samples)), starts[samples])

    def _rank(self, samples: Tensor) -> None:
        """Order the runners-up by how far they are on the linearised margins."""
        problem = self.search.problem
        if problem.criterion.targeted or self.budget < RANKED_FROM:
            return
        rows = Rows.of(problem, samples, torch.zeros_like(samples))
        leads = self.search.leads(rows, RANKED)
        far = torch.stack([nearness(problem.norm, lead, rows.inputs, problem.box) for lead in leads], 1)
        others = torch.stack([lead.other for lead in leads], 1)
        if self.classes is None:
            self.classes = others.new_zeros(len(problem.inputs), others.shape[1])
        self.classes[samples] = others.gather(1, far.argsort(1))

    def _descents(self, samples: Tensor, plan: Plan) -> None:
        if plan.steps == 0:
            return
        chosen = 0
        for number, tactic in enumerate(islice(chain(FIRST, cycle(THEN)), plan.descents)):
            remaining = self._unfinished(samples)
            if len(remaining) == 0:
                return
            pursue: Surrogate = margin_itself
            if tactic is CLASS and self.classes is not None and chosen < self.classes.shape[1]:
                pursue = towards(self.classes[remaining, chosen])
                chosen += 1
            self._descend(tactic, remaining, number=number, steps=plan.steps, pursue=pursue)

    def _descend(
        self, tactic: Tactic, samples: Tensor, *, number: int, steps: int, pursue: Surrogate = margin_itself
    ) -> None:
        before = self.search.best.size[samples]
        rows = Rows.of(self.search.problem, samples, torch.full_like(samples, number))
        carry_out(tactic, self.search, rows, steps=steps, pursue=pursue)
        improved = self.search.best.size[samples] < before * (1.0 - WORTHWHILE)
        self.idle[samples] = (self.idle[samples] + 1).masked_fill(improved | before.isinf(), 0)

    def _finish(self, samples: Tensor, plan: Plan) -> None:
        """From the best point: a last descent, and in a norm that counts, entry by entry."""
        found = self.search.best.size[samples]
        samples = samples[found.isfinite() & (found > self.search.problem.norm.smallest)]
        if len(samples) == 0:
            return
        if plan.polish > 0:
            self._descend(POLISH, samples, number=plan.descents, steps=plan.polish)
        if self.counts:
            prune(self.search, samples, passes=plan.pruning)
