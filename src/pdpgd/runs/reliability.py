"""Reliability of a run: checks of the model and of the results, each a sentence with a number and its bound.

The bounds are our own choice. docs/evaluation.md explains what each alarm means and what the shipped nets measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.runs import records
from pdpgd.runs.metrics import withstood
from pdpgd.runs.records import Columns
from pdpgd.runs.stats import ChunkStats, PreflightStats

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
"""Share of the samples above which the check "restarts" fails, in a run that asked about radii only."""

_ONLY_RADII = "not measured: the run asked about radii only, not for the smallest distances"
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
        _at_most("train mode", measured.modules_in_train_mode, 0, "{value:.0f} modules of the model are in train mode"),
        _at_most(
            "randomised",
            measured.repeated,
            1,
            f"in three passes of the same {count} samples, the logits differ by {{value:.2g}} times what rounding "
            f"explains{_AVERAGE if measured.repeated > 1 and draws == 1 else ''}",
        ),
        _at_most(
            "depends on the batch",
            measured.alone,
            # A batch and a single sample use different kernels, so that some difference is normal.
            500,
            "between a batch and single samples, the logits differ by {value:.2g} times what rounding explains",
        ),
        _at_most(
            "probabilities",
            measured.probabilities,
            BOUNDS["probabilities"],
            f"the outputs are probabilities, not logits, for {{value:.1%}} of {count} samples",
        ),
        _at_most(
            "zero gradients",
            measured.no_gradient,
            BOUNDS["zero gradients"],
            f"the gradient is zero for {{value:.1%}} of {count} samples",
        ),
        _at_most(
            "broken gradients",
            measured.broken_gradient,
            0,
            f"the gradient is NaN or infinite for {{value:.1%}} of {count} samples",
        ),
        _at_most(
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
    return _at_most(name, count, 0, f"{{value:,.0f}} parameters are drawn at random when the model is built{advice}")


def result_checks(
    columns: Columns,
    second: Columns | None,
    stats: Iterable[ChunkStats],
    *,
    classes: int,
    only_radii: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Check, ...]:
    """Check the results; each check reports the norm in which it is worst.

    Args:
        columns: Records of the run.
        second: Records of the second starts; None if there were none.
        stats: Counts of the chunks.
        classes: Number of classes of the model.
        only_radii: Radii by norm if the run asked about these only. Its distances are not minimal, so that what was
            found is compared at the radii.

    Returns:
        The checks, in a fixed order.
    """
    norms = list(dict.fromkeys(columns["norm"].tolist()))
    parts = {norm: _where(columns, columns["norm"] == norm) for norm in norms}
    attacked = {norm: _where(part, part["status"] != records.INITIALLY_WRONG) for norm, part in parts.items()}
    if only_radii:
        searched = _search_checks_at_radii(attacked, second, only_radii)
    else:
        gains = {} if second is None else {norm: _gain(parts[norm], second, norm) for norm in norms}
        searched = _search_checks(attacked, gains)
    return (
        *_accuracy_checks(parts[norms[0]], classes),
        *searched,
        *_verification_checks(attacked),
        _pass_count_check(attacked, stats),
    )


def _accuracy_checks(part: Columns, classes: int) -> tuple[Check, ...]:
    """Check that the model is accurate enough for its distances to mean something."""
    correct = part["status"] != records.INITIALLY_WRONG
    accuracy, chance = float(correct.mean()), 1 / classes
    # The share of samples that the model knows, if it guesses all others.
    known = (accuracy - chance) / (1 - chance)
    least = chance + KNOWN * (1 - chance)
    return (
        Check(
            "near chance",
            # A difference of a rounding error does not count.
            known > KNOWN + 1e-9,
            known,
            KNOWN,
            f"{accuracy:.1%} of the samples are correctly classified, more than {least:.1%} are expected: "
            f"chance is {chance:.1%}",
        ),
        Check(
            "few samples",
            bool(correct.sum() >= ENOUGH),
            float(correct.sum()),
            ENOUGH,
            f"{correct.sum()} samples are correctly classified, at least {ENOUGH} are expected",
        ),
    )


def _search_checks(attacked: Mapping[str, Columns], gains: Mapping[str, float]) -> tuple[Check, ...]:
    """Check whether the attacks could have found smaller perturbations."""
    norms = list(attacked)
    return (
        _worst(
            "still moving",
            {norm: _mean(part["late_gain"][np.isfinite(part["late_gain"])]) for norm, part in attacked.items()},
            "the last fifth of the iterations lowered the {norm} distance by {value:.1%}",
            "the attack does not report its progress",
        ),
        _worst(
            "restarts",
            gains,
            "a second start lowers the mean {norm} distance by {value:.1%}, on a subset of the samples",
            "no sample was attacked from a second start",
        ),
        _worst(
            "dominated",
            {norm: _mean(_dominated(part, norm, norms)) for norm, part in attacked.items()} if len(norms) > 1 else {},
            "for {value:.1%} of the samples, the attack in another norm found a smaller {norm} distance",
            "only one norm was attacked",
        ),
        _worst(
            "cheap attack",
            {
                norm: _mean(part["cheap_distance"] < (1 - CLEARLY) * _by_attacks(part))
                for norm, part in attacked.items()
            },
            "noise, one gradient step or another image beat the {norm} attack on {value:.1%} of the samples",
            "no sample was attacked",
        ),
        _never_fooled(attacked),
    )


def _search_checks_at_radii(
    attacked: Mapping[str, Columns], second: Columns | None, only_radii: Mapping[str, Sequence[float]]
) -> tuple[Check, ...]:
    """Check whether the attacks could have fooled more samples within the radii."""
    missed = {} if second is None else {norm: _fooled_again(part, second, norm) for norm, part in attacked.items()}
    return (
        Check("still moving", None, np.nan, BOUNDS["still moving"], _ONLY_RADII),
        _worst(
            "restarts",
            {norm: _most_at(only_radii[norm], *missed[norm]) for norm in missed},
            "a second start fools {value:.1%} of the samples within an {norm} radius that the first did not, on a "
            "subset of the samples",
            "no sample was attacked from a second start",
            bound=SECOND_START_AT_RADII,
        ),
        Check("dominated", None, np.nan, BOUNDS["dominated"], _ONLY_RADII),
        _worst(
            "cheap attack",
            {
                norm: _most_at(only_radii[norm], _found_by_attacks(part), part["cheap_distance"])
                for norm, part in attacked.items()
            },
            "noise, one gradient step or another image fool {value:.1%} of the samples within an {norm} radius that "
            "the attack did not",
            "no sample was attacked",
        ),
        _never_fooled(attacked),
    )


def _never_fooled(attacked: Mapping[str, Columns]) -> Check:
    return _share(
        "never fooled",
        _mean(np.all([np.isinf(_by_attacks(part)) for part in attacked.values()], axis=0)),
        BOUNDS["never fooled"],
        "the attacks found no adversarial example for {value:.1%} of the samples",
    )


def _verification_checks(attacked: Mapping[str, Columns]) -> tuple[Check, ...]:
    """Check the adversarial examples that were found."""
    return (
        _share(
            "unverified",
            _mean(np.any([_rejected(part) for part in attacked.values()], axis=0)),
            0.0,
            "the referee rejected adversarial examples for {value:.1%} of the samples",
        ),
        _worst(
            "fragile",
            {norm: _mean(part["fragile"][part["status"] == records.FOOLED]) for norm, part in attacked.items()},
            "rounding may decide the predicted class for {value:.1%} of the {norm} adversarial examples",
            "no adversarial example was found",
        ),
    )


def _pass_count_check(attacked: Mapping[str, Columns], stats: Iterable[ChunkStats]) -> Check:
    """Compare the backward passes that were counted with those that the attacks report."""
    reported = sum(int(part["backwards"].sum()) for part in attacked.values())
    counted = sum(each.backwards.attacks for each in stats)
    if reported == 0 and counted > 0:
        return Check("passes", None, np.nan, 0.01, f"{counted:,} backward passes were counted, the attacks report none")
    tried = any(len(part["sample"]) for part in attacked.values())
    excess = counted / reported - 1 if reported else 0.0
    sentence = f"{counted:,} backward passes were counted, the attacks report {reported:,}"
    return Check("passes", abs(excess) <= 0.01 if tried else None, excess, 0.01, sentence)


def _by_attacks(part: Columns) -> NDArray[Any]:
    """Return the distances without those that only a cheap attack found."""
    from_attack = ~np.isin(part["source"], CHEAP)
    distance: NDArray[Any] = np.where(from_attack, part["distance"], part["own_distance"])
    return distance


def _found_by_attacks(part: Columns) -> NDArray[Any]:
    """Return the distances without those that only a cheap attack found, and 0 where they are unknown.

    An attack that is done when it is given a point within the radius returns that point, whose distance is no longer
    in the records if a cheap attack found a smaller one.
    """
    kept_its_start = (part["verdict"] == "verified") & np.isinf(part["own_distance"])
    distance: NDArray[Any] = np.where(np.isin(part["source"], CHEAP) & kept_its_start, 0.0, _by_attacks(part))
    return distance


def _fooled_again(part: Columns, second: Columns, norm: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distances of the first and of the second start, over the attacked samples that both have."""
    attacked = second["status"] != records.INITIALLY_WRONG
    other = _where(second, attacked & (second["norm"] == norm) & np.isin(second["sample"], part["sample"]))
    mine = _where(part, np.isin(part["sample"], other["sample"]))
    return _found_by_attacks(mine), _by_attacks(other)


def _most_at(radii: Sequence[float], first: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest share, over the radii, of samples that only the other distances have within the radius."""
    return max(_mean(withstood(first, radius) & ~withstood(other, radius)) for radius in radii)


def _dominated(part: Columns, norm: str, norms: list[str]) -> NDArray[Any]:
    """Return where the attack in another norm found a clearly smaller perturbation than that of the norm itself."""
    by_another = np.isin(part["source"], [other for other in norms if other != norm])
    dominated: NDArray[Any] = by_another & (part["distance"] < (1 - CLEARLY) * part["own_distance"])
    return dominated


def _rejected(part: Columns) -> NDArray[Any]:
    rejected: NDArray[Any] = ~np.isin(part["verdict"], ["none", "verified"])
    return rejected


def _gain(part: Columns, second: Columns, norm: str) -> float:
    """Return by which share the better of two starts lowers the mean distance of the first, over common samples."""
    other = _where(second, second["norm"] == norm)
    mine = _where(part, np.isin(part["sample"], other["sample"]))
    first, again = _by_attacks(mine), _by_attacks(other)
    use = (mine["status"] != records.INITIALLY_WRONG) & np.isfinite(first) & np.isfinite(again)
    if not use.any():
        return np.nan
    # A randomized model may misclassify the input itself: its distance is 0, which no second start can lower.
    mean = float(first[use].mean())
    return 1 - float(np.minimum(first, again)[use].mean()) / mean if mean > 0 else 0.0


def _where(columns: Columns, rows: NDArray[Any]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else np.nan


def _at_most(name: str, value: float, bound: float, sentence: str) -> Check:
    return Check(name, bool(value <= bound), float(value), bound, sentence.format(value=value))


def _share(name: str, value: float, bound: float, sentence: str) -> Check:
    if np.isnan(value):
        return Check(name, None, value, bound, "no sample is correctly classified")
    return _at_most(name, value, bound, sentence)


def _worst(name: str, values: Mapping[str, float], sentence: str, unknown: str, *, bound: float | None = None) -> Check:
    bound = BOUNDS[name] if bound is None else bound
    known = {norm: value for norm, value in values.items() if not np.isnan(value)}
    if not known:
        return Check(name, None, np.nan, bound, unknown)
    norm = max(known, key=lambda key: known[key])
    return _at_most(name, known[norm], bound, sentence.replace("{norm}", norm))
