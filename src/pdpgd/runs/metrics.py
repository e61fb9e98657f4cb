"""Numbers from distances: robust accuracy, curves, and what several norms leave together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Points lie on their radius up to float32's rounding: this much, over the larger of 1 and the radius, is forgiven.
TOLERANCE = 1e-6

# Shares of the same samples are equal or differ by far more than this.
ROUNDING = 1e-9

# Stands behind a mean that is not over all correctly classified samples, wherever people read it.
PARTIAL = "*"

Distances = NDArray[Any]


@dataclass(frozen=True)
class Curve:
    """Robust accuracy over the radius: a step function, right-continuous, given at every radius where it falls."""

    radius: NDArray[Any]
    accuracy: NDArray[Any]


def withstood(distances: Distances, radius: float) -> NDArray[np.bool_]:
    """Which samples no point within the radius fools; one that was wrong to begin with withstands nothing."""
    beyond: NDArray[np.bool_] = distances > radius + TOLERANCE * max(1.0, radius)
    return beyond


def robust_accuracy(distances: Distances, radius: float) -> float:
    return float(withstood(distances, radius).mean())


def union_accuracy(distances: Mapping[str, Distances], radii: Mapping[str, float]) -> float:
    """The share that withstands every norm at its radius."""
    return float(np.logical_and.reduce([withstood(distances[norm], radius) for norm, radius in radii.items()]).mean())


def curve(distances: Distances) -> Curve:
    finite = np.sort(distances[np.isfinite(distances)])
    radius = np.unique(np.concatenate([[0.0], finite]))
    fallen = np.searchsorted(finite, radius, side="right")
    return Curve(radius, 1.0 - fallen / len(distances))


def quantile(distances: Distances, share: float) -> float:
    """The radius that fools this share of the samples that were right; inf if none does."""
    attacked = np.sort(distances[distances > 0])
    return float(attacked[max(0, int(np.ceil(share * len(attacked))) - 1)]) if len(attacked) else float("nan")


def fooled(distances: Distances) -> NDArray[np.bool_]:
    """Which samples were correctly classified and then fooled."""
    found: NDArray[np.bool_] = (distances > 0) & np.isfinite(distances)
    return found


def fooled_by_all(runs: Sequence[Distances]) -> NDArray[np.bool_]:
    """Find the samples over which the mean distances of several runs can be compared.

    A mean over what each run fooled by itself rises when a run fools more samples, since the additional ones are the
    hard ones. Over a fixed set of samples it falls whenever distances do.

    Args:
        runs: Distances of at least one run, all on the same samples in the same order.

    Returns:
        Which samples every run fooled.
    """
    common: NDArray[np.bool_] = np.logical_and.reduce([fooled(distances) for distances in runs])
    return common


def mean(distances: Iterable[float]) -> float:
    """Mean over the fooled samples; nan if there are none.

    Where some correctly classified samples were not fooled, this is no measure of the attack: it has to be shown with
    the number of samples that it is over, and not to be ranked (see `fooled_by_all`).
    """
    values = np.asarray(list(distances), dtype=np.float64)
    found = values[fooled(values)]
    return float(found.mean()) if len(found) else float("nan")


@dataclass(frozen=True)
class Statistics:
    """How an attack stands among others, over the robust accuracies that each of them leaves: less is better."""

    mean_accuracy: float
    times_best: int
    """In how many cells no rival leaves less."""
    mean_gap: float
    """To the least that any attack leaves."""
    max_gap: float


def compared(
    accuracies: Mapping[str, NDArray[Any]], *, families: Mapping[str, str] | None = None
) -> dict[str, Statistics]:
    """The paper's statistics of attacks, each with its robust accuracy in the same cells (models and radii).

    The best of a cell is the best of all attacks. For `times_best`, attacks of the same family (one attack with more or
    with fewer restarts, say) are not each other's rivals: so the paper counts.
    """
    families = families or {}
    table = {name: np.asarray(values, dtype=np.float64) for name, values in accuracies.items()}
    best = np.min(list(table.values()), axis=0)
    statistics = {}
    for name, values in table.items():
        family = families.get(name, name)
        others = [other for rival, other in table.items() if families.get(rival, rival) != family]
        least = np.min(others, axis=0) if others else values
        statistics[name] = Statistics(
            mean_accuracy=float(values.mean()),
            times_best=int((values <= least + ROUNDING).sum()),
            mean_gap=float((values - best).mean()),
            max_gap=float((values - best).max()),
        )
    return statistics


# The normal distribution's 97.5 % point.
Z = 1.959963984540054
RESAMPLES = 1000

Shares = NDArray[Any]


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether zero is outside."""
        return self.low > 0 or self.high < 0


def wilson(shares: Shares | float, samples: int) -> tuple[Shares, Shares]:
    """Wilson's score interval of shares of `samples`: within [0, 1], and not empty at 0 and 1."""
    p = np.asarray(shares, dtype=np.float64)
    middle = p + Z**2 / (2 * samples)
    reach = Z * np.sqrt(p * (1 - p) / samples + Z**2 / (4 * samples**2))
    scale = 1 + Z**2 / samples
    return np.maximum((middle - reach) / scale, 0.0), np.minimum((middle + reach) / scale, 1.0)


def difference(first: NDArray[np.bool_], second: NDArray[np.bool_], *, paired: bool) -> Interval:
    """By how much the share of `second` is above that of `first`: Newcombe's interval, of two Wilson ones.

    `paired`: both are of the same samples in the same order, and what they agree on makes the interval narrower
    (Newcombe 1998, Statistics in Medicine 17, "Improved confidence intervals ... paired data", method 10).
    """
    p, q = float(first.mean()), float(second.mean())
    (low_p, high_p), (low_q, high_q) = (
        (float(low), float(high)) for low, high in (wilson(p, len(first)), wilson(q, len(second)))
    )
    phi = _agreement(first, second) if paired else 0.0
    below = _joined(q - low_q, high_p - p, phi)
    above = _joined(high_q - q, p - low_p, phi)
    return Interval(q - p, max(-1.0, q - p - below), min(1.0, q - p + above))


def median_change(first: NDArray[Any], second: NDArray[Any], *, paired: bool, seed: int = 0) -> Interval | None:
    """Of the median distance, with the percentiles of a bootstrap; None where half or more were not fooled.

    Over the samples that were right: in a pair, by both. Whole pairs are drawn again where there are such.
    """
    if paired:
        both = (first > 0) & (second > 0)
        first, second = first[both], second[both]
    else:
        first, second = first[first > 0], second[second > 0]
    if not len(first) or not len(second):
        return None
    value = quantile(second, 0.5) - quantile(first, 0.5)
    if not np.isfinite(value):
        return None
    generator = np.random.default_rng(seed)
    draws = np.empty(RESAMPLES)
    for draw in range(RESAMPLES):
        mine = generator.integers(len(first), size=len(first))
        other = mine if paired else generator.integers(len(second), size=len(second))
        medians = _median(first[mine]), _median(second[other])
        draws[draw] = medians[1] - medians[0] if np.isfinite(medians).all() else np.inf
    if np.isinf(draws).mean() > 0.02:
        return None
    low, high = np.quantile(draws[np.isfinite(draws)], [0.025, 0.975])
    return Interval(value, float(low), float(high))


def _median(distances: NDArray[Any]) -> float:
    """As `metrics.quantile`, without a sort."""
    place = int(np.ceil(0.5 * len(distances))) - 1
    return float(np.partition(distances, place)[place])


def _agreement(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Newcombe's phi: the correlation of the two, with his correction for few samples."""
    both, neither = int((first & second).sum()), int((~first & ~second).sum())
    mine, other = int((first & ~second).sum()), int((~first & second).sum())
    product = (both + mine) * (other + neither) * (both + other) * (mine + neither)
    if product == 0:
        return 0.0
    excess = float(both * neither - mine * other)
    if excess > 0:
        excess = max(excess - len(first) / 2, 0.0)
    return excess / float(np.sqrt(float(product)))


def _joined(one: float, other: float, phi: float) -> float:
    return float(np.sqrt(max(one**2 - 2 * phi * one * other + other**2, 0.0)))
