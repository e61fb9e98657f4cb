"""How `auto` spends the budget of its samples.

First every kind of start, then hops from the best point found, climbs inside a smaller ball where these are idle, a
last descent from the best point, and in a norm that counts, single changes reverted as long as the point stays
adversarial. If a radius is asked about, passes are kept for climbs inside its ball and for queries without gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice

import torch
from torch import Tensor

from pdpgd.attacks.auto_config import AutoConfig, Tactic
from pdpgd.attacks.ball_search import climb_in_ball
from pdpgd.attacks.blind_entries import Blindness, BlindSlopes, find_blind_entries
from pdpgd.attacks.descent import Aim, Search, descend_by, random_start
from pdpgd.attacks.frame import Attempt, Rows, batches
from pdpgd.attacks.linearized import nearness
from pdpgd.attacks.random_search import random_search
from pdpgd.classifier import Answer
from pdpgd.norms import size_l2
from pdpgd.tensors import flat


@dataclass(frozen=True)
class Plan:
    """How the passes of a sample are divided; the same for all samples, so it does not depend on the batch."""

    descents: int
    steps: int
    """Steps per descent; 0 if there are too few passes for one."""
    polish: int
    """Steps of the last descent; 0 for none."""
    pruning: int
    """Forward passes at the end, in a norm that counts."""

    cost: int = 2
    """Passes per step."""

    @property
    def descent(self) -> int:
        """Passes of a descent, with the one that judges its last point."""
        return self.cost * self.steps + 1

    @property
    def reserve(self) -> int:
        """Passes that are kept for the end: the last descent, the pass that judges its last point, and pruning."""
        return (self.cost * self.polish + 1 if self.polish else 0) + self.pruning

    @classmethod
    def within(
        cls, passes: int, *, counts: bool, config: AutoConfig, cost: int = 2, polish_share: float | None = None
    ) -> Plan:
        """Divide a number of passes, of which a step takes `cost`; None takes the share for the norm."""
        if passes < config.several_from:
            steps = max(0, (passes - 1) // cost)
            return cls(1, steps, 0, passes - cost * steps - 1 if steps else 0, cost)
        pruning = config.pruning_passes if counts else 0
        if polish_share is None:
            polish_share = config.counting_polish_share if counts else config.polish_share
        available = passes - int(polish_share * passes) - pruning
        descents = max(1, available // (cost * config.min_descent_steps + 1))
        steps = (available // descents - 1) // cost
        left = passes - descents * (cost * steps + 1)
        polish = (left - pruning - 1) // cost
        return cls(descents, steps, polish, left - cost * polish - 1, cost)


class Descents:
    """The descents of one call."""

    def __init__(self, attempt: Attempt, search: Search, budget: int, *, share: bool) -> None:
        self.attempt, self.search, self.budget, self.share = attempt, search, budget, share
        self.problem, self.best, self.config = attempt.problem, attempt.best, search.config
        inputs = self.problem.inputs
        self.idle = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        """Descents in a row without an improvement."""
        self.climbs = self.problem.norm.ball is not None and not self.problem.norm.counts
        """Whether there are searches inside a ball, by gradients."""
        self.classes: Tensor | None = None
        """The runners-up of each sample, nearest first; None if the classes are not ranked."""
        self.headed = torch.zeros_like(self.idle)
        """Number of ranked classes that descents from the starts headed for."""
        self.near = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        """Whether descents from afar ended far out, so that a sample stays near its best point."""

    def run(self) -> None:
        """Spend the budget of each sample, in batches."""
        for samples in self.attempt.batches():
            found = self._find_hidden_slopes(samples, self._rank(samples))
            for rows, blind in self._by_kind(samples, found):
                self.search.blind = blind
                self._spend(rows)
            self.search.blind = None

    def _spend(self, samples: Tensor) -> None:
        """Spend the budget of samples whose steps take the same number of passes."""
        starts, norm = 0 if self.problem.starts is None else 1, self.problem.norm
        # All of them have spent the same number of passes so far.
        left = int(self.search.left(samples[:1]))
        queries, climbs = self._for_balls(left)
        later = queries + climbs
        cost = self.search.step_cost(self.search.hair_of(samples))
        share = self.config.ball.polish_share if climbs else None
        passes = left - starts - later
        plan = Plan.within(passes, cost=cost, counts=norm.counts, config=self.config, polish_share=share)
        descend = self._descend_from_starts if self.search.blind is None else self._descend_by_differences
        descend(samples, plan, reserve=starts + plan.reserve + later)
        if self.climbs and not self.share and not self.search.radii and plan.descents > 1:
            found = samples[self.best.size[samples].isfinite()]
            self._climb(found, steps=self.config.ball.steps, reserve=starts + plan.reserve)
        if left > 0:
            self._judge_starts(samples)
        self._finish(samples, plan, reserve=later)
        if climbs:
            self._climb(samples, steps=min(self.config.ball.steps, (climbs - 1) // cost), reserve=queries)
        if queries:
            self._query(samples)

    def _for_balls(self, passes: int) -> tuple[int, int]:
        """Return the passes that are kept for queries without gradients, and for climbs, inside balls."""
        norm, rule = self.problem.norm, self.config.ball
        if not self.search.radii or norm.ball is None or passes < self.config.several_from:
            return 0, 0
        queries = int(rule.query_share * passes) if passes >= rule.query_from else 0
        return queries, int(rule.share * (passes - queries)) if self.climbs else 0

    def _climb(self, samples: Tensor, *, steps: int, reserve: int) -> None:
        """Search inside the balls within which samples are not fooled yet, by one loss after the other."""
        number = 0
        targets = 0 if self.classes is None else self.classes.shape[1]
        while True:
            samples = samples[self.search.unfinished(samples)]
            left = self.search.left(samples) - reserve
            samples = samples[left >= self.search.step_cost(self.search.hair_of(samples)) * steps + 1]
            if len(samples) == 0:
                return
            rows = Rows.of(self.problem, samples, self.budget + 1 + number)
            # Alternately from the best point known, and from a random one.
            start = self.search.delta(rows) if number % 2 == 0 else None
            turn = number % (targets + 1)
            aim = Aim(soft=True)
            if turn > 0 and self.classes is not None:
                aim = Aim(self.classes[samples, turn - 1])
            climb_in_ball(self.search, rows, self.search.open_radius(samples), steps=steps, aim=aim, start=start)
            number += 1

    def _query(self, samples: Tensor) -> None:
        """Search inside the balls without gradients, with the passes that are left."""
        samples = samples[self.search.unfinished(samples)]
        left = self.search.left(samples)
        for queries in sorted(set(left.tolist())):
            if queries < 1:
                continue
            rows = Rows.of(self.problem, samples[left == queries], self.budget)
            found = random_search(self.problem, rows, self.search.open_radius(rows.samples), queries=int(queries))
            self.search.take(rows, found.candidates(rows, self.problem))

    def _by_hair(self, samples: Tensor) -> Iterator[Tensor]:
        """Divide samples by how far inside the box their gradients are looked up."""
        own = self.search.hair[samples]
        for hair in sorted(set(own.tolist())):
            yield samples[own == hair]

    def _by_kind(self, samples: Tensor, found: Blindness | None) -> Iterator[tuple[Tensor, BlindSlopes | None]]:
        """Divide samples by how their gradients are taken, and by what that took to find out."""
        if found is None:
            for rows in self._by_hair(samples):
                yield rows, None
            return
        for where, blind in found.groups():
            for rows in self._by_hair(samples[where]):
                chosen = where[torch.isin(samples[where], rows)] if blind else where
                classes = None if self.classes is None else self.classes[rows]
                yield rows, BlindSlopes(self.search, rows, found.select(chosen), classes) if blind else None

    def spend_leftover(self) -> None:
        """Make more descents for the samples that have not converged, with the passes that others left over."""
        everyone, steps = self.attempt.samples, self.config.shared_steps
        cost = 2 * steps + 1
        left = self.budget * len(everyone) - int(self.search.spent[everyone].sum())
        number = self.budget  # beyond the numbers of the descents within a budget
        for tactic in cycle(self.config.shared):
            samples = self._unfinished(everyone)[: left // cost]
            if len(samples) == 0:
                return
            number += 1
            for batch in batches(samples, self.attempt.max_batch):
                for rows in self._by_hair(batch):
                    own = 2 * steps // self.search.step_cost(self.search.hair_of(rows))
                    self._descend(tactic, rows, number=number, steps=own)
            left -= cost * len(samples)

    def _unfinished(self, samples: Tensor) -> Tensor:
        unfinished = self.search.unfinished(samples)
        if self.climbs or self.share:
            # What idle descents leave over is spent on climbs, or by other samples.
            unfinished &= self.idle[samples] < self.config.patience
        return samples[unfinished]

    def _judge_starts(self, samples: Tensor) -> None:
        """Judge the given starts after the descents, so that ties go to the descents, before the last descent."""
        starts = self.problem.starts
        if starts is not None:
            self.search.look(Rows.of(self.problem, samples), starts[samples])

    def _rank(self, samples: Tensor) -> Tensor | None:
        """Order the runners-up by their distance on the linearized margins.

        Returns the largest absolute slope of each entry; None if the classes are not ranked.
        """
        problem = self.problem
        if problem.criterion.targeted or self.budget < self.config.rank_from:
            return None
        rows = Rows.of(problem, samples)
        leads = self.search.leads(rows, self.config.ranked_classes)
        far = torch.stack([nearness(problem.norm, lead, rows.inputs, problem.box) for lead in leads], 1)
        others = torch.stack([lead.other for lead in leads], 1)
        if self.classes is None:
            self.classes = others.new_zeros(len(problem.inputs), others.shape[1])
        self.classes[samples] = others.gather(1, far.argsort(1))
        return torch.stack([lead.slope.abs() for lead in leads]).amax(0)

    def _find_hidden_slopes(self, samples: Tensor, steepness: Tensor | None) -> Blindness | None:
        """Find the samples whose gradient vanishes wherever a random point touches one side of the box.

        A ReLU or a clamp in front of a model is flat at the edge of the box, where many pixels are. Returns the entries
        that have no gradient anywhere, given the largest slopes in the ranked leads; None for a small budget.
        """
        if self.budget < self.config.rank_from:
            return None
        rows = Rows.of(self.problem, samples, self.budget)
        point = self.problem.box.clip(rows.inputs + random_start(self.search, rows))
        answer = self.search.answer(rows, point, Aim())
        self._choose_hair(rows, point, answer)
        steepness = torch.zeros_like(point) if steepness is None else steepness
        return find_blind_entries(self.search, rows, point, answer, steepness)

    def _choose_hair(self, rows: Rows, point: Tensor, answer: Answer) -> None:
        """Choose how far inside the box gradients are looked up: as little as shows what its edge hides."""
        search, config = self.search, self.config
        hidden = self._is_hidden(point, answer).nonzero().squeeze(1)
        if len(hidden) == 0:
            return
        search.hair[rows.samples[hidden]] = config.hair
        if not self.problem.norm.counts:
            some, at = rows.select(hidden), point[hidden]
            inside = search.answer(some, search.inside(at, config.fine_hair), Aim())
            search.hair[some.samples[~self._is_hidden(at, inside)]] = config.fine_hair

    def _is_hidden(self, point: Tensor, answer: Answer) -> Tensor:
        """Return the rows whose gradient vanishes where the point is at one side of the box, and not elsewhere."""
        box, limits = self.problem.box, self.config.hidden_limits
        flat_at = flat(answer.gradient == 0)
        low, high = flat(point <= box.low), flat(point >= box.high)
        elsewhere = _share(flat_at, ~(low | high))
        edge = torch.maximum(_share(flat_at, low), _share(flat_at, high))
        return (edge > limits[1]) & (elsewhere < limits[0])

    def _descend_by_differences(self, samples: Tensor, plan: Plan, *, reserve: int) -> None:
        """Measure the slopes of blind entries by differences, in rounds, and make descents after each."""
        search, rule, blind = self.search, self.config.blind, self.search.blind
        cost = plan.descent
        if blind is None or plan.steps == 0:
            return
        # How long differences should be, a first descent by the visible gradient tells.
        self._descend(rule.first[0], samples, number=0, steps=plan.steps, reserve=reserve)
        total = self.budget - reserve - 2 * cost
        queries = [int(share * total) for share in rule.rounds]
        each = max(1, (total - sum(queries)) // (cost * len(queries)))
        number = 0
        for turn, some in enumerate(queries):
            kept = reserve + sum(queries[turn + 1 :])
            samples = samples[search.unfinished(samples)]
            able = samples[search.left(samples) - kept >= some]
            if len(able):
                blind.measure(Rows.of(self.problem, able), some)
            last = turn == len(queries) - 1
            for place, tactic in enumerate(islice(cycle(rule.then if turn else rule.first), None if last else each)):
                remaining = self._unfinished(samples)
                remaining = remaining[search.left(remaining) - kept >= cost]
                if len(remaining) == 0:
                    break
                aim = Aim()
                if tactic.nearest_class and self.classes is not None:
                    aim = Aim(self.classes[remaining, place % self.classes.shape[1]])
                number += 1
                self._descend(tactic, remaining, number=number, steps=plan.steps, aim=aim, reserve=kept)

    def _descend_from_starts(self, samples: Tensor, plan: Plan, *, reserve: int) -> None:
        if plan.steps == 0:
            return
        for number, tactic in enumerate(islice(chain(self.config.first, cycle(self.config.then)), plan.descents)):
            remaining = self._unfinished(samples)
            affordable = self.search.left(remaining) - reserve >= plan.descent
            remaining = remaining[affordable]
            if len(remaining) == 0:
                return
            later = number >= len(self.config.first)
            for own, rows, aim in self._by_tactic(tactic, remaining, later=later):
                self._descend(own, rows, number=number, steps=plan.steps, aim=aim, reserve=reserve)

    def _by_tactic(self, tactic: Tactic, samples: Tensor, *, later: bool) -> Iterator[tuple[Tactic, Tensor, Aim]]:
        """Divide samples by what they do in place of a tactic, and by what they aim at.

        After the first descents, idle samples turn to the classes that they did not head for yet. Where random starts
        end far out, samples stay near.
        """
        left = torch.zeros_like(samples, dtype=torch.bool)
        if self.classes is not None:
            left = self.headed[samples] < self.classes.shape[1]
        to_class = left if tactic.nearest_class else left & (self.idle[samples] >= self.config.class_patience) & later
        if bool(to_class.any()) and self.classes is not None:
            rows = samples[to_class]
            aim = Aim(self.classes[rows, self.headed[rows]])
            self.headed[rows] += 1
            yield tactic if tactic.nearest_class else self.config.other_class, rows, aim
            samples = samples[~to_class]
        near = self.near[samples]
        if tactic.style.adaptive and tactic.start != "random":
            near = torch.zeros_like(near)
        local = self.config.local_start if tactic.start == "random" else self.config.local_hop
        for own, rows in ((tactic, samples[~near]), (local, samples[near])):
            if len(rows):
                yield own, rows, Aim()

    def _descend(
        self, tactic: Tactic, samples: Tensor, *, number: int, steps: int, aim: Aim | None = None, reserve: int = 0
    ) -> None:
        before = self.best.size[samples]
        self.search.lately[samples] = torch.inf
        rows = Rows.of(self.problem, samples, number)
        descend_by(tactic, self.search, rows, steps=steps, aim=aim or Aim(), reserve=reserve)
        improved = self.best.size[samples] < before * (1.0 - self.config.worthwhile)
        self.idle[samples] = (self.idle[samples] + 1).masked_fill(improved | before.isinf(), 0)
        if tactic.start == "random" and not tactic.style.adaptive:
            self.near[samples] = self.search.lately[samples] > self.config.far_limit * self.best.size[samples]
        if number == 0:
            self._give_up_random_starts(rows)

    def _give_up_random_starts(self, rows: Rows) -> None:
        """Stay near the best point where a first descent ended far nearer to the input than a random start is."""
        norm, config = self.problem.norm, self.config
        size, limit = (size_l2, config.counting_random_limit) if norm.counts else (norm.size, config.random_limit)
        best, afar = size(self.search.delta(rows)), size(random_start(self.search, rows))
        self.near[rows.samples] |= self.best.size[rows.samples].isfinite() & (best < limit * afar)

    def _finish(self, samples: Tensor, plan: Plan, *, reserve: int) -> None:
        """From the best point, make a last descent; in a norm that counts, revert single changes."""
        samples = samples[self.best.size[samples].isfinite() & self.search.unfinished(samples)]
        if len(samples) == 0:
            return
        if plan.polish > 0:
            reserve += plan.pruning
            self._descend(self.config.polish, samples, number=plan.descents, steps=plan.polish, reserve=reserve)
        if self.problem.norm.counts and self.config.pruning_passes > 0:
            prune(self.search, samples, passes=plan.pruning)


def prune(search: Search, samples: Tensor, *, passes: int) -> None:
    """Revert the changed pixels (entries of a flat input) of the best points one by one, the smallest change first.

    A change stays reverted if the point is still adversarial without it. Forward passes only.
    """
    problem = search.problem
    changes = _changes(problem.inputs[samples], search.best.point[samples])
    order = changes.masked_fill(changes == 0, torch.inf).argsort(dim=1, stable=True)
    counts = (changes > 0).sum(1)
    for turn in range(min(passes, int(counts.amax()))):
        going = (turn < counts).nonzero().squeeze(1)
        rows = Rows.of(problem, samples[going])
        point = search.best.point[rows.samples]
        back = torch.zeros_like(changes[going], dtype=torch.bool).scatter(1, order[going, turn, None], True)
        mask = back.view(len(going), *_pixels(point)) if point.ndim < 3 else back.view(len(going), 1, *_pixels(point))
        search.look(rows, torch.where(mask, rows.inputs, point))


def _share(what: Tensor, among: Tensor) -> Tensor:
    """Return which share of the entries `among` each row has `what`; 0 where there are none."""
    return (what & among).sum(1) / among.sum(1).clamp(min=1)


def _pixels(points: Tensor) -> torch.Size:
    """Return the shape of a sample without its channels."""
    return points.shape[2:] if points.ndim > 2 else points.shape[1:]


def _changes(inputs: Tensor, points: Tensor) -> Tensor:
    """Return the largest change of each pixel over its channels."""
    change = (points - inputs).abs()
    return (change.amax(1) if change.ndim > 2 else change).flatten(1)
