"""Another library's attack as a method: the model as it wants it, every pass counted, every point judged again.

The libraries draw from the global generators, for the batch as a whole: an attack that draws (a random start, a search
by chance) depends on the batch a sample is in, unlike our own. It is seeded, so the same call gives the same points.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd.attacks.base import Problem
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.classifier import NO_GRADIENT, STEEPEST, Counted
from pdpgd.criteria import Criterion
from pdpgd.errors import AttackError, InvalidInputError, NoGradientError, PdpgdError, expect_setting
from pdpgd.random import seeded_globally

# A margin of fewer roundings of the largest logit may have either sign; the referee calls it fragile.
ROUNDINGS = 8

Foreign = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""(model, inputs, classes, rows) -> points. Inputs and points are float32 in [0, 1]; the classes are labels, or targets
if the task is targeted; `rows` are the places in the task of what it is given, which may be a part of it."""


def by_library(task: Task, attack: Foreign, *, name: str, restart: int = 0, blank_is_failure: bool = False) -> Best:
    """The points that another library's attack returns, if they are what it should have found.

    Where it raises, the batch is halved until the samples are found on which it does; they are the task's `faults`.
    `restart` gives other random numbers. `blank_is_failure` if the library answers with a blank image where it found
    nothing, which may well be adversarial.
    """
    unit = Unit(task.problem)
    rows = torch.arange(len(task), device=task.samples.device)
    points = task.inputs.clone()
    broken = _attack(task, attack, unit, rows, points, restart)
    # Of a single sample among others it cannot be told whether it is the sample that is at fault.
    if 0 < len(broken) == len(task) >= min(2, len(task.problem.inputs)):
        first = next(iter(broken.values()))
        raise AttackError(f"attack {name}: it failed on every sample ({_told(first)})") from first
    for row, error in broken.items():
        task.faults[int(task.samples[row])] = _told(error)
    finite = points.flatten(1).isfinite().all(1)
    points = torch.where(finite.reshape(-1, *[1] * (points.ndim - 1)), points, task.inputs)
    found = task.judged(points, task.logits(points))
    if blank_is_failure:
        blank = (points == task.problem.box.low).flatten(1).all(1)
        found = Best(found.size.masked_fill(blank, torch.inf), found.point, found.prediction, found.penalty)
    return found


def within(found: Best, radius: Tensor, task: Task) -> Best:
    """What was found inside the ball; the sum of a library's float32 roundings is no step outside it."""
    rounding = 0.0 if task.problem.norm.name == "l0" else 1e-6 * task.problem.box.width
    size = found.size.masked_fill(found.size > radius * (1 + 1e-4) + rounding, torch.inf)
    return Best(size, found.point, found.prediction, found.penalty)


def expect_norm(config: object, task: Task, norms: tuple[str, ...]) -> str:
    """The name of the task's norm, if it is one that the attack knows."""
    name = task.problem.norm.name
    if name not in norms:
        raise InvalidInputError(f"attack {type(config).__name__}: expected the norm {' or '.join(norms)}, got {name!r}")
    return name


def expect_untargeted(config: object, task: Task) -> None:
    if task.criterion.targeted:
        raise InvalidInputError(f"attack {type(config).__name__}: expected no targets, which it cannot aim at")


def expect_counts(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        expect_setting(config, name, "an integer of at least 1", isinstance(value, int) and value >= 1)


def expect_positive(config: object, *names: str) -> None:
    for name in names:
        expect_setting(config, name, "above 0", getattr(config, name) > 0)


class Nearest(nn.Module):
    """The model for a library that returns the nearest point that was adversarial in its own pass.

    The nearer that point is to the boundary, the likelier a last bit decides on it, and differently in another batch or
    on another processor. So this passes everything on, and keeps for each row the smallest point so far that is
    adversarial by more than rounding explains, or its input. Every call must be about all rows, in their order.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        criterion: Criterion,
        size_of: Callable[[Tensor], Tensor],
        *,
        sloped: bool = True,
    ) -> None:
        """Watch a model.

        Args:
            model: What the library asks.
            inputs: The rows as they came.
            criterion: When a point of theirs is adversarial.
            size_of: The size of each perturbation.
            sloped: Whether points at which the library asks for a slope count as well.
        """
        super().__init__()
        self.model, self.inputs, self.criterion, self.size_of, self.sloped = model, inputs, criterion, size_of, sloped
        self.points, self.sizes = inputs.clone(), inputs.new_full((len(inputs),), torch.inf)
        self.eval()

    def forward(self, points: Tensor) -> Tensor:
        logits: Tensor = self.model(points)
        if self.sloped or not points.requires_grad:
            with torch.no_grad():
                self._keep(points.detach(), logits.detach())
        return logits

    def _keep(self, points: Tensor, logits: Tensor) -> None:
        rounding = ROUNDINGS * torch.finfo(logits.dtype).eps * logits.abs().amax(1)
        sizes = self.size_of(points - self.inputs)
        better = (self.criterion.margin(logits) < -rounding) & (sizes < self.sizes)
        self.points[better], self.sizes[better] = points[better], sizes[better]


class Unit:
    """The problem with its box moved to [0, 1], for libraries that know no other."""

    def __init__(self, problem: Problem) -> None:
        low, high = problem.box.low, problem.box.high
        if float(low.min()) < float(low.max()) or float(high.min()) < float(high.max()):
            # A box of unequal sides has other norms once it is moved.
            raise InvalidInputError("bounds: expected two numbers, the same for every entry, got different ones")
        self.problem = problem
        self.low, self.width = low.min(), high.max() - low.min()
        self.is_box = float(self.low) == 0.0 and float(self.width) == 1.0

    def inward(self, points: Tensor) -> Tensor:
        return (points if self.is_box else (points - self.low) / self.width).float().clamp(0.0, 1.0)

    def outward(self, points: Tensor) -> Tensor:
        points = points.to(self.problem.inputs)
        return points if self.is_box else self.low + self.width * points

    def logits(self, points: Tensor) -> Tensor:
        """What the model says, where the library wants it: its device need not be the model's."""
        if not bool(points.isfinite().all()):
            # Said here, lest the model be blamed for what it makes of them.
            raise FloatingPointError("the library asked the model about points that are not finite")
        logits = self._answer(self.outward(points))
        return logits.to(points.device, torch.float32)

    def _answer(self, points: Tensor) -> Tensor:
        ask: Callable[[Tensor], Tensor] = lambda points: self.problem.classifier.logits(points, None)  # noqa: E731
        if torch.is_grad_enabled() and points.requires_grad:
            answer: Tensor = _OfInputsOnly.apply(points, ask)  # type: ignore[no-untyped-call]  # torch does not type it
            return answer
        return ask(points)


class _OfInputsOnly(torch.autograd.Function):
    """The model with a slope in its inputs alone: `backward()`, which libraries call, would fill its parameters' too.

    An undefined slope is no direction, as for our own attacks; some libraries would search for ever along NaN.
    """

    @staticmethod
    def forward(context: Any, points: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            context.leaf = points.detach().requires_grad_()
            context.logits = ask(context.leaf)
        logits: Tensor = context.logits.detach()
        return logits

    @staticmethod
    def backward(context: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        # Kept, for libraries ask for the slope of one class after the other.
        slope: Tensor | None = None
        if context.logits.requires_grad:
            (slope,) = torch.autograd.grad(
                context.logits, context.leaf, upstream[0], retain_graph=True, allow_unused=True
            )
        if slope is None:
            raise NoGradientError(NO_GRADIENT)
        return slope.nan_to_num(0.0, STEEPEST, -STEEPEST), None


def _attack(
    task: Task, attack: Foreign, unit: Unit, rows: Tensor, points: Tensor, restart: int
) -> dict[int, Exception]:
    """Attack these rows, write what comes to `points`, and return the rows on which the library broke."""
    inputs, classes = unit.inward(task.inputs[rows]), task.criterion.classes[rows]
    model = Counted(unit.logits)
    model.eval()
    try:
        with _seeded(task, rows, restart), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # what a library warns of is not for its user's user
            found = attack(model, inputs.clone(), classes.clone(), rows).detach().to(inputs)
        if found.shape != inputs.shape:
            raise AttackError(f"expected points of shape {tuple(inputs.shape)}, got {tuple(found.shape)}")
    except (PdpgdError, MemoryError, torch.OutOfMemoryError):
        raise  # the model's, the caller's or the machine's
    except Exception as error:
        _pay(task, rows, model)
        if len(rows) == 1:
            return {int(rows[0]): error}
        half = len(rows) // 2
        return {
            **_attack(task, attack, unit, rows[:half], points, restart),
            **_attack(task, attack, unit, rows[half:], points, restart),
        }
    _pay(task, rows, model)
    # What was not changed is exactly the input, whatever moving the box did to it.
    points[rows] = torch.where(found == inputs, task.inputs[rows], task.problem.box.clip(unit.outward(found)))
    return {}


def _pay(task: Task, rows: Tensor, model: Counted) -> None:
    """Shared evenly: which rows of a library's batch belong to which sample is not ours to know. The sum is exact."""
    samples, ledger = task.samples[rows], task.problem.ledger
    for passes, column in ((model.forwards, ledger.forwards), (model.backwards, ledger.backwards)):
        column[samples] += passes // len(rows)
        column[samples[: passes % len(rows)]] += 1


def _seeded(task: Task, rows: Tensor, restart: int) -> AbstractContextManager[None]:
    """For these rows; the libraries draw from the global generators."""
    first = int(task.problem.indices[int(task.samples[rows[0]])])
    device = task.problem.inputs.device
    return seeded_globally(task.problem.seed, first, restart, devices=[device] if device.type == "cuda" else [])


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
