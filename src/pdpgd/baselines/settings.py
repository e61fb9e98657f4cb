"""What several baselines share: settings, paper presets, and ways to spend a budget.

Sources of the paper presets: "Attack parameters" in the paper, and the scripts that its authors released
(github.com/aam-at/cpgd, `experiments/*.sh`) where the two differ or the paper says nothing. docs/rivals.md says what
was compared with what. The paper has three data sets, and runs some attacks for fewer steps on the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.pgd import PGD
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.attacks.sparse_rs import SparseRS
from pdpgd.attacks.square import Square
from pdpgd.baselines.bridge import expect_counts, expect_positive
from pdpgd.errors import expect_setting

LARGE = "restricted-imagenet"

# Bisections of the penalty weight in C&W and EAD: as their authors have it, and where a budget is too small for that.
BISECTIONS = 9
SHORT_BISECTIONS = 5

STEP_SHARES = (1.0, 1 / 2, 1 / 5, 1 / 10, 1 / 25, 1 / 50, 1 / 100)
"""Steps of PGD and DAA that the paper selected from, as shares of epsilon."""
STEPS_L0 = (10.0, 20.0, 40.0, 100.0, 200.0, 400.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
"""l1 lengths of a step of PGD in l0: `STEP_SHARES` of 1000 (MNIST) and of 10000 (CIFAR-10), as in the scripts."""


class GradientSteps(Preparable):
    """An attack whose step costs 1 forward and 1 backward pass."""

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps."""
        return {"steps": budget.steps(2)}


class BallSteps(Preparable):
    """An attack within a radius whose step costs 1 forward and 1 backward pass."""

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on steps, as many at each radius."""
        return {"steps": budget.steps(2 * budget.evaluations)}


class PaperBall(BallSteps):
    """An attack within a radius that the paper runs for 500 steps, like PGD and DAA."""

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's number of steps."""
        return {"steps": 500}

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the step lengths and losses that the paper selected from."""
        return {"step": STEP_SHARES, "surrogate": ("cross-entropy", "hinge")}


@dataclass(frozen=True, kw_only=True)
class BallPGD(PaperBall, PGD):
    """`pdpgd.attacks.pgd.PGD` with the paper's preset."""

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings; in l1 the authors ran cleverhans' SparseL1Descent."""
        return {**super().paper(setup), **({"exact": False} if setup.norm == "l1" else {})}

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the step lengths, losses and, in l1, sparsities that the paper selected from."""
        grid = super().paper_grid(norm)
        if norm == "l0":
            return {**grid, "step": STEPS_L0}
        return {**grid, "sparsity": (0.1, 0.05, 0.01)} if norm == "l1" else grid


class BallQueries(Preparable):
    """An attack within a radius that makes queries of 1 forward pass each."""

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on queries, as many at each radius."""
        return {"queries": budget.steps(budget.evaluations)}


@dataclass(frozen=True, kw_only=True)
class BallSquare(BallQueries, Square):
    """`pdpgd.attacks.square.Square` within a budget."""


@dataclass(frozen=True, kw_only=True)
class BallSparseRS(BallQueries, SparseRS):
    """`pdpgd.attacks.sparse_rs.SparseRS` within a budget."""


@dataclass(frozen=True, kw_only=True)
class CarliniWagnerSettings(Preparable):
    """Carlini & Wagner 2017, l2: Adam in the tanh space on ||delta||^2 + c max(0, margin), c found by bisection.

    It costs `binary_search_steps` x `steps` forward and backward passes. The defaults are the paper's.

    Attributes:
        binary_search_steps: Number of bisections of c.
        steps: Steps of Adam for each c.
        stepsize: Learning rate of Adam.
        initial_const: The first c.
    """

    binary_search_steps: int = 9
    steps: int = 10000
    stepsize: float = 0.01
    initial_const: float = 0.01

    def __post_init__(self) -> None:
        expect_counts(self, "binary_search_steps", "steps")
        expect_positive(self, "stepsize", "initial_const")

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Use fewer bisections and longer steps than the authors, whose thousands of steps a budget does not pay for.

        On images 900-924 of mnist-plain with 1000 passes, 9 bisections and steps of 0.01 fool 2 of 25 samples, 5
        bisections and steps of 0.1 fool all of them.
        """
        if budget.passes >= 2 * BISECTIONS * 1000:
            return bisected(budget, 2, BISECTIONS)
        return {**bisected(budget, 2, SHORT_BISECTIONS), "stepsize": 0.1, "initial_const": 1.0}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings."""
        steps = 1000 if setup.dataset == LARGE else 10000
        return {"binary_search_steps": 9, "steps": steps, "stepsize": 0.01, "initial_const": 0.01}


@dataclass(frozen=True, kw_only=True)
class DDNSettings(GradientSteps):
    """Decoupled Direction and Norm (Rony et al. 2019), l2: step along the gradient, then rescale the perturbation.

    A step costs 1 forward and 1 backward pass.

    Attributes:
        steps: Number of steps.
        init_norm: Norm of the first perturbation.
        gamma: Factor by which the norm grows or shrinks per step.
    """

    steps: int = 1000
    init_norm: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_positive(self, "init_norm", "gamma")

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's number of steps."""
        return {"steps": 10000 if setup.dataset == "mnist" else 1000}

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the initial norms and factors that the paper selected from."""
        return {"init_norm": (1.0, 0.1), "gamma": (0.1, 0.05, 0.01)}


@dataclass(frozen=True, kw_only=True)
class DeepFoolSettings(Preparable):
    """DeepFool (Moosavi-Dezfooli et al. 2016): step to the nearest linearized boundary until it is crossed. Untargeted.

    Attributes:
        steps: Maximum number of steps.
        overshoot: Share by which a step goes beyond the boundary.
    """

    steps: int = 100
    overshoot: float = 0.02

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_setting(self, "overshoot", "at least 0", self.overshoot >= 0)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Bound the steps; the attack stops earlier where it has crossed the boundary."""
        return {"steps": budget.steps(cls.step_cost(budget.classes))}

    @classmethod
    def step_cost(cls, classes: int) -> int:
        """Return the passes per step: 1 forward, and 1 backward for every class but the label."""
        return classes

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings."""
        return {"steps": 100, "overshoot": 0.02}


@dataclass(frozen=True, kw_only=True)
class EADSettings(Preparable):
    """Elastic-net attack (Chen et al. 2018), l1: FISTA on c max(0, margin) + ||delta||^2 + beta ||delta||_1.

    It returns the adversarial example smallest in l1 among its iterates. The defaults are the paper's.

    Attributes:
        binary_search_steps: Number of bisections of c.
        steps: Steps of FISTA for each c.
        initial_stepsize: The first step size.
        regularization: beta.
        initial_const: The first c.
    """

    binary_search_steps: int = 9
    steps: int = 10000
    initial_stepsize: float = 0.01
    regularization: float = 0.05
    initial_const: float = 0.01

    def __post_init__(self) -> None:
        expect_counts(self, "binary_search_steps", "steps")
        expect_positive(self, "initial_stepsize", "regularization", "initial_const")

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on nine bisections, or on fewer that have ten steps each."""
        return bisected(budget, cls.step_cost(budget.classes), BISECTIONS)

    @classmethod
    def step_cost(cls, classes: int) -> int:
        """Return the passes per step: 2 forward and 1 backward."""
        return 3

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings."""
        return {
            "binary_search_steps": 9,
            "steps": 1000 if setup.dataset == LARGE else 10000,
            "initial_stepsize": 0.01,
            "initial_const": 0.01,
            "regularization": 0.05,
        }


def bisected(budget: Budget, passes: int, most: int) -> Settings:
    """Divide a budget among bisections of at least ten steps each.

    Args:
        budget: The budget.
        passes: Forward plus backward passes per step.
        most: Maximum number of bisections.

    Returns:
        The settings `binary_search_steps` and `steps`.
    """
    bisections = min(most, max(1, budget.passes // (10 * passes)))
    return {"binary_search_steps": bisections, "steps": budget.steps(passes * bisections)}
