"""Attacks of the Adversarial Robustness Toolbox (Nicolae et al. 2018), tried with version 1.20.1.

Lengths among the settings are in a box of [0, 1], whatever the box of the problem is. The library works in NumPy, and
asks for the slope of one class at a time.
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
from pdpgd.baselines.bridge import by_library, expect_counts, expect_norm, expect_untargeted, within
from pdpgd.baselines.settings import DeepFoolSettings, EADSettings
from pdpgd.errors import InvalidInputError, expect_setting, need

# Rows that the library gives the model at once.
BATCH = 128


@dataclass(frozen=True, kw_only=True)
class ArtJSMA:
    """Saliency map (Papernot et al. 2016), l0: move the two entries that help a target most, until it is reached.

    It aims at one class after the other and keeps the best. A step of a target costs 2 forward passes (one of them also
    for the samples that are done) and 1 backward pass; each target 1 forward pass before.
    """

    theta: float = 1.0
    """How far an entry is moved at a time, upwards or downwards. The paper: the best of +-0.1 and +-1."""
    gamma: float = 1.0
    """The share of the entries that may be moved. The paper: 1."""
    targets: int | None = None
    """How many classes to aim at, the likeliest first; None: all. The paper: all, on R-ImageNet one."""

    def __post_init__(self) -> None:
        expect_setting(self, "theta", "between -1 and 1, not 0", 0 < abs(self.theta) <= 1)
        expect_setting(self, "gamma", "above 0, at most 1", 0 < self.gamma <= 1)
        expect_counts(self, *(["targets"] if self.targets is not None else []))

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l0",))
        best = Best.none(task.inputs)
        for number, aims in enumerate(aimed := self._aims(task)):
            best.improve(self._towards(task, aims), at=torch.arange(len(task), device=task.samples.device))
            task.tell((number + 1) / len(aimed))
        return best

    def _aims(self, task: Task) -> list[Tensor]:
        """A class for each sample, time after time. Untargeted, knowing the order costs a forward pass."""
        if task.criterion.targeted:
            return [task.criterion.classes]
        others = task.logits(task.inputs).scatter(1, task.labels[:, None], -torch.inf)
        return list(others.topk(min(self.targets or task.classes, task.classes - 1), dim=1).indices.T)

    def _towards(self, task: Task, aims: Tensor) -> Best:
        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            points = inputs.clone()
            # Aimed at one class, the samples share the backward passes that it takes for each.
            for aim in sorted(set(aims[rows].tolist())):
                mine = aims[rows] == aim
                rival = evasion.SaliencyMapMethod(
                    _classifier(model, inputs, task.classes), self.theta, self.gamma, batch_size=BATCH, verbose=False
                )
                points[mine] = _generated(rival.generate, inputs[mine], torch.full_like(classes[mine], aim))
            return points

        evasion = _library("art.attacks.evasion")
        return by_library(task, attack, name="JSMA")


@dataclass(frozen=True, kw_only=True)
class ArtPixel:
    """One-pixel attack (Su et al. 2019) for any number of pixels, within an l0 radius: differential evolution.

    It costs some 400 forward passes a generation (the library's population: 400, or one of each dimension), on one
    sample after the other; a sample that is fooled stops. Values are those of 8 bits.
    """

    steps: int = 100
    """Generations. The paper: 100."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps")

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        expect_norm(self, task, ("l0",))
        if task.inputs.ndim != 4:
            raise InvalidInputError(
                f"attack Pixel: expected images, (batch, channels, height, width), got {tuple(task.inputs.shape)}"
            )
        evasion, targeted = _library("art.attacks.evasion"), task.criterion.targeted
        # Of two classes it believes that they share one output.
        classes_told = max(3, task.classes)

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            points = inputs.clone()
            for row, pixels in enumerate(radius[rows].floor().long().tolist()):
                if pixels == 0:
                    continue
                rival = evasion.PixelAttack(
                    _classifier(model, inputs, classes_told), th=pixels, es=1, max_iter=self.steps, targeted=targeted
                )
                mine = slice(row, row + 1)
                points[mine] = _generated(rival.generate, inputs[mine], classes[mine])
            # There and back from 8 bits moves every entry a little.
            return torch.where((points - inputs).abs() < 1e-4, inputs, points)

        return within(by_library(task, attack, name="Pixel", restart=restart), radius, task)


@dataclass(frozen=True, kw_only=True)
class ArtDeepFool(DeepFoolSettings):
    """DeepFool of ART, in l2: a step costs 2 forward passes and a backward pass for each class.

    It goes on until the whole batch is fooled.
    """

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l2",))
        expect_untargeted(self, task)
        settings: dict[str, Any] = {"max_iter": self.steps, "epsilon": self.overshoot, "nb_grads": task.classes}
        return _run(self, task, "DeepFool", **settings)


@dataclass(frozen=True, kw_only=True)
class ArtEAD(EADSettings):
    """EAD of ART: a step costs 4 forward passes, and two backward passes for each class that occurs in the batch."""

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l1",))
        settings: dict[str, Any] = {"learning_rate": self.initial_stepsize, "initial_const": self.initial_const}
        settings |= {"binary_search_steps": self.binary_search_steps, "max_iter": self.steps}
        settings |= {"beta": self.regularization, "decision_rule": "L1", "targeted": task.criterion.targeted}
        return _run(self, task, "ElasticNet", **settings)


def _library(module: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        need("art", extra="art", purpose="this attack")
        return importlib.import_module(module)


def _classifier(model: nn.Module, inputs: Tensor, classes: int) -> Any:
    return _library("art.estimators.classification").PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(inputs.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        # The bridge brings the points to the model, wherever that is.
        device_type="cpu",
    )


def _generated(generate: Callable[..., Any], inputs: Tensor, classes: Tensor) -> Tensor:
    """NumPy in and out; classes one-hot, for of two classes it takes a column of labels for something else."""
    count = int(generate.__self__.estimator.nb_classes)  # type: ignore[attr-defined]  # a bound method
    hot = nn.functional.one_hot(classes, count).cpu().numpy().astype(np.float32)
    return torch.as_tensor(generate(inputs.cpu().numpy(), y=hot)).to(inputs)


def _run(config: object, task: Task, name: str, **settings: Any) -> Best:
    evasion = _library("art.attacks.evasion")

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        rival = getattr(evasion, name)(
            _classifier(model, inputs, task.classes), batch_size=BATCH, verbose=False, **settings
        )
        return _generated(rival.generate, inputs, classes)

    return by_library(task, attack, name=type(config).__name__)
