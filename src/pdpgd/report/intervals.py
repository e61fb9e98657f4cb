"""How sure a share is, and a difference of two: 95 % intervals that hold for few samples too, without scipy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.evaluation import metrics

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
    value = metrics.quantile(second, 0.5) - metrics.quantile(first, 0.5)
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
