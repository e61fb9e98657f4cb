"""The attack `auto`: within a budget, many short exact descents from different starts, nothing to tune.

First every kind of start, then hops from the best point found, a last descent from the best point, and in a norm that
counts, single changes reverted as long as the point stays adversarial.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice
from numbers import Integral

import torch
from torch import Tensor

from pdpgd.attacks.auto_config import AutoConfig, Tactic
from pdpgd.attacks.base import AttackResult, Bounds, History, Observe, StopAttack, calls_within, pose
from pdpgd.attacks.config import config_or_default
from pdpgd.attacks.descent import Aim, Search, descend_by
from pdpgd.attacks.frame import Attempt, Rows, batches, framed_attack
from pdpgd.attacks.linearized import nearness
from pdpgd.classifier import Model
from pdpgd.errors import InvalidInputError
from pdpgd.norms import Norm


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
    draws: int = 1,
    config: AutoConfig | None = None,
) -> AttackResult:
    """Find a minimum-norm adversarial example for each input within a query budget.

    Args:
        model: Maps a batch of inputs to logits, or to an output with `.logits`; call `model.eval()` first.
        inputs: Batch of shape (batch, ...), float32 or float64, inside the bounds.
        labels: True class per sample.
        norm: "linf", "l2", "l1", "l0", another registered name, or a `Norm`.
        budget: Maximum number of forward plus backward passes per sample; a sample that has converged spends less.
        share: Let samples that have not converged use the passes that the others left over. The budget then bounds
            the mean over the samples, and results depend on which samples are attacked together.
        targets: Class to reach per sample; None attacks untargeted.
        bounds: Lower and upper bound of valid inputs, each a number, one value per channel, or a tensor.
        seed: Seed of the random starts.
        indices: Position of each input in the whole data set, if this call attacks a part of it: the random starts
            depend on it, so results do not depend on how the data are split.
        starts: One known point per sample, shaped as the inputs and inside the bounds. An adversarial start competes
            with what the attack finds.
        observe: Called with an `Observation` after each query; it may raise `StopAttack` to end the search, and the
            result is then the best found so far.
        max_batch: Number of samples attacked together: bounds the memory.
        draws: Number of draws of a randomized model: logits and gradients are means over this many calls, each of which
            counts as a pass (expectation over transformation). 1 for a model that is not randomized.
        config: Tunables, for ablations; None takes the defaults of `AutoConfig`.

    Returns:
        One adversarial example per input, with its distance, the passes spent on it, and the history of the best
        distance against the passes.

    Raises:
        InvalidInputError: An argument is malformed.
        UnknownNameError: There is no norm of that name.
        ModelError: The model failed, or returned something other than finite logits.

    Example:
        >>> result = pdpgd.auto(model, images, labels, norm="l2", budget=50)
        >>> robust_accuracy = (result.distances > 1.0).float().mean()
        >>> robust_accuracy.item()
        0.5
    """
    budget, max_batch = calls_within(_count("budget", budget), _count("draws", draws)), _count("max_batch", max_batch)
    config = config_or_default(config, AutoConfig)
    problem = pose(
        *(model, inputs, labels),
        norm=norm,
        targets=targets,
        bounds=bounds,
        seed=seed,
        indices=indices,
        starts=starts,
        draws=draws,
    )

    def algorithm(attempt: Attempt) -> History:
        search = Search(attempt, budget=budget, observe=observe, config=config)
        descents = _Descents(attempt, search, budget)
        try:
            descents.run()
            if share:
                descents.spend_leftover()
        except StopAttack:
            pass
        return search.history()

    return framed_attack(problem, algorithm, max_batch=max_batch)


def _count(name: str, value: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name}: expected an integer >= 1, got {value!r}")
    return int(value)


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

    @property
    def reserve(self) -> int:
        """Passes that are kept for the end: the last descent, the pass that judges its last point, and pruning."""
        return (2 * self.polish + 1 if self.polish else 0) + self.pruning

    @classmethod
    def within(cls, passes: int, *, counts: bool, config: AutoConfig) -> Plan:
        """Divide a number of passes."""
        if passes < config.several_from:
            steps = max(0, (passes - 1) // 2)
            return cls(1, steps, 0, passes - 2 * steps - 1 if steps else 0)
        pruning = config.pruning_passes if counts else 0
        available = passes - int(config.polish_share * passes) - pruning
        descents = max(1, available // (2 * config.min_descent_steps + 1))
        steps = (available // descents - 1) // 2
        left = passes - descents * (2 * steps + 1)
        polish = (left - pruning - 1) // 2
        return cls(descents, steps, polish, left - 2 * polish - 1)


class _Descents:
    """The descents of one call."""

    def __init__(self, attempt: Attempt, search: Search, budget: int) -> None:
        self.attempt, self.search, self.budget = attempt, search, budget
        self.problem, self.best, self.config = attempt.problem, attempt.best, search.config
        inputs = self.problem.inputs
        self.idle = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        """Descents in a row without an improvement."""
        self.classes: Tensor | None = None
        """The runners-up of each sample, nearest first; None if the classes are not ranked."""
        self.near = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        """Whether descents from afar ended far out, so that a sample stays near its best point."""

    def run(self) -> None:
        """Spend the budget of each sample, in batches."""
        starts = 0 if self.problem.starts is None else 1
        for samples in self.attempt.batches():
            self._rank(samples)
            # All samples of a batch have spent the same number of passes so far.
            left = int(self.search.left(samples[:1]))
            plan = Plan.within(left - starts, counts=self.problem.norm.counts, config=self.config)
            self._descend_from_starts(samples, plan, reserve=starts + plan.reserve)
            if left > 0:
                self._judge_starts(samples)
            self._finish(samples, plan)

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
                self._descend(tactic, batch, number=number, steps=steps)
            left -= cost * len(samples)

    def _unfinished(self, samples: Tensor) -> Tensor:
        best = self.best.size[samples]
        return samples[(best > self.problem.norm.smallest) & (self.idle[samples] < self.config.patience)]

    def _judge_starts(self, samples: Tensor) -> None:
        """Judge the given starts after the descents, so that ties go to the descents, before the last descent."""
        starts = self.problem.starts
        if starts is not None:
            self.search.look(Rows.of(self.problem, samples), starts[samples])

    def _rank(self, samples: Tensor) -> None:
        """Order the runners-up by their distance on the linearized margins."""
        problem = self.problem
        if problem.criterion.targeted or self.budget < self.config.rank_from:
            return
        rows = Rows.of(problem, samples)
        leads = self.search.leads(rows, self.config.ranked_classes)
        far = torch.stack([nearness(problem.norm, lead, rows.inputs, problem.box) for lead in leads], 1)
        others = torch.stack([lead.other for lead in leads], 1)
        if self.classes is None:
            self.classes = others.new_zeros(len(problem.inputs), others.shape[1])
        self.classes[samples] = others.gather(1, far.argsort(1))

    def _descend_from_starts(self, samples: Tensor, plan: Plan, *, reserve: int) -> None:
        if plan.steps == 0:
            return
        chosen = 0
        for number, tactic in enumerate(islice(chain(self.config.first, cycle(self.config.then)), plan.descents)):
            remaining = self._unfinished(samples)
            affordable = self.search.left(remaining) - reserve >= 2 * plan.steps + 1
            remaining = remaining[affordable]
            if len(remaining) == 0:
                return
            other = None
            if tactic.nearest_class and self.classes is not None and chosen < self.classes.shape[1]:
                other = chosen
                chosen += 1
            for own, rows in self._by_tactic(tactic, remaining):
                aim = Aim() if other is None or self.classes is None else Aim(self.classes[rows, other])
                self._descend(own, rows, number=number, steps=plan.steps, aim=aim, reserve=reserve)

    def _by_tactic(self, tactic: Tactic, samples: Tensor) -> Iterator[tuple[Tactic, Tensor]]:
        """Divide samples by what they do in place of a tactic: where random starts end far out, they stay near."""
        if tactic.style.adaptive and tactic.start != "random":
            yield tactic, samples
            return
        near = self.near[samples]
        for own, rows in ((tactic, samples[~near]), (self.config.local, samples[near])):
            if len(rows):
                yield own, rows

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

    def _finish(self, samples: Tensor, plan: Plan) -> None:
        """From the best point, make a last descent; in a norm that counts, revert single changes."""
        found = self.best.size[samples]
        samples = samples[found.isfinite() & (found > self.problem.norm.smallest)]
        if len(samples) == 0:
            return
        if plan.polish > 0:
            self._descend(self.config.polish, samples, number=plan.descents, steps=plan.polish, reserve=plan.pruning)
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


def _pixels(points: Tensor) -> torch.Size:
    """Return the shape of a sample without its channels."""
    return points.shape[2:] if points.ndim > 2 else points.shape[1:]


def _changes(inputs: Tensor, points: Tensor) -> Tensor:
    """Return the largest change of each pixel over its channels."""
    change = (points - inputs).abs()
    return (change.amax(1) if change.ndim > 2 else change).flatten(1)
