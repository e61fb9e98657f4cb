"""Numbers from distances: robust accuracy, curves, and what several norms leave together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Points lie on their radius up to float32's rounding: this much, over the larger of 1 and the radius, is forgiven.
TOLERANCE = 1e-6

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


def mean(distances: Iterable[float]) -> float:
    """Over the samples that were right and were fooled."""
    values = np.asarray(list(distances), dtype=np.float64)
    fooled = values[(values > 0) & np.isfinite(values)]
    return float(fooled.mean()) if len(fooled) else float("nan")
