"""FAB and FAB-T of adv-lib; `pdpgd.baselines.advlib` has the other attacks of the library.

Lengths in the settings are in units of a box of [0, 1], whatever the box of the problem is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.advlib import ALPHA, BETA, EPSILON, ETA, ORDERS, library
from pdpgd.baselines.bridge import Nearest, by_library, expect_counts, expect_norm, expect_untargeted
from pdpgd.baselines.settings import LARGE
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError, expect_setting

# Twice the maximum distance of FAB's random starts from the input, where no data set is known. The best distance so far
# bounds them too, so that large values cost little. Mean distance, 4 starts of 30 steps, images 300-315, seed 0, with
# adv-lib's own value (0.05 in linf) / with these / with no bound but the best distance so far, all samples fooled:
#
#                    linf                      l2                    l1
#   smallcnn_ddn     0.2593 / 0.2531 / 0.2530  2.77 / 2.76 / 2.75    32.6 / 29.8 / 29.6
#   lenet5_cln       0.1143 / 0.1141 / 0.1141  1.49 / 1.48 / 1.48    7.77 / 8.42 / 8.42
#   mnist-linf-at    0.3514 / 0.3477 / 0.3465  2.03 / 2.01 / 2.03    89.3 / 69.3 / 75.9
#   mnist-l2-at      0.1803 / 0.1796 / 0.1796  2.43 / 2.34 / 2.34    18.9 / 17.0 / 17.0
#   cifar_resnet20                             .0780 / .0780 / .0780  1.70 / 1.60 / 1.85
RADII = {"linf": 0.3, "l2": 4.0, "l1": 40.0}

PAPER_EPS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "mnist": {"linf": (0.15, 0.3), "l2": (2.0, 2.0), "l1": (40.0, 40.0)},
    "cifar10": {"linf": (0.02, 0.02), "l2": (0.5, 4.0), "l1": (10.0, 10.0)},
    LARGE: {"linf": (0.02, 0.08), "l2": (5.0, 5.0), "l1": (100.0, 250.0)},
}
"""The paper's `eps` of FAB by data set and norm: for the plain net, and for the adversarially trained ones."""


@dataclass(frozen=True, kw_only=True)
class FAB(Preparable):
    """Fast Adaptive Boundary (Croce & Hein 2020): project onto the linearized boundary, biased towards the input.

    Untargeted. A step costs 2 forward passes, and 1 backward pass for every class but the label; a start costs 1
    forward pass. Among the points that the library evaluates, the result is the smallest that is adversarial by more
    than rounding error: the library's own result may lie on the boundary itself, the more often the more restarts it
    has. The first restarts of a run are those of a run with fewer, so that more restarts never lose a point.
    """

    steps: int = 100
    """Steps of a start. The paper: 100."""
    restarts: int = 1
    """Number of starts; the first is the input itself."""
    targets: int = 0
    """0: every step considers all classes. k: run towards each of the k likeliest classes, with 1 backward pass per
    step (FAB-T, see `FABT`)."""
    eps: float | None = None
    """A random start is half as far from the input as the best point so far, and at most half of this. None: `RADII` of
    the norm."""
    alpha_max: float = 0.1
    """Maximum weight of the projection of the input relative to that of the iterate."""
    eta: float = 1.05
    """Extrapolation beyond the projection; 1 is the projection itself."""
    beta: float = 0.9
    """Share of the perturbation that remains after a step back towards the input."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "restarts")
        expect_setting(self, "targets", "an integer of at least 0", isinstance(self.targets, int) and self.targets >= 0)
        expect_setting(self, "eps", "above 0, or None", self.eps is None or self.eps > 0)
        expect_setting(self, "alpha_max", "between 0 and 1", 0 <= self.alpha_max <= 1)
        expect_setting(self, "eta", "at least 1", self.eta >= 1)
        expect_setting(self, "beta", "above 0 and below 1", 0 < self.beta < 1)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps."""
        return {"steps": budget.steps(1 + budget.classes)}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the settings of the authors' code; the paper itself names 100 steps and FAB's recommended values."""
        plain, trained = PAPER_EPS[setup.dataset][setup.norm]
        large = {"alpha_max": 0.05, "eta": 1.3} if setup.dataset == LARGE else {"alpha_max": 0.1, "eta": 1.05}
        return {"steps": 100, "eps": plain if setup.model_kind == "plain" else trained, **large, "beta": 0.9}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        norm = expect_norm(self, task, ("linf", "l2", "l1"))
        expect_untargeted(self, task)
        others = task.classes - 1
        if self.restarts > 1 and 0 < self.targets < others:
            # The library starts at random only after it has run towards every class.
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
            # The library differentiates at points that are steps back towards the input, and does not judge them.
            recorder = Nearest(model, inputs, Criterion(classes), size_of, at_gradients=False)
            run(recorder, inputs, classes, **settings)
            return recorder.points

        return by_library(task, attack, name=type(self).__name__)


@dataclass(frozen=True, kw_only=True)
class FABT(FAB):
    """FAB-T, as in AutoAttack (Croce & Hein 2020): FAB towards the likeliest other classes, one after another.

    A step costs 2 forward passes and 1 backward pass, whatever the number of classes. Any class but the label counts as
    adversarial.
    """

    targets: int = 9
    """Number of classes. AutoAttack: 9."""

    def __post_init__(self) -> None:
        FAB.__post_init__(self)
        expect_counts(self, "targets")

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps towards nine classes, or towards all others if there are fewer."""
        targets = min(9, budget.classes - 1)
        return {"steps": budget.steps(3 * targets), "targets": targets}
