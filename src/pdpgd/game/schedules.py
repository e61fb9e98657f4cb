"""How a rate falls over a run; progress goes from 0 to 1."""

from __future__ import annotations

import math


def exponential_decay(rate: float, final: float, progress: float) -> float:
    """From rate to rate * final, by equal factors."""
    return rate * math.pow(final, progress)


def linear_decay(rate: float, final: float, progress: float) -> float:
    """From rate to rate * final, by equal differences."""
    return rate * (1.0 - (1.0 - final) * progress)
