"""Reliability of a run: its checks, each a sentence with a number and its bound, and those of the model.

The bounds are our own choice. docs/evaluation.md explains what each alarm means and what the shipped nets measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pdpgd.runs.stats import PreflightStats

CHEAP = ("sign step", "gradient step", "steepest pixels", "noise", "another image")
"""Names of the cheap attacks in the column `source` of the records."""

BOUNDS = {
    "probabilities": 0.5,
    "zero gradients": 0.05,
    "unstable": 0.05,
    "still moving": 0.05,
    "restarts": 0.20,
    "dominated": 0.05,
    "cheap attack": 0.05,
    "never fooled": 0.01,
    "fragile": 0.50,
}
"""Shares of the samples (or of the distance) above which a check fails."""
KNOWN = 0.25
"""A model that knows at most this share of the samples and guesses the others is near chance: docs/evaluation.md."""
ENOUGH = 10
"""Minimum number of correctly classified samples: with fewer, one sample is more than a tenth of every share."""
CLEARLY = 0.01
"""A distance counts as smaller than another if it is so by more than this share; smaller gains may be luck."""

SECOND_START_AT_RADII = 0.05
"""Bound of "restarts" in a run that asked about radii only: a share of samples, as that of "cheap attack" is."""

_AVERAGE = "; attack the mean of several draws and judge by a vote: draws=10, or --draws 10"

TRUSTED, LOOK, NOT_CHECKED = "trusted", "look at these", "not checked"


@dataclass(frozen=True)
class Check:
    """One check of the reliability of a run.

    Attributes:
        name: Name of the check, such as "zero gradients".
        passed: Whether the value is within the bound; None if it could not be measured.
        value: What was measured; nan if it could not be.
        bound: Bound that the value is compared with.
        sentence: The measurement in words, or why there is none.

    Example:
        >>> check = Check("zero gradients", True, 0.0, 0.05, "the gradient is zero for 0.0% of 64 samples")
        >>> check.as_json()["says"]
        'the gradient is zero for 0.0% of 64 samples'
    """

    name: str
    passed: bool | None
    value: float
    bound: float
    sentence: str

    def as_json(self) -> dict[str, Any]:
        """Return the check as entries of summary.json.

        Returns:
            Name, passed, value (None for nan), bound, and the sentence under "says".
        """
        value = None if np.isnan(self.value) else self.value
        return {"name": self.name, "passed": self.passed, "value": value, "bound": self.bound, "says": self.sentence}


@dataclass(frozen=True)
class Reliability:
    """How far the results of a run can be trusted.

    Attributes:
        checks: All checks, passed or not.
        checked: Whether the results were checked, in addition to the model.

    Example:
        >>> Reliability((), checked=False).verdict
        'not checked'
    """

    checks: tuple[Check, ...]
    checked: bool = True

    @property
    def alarms(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def trusted(self) -> bool:
        """Whether the results were checked and no check failed."""
        return self.word == TRUSTED

    @property
    def word(self) -> str:
        """The verdict without names: "trusted", "look at these" or "not checked"."""
        if self.alarms:
            return LOOK
        return TRUSTED if self.checked else NOT_CHECKED

    @property
    def verdict(self) -> str:
        """The verdict, with the names of the checks that failed."""
        return f"{LOOK}: {', '.join(check.name for check in self.alarms)}" if self.alarms else self.word


def model_checks(measured: PreflightStats, *, draws: int = 1) -> tuple[Check, ...]:
    """Check the model before it is attacked.

    Args:
        measured: Measurements of the preflight.
        draws: Number of draws of a randomized model that the attacks average over.

    Returns:
        The checks, in a fixed order.
    """
    count = measured.samples
    checks = (
        _random_weights(measured),
        at_most("train mode", measured.modules_in_train_mode, 0, "{value:.0f} modules of the model are in train mode"),
        at_most(
            "randomised",
            measured.repeated,
            1,
            f"in three passes of the same {count} samples, the logits differ by {{value:.2g}} times what rounding "
            f"explains{_AVERAGE if measured.repeated > 1 and draws == 1 else ''}",
        ),
        at_most(
            "depends on the batch",
            measured.alone,
            # A batch and a single sample use different kernels, so that some difference is normal.
            500,
            "between a batch and single samples, the logits differ by {value:.2g} times what rounding explains",
        ),
        at_most(
            "probabilities",
            measured.probabilities,
            BOUNDS["probabilities"],
            f"the outputs are probabilities, not logits, for {{value:.1%}} of {count} samples",
        ),
        at_most(
            "zero gradients",
            measured.no_gradient,
            BOUNDS["zero gradients"],
            f"the gradient is zero for {{value:.1%}} of {count} samples",
        ),
        at_most(
            "broken gradients",
            measured.broken_gradient,
            0,
            f"the gradient is NaN or infinite for {{value:.1%}} of {count} samples",
        ),
        at_most(
            "unstable",
            measured.shaken,
            BOUNDS["unstable"],
            f"noise of half a gray level changes the predicted class of {{value:.1%}} of {count} samples",
        ),
    )
    return tuple(_for_draws(check, draws) for check in checks) if measured.repeated > 1 and draws > 1 else checks


def _for_draws(check: Check, draws: int) -> Check:
    """Return a check of a randomized model that is attacked and judged over several draws."""
    if check.name == "randomised":
        return replace(check, passed=True, sentence=f"{check.sentence}; it was attacked on the mean of {draws} draws")
    if check.name in ("depends on the batch", "unstable"):
        return replace(check, passed=None, value=np.nan, sentence="not measured: the model is randomized")
    return check


def _random_weights(measured: PreflightStats) -> Check:
    name = "random weights"
    if not measured.random_parameters_measured:
        return Check(name, None, np.nan, 0, "the run did not record where the weights come from")
    count = measured.random_parameters
    if count is None:
        return Check(name, None, np.nan, 0, "where the weights of a model object come from is unknown")
    advice = ": load its trained weights" if count else ""
    return at_most(name, count, 0, f"{{value:,.0f}} parameters are drawn at random when the model is built{advice}")


def at_most(name: str, value: float, bound: float, sentence: str) -> Check:
    """Check that a value is within its bound; the sentence has a place for it."""
    return Check(name, bool(value <= bound), float(value), bound, sentence.format(value=value))
