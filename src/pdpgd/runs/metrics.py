"""Numbers from distances: robust accuracy, curves, means, the paper's statistics, and confidence intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-6
"""Slack of a radius, relative to the larger of 1 and the radius: adversarial examples lie on it up to float32's
rounding."""
ROUNDING = 1e-9
"""Shares of the same samples are equal or differ by far more than this."""
PARTIAL = "*"
"""Mark, wherever people read a mean distance, that it does not include all correctly classified samples."""
Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
RESAMPLES = 1000
"""Number of bootstrap samples."""

Distances = NDArray[Any]
"""The smallest adversarial distance of each sample; 0 if it was misclassified before the attack, inf if not fooled."""
Shares = NDArray[Any]


@dataclass(frozen=True)
class Curve:
    """Robust accuracy as a function of the radius: a right-continuous step function.

    Attributes:
        radius: Radii at which the accuracy drops, ascending from 0.
        accuracy: Robust accuracy from each of these radii on, up to the next.

    Example:
        >>> curve = evaluation.curve("l2")
        >>> float(curve.radius[0]), float(curve.accuracy[0])
        (0.0, 1.0)
    """

    radius: NDArray[Any]
    accuracy: NDArray[Any]


@dataclass(frozen=True)
class Statistics:
    """The paper's statistics of an attack among others, over robust accuracies: lower is better.

    Attributes:
        mean_accuracy: Mean robust accuracy over all cells (models and radii).
        times_best: Number of cells in which no rival has a lower robust accuracy.
        mean_gap: Mean difference to the lowest robust accuracy of any attack in the cell.
        max_gap: Largest such difference.

    Example:
        >>> statistics = comparison.statistics("l2")["auto"]
        >>> statistics.max_gap  # at no radius does another attack leave a lower robust accuracy
        0.0
    """

    mean_accuracy: float
    times_best: int
    mean_gap: float
    max_gap: float


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def withstood(distances: Distances, radius: float) -> NDArray[np.bool_]:
    """Find the samples that no perturbation within a radius fools.

    Args:
        distances: Smallest adversarial distance of each sample.
        radius: Largest allowed perturbation.

    Returns:
        Which samples remain correctly classified; those that were misclassified before the attack do not.
    """
    beyond: NDArray[np.bool_] = distances > radius + TOLERANCE * max(1.0, radius)
    return beyond


def is_among(radius: float, radii: Iterable[float]) -> bool:
    """Tell whether a radius is one of several, up to the rounding of how it was written."""
    return any(abs(radius - each) <= ROUNDING * each for each in radii)


def robust_accuracy(distances: Distances, radius: float) -> float:
    """Compute the robust accuracy at a radius.

    Args:
        distances: Smallest adversarial distance of each sample.
        radius: Largest allowed perturbation.

    Returns:
        Share of all samples that no perturbation within the radius fools.

    Example:
        >>> robust_accuracy(np.array([0.0, 0.2, 0.4, np.inf]), 0.3)
        0.5
    """
    return float(withstood(distances, radius).mean())


def union_accuracy(distances: Mapping[str, Distances], radii: Mapping[str, float]) -> float:
    """Compute the robust accuracy against several norms at once.

    Args:
        distances: Smallest adversarial distance of each sample, by norm.
        radii: Largest allowed perturbation, by norm.

    Returns:
        Share of all samples that no perturbation within the radius of any of the norms fools.
    """
    return float(np.logical_and.reduce([withstood(distances[norm], radius) for norm, radius in radii.items()]).mean())


def curve(distances: Distances) -> Curve:
    """Compute robust accuracy as a function of the radius.

    Args:
        distances: Smallest adversarial distance of each sample.

    Returns:
        The curve, without the tolerance of `robust_accuracy`.
    """
    finite = np.sort(distances[np.isfinite(distances)])
    radius = np.unique(np.concatenate([[0.0], finite]))
    fooled_within = np.searchsorted(finite, radius, side="right")
    return Curve(radius, 1.0 - fooled_within / len(distances))


def quantile(distances: Distances, share: float) -> float:
    """Compute the radius that fools a share of the correctly classified samples.

    Args:
        distances: Smallest adversarial distance of each sample.
        share: Share of the correctly classified samples, from 0 to 1.

    Returns:
        The radius; inf if fewer samples were fooled, nan if none is correctly classified.
    """
    attacked = np.sort(distances[distances > 0])
    return float(attacked[max(0, int(np.ceil(share * len(attacked))) - 1)]) if len(attacked) else float("nan")


def fooled(distances: Distances) -> NDArray[np.bool_]:
    """Find the samples that were correctly classified and then fooled.

    Args:
        distances: Smallest adversarial distance of each sample.

    Returns:
        Which samples have a distance that is neither 0 nor inf.
    """
    found: NDArray[np.bool_] = (distances > 0) & np.isfinite(distances)
    return found


def fooled_by_all(runs: Sequence[Distances]) -> NDArray[np.bool_]:
    """Find the samples over which the mean distances of several runs can be compared.

    A mean over the samples that each run fooled by itself rises when a run fools more samples, since the additional
    ones are the hard ones. Over a fixed set of samples it falls whenever distances do.

    Args:
        runs: Distances of at least one run, all on the same samples in the same order.

    Returns:
        Which samples every run fooled.
    """
    common: NDArray[np.bool_] = np.logical_and.reduce([fooled(distances) for distances in runs])
    return common


def mean(distances: Iterable[float]) -> float:
    """Compute the mean distance over the fooled samples.

    Where some correctly classified samples were not fooled, this does not measure the attack: it has to be shown with
    the number of samples that it includes, and must not be ranked (see `fooled_by_all`).

    Args:
        distances: Smallest adversarial distance of each sample.

    Returns:
        The mean; nan if no sample was fooled.
    """
    values = np.asarray(list(distances), dtype=np.float64)
    found = values[fooled(values)]
    return float(found.mean()) if len(found) else float("nan")


def compared(
    accuracies: Mapping[str, NDArray[Any]], *, families: Mapping[str, str] | None = None
) -> dict[str, Statistics]:
    """Compute the paper's statistics of several attacks.

    As in the paper, attacks of one family (one attack with more or fewer restarts) are not rivals of each other in
    `times_best`; the gaps are to the best of all attacks.

    Args:
        accuracies: Robust accuracy of each attack in the same cells (models and radii).
        families: Family of each attack; an attack without one is a family of its own.

    Returns:
        The statistics, by attack.
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


def wilson(shares: Shares | float, samples: int) -> tuple[Shares, Shares]:
    """Compute Wilson's score interval, which lies within [0, 1] and is not empty at 0 and 1.

    Args:
        shares: Shares of the samples.
        samples: Number of samples.

    Returns:
        Lower and upper ends of the 95 % intervals.
    """
    p = np.asarray(shares, dtype=np.float64)
    middle = p + Z**2 / (2 * samples)
    half_width = Z * np.sqrt(p * (1 - p) / samples + Z**2 / (4 * samples**2))
    scale = 1 + Z**2 / samples
    return np.maximum((middle - half_width) / scale, 0.0), np.minimum((middle + half_width) / scale, 1.0)


def difference(first: NDArray[np.bool_], second: NDArray[np.bool_], *, paired: bool) -> Interval:
    """Estimate the difference of two shares with Newcombe's interval, which combines two of Wilson's.

    For paired samples, their correlation makes the interval narrower (Newcombe 1998, Statistics in Medicine 17,
    "Improved confidence intervals ... paired data", method 10).

    Args:
        first: Results of the first group, one per sample.
        second: Results of the second group, one per sample.
        paired: Whether both are of the same samples in the same order.

    Returns:
        The share of `second` minus that of `first`.
    """
    p, q = float(first.mean()), float(second.mean())
    (low_p, high_p), (low_q, high_q) = (
        (float(low), float(high)) for low, high in (wilson(p, len(first)), wilson(q, len(second)))
    )
    phi = _correlation(first, second) if paired else 0.0
    below = _combined(q - low_q, high_p - p, phi)
    above = _combined(high_q - q, p - low_p, phi)
    return Interval(q - p, max(-1.0, q - p - below), min(1.0, q - p + above))


def median_change(first: Distances, second: Distances, *, paired: bool, seed: int = 0) -> Interval | None:
    """Estimate the change of the median distance with a percentile bootstrap.

    Args:
        first: Distances of the first run.
        second: Distances of the second run.
        paired: Whether both are of the same samples in the same order: then pairs are resampled, and samples count if
            both runs classify them correctly.
        seed: Seed of the bootstrap.

    Returns:
        The median of `second` minus that of `first`, over the correctly classified samples; None if half of them or
        more were not fooled.
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


def _median(distances: Distances) -> float:
    """Compute the same as `quantile(distances, 0.5)` without sorting."""
    place = int(np.ceil(0.5 * len(distances))) - 1
    return float(np.partition(distances, place)[place])


def _correlation(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Compute Newcombe's phi: the correlation of two samples, with his correction for few samples."""
    both, neither = int((first & second).sum()), int((~first & ~second).sum())
    mine, other = int((first & ~second).sum()), int((~first & second).sum())
    product = (both + mine) * (other + neither) * (both + other) * (mine + neither)
    if product == 0:
        return 0.0
    excess = float(both * neither - mine * other)
    if excess > 0:
        excess = max(excess - len(first) / 2, 0.0)
    return excess / float(np.sqrt(float(product)))


def _combined(one: float, other: float, phi: float) -> float:
    """Combine the one-sided widths of two intervals whose estimates have the correlation phi."""
    return float(np.sqrt(max(one**2 - 2 * phi * one * other + other**2, 0.0)))
