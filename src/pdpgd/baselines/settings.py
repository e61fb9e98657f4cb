"""Settings of attacks that more than one library has: the adapters of each say how they are run."""

from __future__ import annotations

from dataclasses import dataclass

from pdpgd.baselines.bridge import expect_counts, expect_positive
from pdpgd.errors import expect_setting


@dataclass(frozen=True, kw_only=True)
class CarliniWagnerSettings:
    """Carlini & Wagner 2017, l2: Adam in the tanh space on ||delta||^2 + c max(0, margin), c by bisection.

    It costs `binary_search_steps` x `steps` forward and backward passes. The defaults are the paper's.
    """

    binary_search_steps: int = 9
    steps: int = 10000
    stepsize: float = 0.01
    initial_const: float = 0.01

    def __post_init__(self) -> None:
        expect_counts(self, "binary_search_steps", "steps")
        expect_positive(self, "stepsize", "initial_const")


@dataclass(frozen=True, kw_only=True)
class DDNSettings:
    """Decoupled Direction and Norm (Rony et al. 2019), l2: step along the gradient, then set the length.

    A step costs 1 forward and 1 backward pass.
    """

    steps: int = 1000
    init_norm: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_positive(self, "init_norm", "gamma")


@dataclass(frozen=True, kw_only=True)
class DeepFoolSettings:
    """DeepFool (Moosavi-Dezfooli et al. 2016): to the nearest linearised boundary, until it is crossed. Untargeted."""

    steps: int = 100
    overshoot: float = 0.02

    def __post_init__(self) -> None:
        expect_counts(self, "steps")
        expect_setting(self, "overshoot", "at least 0", self.overshoot >= 0)


@dataclass(frozen=True, kw_only=True)
class EADSettings:
    """Elastic-net attack (Chen et al. 2018), l1: FISTA on c max(0, margin) + ||delta||^2 + beta ||delta||_1.

    Of the points that it passes it keeps the one smallest in l1. The defaults are the paper's.
    """

    binary_search_steps: int = 9
    steps: int = 10000
    initial_stepsize: float = 0.01
    regularization: float = 0.05
    """beta."""
    initial_const: float = 0.01

    def __post_init__(self) -> None:
        expect_counts(self, "binary_search_steps", "steps")
        expect_positive(self, "initial_stepsize", "regularization", "initial_const")
