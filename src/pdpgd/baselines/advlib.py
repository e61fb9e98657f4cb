"""Attacks of adv-lib (Rony & Ben Ayed, github.com/jeromerony/adversarial-library), tested with version 0.2.8.

Lengths in the settings are in units of a box of [0, 1], whatever the box of the problem is. `advlib_fab` has FAB, and
`advlib_ball` the attacks within a radius.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.bridge import Nearest, by_library, expect_counts, expect_norm, expect_positive, expect_untargeted
from pdpgd.baselines.settings import CarliniWagnerSettings, DDNSettings, DeepFoolSettings, GradientSteps
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError, MissingExtraError, expect_setting
from pdpgd.tensors import per_sample

# The library names its settings by Greek letters.
ALPHA, BETA, GAMMA = "\N{GREEK SMALL LETTER ALPHA}", "\N{GREEK SMALL LETTER BETA}", "\N{GREEK SMALL LETTER GAMMA}"
EPSILON, ETA = "\N{GREEK SMALL LETTER EPSILON}", "\N{GREEK SMALL LETTER ETA}"

ORDERS = {"linf": float("inf"), "l2": 2, "l1": 1, "l0": 0}


def library() -> ModuleType:
    """Import `adv_lib.attacks`; raise MissingExtraError with the command that installs it if it is missing."""
    try:
        with _unused_imports_stubbed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports distutils
            return importlib.import_module("adv_lib.attacks")
    except ImportError as error:
        raise MissingExtraError(f"this attack needs adv_lib: pip install --no-deps adv-lib ({error})") from error


@contextmanager
def _unused_imports_stubbed() -> Iterator[None]:
    """Stub modules that adv-lib imports but its attacks never use, while it is being imported.

    visdom draws curves, and does not build with a current setuptools; torchvision provides LPIPS, and fails to load
    with a build of torch other than its own; tqdm shows progress; distutils, removed in Python 3.12, compares versions.
    """
    parts: dict[str, dict[str, Any]] = {
        "visdom": {},
        "torchvision": {"models": ModuleType("torchvision.models")},
        "torchvision.models": {},
        "tqdm": {"tqdm": iter},
        "distutils": {},
        "distutils.version": {"LooseVersion": lambda version: [int(part) for part in version.split(".")[:2]]},
    }
    # Always stub visdom and torchvision: just testing whether they load may crash the process.
    looked_for = {name for name in ("tqdm", "distutils") if name in sys.modules or find_spec(name) is not None}
    absent = [name for name in parts if name not in sys.modules and name.partition(".")[0] not in looked_for]
    for name in absent:
        stand_in = ModuleType(name)
        vars(stand_in).update(parts[name])
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


@dataclass(frozen=True, kw_only=True)
class DDN(DDNSettings):
    """DDN as implemented by adv-lib."""

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l2",))
        # By default the library quantizes to 256 levels.
        settings = {"steps": self.steps, "init_norm": self.init_norm, GAMMA: self.gamma, "levels": None}
        return _run(self, task, "ddn", **settings)


@dataclass(frozen=True, kw_only=True)
class DeepFool(DeepFoolSettings):
    """DeepFool as implemented by adv-lib.

    A step costs 1 forward pass, and 1 backward pass for every class but the label. Fooled samples stop.
    """

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        norm = expect_norm(self, task, ("linf", "l2"))
        expect_untargeted(self, task)
        # The library does not evaluate the point of its last step, so one more step evaluates the one before.
        return _run(self, task, "df", norm=ORDERS[norm], steps=self.steps + 1, overshoot=self.overshoot)


@dataclass(frozen=True, kw_only=True)
class SuperDeepFool(Preparable):
    """SuperDeepFool (Abdolahpourrostam et al. 2024), l2: DeepFool, projected onto the gradient where it ends.

    Untargeted. It repeats until the boundary is crossed, mostly after a few rounds of DeepFool, and then bisects.
    """

    steps: int = 100
    deepfool_steps: int = 100
    overshoot: float = 0.02

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "deepfool_steps")
        expect_setting(self, "overshoot", "at least 0", self.overshoot >= 0)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Bound the rounds; it stops by itself after some 200 passes, but spends ten budgets if it finds nothing."""
        return {"steps": min(100, budget.steps(5 * budget.classes)), "deepfool_steps": 50}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l2",))
        expect_untargeted(self, task)
        return _run(self, task, "sdf", steps=self.steps, df_steps=self.deepfool_steps, overshoot=self.overshoot)


@dataclass(frozen=True, kw_only=True)
class FMN(GradientSteps):
    """Fast Minimum-Norm (Pintor et al. 2021): step along the gradient, project onto a ball that shrinks and grows.

    A step costs 1 forward and 1 backward pass. In l2 this library rescales to the sphere where the paper projects onto
    the ball. In l0 it counts components, not pixels.
    """

    steps: int = 1000
    alpha_init: float | None = None
    """The first step size; None: 10 in linf and 1 in the other norms, as the authors have it."""
    gamma_init: float = 0.05

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_positive(self, "gamma_init")
        expect_setting(self, "alpha_init", "above 0, or None", self.alpha_init is None or self.alpha_init > 0)

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        norm = expect_norm(self, task, ("linf", "l2", "l1", "l0"))
        alpha = self.alpha_init if self.alpha_init is not None else (10.0 if norm == "linf" else 1.0)
        settings: dict[str, Any] = {f"{ALPHA}_init": alpha, f"{GAMMA}_init": self.gamma_init}
        settings |= {"norm": ORDERS[norm], "steps": self.steps}
        if norm != "l0":
            return _run(self, task, "fmn", **settings)
        fmn, targeted = library().fmn, task.criterion.targeted

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            """Run FMN: its l0 projection raises once every row has one entry, so the recorded points are final."""
            recorder = Nearest(model, inputs, Criterion(classes, targeted), task.problem.norm.size)
            try:
                points: Tensor = fmn(recorder, inputs, classes, targeted=targeted, **settings)
            except (IndexError, RuntimeError):
                if bool((recorder.points == inputs).flatten(1).all(1).any()):
                    raise
                points = recorder.points
            return points

        return by_library(task, attack, name="FMN")


@dataclass(frozen=True, kw_only=True)
class ALMA(GradientSteps):
    """Augmented Lagrangian (Rony et al. 2021), l2 and l1: RMSProp on the distance plus an adaptive penalty.

    A step costs 1 forward and 1 backward pass. Its loss needs at least 3 classes, 4 if targeted.
    """

    steps: int = 1000

    def __post_init__(self) -> None:
        expect_counts(self, "steps")

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        norm = expect_norm(self, task, ("l2", "l1"))
        targeted = task.criterion.targeted
        if task.classes < 3 + targeted:
            raise InvalidInputError(
                f"attack ALMA: expected a model of at least {3 + targeted} classes, got {task.classes}"
            )
        alma, reach = library().alma, {"l2": 0.1, "l1": 0.5}[norm]

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            points: Tensor = alma(
                _FirstSlope(model, inputs, reach, ORDERS[norm]),
                inputs,
                classes,
                targeted=targeted,
                num_steps=self.steps,
                distance=norm,
                init_lr_distance=reach,
                **{ALPHA: 0.5 if self.steps <= 100 else 0.9},  # the authors' values for 100 and 1000 steps
                # The library adds it before it flips the sign for a target, so the tolerance has to be negative there.
                logit_tolerance=-1e-4 if targeted else 1e-4,
            )
            return points

        return by_library(task, attack, name="ALMA")


@dataclass(frozen=True, kw_only=True)
class SigmaZero(GradientSteps):
    """sigma-zero (Cina et al. 2025), l0: Adam on a smooth approximation of l0, with small entries set to zero.

    Untargeted. A step costs 1 forward and 1 backward pass. It counts components, not pixels.
    """

    steps: int = 1000

    def __post_init__(self) -> None:
        expect_counts(self, "steps")

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l0",))
        expect_untargeted(self, task)
        return _run(self, task, "sigma_zero", num_steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class VFGA(Preparable):
    """Voting Folded Gaussian (Hajri et al. 2022), l0: change one entry at a time, to the best of some random values.

    A step costs 1 forward and 1 backward pass, and 2 * `samples` forward passes; fooled samples stop. It counts
    components, not pixels.
    """

    steps: int | None = None
    """Maximum number of entries that change; None: all."""
    samples: int = 10
    """Random values tried per step and direction."""

    def __post_init__(self) -> None:
        expect_counts(self, "samples", *(["steps"] if self.steps is not None else []))

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps, each of which tries ten values of an entry in both directions."""
        return {"steps": budget.steps(22)}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l0",))
        return _run(self, task, "vfga", max_iter=self.steps, n_samples=self.samples)


@dataclass(frozen=True, kw_only=True)
class AdvLibCarliniWagner(CarliniWagnerSettings):
    """Carlini & Wagner as implemented by adv-lib."""

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        expect_norm(self, task, ("l2",))
        return _run(
            self,
            task,
            "carlini_wagner_l2",
            binary_search_steps=self.binary_search_steps,
            max_iterations=self.steps,
            learning_rate=self.stepsize,
            initial_const=self.initial_const,
            abort_early=False,  # it would abort the whole batch
        )


def _run(config: object, task: Task, function: str, **settings: Any) -> Best:
    """Run an attack of the library that is a single function call, as most are."""
    run, targeted = getattr(library(), function), task.criterion.targeted

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        points: Tensor = run(model, inputs, classes, targeted=targeted, **settings)
        return points

    return by_library(task, attack, name=type(config).__name__)


class _FirstSlope(nn.Module):
    """Wraps the model, and zeroes rows of the first gradient along which the box leaves too little room.

    The library doubles its first step until it is `reach` long, and loops forever if the box stops it before. It
    replaces a zero gradient by a random direction.
    """

    def __init__(self, model: nn.Module, inputs: Tensor, reach: float, order: float) -> None:
        super().__init__()
        self.model, self.inputs, self.reach, self.order, self.asked = model, inputs, reach, order, False

    def forward(self, points: Tensor) -> Tensor:
        """Return the model's logits, and hook the first gradient."""
        if not self.asked and points.requires_grad:
            self.asked = True
            points = points.view_as(points)
            points.register_hook(self._with_room)  # type: ignore[no-untyped-call]  # torch does not type it
        logits: Tensor = self.model(points)
        return logits

    def _with_room(self, slope: Tensor) -> Tensor:
        """Zero the rows along which the farthest point of the box is not beyond `reach`."""
        room: Tensor = torch.where(slope > 0, self.inputs, 1 - self.inputs) * (slope != 0)
        far = torch.linalg.vector_norm(room.flatten(1), ord=self.order, dim=1) > 1.01 * self.reach
        return torch.where(per_sample(far, slope) > 0, slope, 0.0)
