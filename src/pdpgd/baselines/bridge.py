"""Run an attack of another library as a method: adapt the model, count every pass, and judge every returned point.

The libraries draw random numbers from the global generators for the whole batch, so an attack that draws (a random
start, a random search) depends on the batch that a sample is in, unlike our own attacks. The generators are seeded, so
the same call gives the same points.
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

# Below this many rounding errors of the largest logit, a margin may have either sign; the referee calls it fragile.
ROUNDINGS = 8

Foreign = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""(model, inputs, classes, rows) -> points.

Inputs and points are float32 in [0, 1]. The classes are labels, or targets if the task is targeted. `rows` are the
indices of the inputs in the task, as the library may be given a part of the task.
"""


def by_library(task: Task, attack: Foreign, *, name: str, restart: int = 0, blank_is_failure: bool = False) -> Best:
    """Run another library's attack, and judge the points that it returns.

    Where the library raises, the batch is halved until the samples that cause it are isolated; they are recorded in the
    task's `faults`.

    Args:
        task: The samples to attack.
        attack: Calls the library.
        name: Name of the attack in error messages.
        restart: Number of the restart, which selects the random numbers.
        blank_is_failure: Whether the library returns a blank image, which may well be adversarial, where it found
            nothing.

    Returns:
        The returned points, with size inf where they are not adversarial.

    Raises:
        AttackError: If the library fails on every sample.
    """
    unit = Unit(task.problem)
    rows = torch.arange(len(task), device=task.samples.device)
    points = task.inputs.clone()
    broken = _attack(task, attack, unit, rows, points, restart)
    # A single sample of a larger call does not show whether the sample or the attack is at fault.
    if 0 < len(broken) == len(task) >= min(2, len(task.problem.inputs)):
        first = next(iter(broken.values()))
        raise AttackError(f"attack {name}: it failed on every sample ({_described(first)})") from first
    for row, error in broken.items():
        task.faults[int(task.samples[row])] = _described(error)
    finite = points.flatten(1).isfinite().all(1)
    points = torch.where(finite.reshape(-1, *[1] * (points.ndim - 1)), points, task.inputs)
    found = task.judged(points, task.logits(points))
    if blank_is_failure:
        blank = (points == task.problem.box.low).flatten(1).all(1)
        found = Best(found.size.masked_fill(blank, torch.inf), found.point, found.prediction, found.penalty)
    return found


def within_radius(found: Best, radius: Tensor, task: Task) -> Best:
    """Discard points outside the ball, up to the accumulated float32 rounding of the library."""
    rounding = 0.0 if task.problem.norm.name == "l0" else 1e-6 * task.problem.box.width
    size = found.size.masked_fill(found.size > radius * (1 + 1e-4) + rounding, torch.inf)
    return Best(size, found.point, found.prediction, found.penalty)


def expect_norm(config: object, task: Task, norms: tuple[str, ...]) -> str:
    """Return the name of the task's norm; raise InvalidInputError if the attack does not support it."""
    name = task.problem.norm.name
    if name not in norms:
        raise InvalidInputError(f"attack {type(config).__name__}: expected the norm {' or '.join(norms)}, got {name!r}")
    return name


def expect_untargeted(config: object, task: Task) -> None:
    """Raise InvalidInputError if the task has targets."""
    if task.criterion.targeted:
        raise InvalidInputError(f"attack {type(config).__name__}: expected no targets, which it cannot aim at")


def expect_counts(config: object, *names: str) -> None:
    """Raise InvalidInputError unless these settings are integers of at least 1."""
    for name in names:
        value = getattr(config, name)
        expect_setting(config, name, "an integer of at least 1", isinstance(value, int) and value >= 1)


def expect_positive(config: object, *names: str) -> None:
    """Raise InvalidInputError unless these settings are above 0."""
    for name in names:
        expect_setting(config, name, "above 0", getattr(config, name) > 0)


class Nearest(nn.Module):
    """Wraps the model, and records for each row the nearest point that is adversarial by more than rounding error.

    The libraries that need it return the nearest point that was adversarial in their own forward pass. The nearer that
    point is to the boundary, the likelier its class depends on the last bit, and differs in another batch or on another
    processor. A row without such a point keeps its input. Every call must pass all rows, in order.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        criterion: Criterion,
        size_of: Callable[[Tensor], Tensor],
        *,
        at_gradients: bool = True,
    ) -> None:
        """Wrap a model.

        Args:
            model: The model that the library evaluates.
            inputs: The unperturbed rows.
            criterion: Decides which points are adversarial.
            size_of: Computes the size of each perturbation.
            at_gradients: Whether points at which the library computes a gradient are recorded too.
        """
        super().__init__()
        self.model, self.inputs, self.criterion, self.size_of = model, inputs, criterion, size_of
        self.at_gradients = at_gradients
        self.points, self.sizes = inputs.clone(), inputs.new_full((len(inputs),), torch.inf)
        self.eval()

    def forward(self, points: Tensor) -> Tensor:
        """Return the model's logits, and record the points."""
        logits: Tensor = self.model(points)
        if self.at_gradients or not points.requires_grad:
            with torch.no_grad():
                self._keep(points.detach(), logits.detach())
        return logits

    def _keep(self, points: Tensor, logits: Tensor) -> None:
        """Record points that are adversarial by more than rounding error and smaller than those recorded before."""
        rounding = ROUNDINGS * torch.finfo(logits.dtype).eps * logits.abs().amax(1)
        sizes = self.size_of(points - self.inputs)
        better = (self.criterion.margin(logits) < -rounding) & (sizes < self.sizes)
        self.points[better], self.sizes[better] = points[better], sizes[better]


class Unit:
    """Maps the box of a problem to [0, 1], for libraries that support no other box."""

    def __init__(self, problem: Problem) -> None:
        low, high = problem.box.low, problem.box.high
        if float(low.min()) < float(low.max()) or float(high.min()) < float(high.max()):
            # Mapping a box with unequal sides to [0, 1] would change the norms.
            raise InvalidInputError("bounds: expected two numbers, the same for every entry, got different ones")
        self.problem = problem
        self.low, self.width = low.min(), high.max() - low.min()
        self.is_box = float(self.low) == 0.0 and float(self.width) == 1.0

    def inward(self, points: Tensor) -> Tensor:
        """Map points of the problem to [0, 1]."""
        return (points if self.is_box else (points - self.low) / self.width).float().clamp(0.0, 1.0)

    def outward(self, points: Tensor) -> Tensor:
        """Map points in [0, 1] to the box of the problem."""
        points = points.to(self.problem.inputs)
        return points if self.is_box else self.low + self.width * points

    def logits(self, points: Tensor) -> Tensor:
        """Evaluate the model at points in [0, 1], and return the logits on the device of the points."""
        if not bool(points.isfinite().all()):
            # Raise here: otherwise the model would be blamed for the logits of such points.
            raise FloatingPointError("the library asked the model about points that are not finite")
        logits = self._answer(self.outward(points))
        return logits.to(points.device, torch.float32)

    def _answer(self, points: Tensor) -> Tensor:
        """Evaluate the model, differentiably if the library asks for gradients."""
        ask: Callable[[Tensor], Tensor] = lambda points: self.problem.classifier.logits(points, None)  # noqa: E731
        if torch.is_grad_enabled() and points.requires_grad:
            answer: Tensor = _OfInputsOnly.apply(points, ask)  # type: ignore[no-untyped-call]  # torch does not type it
            return answer
        return ask(points)


class _OfInputsOnly(torch.autograd.Function):
    """Differentiates the model with respect to its inputs only.

    Libraries call `backward()`, which would also fill the gradients of the parameters. NaN in a gradient becomes 0, as
    in our own attacks; some libraries would loop forever on NaN.
    """

    @staticmethod
    def forward(context: Any, points: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        """Evaluate the model on a detached copy of the points, and store its graph."""
        with torch.enable_grad():
            context.leaf = points.detach().requires_grad_()
            context.logits = ask(context.leaf)
        logits: Tensor = context.logits.detach()
        return logits

    @staticmethod
    def backward(context: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the points."""
        # Retain the graph: libraries ask for the gradient of one class after another.
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
    """Attack these rows, write the results to `points`, and return the errors of the rows that failed."""
    inputs, classes = unit.inward(task.inputs[rows]), task.criterion.classes[rows]
    model = Counted(unit.logits)
    model.eval()
    try:
        with _seeded(task, rows, restart), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # warnings of a library do not concern our users
            found = attack(model, inputs.clone(), classes.clone(), rows).detach().to(inputs)
        if found.shape != inputs.shape:
            raise AttackError(f"expected points of shape {tuple(inputs.shape)}, got {tuple(found.shape)}")
    except (PdpgdError, MemoryError, torch.OutOfMemoryError):
        raise  # caused by the model, the caller or the machine
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
    # Unchanged entries are exactly those of the input, whatever rounding the mapping of the box introduced.
    points[rows] = torch.where(found == inputs, task.inputs[rows], task.problem.box.clip(unit.outward(found)))
    return {}


def _pay(task: Task, rows: Tensor, model: Counted) -> None:
    """Charge the passes evenly to the samples: the rows of a library's batch cannot be attributed. The sum is exact."""
    samples, ledger = task.samples[rows], task.problem.ledger
    for passes, column in ((model.forwards, ledger.forwards), (model.backwards, ledger.backwards)):
        column[samples] += passes // len(rows)
        column[samples[: passes % len(rows)]] += 1


def _seeded(task: Task, rows: Tensor, restart: int) -> AbstractContextManager[None]:
    """Seed the global generators, from which the libraries draw, for these rows."""
    first = int(task.problem.indices[int(task.samples[rows[0]])])
    device = task.problem.inputs.device
    return seeded_globally(task.problem.seed, first, restart, devices=[device] if device.type == "cuda" else [])


def _described(error: Exception) -> str:
    """Describe an error by its type and its message, if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
