"""Slow and obvious answers in float64 NumPy; none of them shares code or a formula trick with pdpgd.proximal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

Array = NDArray[np.float64]
Size = Callable[[Array], Array]


def by_sample(z: Array) -> Array:
    return z.reshape(len(z), -1)


def pixel_lengths(z: Array) -> Array:
    """(samples, pixels): a pixel is the vector along axis 1, or a single feature of a 2-d array."""
    return np.abs(z) if z.ndim == 2 else np.sqrt((z**2).sum(1)).reshape(len(z), -1)


SIZES: dict[str, Size] = {
    "l0": lambda z: (by_sample(z) != 0).sum(1).astype(float),
    "l12": lambda z: np.sqrt(np.abs(by_sample(z))).sum(1),
    "l23": lambda z: np.cbrt(by_sample(z) ** 2).sum(1),
    "l1": lambda z: np.abs(by_sample(z)).sum(1),
    "l2": lambda z: np.linalg.norm(by_sample(z), axis=1),
    "linf": lambda z: np.abs(by_sample(z)).max(1),
    "pixel_l0": lambda z: (pixel_lengths(z) != 0).sum(1).astype(float),
    "pixel_l12": lambda z: np.sqrt(pixel_lengths(z)).sum(1),
    "pixel_l23": lambda z: np.cbrt(pixel_lengths(z) ** 2).sum(1),
}
"""f(z) of each sample, as the paper defines it."""

DEGREES = {"l0": 0, "l12": 1 / 2, "l23": 2 / 3, "l1": 1, "l2": 1, "linf": 1}
"""f(c z) = c^degree f(z) for c > 0."""

DUAL_SIZES: dict[str, Size] = {"l1": SIZES["linf"], "l2": SIZES["l2"], "linf": SIZES["l1"]}


def cost(size: Size, z: Array, v: Array, weight: float, metric: Array) -> Array:
    """w f(z) + 1/2 sum h (z - v)^2 for a stack of candidates z of one sample v."""
    return weight * size(z) + 0.5 * by_sample(metric * (z - v) ** 2).sum(1)


def cheapest_on_zooming_grid(size: Size, v: Array, weight: float, metric: Array, low: Array, high: Array) -> float:
    """The least cost that eight grids, each ten times finer around the last best, find for a sample of two entries."""
    lower, upper = np.maximum(np.minimum(v, 0), low), np.minimum(np.maximum(v, 0), high)
    begin, end = lower.ravel(), upper.ravel()
    best = np.inf
    for _ in range(8):
        axes = [np.linspace(b, e, 41) for b, e in zip(begin, end, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        costs = cost(size, points.reshape(-1, *v.shape), v, weight, metric)
        centre, spacing = points[costs.argmin()], (end - begin) / 40
        best = min(best, float(costs.min()))
        begin = np.maximum(centre - 2 * spacing, lower.ravel())
        end = np.minimum(centre + 2 * spacing, upper.ravel())
    return best


def scalar_minimiser(exponent: float, magnitude: float, weight: float) -> tuple[float, float, float]:
    """(argmin over z > 0 away from 0, its cost, the cost of 0) of w z^p + 1/2 (z - a)^2, by zooming grids.

    The stationary point that can win lies in [a/2, a]: below a/2 the cost is above that of 0. Not so for p = 1, where
    the minimiser is a - w; its cost meets that of 0 without a jump, and is infinite where 0 is clearly the minimiser.
    """
    if exponent == 1:
        z = max(magnitude - weight, 0.0)
        inner = np.inf if weight > magnitude * (1 + 1e-4) else weight * z + 0.5 * (z - magnitude) ** 2
        return z, inner, 0.5 * magnitude**2

    def costs(z: Array) -> Array:
        return weight * z**exponent + 0.5 * (z - magnitude) ** 2

    begin, end = magnitude / 4, magnitude
    for _ in range(5):
        grid = np.linspace(begin, end, 2001)
        centre, spacing = grid[costs(grid).argmin()], (end - begin) / 2000
        begin, end = max(centre - 2 * spacing, magnitude / 4), min(centre + 2 * spacing, magnitude)
    return float(centre), float(costs(np.array([centre]))[0]), 0.5 * magnitude**2


def l1_ball_projection(v: Array, radius: float) -> Array:
    """One sample; halves the interval of the soft threshold until it has no width."""
    if np.abs(v).sum() <= radius:
        return v
    low, high = 0.0, float(np.abs(v).max())
    for _ in range(200):
        middle = (low + high) / 2
        above = np.maximum(np.abs(v) - middle, 0).sum() > radius
        low, high = (middle, high) if above else (low, middle)
    return np.sign(v) * np.maximum(np.abs(v) - high, 0)


def dual_ball_projection(norm: str, v: Array, radius: float) -> Array:
    """Projection of one sample on {u: dual norm of u <= radius}."""
    if norm == "l1":
        return np.clip(v, -radius, radius)
    if norm == "l2":
        return v * min(1.0, radius / max(float(np.linalg.norm(v)), 1e-300))
    return l1_ball_projection(v, radius)


def linf_metric(v: Array, weight: float, metric: Array) -> Array:
    if (metric * np.abs(v)).sum() <= weight:
        return np.zeros_like(v)

    def excess(t: float) -> float:
        return float((metric * np.maximum(np.abs(v) - t, 0)).sum() - weight)

    t = brentq(excess, 0, np.abs(v).max(), xtol=1e-300, rtol=1e-15, maxiter=1000) if weight > 0 else np.inf
    return np.clip(v, -t, t)


def l2_metric(v: Array, weight: float, metric: Array) -> Array:
    if np.linalg.norm(metric * v) <= weight:
        return np.zeros_like(v)

    def excess(n: float) -> float:
        return float(np.linalg.norm(metric * v / (metric * n + weight)) - 1)

    n = brentq(excess, 0, np.linalg.norm(v), xtol=1e-300, rtol=1e-15, maxiter=1000) if weight > 0 else 1.0
    return metric * v * n / (metric * n + weight)


def linf_box(v: Array, weight: float, low: Array, high: Array) -> Array:
    def point(t: float) -> Array:
        return np.clip(v, np.maximum(-t, low), np.minimum(t, high))

    def price(t: float) -> float:
        return float(weight * t + 0.5 * ((point(t) - v) ** 2).sum())

    top = float(np.abs(v).max())
    inner = minimize_scalar(price, bounds=(0, top), method="bounded", options={"xatol": 1e-12 * top + 1e-300}).x
    return point(min((0.0, inner, top), key=price))


def l2_box(v: Array, weight: float, low: Array, high: Array) -> Array:
    def point(n: float) -> Array:
        return np.clip(v * n / (n + weight), low, high)

    def excess(n: float) -> float:
        return float(np.linalg.norm(point(n)) - n)

    top = float(np.linalg.norm(v))
    if weight == 0 or top == 0:
        return np.clip(v, low, high)
    bottom = 1e-12 * top
    return point(brentq(excess, bottom, top, xtol=1e-300, rtol=1e-15)) if excess(bottom) > 0 else np.zeros_like(v)
