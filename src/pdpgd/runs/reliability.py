"""Can the numbers be trusted? Each check is a plain sentence with a number in it, and the bound it is held to.

The bounds are ours. docs/evaluation.md says what each sign means and what the shipped nets measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.runs import records
from pdpgd.runs.records import Columns
from pdpgd.runs.stats import ChunkStats, PreflightStats

CHEAP = ("sign step", "gradient step", "steepest pixels", "noise", "another image")
"""Names of the cheap attacks, as the column `source` of the records has them."""

# Shares of the samples (or of the distance) above which a sign is one.
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
# A model that knows this share of the samples and guesses the others is near chance: see docs/evaluation.md.
KNOWN = 0.25
# Of fewer correctly classified samples, each would be more than a tenth of every share.
ENOUGH = 10
# A distance counts as smaller than another if it is so by this share: less is luck.
CLEARLY = 0.01


TRUSTED, LOOK, NOT_CHECKED = "trusted", "look at these", "not checked"


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool | None
    """None: it could not be made, and the sentence says why."""
    value: float
    bound: float
    sentence: str

    def as_json(self) -> dict[str, Any]:
        value = None if np.isnan(self.value) else self.value
        return {"name": self.name, "passed": self.passed, "value": value, "bound": self.bound, "says": self.sentence}


@dataclass(frozen=True)
class Reliability:
    checks: tuple[Check, ...]
    checked: bool = True
    """Whether the results were checked, and not the model alone."""

    @property
    def alarms(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def trusted(self) -> bool:
        return self.word == TRUSTED

    @property
    def word(self) -> str:
        """The verdict in one of three forms: trusted, look at these, not checked."""
        if self.alarms:
            return LOOK
        return TRUSTED if self.checked else NOT_CHECKED

    @property
    def verdict(self) -> str:
        return f"{LOOK}: {', '.join(check.name for check in self.alarms)}" if self.alarms else self.word


def before(look: PreflightStats) -> tuple[Check, ...]:
    """What the model shows before it is attacked."""
    count = look.samples
    return (
        _random_weights(look),
        _at_most("train mode", look.modules_in_train_mode, 0, "{value:.0f} parts of the model are in train mode"),
        _at_most(
            "randomised",
            look.repeated,
            1,
            f"asked {count} samples three times, the logits differ by {{value:.2g}} times what rounding explains",
        ),
        _at_most(
            "depends on the batch",
            look.alone,
            # A batch and a single sample go through different kernels: some difference is normal.
            500,
            "alone and in a batch, the logits differ by {value:.2g} times what rounding explains",
        ),
        _at_most(
            "probabilities",
            look.probabilities,
            BOUNDS["probabilities"],
            f"the outputs are probabilities, not logits, for {{value:.1%}} of {count} samples",
        ),
        _at_most(
            "zero gradients",
            look.no_gradient,
            BOUNDS["zero gradients"],
            f"the gradient is zero for {{value:.1%}} of {count} samples",
        ),
        _at_most(
            "broken gradients",
            look.broken_gradient,
            0,
            f"the gradient is NaN or infinite for {{value:.1%}} of {count} samples",
        ),
        _at_most(
            "unstable",
            look.shaken,
            BOUNDS["unstable"],
            f"noise of half a grey step changes the class of {{value:.1%}} of {count} samples",
        ),
    )


def _random_weights(look: PreflightStats) -> Check:
    name, unmeasured = "random weights", "it was not measured where the weights are from"
    if not look.random_parameters_measured:
        return Check(name, None, np.nan, 0, unmeasured)
    count = look.random_parameters
    if count is None:
        return Check(name, None, np.nan, 0, "a model that is loaded already does not say where its weights are from")
    advice = ": give the weights that belong to it" if count else ""
    return _at_most(name, count, 0, f"{{value:,.0f}} parameters are drawn at random when the model is built{advice}")


def after(columns: Columns, second: Columns | None, stats: Iterable[ChunkStats], *, classes: int) -> tuple[Check, ...]:
    """What the results show: of each sign, the norm in which it is worst."""
    norms = list(dict.fromkeys(columns["norm"].tolist()))
    parts = {norm: _where(columns, columns["norm"] == norm) for norm in norms}
    attacked = {norm: _where(part, part["status"] != records.INITIALLY_WRONG) for norm, part in parts.items()}
    gains = {} if second is None else {norm: _gain(parts[norm], second, norm) for norm in norms}
    return (
        *_of_the_inputs(parts[norms[0]], classes),
        *_of_the_search(attacked, gains),
        *_of_the_points(attacked),
        _claims(attacked, stats),
    )


def _of_the_inputs(part: Columns, classes: int) -> tuple[Check, ...]:
    """Is the model right often enough for its distances to mean something?"""
    right = part["status"] != records.INITIALLY_WRONG
    accuracy, chance = float(right.mean()), 1 / classes
    # The share that a model knows if it guesses all others.
    known = (accuracy - chance) / (1 - chance)
    least = chance + KNOWN * (1 - chance)
    return (
        Check(
            "near chance",
            # Not by a rounding more.
            known > KNOWN + 1e-9,
            known,
            KNOWN,
            f"{accuracy:.1%} of the samples are correctly classified, more than {least:.1%} are expected: "
            f"chance is {chance:.1%}",
        ),
        Check(
            "few samples",
            bool(right.sum() >= ENOUGH),
            float(right.sum()),
            ENOUGH,
            f"{right.sum()} samples are correctly classified, at least {ENOUGH} are expected",
        ),
    )


def _of_the_search(attacked: Mapping[str, Columns], gains: Mapping[str, float]) -> tuple[Check, ...]:
    """Could more have been found?"""
    norms = list(attacked)
    return (
        _worst(
            "still moving",
            {norm: _mean(part["late_gain"][np.isfinite(part["late_gain"])]) for norm, part in attacked.items()},
            "the last fifth of the iterations lowered the {norm} distance by {value:.1%}",
            "the attack does not show its progress",
        ),
        _worst(
            "restarts",
            gains,
            "another start lowers the mean {norm} distance by {value:.1%}, on a part of the samples",
            "no sample was attacked from another start",
        ),
        _worst(
            "dominated",
            {norm: _mean(_dominated(part, norm, norms)) for norm, part in attacked.items()} if len(norms) > 1 else {},
            "for {value:.1%} of the samples another norm's attack found a smaller {norm} distance",
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
        _share(
            "never fooled",
            _mean(np.all([np.isinf(_by_attacks(part)) for part in attacked.values()], axis=0)),
            BOUNDS["never fooled"],
            "{value:.1%} of the samples were never fooled, in the whole box",
        ),
    )


def _of_the_points(attacked: Mapping[str, Columns]) -> tuple[Check, ...]:
    """Is what was found sound?"""
    return (
        _share(
            "unverified",
            _mean(np.any([_refused(part) for part in attacked.values()], axis=0)),
            0.0,
            "the referee refused points of {value:.1%} of the samples",
        ),
        _worst(
            "fragile",
            {norm: _mean(part["fragile"][part["status"] == records.FOOLED]) for norm, part in attacked.items()},
            "rounding may decide {value:.1%} of the points found in {norm}",
            "no point was found",
        ),
    )


def _claims(attacked: Mapping[str, Columns], stats: Iterable[ChunkStats]) -> Check:
    """Counted by the referee's own counter, not by the attack's word."""
    claimed = sum(int(part["backwards"].sum()) for part in attacked.values())
    counted = sum(each.backwards.attacks for each in stats)
    if claimed == 0 and counted > 0:
        return Check("passes", None, np.nan, 0.01, f"{counted:,} backward passes were counted, the attacks say nothing")
    tried = any(len(part["sample"]) for part in attacked.values())
    excess = counted / claimed - 1 if claimed else 0.0
    sentence = f"{counted:,} backward passes were counted, the attacks say {claimed:,}"
    return Check("passes", abs(excess) <= 0.01 if tried else None, excess, 0.01, sentence)


def _by_attacks(part: Columns) -> NDArray[Any]:
    """The distance without the cheap attacks' help."""
    from_attack = ~np.isin(part["source"], CHEAP)
    distance: NDArray[Any] = np.where(from_attack, part["distance"], part["own_distance"])
    return distance


def _dominated(part: Columns, norm: str, norms: list[str]) -> NDArray[Any]:
    by_another = np.isin(part["source"], [other for other in norms if other != norm])
    dominated: NDArray[Any] = by_another & (part["distance"] < (1 - CLEARLY) * part["own_distance"])
    return dominated


def _refused(part: Columns) -> NDArray[Any]:
    refused: NDArray[Any] = ~np.isin(part["verdict"], ["none", "verified"])
    return refused


def _gain(part: Columns, second: Columns, norm: str) -> float:
    """By how much the better of two starts is below the first, over the samples that both were made on."""
    other = _where(second, second["norm"] == norm)
    mine = _where(part, np.isin(part["sample"], other["sample"]))
    first, again = _by_attacks(mine), _by_attacks(other)
    use = (mine["status"] != records.INITIALLY_WRONG) & np.isfinite(first) & np.isfinite(again)
    if not use.any():
        return np.nan
    # A model that answers by chance may be fooled by the input itself: there is nothing below 0.
    before = float(first[use].mean())
    return 1 - float(np.minimum(first, again)[use].mean()) / before if before > 0 else 0.0


def _where(columns: Columns, rows: NDArray[Any]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else np.nan


def _at_most(name: str, value: float, bound: float, sentence: str) -> Check:
    return Check(name, bool(value <= bound), float(value), bound, sentence.format(value=value))


def _share(name: str, value: float, bound: float, sentence: str) -> Check:
    if np.isnan(value):
        return Check(name, None, value, bound, "every sample was wrong to begin with")
    return _at_most(name, value, bound, sentence)


def _worst(name: str, values: Mapping[str, float], sentence: str, unknown: str) -> Check:
    known = {norm: value for norm, value in values.items() if not np.isnan(value)}
    if not known:
        return Check(name, None, np.nan, BOUNDS[name], unknown)
    norm = max(known, key=lambda key: known[key])
    return _at_most(name, known[norm], BOUNDS[name], sentence.replace("{norm}", norm))
