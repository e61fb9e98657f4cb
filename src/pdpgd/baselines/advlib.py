"""Attacks of adv-lib (Rony & Ben Ayed, github.com/jeromerony/adversarial-library), tried with version 0.2.8.

Lengths among the settings are in a box of [0, 1], whatever the box of the problem is.
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
from pdpgd.baselines.bridge import Nearest, by_library, expect_counts, expect_norm, expect_positive, expect_untargeted
from pdpgd.baselines.settings import CarliniWagnerSettings, DDNSettings, DeepFoolSettings
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError, MissingExtraError, expect_setting
from pdpgd.tensors import per_sample

# The library's names for its settings.
ALPHA, BETA, GAMMA = "\N{GREEK SMALL LETTER ALPHA}", "\N{GREEK SMALL LETTER BETA}", "\N{GREEK SMALL LETTER GAMMA}"
EPSILON, ETA = "\N{GREEK SMALL LETTER EPSILON}", "\N{GREEK SMALL LETTER ETA}"

ORDERS = {"linf": float("inf"), "l2": 2, "l1": 1, "l0": 0}

# How far FAB's random starts may be from the input, doubled, where no data set is known: the best so far bounds them
# too, so that wide ones cost little. Mean distance, 4 starts of 30 steps, images 300-315, seed 0, with adv-lib's own
# width (0.05 in linf) / with these / with no other bound than the best so far, all fooled:
#
#                    linf                      l2                    l1
#   smallcnn_ddn     0.2593 / 0.2531 / 0.2530  2.77 / 2.76 / 2.75    32.6 / 29.8 / 29.6
#   lenet5_cln       0.1143 / 0.1141 / 0.1141  1.49 / 1.48 / 1.48    7.77 / 8.42 / 8.42
#   mnist-linf-at    0.3514 / 0.3477 / 0.3465  2.03 / 2.01 / 2.03    89.3 / 69.3 / 75.9
#   mnist-l2-at      0.1803 / 0.1796 / 0.1796  2.43 / 2.34 / 2.34    18.9 / 17.0 / 17.0
#   cifar_resnet20                             .0780 / .0780 / .0780  1.70 / 1.60 / 1.85
RADII = {"linf": 0.3, "l2": 4.0, "l1": 40.0}


def library() -> ModuleType:
    """`adv_lib.attacks`; an error that says how to get it where it is missing."""
    try:
        with _what_it_imports_in_vain(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports distutils
            return importlib.import_module("adv_lib.attacks")
    except ImportError as error:
        raise MissingExtraError(f"this attack needs adv_lib: pip install --no-deps adv-lib ({error})") from error


@contextmanager
def _what_it_imports_in_vain() -> Iterator[None]:
    """Stand-ins, during its import, for what adv-lib imports and its attacks never use.

    visdom draws curves, and does not build with a current setuptools; torchvision brings LPIPS, and fails to load with
    another build of torch than its own; tqdm shows progress; distutils, gone from Python 3.12, compares versions.
    """
    parts: dict[str, dict[str, Any]] = {
        "visdom": {},
        "torchvision": {"models": ModuleType("torchvision.models")},
        "torchvision.models": {},
        "tqdm": {"tqdm": iter},
        "distutils": {},
        "distutils.version": {"LooseVersion": lambda version: [int(part) for part in version.split(".")[:2]]},
    }
    # visdom and torchvision are not even looked for: finding out whether they work may break the process.
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
class FAB:
    """Fast Adaptive Boundary (Croce & Hein 2020): project on the linearised boundary, drawn back to the input.

    Untargeted. A step costs 2 forward passes and a backward pass for each class but the own; a start 1 forward pass.
    Of the points that the library looks at, the smallest is kept that is adversarial by more than rounding explains:
    the library's own answer may lie on the boundary itself, all the more often the more restarts it has. The first
    restarts of a run are those of a run with fewer, so none of them loses what fewer found.
    """

    steps: int = 100
    """The paper: 100."""
    restarts: int = 1
    """The first start is the input itself."""
    targets: int = 0
    """0: every step looks at all classes. k: run for each of the k likeliest classes, 1 backward pass a step (FAB-T,
    see `FABT`)."""
    eps: float | None = None
    """A random start is half as far from the input as the best point so far, and no farther than half of this. None:
    `RADII` of the norm."""
    alpha_max: float = 0.1
    """The largest weight of the projection of the input beside that of the iterate."""
    eta: float = 1.05
    """How far to go beyond the projection; 1 is onto it."""
    beta: float = 0.9
    """The share of the way that is left after a step back to the input."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "restarts")
        expect_setting(self, "targets", "an integer of at least 0", isinstance(self.targets, int) and self.targets >= 0)
        expect_setting(self, "eps", "above 0, or None", self.eps is None or self.eps > 0)
        expect_setting(self, "alpha_max", "between 0 and 1", 0 <= self.alpha_max <= 1)
        expect_setting(self, "eta", "at least 1", self.eta >= 1)
        expect_setting(self, "beta", "above 0 and below 1", 0 < self.beta < 1)

    def __call__(self, task: Task) -> Best:
        norm = expect_norm(self, task, ("linf", "l2", "l1"))
        expect_untargeted(self, task)
        others = task.classes - 1
        if self.restarts > 1 and 0 < self.targets < others:
            # The library starts at random only once it has been at every class.
            raise InvalidInputError(
                f"attack {type(self).__name__}: expected 1 restart, or all {others} other classes as targets, got "
                f"{self.restarts} restarts and {self.targets} targets"
            )
        run, size_of = library().fab, task.problem.norm.size
        settings: dict[str, Any] = {
            "norm": ORDERS[norm],
            "n_iter": self.steps,
            "restarts": self.restarts * (min(self.targets, others) if self.targets else 1),
            "targeted_restarts": self.targets > 0,
            EPSILON: RADII[norm] if self.eps is None else self.eps,
            f"{ALPHA}_max": self.alpha_max,
            ETA: self.eta,
            BETA: self.beta,
        }

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            # The points that it takes slopes at are steps back to the input, which it does not judge.
            watched = Nearest(model, inputs, Criterion(classes), size_of, sloped=False)
            run(watched, inputs, classes, **settings)
            return watched.points

        return by_library(task, attack, name=type(self).__name__)


@dataclass(frozen=True, kw_only=True)
class FABT(FAB):
    """FAB-T, as in AutoAttack (Croce & Hein 2020): FAB towards the likeliest other classes, one after the other.

    A step costs 2 forward passes and 1 backward pass, whatever the number of classes. Any other class counts.
    """

    targets: int = 9
    """AutoAttack: 9."""

    def __post_init__(self) -> None:
        FAB.__post_init__(self)
        expect_counts(self, "targets")


@dataclass(frozen=True, kw_only=True)
class DDN(DDNSettings):
    """DDN of adv-lib."""

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l2",))
        # By default the library rounds to 256 levels.
        settings = {"steps": self.steps, "init_norm": self.init_norm, GAMMA: self.gamma, "levels": None}
        return _run(self, task, "ddn", **settings)


@dataclass(frozen=True, kw_only=True)
class DeepFool(DeepFoolSettings):
    """DeepFool of adv-lib: a step costs 1 forward pass and a backward pass for each class but the own.

    What is fooled stops.
    """

    def __call__(self, task: Task) -> Best:
        norm = expect_norm(self, task, ("linf", "l2"))
        expect_untargeted(self, task)
        # The point of its last step is never looked at: that step is a look at the one before.
        return _run(self, task, "df", norm=ORDERS[norm], steps=self.steps + 1, overshoot=self.overshoot)


@dataclass(frozen=True, kw_only=True)
class SuperDeepFool:
    """SuperDeepFool (Abdolahpourrostam et al. 2024), l2: DeepFool, each time projected on the slope at its end.

    Untargeted. It ends when the boundary is crossed, mostly after a few rounds of DeepFool, and bisects.
    """

    steps: int = 100
    deepfool_steps: int = 100
    overshoot: float = 0.02

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "deepfool_steps")
        expect_setting(self, "overshoot", "at least 0", self.overshoot >= 0)

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l2",))
        expect_untargeted(self, task)
        return _run(self, task, "sdf", steps=self.steps, df_steps=self.deepfool_steps, overshoot=self.overshoot)


@dataclass(frozen=True, kw_only=True)
class FMN:
    """Fast Minimum-Norm (Pintor et al. 2021): step along the gradient, project on a ball that shrinks and grows.

    A step costs 1 forward and 1 backward pass. In l2 this library scales to the sphere where the paper projects on the
    ball; l0 counts components.
    """

    steps: int = 1000
    alpha_init: float | None = None
    """The first step; None: the authors' 10 in linf, 1 in the others."""
    gamma_init: float = 0.05

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_positive(self, "gamma_init")
        expect_setting(self, "alpha_init", "above 0, or None", self.alpha_init is None or self.alpha_init > 0)

    def __call__(self, task: Task) -> Best:
        norm = expect_norm(self, task, ("linf", "l2", "l1", "l0"))
        alpha = self.alpha_init if self.alpha_init is not None else (10.0 if norm == "linf" else 1.0)
        settings: dict[str, Any] = {f"{ALPHA}_init": alpha, f"{GAMMA}_init": self.gamma_init}
        settings |= {"norm": ORDERS[norm], "steps": self.steps}
        if norm != "l0":
            return _run(self, task, "fmn", **settings)
        fmn, targeted = library().fmn, task.criterion.targeted

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            """Its projection on l0 fails once every row of the batch is down to one entry: that is the answer then."""
            watched = Nearest(model, inputs, Criterion(classes, targeted), task.problem.norm.size)
            try:
                points: Tensor = fmn(watched, inputs, classes, targeted=targeted, **settings)
            except (IndexError, RuntimeError):
                if bool((watched.points == inputs).flatten(1).all(1).any()):
                    raise
                points = watched.points
            return points

        return by_library(task, attack, name="FMN")


@dataclass(frozen=True, kw_only=True)
class ALMA:
    """Augmented Lagrangian (Rony et al. 2021), l2 and l1: RMSProp on the distance and a penalty that is adapted.

    A step costs 1 forward and 1 backward pass. Its loss needs 3 classes, 4 if targeted.
    """

    steps: int = 1000

    def __post_init__(self) -> None:
        expect_counts(self, "steps")

    def __call__(self, task: Task) -> Best:
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
                **{ALPHA: 0.5 if self.steps <= 100 else 0.9},  # the authors', for 100 and 1000 steps
                # The library adds it before it turns the sign for a target: as it is, it would ask for less than that.
                logit_tolerance=-1e-4 if targeted else 1e-4,
            )
            return points

        return by_library(task, attack, name="ALMA")


@dataclass(frozen=True, kw_only=True)
class SigmaZero:
    """sigma-zero (Cina et al. 2025), l0: Adam on a smooth count of entries, small ones set to zero.

    Untargeted. A step costs 1 forward and 1 backward pass. It counts components.
    """

    steps: int = 1000

    def __post_init__(self) -> None:
        expect_counts(self, "steps")

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l0",))
        expect_untargeted(self, task)
        return _run(self, task, "sigma_zero", num_steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class VFGA:
    """Voting Folded Gaussian (Hajri et al. 2022), l0: change one entry after the other, the best of random values.

    A step costs 1 forward and 1 backward pass and 2 `samples` forward passes; what is fooled stops. It counts
    components.
    """

    steps: int | None = None
    """Entries that may be changed; None: all."""
    samples: int = 10

    def __post_init__(self) -> None:
        expect_counts(self, "samples", *(["steps"] if self.steps is not None else []))

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l0",))
        return _run(self, task, "vfga", max_iter=self.steps, n_samples=self.samples)


@dataclass(frozen=True, kw_only=True)
class AdvLibCarliniWagner(CarliniWagnerSettings):
    """Carlini & Wagner of adv-lib."""

    def __call__(self, task: Task) -> Best:
        expect_norm(self, task, ("l2",))
        return _run(
            self,
            task,
            "carlini_wagner_l2",
            binary_search_steps=self.binary_search_steps,
            max_iterations=self.steps,
            learning_rate=self.stepsize,
            initial_const=self.initial_const,
            abort_early=False,  # it aborts the whole batch
        )


def _run(config: object, task: Task, function: str, **settings: Any) -> Best:
    """Most attacks of the library are one call."""
    run, targeted = getattr(library(), function), task.criterion.targeted

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        points: Tensor = run(model, inputs, classes, targeted=targeted, **settings)
        return points

    return by_library(task, attack, name=type(config).__name__)


class _FirstSlope(nn.Module):
    """Passes everything on, but in the first slope it makes zero of the rows that lead nowhere.

    The library doubles its first step until it is `reach` long, for ever if the box stops it before. For a slope of
    zero it has a remedy of its own, a random direction.
    """

    def __init__(self, model: nn.Module, inputs: Tensor, reach: float, order: float) -> None:
        super().__init__()
        self.model, self.inputs, self.reach, self.order, self.asked = model, inputs, reach, order, False

    def forward(self, points: Tensor) -> Tensor:
        if not self.asked and points.requires_grad:
            self.asked = True
            points = points.view_as(points)
            points.register_hook(self._led)  # type: ignore[no-untyped-call]  # torch does not type it
        logits: Tensor = self.model(points)
        return logits

    def _led(self, slope: Tensor) -> Tensor:
        room: Tensor = torch.where(slope > 0, self.inputs, 1 - self.inputs) * (slope != 0)
        far = torch.linalg.vector_norm(room.flatten(1), ord=self.order, dim=1) > 1.01 * self.reach
        return torch.where(per_sample(far, slope) > 0, slope, 0.0)
