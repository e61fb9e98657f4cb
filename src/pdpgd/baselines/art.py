"""Attacks of the Adversarial Robustness Toolbox (Nicolae et al. 2018), tested with version 1.20.1.

Lengths in the settings are in units of a box of [0, 1], whatever the box of the problem is. The library works in NumPy,
and computes the gradient of one class at a time.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.bridge import by_library, expect_counts, expect_norm, expect_untargeted, within_radius
from pdpgd.baselines.settings import DeepFoolSettings, EADSettings
from pdpgd.errors import InvalidInputError, expect_setting, need

# Rows that the library passes to the model at once.
BATCH = 128


@dataclass(frozen=True, kw_only=True)
class ArtJSMA(Preparable):
    """Saliency map (Papernot et al. 2016), l0: move the two entries that help a target most, until it is reached.

    It is run towards one class after another, and the smallest perturbation counts. A step towards a target costs 2
    forward passes (one of them also for samples that are done) and 1 backward pass; each target costs 1 more forward
    pass.
    """

    theta: float = 1.0
    """How far an entry moves per step, up or down. The paper: the best of +-0.1 and +-1."""
    gamma: float = 1.0
    """Maximum share of the entries that change. The paper: 1."""
    targets: int | None = None
    """Number of target classes, the likeliest first; None: all. The paper: all; on Restricted ImageNet one."""

    def __post_init__(self) -> None:
        expect_setting(self, "theta", "between -1 and 1, not 0", 0 < abs(self.theta) <= 1)
        expect_setting(self, "gamma", "above 0, at most 1", 0 < self.gamma <= 1)
        expect_counts(self, *(["targets"] if self.targets is not None else []))

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Choose the number of targets; the library runs until it finds something, and has no bound on the steps."""
        return {"targets": max(1, min(budget.classes - 1, budget.passes // 80))}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l0",))
        best = Best.none(task.inputs)
        for number, aims in enumerate(aimed := self._aims(task)):
            best.improve(self._towards(task, aims), at=torch.arange(len(task), device=task.samples.device))
            task.report_progress((number + 1) / len(aimed))
        return best

    def _aims(self, task: Task) -> list[Tensor]:
        """List the target classes of the samples, one tensor per run. Untargeted, their order costs 1 forward pass."""
        if task.criterion.targeted:
            return [task.criterion.classes]
        others = task.logits(task.inputs).scatter(1, task.labels[:, None], -torch.inf)
        return list(others.topk(min(self.targets or task.classes, task.classes - 1), dim=1).indices.T)

    def _towards(self, task: Task, aims: Tensor) -> Best:
        """Run the attack towards one class per sample."""

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            points = inputs.clone()
            # Samples with the same target share the backward passes that the library makes per class.
            for aim in sorted(set(aims[rows].tolist())):
                mine = aims[rows] == aim
                attacker = evasion.SaliencyMapMethod(
                    _classifier(model, inputs, task.classes), self.theta, self.gamma, batch_size=BATCH, verbose=False
                )
                points[mine] = _generated(attacker.generate, inputs[mine], torch.full_like(classes[mine], aim))
            return points

        evasion = _library("art.attacks.evasion")
        return by_library(task, attack, name="JSMA")


@dataclass(frozen=True, kw_only=True)
class ArtPixel(Preparable):
    """One-pixel attack (Su et al. 2019) for any number of pixels, within an l0 radius: differential evolution.

    It costs about 400 forward passes per generation (the library's population is 400, or one candidate per dimension).
    It attacks one sample after another; a fooled sample stops. Values are quantized to 8 bits.
    """

    steps: int = 100
    """Number of generations. The paper: 100."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps")

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on generations of 400 candidates, at least one per radius."""
        return {"steps": budget.steps(400 * budget.evaluations)}

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        expect_norm(self, task, ("l0",))
        if task.inputs.ndim != 4:
            raise InvalidInputError(
                f"attack Pixel: expected images, (batch, channels, height, width), got {tuple(task.inputs.shape)}"
            )
        evasion, targeted = _library("art.attacks.evasion"), task.criterion.targeted
        # The library assumes that two classes share one output.
        library_classes = max(3, task.classes)

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            points = inputs.clone()
            for row, pixels in enumerate(radius[rows].floor().long().tolist()):
                if pixels == 0:
                    continue
                attacker = evasion.PixelAttack(
                    _classifier(model, inputs, library_classes), th=pixels, es=1, max_iter=self.steps, targeted=targeted
                )
                mine = slice(row, row + 1)
                points[mine] = _generated(attacker.generate, inputs[mine], classes[mine])
            # Conversion to 8 bits and back changes every entry slightly.
            return torch.where((points - inputs).abs() < 1e-4, inputs, points)

        return within_radius(by_library(task, attack, name="Pixel", restart=restart), radius, task)


@dataclass(frozen=True, kw_only=True)
class ArtDeepFool(DeepFoolSettings):
    """DeepFool as implemented by ART, in l2: a step costs 2 forward passes and 1 backward pass per class.

    It continues until the whole batch is fooled.
    """

    @classmethod
    def step_cost(cls, classes: int) -> int:
        """Return the passes per step: 2 forward, and 1 backward per class."""
        return 2 + classes

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l2",))
        expect_untargeted(self, task)
        settings: dict[str, Any] = {"max_iter": self.steps, "epsilon": self.overshoot, "nb_grads": task.classes}
        return _run(self, task, "DeepFool", **settings)


@dataclass(frozen=True, kw_only=True)
class ArtEAD(EADSettings):
    """EAD as implemented by ART: a step costs 4 forward passes, and 2 backward passes per class in the batch."""

    @classmethod
    def step_cost(cls, classes: int) -> int:
        """Return the passes per step; the library computes the gradient of every class."""
        return 7 + classes

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l1",))
        settings: dict[str, Any] = {"learning_rate": self.initial_stepsize, "initial_const": self.initial_const}
        settings |= {"binary_search_steps": self.binary_search_steps, "max_iter": self.steps}
        settings |= {"beta": self.regularization, "decision_rule": "L1", "targeted": task.criterion.targeted}
        return _run(self, task, "ElasticNet", **settings)


def _library(module: str) -> ModuleType:
    """Import a module of ART; raise MissingExtraError with the command that installs it if it is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        need("art", extra="art", purpose="this attack")
        return importlib.import_module(module)


def _classifier(model: nn.Module, inputs: Tensor, classes: int) -> Any:
    """Wrap the model as the library wants it."""
    return _library("art.estimators.classification").PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(inputs.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        # The bridge moves the points to the device of the model.
        device_type="cpu",
    )


def _generated(generate: Callable[..., Any], inputs: Tensor, classes: Tensor) -> Tensor:
    """Call the library with NumPy arrays and one-hot classes: it misreads integer labels of two classes."""
    count = int(generate.__self__.estimator.nb_classes)  # type: ignore[attr-defined]  # a bound method
    hot = nn.functional.one_hot(classes, count).cpu().numpy().astype(np.float32)
    return torch.as_tensor(generate(inputs.cpu().numpy(), y=hot)).to(inputs)


def _run(config: object, task: Task, name: str, **settings: Any) -> Best:
    """Run an attack of the library on the whole batch."""
    evasion = _library("art.attacks.evasion")

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        attacker = getattr(evasion, name)(
            _classifier(model, inputs, task.classes), batch_size=BATCH, verbose=False, **settings
        )
        return _generated(attacker.generate, inputs, classes)

    return by_library(task, attack, name=type(config).__name__)
