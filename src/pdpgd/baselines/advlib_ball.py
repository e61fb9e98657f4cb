"""Attacks of adv-lib that search within a radius; `pdpgd.baselines.advlib` has the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.advlib import EPSILON, ORDERS, library
from pdpgd.baselines.bridge import (
    by_library,
    expect_counts,
    expect_norm,
    expect_positive,
    expect_untargeted,
    within_radius,
)
from pdpgd.baselines.settings import BallSteps
from pdpgd.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class APGD(Preparable):
    """Auto-PGD (Croce & Hein 2020; in l1, 2021), within a radius: PGD with momentum and automatic step halving.

    It costs `steps` + 1 forward and backward passes per start, in l1 `steps` + 3.
    """

    steps: int = 100
    loss: str = "dlr"
    """`dlr`, which needs 3 classes, 4 if targeted (`ce` replaces it if there are fewer), or `ce`."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        _expect_loss(self.loss)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps, as many at each radius, less the pass at its start."""
        return {"steps": max(1, budget.steps(2 * budget.evaluations) - 1)}

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        loss = self.loss if task.classes >= 3 + task.criterion.targeted else "ce"
        return _within_radius(self, task, radius, restart, "apgd", targeted=task.criterion.targeted, loss_function=loss)


@dataclass(frozen=True, kw_only=True)
class APGDT(Preparable):
    """Auto-PGD towards one class after another, the likeliest first (Croce & Hein 2020), within a radius.

    Untargeted, as it chooses its targets itself. It costs 1 forward pass and, per class that it tries, `steps` + 1
    forward and backward passes; fooled samples stop.
    """

    steps: int = 100
    targets: int = 9
    """Number of classes to try."""
    loss: str = "dlr"
    """`dlr`, which needs 4 classes (`ce` replaces it if there are fewer), or `ce`."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "targets")
        _expect_loss(self.loss)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Bound the steps; a sample that is fooled is not attacked towards another class."""
        targets = min(9, budget.classes - 1)
        return {"steps": max(1, budget.steps(2 * budget.evaluations * targets) - 1), "targets": targets}

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        expect_untargeted(self, task)
        loss = self.loss if task.classes >= 4 else "ce"
        targets = min(self.targets, task.classes - 1)
        return _within_radius(
            self, task, radius, restart, "apgd_targeted", targeted=False, loss_function=loss, num_targets=targets
        )


@dataclass(frozen=True, kw_only=True)
class AdvLibPGD(BallSteps):
    """PGD (Madry et al. 2018) in linf, from a random start, on the cross-entropy: a check on our own PGD.

    A step costs 1 forward and 1 backward pass. The library does not evaluate the last point; the bridge does.
    """

    steps: int = 500
    step: float = 0.1
    """Length of a step, relative to the radius."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_positive(self, "step")

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        expect_norm(self, task, ("linf",))
        run, inward = library().pgd_linf, (radius / task.problem.box.width).float()
        targeted = task.criterion.targeted

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            at = {EPSILON: inward[rows], "steps": self.steps, "relative_step_size": self.step}
            points: Tensor = run(model, inputs, classes, targeted=targeted, **at)
            return points

        return within_radius(by_library(task, attack, name="PGD", restart=restart), radius, task)


def _expect_loss(loss: str) -> None:
    """Raise UnknownNameError unless the library has the loss."""
    if loss not in ("dlr", "ce"):
        raise UnknownNameError("loss", loss, ("dlr", "ce"))


def _within_radius(
    config: APGD | APGDT, task: Task, radius: Tensor, restart: int, function: str, **settings: Any
) -> Best:
    """Run a variant of Auto-PGD, and discard points outside the ball."""
    norm = expect_norm(config, task, ("linf", "l2", "l1"))
    run, inward = getattr(library(), function), (radius / task.problem.box.width).float()

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        # Its three phases in l1 need several steps each.
        phases = norm == "l1" and config.steps >= 10
        points: Tensor = run(
            model, inputs, classes, inward[rows], ORDERS[norm], n_iter=config.steps, use_large_reps=phases, **settings
        )
        return points

    return within_radius(by_library(task, attack, name=type(config).__name__, restart=restart), radius, task)
