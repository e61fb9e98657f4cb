"""Checks of the results of a run: could the attacks have found more, and is what they found verified?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.runs import records
from pdpgd.runs.metrics import withstood
from pdpgd.runs.records import Columns
from pdpgd.runs.reliability import BOUNDS, CHEAP, CLEARLY, ENOUGH, KNOWN, SECOND_START_AT_RADII, Check, at_most
from pdpgd.runs.stats import ChunkStats

_ONLY_RADII = "not measured: the run asked about radii only, not for the smallest distances"


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


def _share(name: str, value: float, bound: float, sentence: str) -> Check:
    if np.isnan(value):
        return Check(name, None, value, bound, "no sample is correctly classified")
    return at_most(name, value, bound, sentence)


def _worst(name: str, values: Mapping[str, float], sentence: str, unknown: str, *, bound: float | None = None) -> Check:
    bound = BOUNDS[name] if bound is None else bound
    known = {norm: value for norm, value in values.items() if not np.isnan(value)}
    if not known:
        return Check(name, None, np.nan, bound, unknown)
    norm = max(known, key=lambda key: known[key])
    return at_most(name, known[norm], bound, sentence.replace("{norm}", norm))
