"""The frame around every attack: judge the inputs, attack the correctly classified ones in batches, sum up.

An algorithm gets an `Attempt` and improves its best points. A `Method` is the simpler form that the ports of other
attacks have: it gets the samples of one batch as a `Task` and returns the best point of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pdpgd.attacks.base import (
    AttackResult,
    Bounds,
    History,
    Observation,
    Observe,
    Problem,
    check_classes,
    pose,
)
from pdpgd.attacks.best import Best
from pdpgd.classifier import Answer, Model, warn_of_probabilities
from pdpgd.criteria import Criterion, Surrogate
from pdpgd.errors import InvalidInputError
from pdpgd.norms import Norm, norm_of


@contextmanager
def game_mode() -> Iterator[None]:
    """Let an attack do its own differentiation, whatever gradient mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def batches(rows: Tensor, max_batch: int) -> Iterator[Tensor]:
    """Cut the rows into consecutive parts of at most `max_batch`."""
    for first in range(0, len(rows), max_batch):
        yield rows[first : first + max_batch]


@dataclass(frozen=True)
class Rows:
    """The starts that are attacked together: row i is restart `restarts[i]` of sample `samples[i]` of the problem."""

    samples: Tensor
    restarts: Tensor
    inputs: Tensor
    criterion: Criterion

    @classmethod
    def of(cls, problem: Problem, samples: Tensor, restarts: Tensor | int = 0) -> Rows:
        """Return rows for these samples, with one restart number per row or the same one for all."""
        if isinstance(restarts, int):
            restarts = torch.full_like(samples, restarts)
        return cls(samples, restarts, problem.inputs[samples], problem.criterion.select(samples))

    def select(self, keep: Tensor) -> Rows:
        """Return the given rows."""
        return Rows(self.samples[keep], self.restarts[keep], self.inputs[keep], self.criterion.select(keep))


def look(problem: Problem, rows: Rows, point: Tensor) -> tuple[Tensor, Tensor]:
    """Return the margin and the predicted class of one point per row: one forward pass each, counted.

    As in `differentiate`, whether the logits are finite is checked after some calls, or at the end of the attack.
    """
    logits = problem.classifier.logits(point, rows.samples, check_later=True)
    problem.ledger.add(rows.samples, forwards=1)
    return rows.criterion.margin(logits), logits.argmax(1)


def judge(problem: Problem, rows: Rows, point: Tensor, surrogate: Surrogate) -> tuple[Tensor, Tensor, Tensor]:
    """Return margin, predicted class and surrogate of one point per row: one forward pass each, counted."""
    logits = problem.classifier.logits(point, rows.samples, check_later=True)
    problem.ledger.add(rows.samples, forwards=1)
    margin = rows.criterion.margin(logits)
    return margin, logits.argmax(1), surrogate(margin, logits, rows.criterion)


def differentiate(problem: Problem, rows: Rows, point: Tensor, surrogate: Surrogate) -> Answer:
    """Return margin, class and the surrogate's gradient: one forward and one backward pass per row, counted."""
    answer = problem.classifier.margin_and_gradient(point, rows.samples, rows.criterion, surrogate, check_later=True)
    problem.ledger.add(rows.samples, forwards=1, backwards=1)
    return answer


@dataclass(frozen=True)
class Attempt:
    """One call of an attack: which samples it attacks, and the best points found so far."""

    problem: Problem
    prediction: Tensor
    """The model's class for each input as it came."""
    wrong: Tensor
    """Whether an input is adversarial as it came."""
    classes: int
    """Number of the model's classes."""
    rounding: Tensor
    """Spacing of floating-point numbers at the two leading logits of each input: the unit of a margin's noise."""
    best: Best
    max_batch: int
    faults: dict[int, str] = field(default_factory=dict)
    """Samples on which the attack itself failed, with the reason."""

    @classmethod
    def begin(cls, problem: Problem, *, max_batch: int) -> Attempt:
        """Judge the inputs: one forward pass each."""
        outputs = []
        for samples in batches(torch.arange(len(problem.inputs), device=problem.inputs.device), max_batch):
            outputs.append(problem.classifier.logits(problem.inputs[samples], samples))
            problem.ledger.add(samples, forwards=1)
        logits = torch.cat(outputs)
        check_classes(problem, logits.shape[1])
        warn_of_probabilities(logits)
        wrong = problem.criterion.margin(logits) < 0
        rounding = torch.finfo(logits.dtype).eps * logits.topk(2, 1).values.abs().amax(1)
        best = Best.none(problem.inputs)
        return cls(problem, logits.argmax(1), wrong, logits.shape[1], rounding, best, max_batch)

    @property
    def samples(self) -> Tensor:
        """The samples to attack: those that are not adversarial as they came."""
        return (~self.wrong).nonzero().flatten()

    def batches(self) -> Iterator[Tensor]:
        """The samples to attack, at most `max_batch` at a time."""
        return batches(self.samples, self.max_batch)

    def judge_starts(self, *, penalty: float = torch.nan) -> None:
        """Let the given starts compete, with one forward pass each; does nothing if none were given."""
        problem = self.problem
        if problem.starts is None:
            return
        for samples in self.batches():
            rows, point = Rows.of(problem, samples), problem.starts[samples]
            margin, prediction = look(problem, rows, point)
            size = problem.norm.size(point - rows.inputs)
            found = Best.candidates(point, size, margin, prediction, torch.full_like(size, penalty))
            self.best.improve(found, at=samples)

    def result(self, history: History | None = None) -> AttackResult:
        """Sum up: an input that was adversarial as it came is at distance 0. A call is as many passes as draws."""
        found, draws = self.best.size.isfinite(), self.problem.classifier.draws
        if history is not None:
            history = replace(history, passes=history.passes * draws)
        return AttackResult(
            adversarials=self.best.point,
            distances=self.best.size.masked_fill(self.wrong, 0.0),
            found=found | self.wrong,
            labels=torch.where(found, self.best.prediction, self.prediction),
            forwards=self.problem.ledger.forwards * draws,
            backwards=self.problem.ledger.backwards * draws,
            penalty=self.best.penalty,
            history=history,
            faults=self.faults,
        )


Algorithm = Callable[[Attempt], History | None]
"""Improves the best points of an attempt, and returns its history if it records one."""


def framed_attack(problem: Problem, algorithm: Algorithm, *, max_batch: int) -> AttackResult:
    """Judge the inputs, run the algorithm on those classified correctly, and sum up."""
    with game_mode():
        attempt = Attempt.begin(problem, max_batch=max_batch)
        try:
            history = algorithm(attempt)
        except Exception:
            # If the logits were broken, that is the cause.
            problem.classifier.check()
            raise
        problem.classifier.check()
        return attempt.result(history)


@dataclass(frozen=True)
class Task:
    """Correctly classified samples that are attacked together."""

    problem: Problem
    samples: Tensor
    """Their positions in the problem."""
    classes: int
    """Number of the model's classes."""
    report_progress: Callable[[float], None] = lambda share: None
    """Progress listener: called with the share of the task that is done."""
    faults: dict[int, str] = field(default_factory=dict)
    """Samples on which the attack itself failed, with the reason."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def inputs(self) -> Tensor:
        """The inputs of the samples."""
        return self.problem.inputs[self.samples]

    @property
    def labels(self) -> Tensor:
        """The labels of the samples."""
        return self.problem.labels[self.samples]

    @property
    def criterion(self) -> Criterion:
        """What counts as adversarial for the samples."""
        return self.problem.criterion.select(self.samples)

    def rows(self, restart: int = 0) -> Rows:
        """Return one start per sample."""
        return Rows.of(self.problem, self.samples, restart)

    def select(self, rows: Tensor) -> Task:
        """Return a part of the task, whose progress is not reported."""
        return replace(self, samples=self.samples[rows], report_progress=lambda share: None)

    def logits(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits, one counted forward pass per point; point i belongs to row i, or to row `rows[i]`."""
        samples = self.samples if rows is None else self.samples[rows]
        logits = self.problem.classifier.logits(points, samples)
        self.problem.ledger.add(samples, forwards=1)
        return logits

    def judged(self, points: Tensor, logits: Tensor, rows: Tensor | None = None) -> Best:
        """Return the points as candidates (`Best.candidates`), given their logits."""
        samples = self.samples if rows is None else self.samples[rows]
        criterion, inputs = self.problem.criterion.select(samples), self.problem.inputs[samples]
        size = self.problem.norm.size(points - inputs)
        return Best.candidates(points, size, criterion.margin(logits), logits.argmax(1))


Method = Callable[[Task], Best]
"""Attacks the samples of a task: row i of the result is the best point found for row i, of size inf if none was.

Every pass it makes must be added to the problem's ledger.
"""


@dataclass(frozen=True)
class Framed:
    """A method as an `Attack`."""

    name: str
    norms: tuple[str, ...]
    """Names of the norms it supports."""
    method_for: Callable[[int], Method]
    """Returns the method for a number of classes, on which the cost of an iteration may depend."""
    targeted: bool = True
    """Whether it supports targets."""
    max_batch: int = 256
    """Number of samples attacked together: bounds the memory."""

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
        draws: int = 1,
    ) -> AttackResult:
        """Attack as `Attack` describes, with means over a number of draws of a randomized model."""
        if norm_of(norm).name not in self.norms:
            raise InvalidInputError(
                f"attack {self.name}: expected one of the norms {', '.join(self.norms)}, got {norm_of(norm).name!r}"
            )
        if targets is not None and not self.targeted:
            raise InvalidInputError(f"attack {self.name}: expected no targets, which it cannot aim at, got some")
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

        def algorithm(attempt: Attempt) -> None:
            attempt.judge_starts()
            method = self.method_for(attempt.classes)
            done, total = 0, len(attempt.samples)
            for samples in attempt.batches():
                progress = _progress_listener(observe, samples, done, total)
                task = Task(problem, samples, attempt.classes, progress, attempt.faults)
                attempt.best.improve(method(task), at=samples)
                done += len(samples)
                progress(0.0 if done < total else 1.0)

        return framed_attack(problem, algorithm, max_batch=self.max_batch)


def _progress_listener(observe: Observe | None, samples: Tensor, done: int, total: int) -> Callable[[float], None]:
    """Report progress as an observation without rows: the iterations of a port are not visible from here."""
    none = samples.new_zeros(0)
    nothing = torch.zeros(0, device=samples.device)

    def report(share: float) -> None:
        if observe is not None:
            passed = round(1000 * (done + share * len(samples)))
            observe(Observation("search", passed, 1000 * total, none, nothing, nothing, nothing))

    return report
