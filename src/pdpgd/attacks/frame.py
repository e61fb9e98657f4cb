"""The frame that the rival attacks share: everything of an attack but the algorithm itself.

A method is given samples that the model gets right, and returns the best point that it found for each. The frame checks
the call, leaves out what is wrong already, cuts the samples into batches, and sums up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pdpgd.attacks.base import AttackResult, Bounds, Observation, Observe, Problem, pose
from pdpgd.attacks.best import Best
from pdpgd.attacks.primal_dual import Rows, batches, game_mode, judge_inputs, judge_starts, summed_up
from pdpgd.classifier import Model
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError
from pdpgd.norms import Norm, norm_of


@dataclass(frozen=True)
class Task:
    """Samples that the model gets right, to be attacked together."""

    problem: Problem
    samples: Tensor
    """Their places in the problem."""
    classes: int
    """How many the model has."""
    tell: Callable[[float], None] = lambda share: None
    """To be told what share of the task is done."""
    faults: dict[int, str] = field(default_factory=dict)
    """Samples on which the attack itself broke, and how."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def inputs(self) -> Tensor:
        return self.problem.inputs[self.samples]

    @property
    def labels(self) -> Tensor:
        return self.problem.labels[self.samples]

    @property
    def criterion(self) -> Criterion:
        return self.problem.criterion.select(self.samples)

    def rows(self, restart: int = 0) -> Rows:
        """One start of each sample."""
        return Rows.of(self.problem, self.samples, torch.full_like(self.samples, restart))

    def select(self, rows: Tensor) -> Task:
        """A part of the task; its progress is not told."""
        return replace(self, samples=self.samples[rows], tell=lambda share: None)

    def logits(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """One forward pass for each point, paid for; point i belongs to row i of the task, or to `rows[i]`."""
        samples = self.samples if rows is None else self.samples[rows]
        logits = self.problem.classifier.logits(points, samples)
        self.problem.ledger.add(samples, forwards=1)
        return logits

    def judged(self, points: Tensor, logits: Tensor, rows: Tensor | None = None) -> Best:
        """These points as rivals of what was found: of infinite size unless they are adversarial."""
        samples = self.samples if rows is None else self.samples[rows]
        criterion, inputs = self.problem.criterion.select(samples), self.problem.inputs[samples]
        size = self.problem.norm.size(points - inputs)
        # The input itself was right; if it is not in this batch, that is float noise and no perturbation.
        size = size.masked_fill((criterion.margin(logits) >= 0) | (size == 0), torch.inf)
        return Best(size, points, logits.argmax(1), torch.full_like(size, torch.nan))


Method = Callable[[Task], Best]
"""Attacks the samples of a task: row i of what it returns is the best point of row i, of size inf if there is none.

Every pass it makes is in the problem's ledger.
"""


@dataclass(frozen=True)
class Framed:
    """A method in the shape of `Attack`."""

    name: str
    norms: tuple[str, ...]
    """What it can do."""
    method_for: Callable[[int], Method]
    """From the number of the model's classes, on which the cost of an iteration may depend."""
    targeted: bool = True
    """Whether it can aim at a target."""
    max_batch: int = 256
    """Samples that are attacked together: the bound on memory."""

    def __call__(
        self,
        model: Model,
        inputs: Tensor,
        labels: Tensor,
        *,
        norm: str | Norm,
        targets: Tensor | None = None,
        bounds: Bounds = (0.0, 1.0),
        seed: int = 0,
        indices: Tensor | None = None,
        starts: Tensor | None = None,
        observe: Observe | None = None,
    ) -> AttackResult:
        if norm_of(norm).name not in self.norms:
            raise InvalidInputError(
                f"attack {self.name}: expected one of the norms {', '.join(self.norms)}, got {norm_of(norm).name!r}"
            )
        if targets is not None and not self.targeted:
            raise InvalidInputError(f"attack {self.name}: expected no targets, which it cannot aim at, got some")
        problem = pose(
            model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=seed, indices=indices, starts=starts
        )
        with game_mode():
            clean = judge_inputs(problem, self.max_batch)
            wrong = clean.margin < 0
            best = Best.none(problem.inputs)
            right = (~wrong).nonzero().flatten()
            judge_starts(problem, best, right, max_batch=self.max_batch)
            method = self.method_for(clean.classes)
            faults: dict[int, str] = {}
            done = 0
            for samples in batches(right, self.max_batch):
                task = Task(problem, samples, clean.classes, _teller(observe, samples, done, len(right)), faults)
                best.improve(method(task), at=samples)
                done += len(samples)
                task.tell(0.0 if done < len(right) else 1.0)
            return summed_up(problem, best, clean.prediction, wrong, faults=faults)


def _teller(observe: Observe | None, samples: Tensor, done: int, total: int) -> Callable[[float], None]:
    """Progress, as an observation of no rows: the iterations of a rival are its own affair."""
    none = samples.new_zeros(0)
    nothing = torch.zeros(0, device=samples.device)

    def tell(share: float) -> None:
        if observe is not None:
            passed = round(1000 * (done + share * len(samples)))
            observe(Observation("search", passed, 1000 * total, none, nothing, nothing, nothing))

    return tell
