"""Attacks of Foolbox (Rauber et al. 2020, github.com/bethgelab/foolbox), tested with version 3.3.4.

Lengths in the settings are in units of a box of [0, 1], whatever the box of the problem is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pdpgd.attacks.base import random_rows
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.bridge import Nearest, Unit, by_library, expect_counts, expect_norm, expect_untargeted
from pdpgd.baselines.settings import LARGE, CarliniWagnerSettings, DDNSettings, DeepFoolSettings, EADSettings
from pdpgd.criteria import Criterion
from pdpgd.errors import expect_setting, need

# Number of images of another class that are tried as a start, the nearest first.
NEIGHBORS = 3
# Number of strengths of salt-and-pepper noise that are tried where nothing else was adversarial.
STRENGTHS = 10
# Initial trust regions that work best with some hundreds of steps; the docstring of `BrendelBethge` has the numbers.
RATES = {"linf": 0.01, "l2": 0.01, "l1": 0.003, "l0": 0.01}


@dataclass(frozen=True, kw_only=True)
class BrendelBethge(Preparable):
    """Brendel & Bethge 2019: from an adversarial start along the boundary, each step optimal in a trust region.

    A step costs 1 forward and 1 backward pass, and solves a small optimization problem on the CPU. Before the steps
    come 11 forward passes, and those that find a start: 1 per draw of noise, blend or image. The first use of a norm in
    a process compiles for a minute. The start may be another image of the call, so the result depends on the batch.

    Mean distance within 600 passes, from noise / from the data, images 300-331 of mnist-1000, seed 0, all fooled:

        lr            net            linf             l2             l1           l0
        `RATES`       mnist-plain    .0779 / .0836    1.16 / 1.25    6.69 / 7.00  7.74 / 8.39
                      mnist-linf-at  .3120 / .3205    1.66 / 1.89    5.76 / 7.65  14.5 / 61.6
                      mnist-l2-at    .1667 / .1752    2.30 / 2.44    13.2 / 13.9  14.3 / 15.3
        1, the first  mnist-plain    .0793 / .0832    1.15 / 1.25    6.69 / 6.85  7.90 / 8.35
        of the paper  mnist-linf-at  .3080 / .3128    2.06 / 2.04    28.0 / 16.5  21.2 / 128
                      mnist-l2-at    .1672 / .1743    2.33 / 2.44    13.3 / 13.0  14.1 / 14.5

    So images are the better start only in l1, with a trust region that is too wide.
    """

    steps: int = 1000
    lr: float | None = None
    """Initial trust region, relative to the number of entries. None: `RATES` of the norm. The paper: the best of 1, 0.1
    and 0.01, relative to the entries of a batch of 500 (MNIST), 250 (CIFAR-10) or 50 images, as Foolbox has it."""
    lr_decays: int = 20
    """Number of times it is halved, at regular intervals. The authors' scripts: the better of 20 and 100."""
    start: Literal["noise", "data"] = "noise"
    """"noise": the smallest adversarial blend of the input with uniform noise, found by a line search, and an image of
    the call where noise is not adversarial, as the authors do; "data": the image first."""
    directions: int = 1000
    """Maximum number of draws of noise until one is adversarial. Foolbox, and so the authors: 1000."""
    blends: int = 1000
    """Steps of the line search from the input to the noise. Foolbox, and so the authors: 1000."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "lr_decays", "directions", "blends")
        expect_setting(self, "lr", "above 0, or None", self.lr is None or self.lr > 0)
        expect_setting(self, "start", "'noise' or 'data'", self.start in ("noise", "data"))

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend a twentieth of the budget on a start from noise, and the rest on steps.

        A start from an image costs one to three passes, the way to the boundary eleven. Mean pixels in l0 over five
        seeds by the number of blends, 200 steps at lr 1, images 300-331 of mnist-linf-at: 23.2 (10), 20.7 (30), 20.4
        (50), 20.6 (100), 23.6 (1000, as the authors).
        """
        search = max(1, min(1000, budget.passes // 20))
        from_noise = budget.settings.get("start", "noise") == "noise"
        steps = max(1, (budget.passes - 12 - search * from_noise) // 2)
        return {"steps": steps, "directions": search, "blends": search}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings; the start is that of the authors' code, with Foolbox's numbers."""
        start = {"start": "noise", "directions": 1000, "blends": 1000}
        return {"steps": 100 if setup.dataset == LARGE else 1000, "lr": 1.0, "lr_decays": 20, **start}

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the trust regions and decays that the paper selected from.

        The paper says that the rate decays "every {20, 100} steps"; in the authors' scripts these are numbers of
        decays.
        """
        return {"lr": (1.0, 0.1, 0.01), "lr_decays": (20, 100)}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        norm = expect_norm(self, task, ("linf", "l2", "l1", "l0"))
        need("numba", extra="foolbox", purpose="the attack BrendelBethge")
        kind = {"linf": "Linfinity", "l2": "L2", "l1": "L1", "l0": "L0"}[norm]
        attacker, foreign = getattr(_library().attacks, f"{kind}BrendelBethgeAttack"), _criterion(task)
        lr = RATES[norm] if self.lr is None else self.lr

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            search = StartSearch(task, model, inputs, classes, rows)
            if self.start == "noise":
                search.blended_noise(self.directions, self.blends)
                search.images()
            else:
                search.images()
                search.blended_noise(self.directions, self.blends)
            search.salt_and_pepper()
            points, usable = inputs.clone(), search.usable.nonzero().flatten()
            if len(usable):
                criterion = search.criterion.select(usable)
                recorder = Nearest(model, inputs[usable], criterion, task.problem.norm.size)
                # Foolbox scales by the number of entries of the whole batch.
                settings = {"steps": self.steps, "lr": lr / len(usable), "lr_num_decay": self.lr_decays}
                attacker(**settings).run(
                    _model(recorder, inputs),
                    inputs[usable],
                    foreign(criterion.classes),
                    starting_points=search.starts[usable],
                )
                points[usable] = recorder.points
            return points

        return by_library(task, attack, name="BrendelBethge")


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(CarliniWagnerSettings):
    """Carlini & Wagner as implemented by Foolbox."""

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l2",))
        return _run(
            self,
            task,
            "L2CarliniWagnerAttack",
            blank_is_failure=True,
            binary_search_steps=self.binary_search_steps,
            steps=self.steps,
            stepsize=self.stepsize,
            initial_const=self.initial_const,
            abort_early=False,  # it would abort the whole batch
        )


@dataclass(frozen=True, kw_only=True)
class EAD(EADSettings):
    """EAD as implemented by Foolbox.

    It costs `binary_search_steps` x `steps` backward passes, and twice as many forward passes.
    """

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l1",))
        return _run(
            self,
            task,
            "EADAttack",
            blank_is_failure=True,
            binary_search_steps=self.binary_search_steps,
            steps=self.steps,
            initial_stepsize=self.initial_stepsize,
            regularization=self.regularization,
            initial_const=self.initial_const,
            decision_rule="L1",
            abort_early=False,  # it would abort the whole batch
        )


@dataclass(frozen=True, kw_only=True)
class FoolboxDDN(DDNSettings):
    """DDN as implemented by Foolbox."""

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l2",))
        return _run(self, task, "DDNAttack", steps=self.steps, init_epsilon=self.init_norm, gamma=self.gamma)


@dataclass(frozen=True, kw_only=True)
class FoolboxDeepFool(DeepFoolSettings):
    """DeepFool as implemented by Foolbox.

    It costs 1 forward pass, and per step 1 forward and 1 backward pass for every candidate class but the label. It
    continues until every sample of the batch is fooled.
    """

    candidates: int = 10
    """Number of the likeliest classes that are considered, the label included."""

    def __post_init__(self) -> None:
        DeepFoolSettings.__post_init__(self)
        expect_setting(
            self, "candidates", "an integer of at least 2", isinstance(self.candidates, int) and self.candidates >= 2
        )

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Bound the steps, with up to ten candidate classes."""
        candidates = min(10, budget.classes)
        return {"steps": budget.steps(2 * (candidates - 1)), "candidates": candidates}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        norm = expect_norm(self, task, ("linf", "l2"))
        expect_untargeted(self, task)
        settings: dict[str, Any] = {"overshoot": self.overshoot, "candidates": self.candidates}
        return _run(self, task, {"linf": "Linf", "l2": "L2"}[norm] + "DeepFoolAttack", steps=self.steps, **settings)


class StartSearch:
    """Searches an adversarial starting point for each row; each candidate costs the row 1 forward pass.

    Foolbox's own search evaluates all rows until the last one has a start, and fails for the whole batch with a bare
    assertion if one has none.
    """

    def __init__(self, task: Task, model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> None:
        self.task, self.model, self.inputs, self.rows = task, model, inputs, rows
        self.criterion = Criterion(classes, task.criterion.targeted)
        self.starts = inputs.clone()
        self.usable = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)

    def images(self) -> None:
        """Try the nearest inputs of the call that have another label, or the target as their label."""
        pool, labels = Unit(self.task.problem).inward(self.task.problem.inputs), self.task.problem.labels
        apart = torch.cdist(self.inputs.flatten(1), pool.flatten(1))
        same = labels == self.criterion.classes[:, None]
        apart = apart.masked_fill(same != self.criterion.targeted, torch.inf)
        nearest = apart.topk(min(NEIGHBORS, len(pool)), dim=1, largest=False)
        for distance, place in zip(nearest.values.T, nearest.indices.T, strict=True):
            rows = self._open(distance.isfinite())
            self._keep(pool[place[rows]], rows)

    def blended_noise(self, directions: int, blends: int) -> None:
        """Start from the smallest adversarial blend of the input with the first adversarial draw of uniform noise.

        The same line search as in Foolbox's LinearSearchBlendedUniformNoiseAttack, from the input to the noise.

        Args:
            directions: Maximum number of noise draws per sample.
            blends: Number of steps of the line search; the last is the noise itself.
        """
        noise, found = self.inputs.clone(), torch.zeros_like(self.usable)
        for number in range(directions):
            rows = self._open(~found)
            if len(rows) == 0:
                break
            draws = self._drawn(rows, number)
            fooled = self._fooled(draws, rows)
            noise[rows[fooled]] = draws[fooled]
            found[rows[fooled]] = True
        for number in range(1, blends):
            rows = self._open(found)
            self._keep(torch.lerp(self.inputs[rows], noise[rows], number / blends), rows)
        rows = self._open(found)
        self.starts[rows], self.usable[rows] = noise[rows], True

    def salt_and_pepper(self) -> None:
        """Try salt-and-pepper noise of increasing strength."""
        for number in range(STRENGTHS):
            rows = self._open()
            draws, strength = 2 * self._drawn(rows, number) - 1, (number + 1) / STRENGTHS
            self._keep(torch.where(draws.abs() < strength, (draws > 0).float(), self.inputs[rows]), rows)

    def _open(self, among: Tensor | None = None) -> Tensor:
        """Return the rows that have no start yet."""
        waiting = ~self.usable if among is None else ~self.usable & among
        return waiting.nonzero().flatten()

    def _drawn(self, rows: Tensor, number: int) -> Tensor:
        """Draw uniformly from the box."""
        samples = self.task.samples[self.rows[rows]]
        return (random_rows(self.task.problem, samples, torch.zeros_like(samples), step=number).float() + 1) / 2

    def _fooled(self, points: Tensor, rows: Tensor) -> Tensor:
        """Return which points are adversarial."""
        with torch.no_grad():
            return self.criterion.select(rows).margin(self.model(points)) < 0

    def _keep(self, points: Tensor, rows: Tensor) -> None:
        """Evaluate points, and keep the adversarial ones as starts."""
        if len(rows) == 0:
            return
        fooled = self._fooled(points, rows)
        self.starts[rows[fooled]] = points[fooled]
        self.usable[rows[fooled]] = True


def _library() -> ModuleType:
    """Import Foolbox; raise MissingExtraError with the command that installs it if it is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return need("foolbox", extra="foolbox", purpose="this attack")


def _model(model: nn.Module, inputs: Tensor) -> Any:
    """Wrap the model as the library wants it."""
    return _library().PyTorchModel(model, bounds=(0, 1), device=inputs.device)


def _criterion(task: Task) -> Any:
    """Return the class of the library's criterion for the task."""
    library = _library()
    return library.TargetedMisclassification if task.criterion.targeted else library.Misclassification


def _run(config: object, task: Task, name: str, *, blank_is_failure: bool = False, **settings: Any) -> Best:
    """Run an attack by its `run`: calling the attack would evaluate its points once more, as the bridge does anyway."""
    attacker, criterion = getattr(_library().attacks, name)(**settings), _criterion(task)

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        points: Tensor = attacker.run(_model(model, inputs), inputs, criterion(classes))
        return points

    return by_library(task, attack, name=type(config).__name__, blank_is_failure=blank_is_failure)
