"""The parts of AutoAttack (Croce & Hein 2020), by its authors' code: pyautoattack, tested with version 0.2.0.

All of them search within a radius, are untargeted, and support linf, l2 and l1. The library takes one radius per call,
so samples of equal radius are attacked together: at given `radii` the whole batch, in a search over the radius mostly
single samples, which takes much longer. It draws random numbers for all samples that it attacks together, so results
depend on the batch. The same call gives the same points. `pdpgd.baselines.autoattack` has AutoAttack itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.bridge import by_library, expect_counts, expect_norm, expect_untargeted, within_radius
from pdpgd.errors import InvalidInputError, UnknownNameError, expect_setting, need

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
"""The norms that the library supports, with its names for them."""

# The three phases of APGD in l1, at 3, 2 and 1 times the radius, need several steps each.
PHASED_STEPS = 10
# Fewest steps per target class with which a budget is divided among several target classes.
STEPS_PER_TARGET = 20


class Part(Preparable):
    """An attack of the library: a subclass says how it is created, what it needs and what it costs."""

    @property
    def least_classes(self) -> int:
        """The number of classes that the attack needs."""
        return 2

    def passes(self, norm: str, classes: int) -> int:
        """Return the passes that it spends on a sample at one radius if it finds nothing.

        Args:
            norm: Name of the norm.
            classes: Number of classes of the model.

        Returns:
            Forward plus backward passes, including the one that judges the result.
        """
        raise NotImplementedError(f"{type(self).__name__}.passes")

    def created(self, task: Task, **common: Any) -> Any:
        """Create the library's attack for a task.

        Args:
            task: The samples to attack.
            **common: Arguments of every attack: `predict`, `norm`, `eps`, `seed` and `device`.

        Returns:
            The library's attack.
        """
        raise NotImplementedError(f"{type(self).__name__}.created")

    def expect_task(self, task: Task) -> None:
        """Raise InvalidInputError if the attack cannot handle the norm, the targets or the model of a task."""
        expect_norm(self, task, tuple(NORMS))
        expect_untargeted(self, task)
        if task.classes < self.least_classes:
            raise InvalidInputError(
                f"attack {type(self).__name__}: expected a model of at least {self.least_classes} classes, which its "
                f"loss needs, got {task.classes}; use apgd-ce, fab-t@pyautoattack or square@pyautoattack, or "
                'autoattack with attacks ["apgd-ce", "fab-t", "square"]'
            )

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        self.expect_task(task)
        inward, norm = (radius / task.problem.box.width).double().cpu(), NORMS[task.problem.norm.name]

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            points, radii = inputs.clone(), inward[rows.cpu()]
            for eps in sorted(set(radii.tolist())):
                here = (radii == eps).nonzero().flatten().to(inputs.device)
                # Square overwrites the logits that it is given, which may belong to the model.
                common = {"predict": lambda x: model(x).clone(), "norm": norm, "eps": eps, "device": inputs.device}
                engine = self.created(task, seed=_seed(), **common)
                points[here] = engine.perturb(inputs[here], classes[here]).detach()
            return points

        return within_radius(by_library(task, attack, name=type(self).__name__, restart=restart), radius, task)


@dataclass(frozen=True, kw_only=True)
class AutoAttackAPGD(Part):
    """Auto-PGD on the cross-entropy or the DLR loss: PGD with momentum that halves its steps by itself.

    A start costs `draws` x (`steps` + 1) forward and backward passes, with phases in l1 `draws` x (`steps` + 3); 2
    forward passes judge input and result.
    """

    steps: int = 100
    starts: int = 1
    """Random starts. A fooled sample has no other start."""
    loss: str = "ce"
    """`ce`, or `dlr`, which needs 3 classes."""
    draws: int = 1
    """Gradients per step that are averaged, for a randomized model."""
    phases: bool = True
    """In l1, with 10 or more steps: begin at three times the radius, and go on at twice and once the radius."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "starts", "draws")
        if self.loss not in ("ce", "dlr"):
            raise UnknownNameError("loss", self.loss, ("ce", "dlr"))

    @property
    def least_classes(self) -> int:
        """The number of classes that the loss needs."""
        return 3 if self.loss == "dlr" else 2

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps, as many at each radius."""
        gradients = int(budget.settings.get("starts", 1)) * int(budget.settings.get("draws", 1))
        return {"steps": max(1, budget.steps(2 * gradients * budget.evaluations) - 2)}

    def passes(self, norm: str, classes: int) -> int:
        """Return the passes that it spends on a sample at one radius if it finds nothing."""
        return 2 + self.starts * self.draws * _apgd_passes(norm, self.steps, self.phases)

    def created(self, task: Task, **common: Any) -> Any:
        """Create the library's attack."""
        return _module("autopgd_base").APGDAttack(
            n_iter=self.steps,
            n_restarts=self.starts,
            loss=self.loss,
            eot_iter=self.draws,
            use_largereps=_phased(task.problem.norm.name, self.steps, self.phases),
            **common,
        )


@dataclass(frozen=True, kw_only=True)
class AutoAttackAPGDT(Part):
    """Auto-PGD on the targeted DLR loss, towards one class after another, the likeliest first.

    A model needs 4 classes. A target costs 1 forward pass and `steps` + 1 forward and backward passes, with phases in
    l1 `steps` + 3; 2 forward passes judge input and result. A fooled sample has no further target.
    """

    steps: int = 100
    targets: int = 9
    """Number of target classes; all others if there are fewer."""
    phases: bool = True
    """As in `AutoAttackAPGD`."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "targets")

    @property
    def least_classes(self) -> int:
        """The number of classes that the targeted DLR loss needs."""
        return 4

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps, towards as many targets as have 20 steps each."""
        targets = _affordable_targets(budget, 2)
        return {"steps": max(1, budget.steps(2 * budget.evaluations * targets) - 2), "targets": targets}

    def passes(self, norm: str, classes: int) -> int:
        """Return the passes that it spends on a sample at one radius if it finds nothing."""
        return 2 + min(self.targets, classes - 1) * (1 + _apgd_passes(norm, self.steps, self.phases))

    def created(self, task: Task, **common: Any) -> Any:
        """Create the library's attack."""
        return _module("autopgd_base").APGDAttack_targeted(
            n_iter=self.steps,
            n_target_classes=min(self.targets, task.classes - 1),
            use_largereps=_phased(task.problem.norm.name, self.steps, self.phases),
            **common,
        )


@dataclass(frozen=True, kw_only=True)
class AutoAttackFABT(Part):
    """FAB within a radius: projections on the linearized boundary, towards one class after another or all at once.

    A target costs 3 forward passes, and 2 forward and 1 backward pass per step; 2 forward passes judge input and
    result. A sample that is fooled within the radius has no further target. Where the gradient is 0 the library may
    compute NaN; such samples are recorded as faults.
    """

    steps: int = 100
    targets: int = 9
    """Number of target classes, the likeliest first. 0: every step considers all classes, at the cost of a backward
    pass for each of them (FAB)."""
    starts: int = 1
    """Starts, per target if there are targets. The first is the input, the others are random."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "starts")
        expect_setting(self, "targets", "an integer of at least 0", isinstance(self.targets, int) and self.targets >= 0)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps, towards as many targets as have 20 steps each."""
        targets = _affordable_targets(budget, 3)
        return {"steps": max(1, budget.steps(3 * budget.evaluations * targets) - 2), "targets": targets}

    def passes(self, norm: str, classes: int) -> int:
        """Return the passes that it spends on a sample at one radius if it finds nothing."""
        if self.targets == 0:
            return 2 + self.starts * (2 + (2 + classes) * self.steps)
        return 2 + min(self.targets, classes - 1) * self.starts * (3 + 3 * self.steps)

    def created(self, task: Task, **common: Any) -> Any:
        """Create the library's attack."""
        return _module("fab_pt").FABAttack_PT(
            n_iter=self.steps,
            n_restarts=self.starts,
            targeted=self.targets > 0,
            n_target_classes=min(self.targets, task.classes - 1),
            **common,
        )


@dataclass(frozen=True, kw_only=True)
class AutoAttackSquare(Part):
    """Square (Andriushchenko et al. 2020; l1: Croce & Hein 2021): random search over squares, without gradients.

    It costs `queries` + 4 forward passes; a fooled sample stops. Inputs are images of shape (channels, height, width),
    in l2 and l1 at least 5 pixels high.
    """

    queries: int = 5000
    """Maximum number of proposals."""
    share: float = 0.8
    """Share of the image that the first squares cover."""
    rescale: bool = False
    """Shrink the squares with the share of `queries` that is spent rather than with their number. AutoAttack: not."""

    def __post_init__(self) -> None:
        expect_counts(self, "queries")
        expect_setting(self, "share", "above 0 and at most 1", 0 < self.share <= 1)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on queries, as many at each radius."""
        return {"queries": max(1, budget.steps(budget.evaluations) - 4)}

    def expect_task(self, task: Task) -> None:
        """Raise InvalidInputError if the attack cannot handle a task, such as one without images."""
        super().expect_task(task)
        shape, norm = tuple(task.inputs.shape[1:]), task.problem.norm.name
        if len(shape) != 3 or (norm != "linf" and shape[1] < 5):
            raise InvalidInputError(
                f"attack {type(self).__name__}: expected images of shape (channels, height, width), in l2 and l1 at "
                f"least 5 pixels high, got inputs of shape {shape}; use autoattack with attacks "
                '["apgd-ce", "apgd-t", "fab-t"]'
            )

    def passes(self, norm: str, classes: int) -> int:
        """Return the passes that it spends on a sample at one radius if it finds nothing."""
        return 4 + self.queries

    def created(self, task: Task, **common: Any) -> Any:
        """Create the library's attack."""
        return _module("square").SquareAttack(
            n_queries=self.queries, p_init=self.share, resc_schedule=self.rescale, n_restarts=1, **common
        )


def _module(name: str) -> Any:
    """Import a module of the library; raise MissingExtraError if the library is not installed."""
    need("pyautoattack", extra="autoattack", purpose="this attack")
    return import_module(f"pyautoattack.{name}")


def _seed() -> int:
    """Return the seed that the bridge gave to the global generator; the library seeds it again."""
    return torch.initial_seed()


def _phased(norm: str, steps: int, phases: bool) -> bool:
    return phases and norm == "l1" and steps >= PHASED_STEPS


def _apgd_passes(norm: str, steps: int, phases: bool) -> int:
    """Return the passes of one start of APGD: each phase also evaluates its first point."""
    return 2 * (steps + (3 if _phased(norm, steps, phases) else 1))


def _affordable_targets(budget: Budget, passes: int) -> int:
    """Return how many targets have `STEPS_PER_TARGET` steps each, at this many passes per step; at least 1."""
    steps = budget.steps(passes * budget.evaluations)
    return max(1, min(9, budget.classes - 1, steps // STEPS_PER_TARGET))
