"""The exact minimum-norm adversarial example of a small ReLU net, by mixed-integer programming (HiGHS through SciPy).

A ReLU h = max(z, 0) with bounds low <= z <= high is the mixed-integer set

    h >= 0,  h >= z,  h <= high a,  h <= z - low (1 - a),  a in {0, 1}

(Tjeng, Xiao, Tedrake, 2019). One program per class to reach: minimize the norm of x - origin over x in [0, 1]^n such
that the logit of that class is at least the label's. A distance that is known to be reached bounds the norm: it makes
the bounds of the units tight, and the question is whether there is anything smaller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix, eye, hstack
from torch import nn

Array = np.ndarray[Any, np.dtype[np.float64]]

NORMS = ("linf", "l1", "l0")
RELATIVE_GAP = 1e-6
# HiGHS satisfies constraints up to 1e-6, and integers up to 1e-6 times the bounds of the units.
FEASIBILITY = 1e-5


@dataclass(frozen=True)
class ReluNet:
    """Dense layers with ReLUs between them, in float64."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]

    @classmethod
    def of(cls, model: nn.Sequential) -> ReluNet:
        """Read the weights of a Sequential of Flatten, Linear and ReLU."""
        dense = [layer for layer in model if isinstance(layer, nn.Linear)]
        kinds = [type(layer) for layer in model if not isinstance(layer, nn.Flatten)]
        if kinds != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(dense) - 1)]:
            raise ValueError(f"expected Linear layers with a ReLU between them, got {kinds}")
        weights = tuple(layer.weight.detach().double().cpu().numpy() for layer in dense)
        return cls(weights, tuple(layer.bias.detach().double().cpu().numpy() for layer in dense))

    def units(self, point: Array) -> list[Array]:
        """Return the inputs of the ReLUs, layer by layer, and last the logits."""
        layers: list[Array] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layers.append(weight @ (np.maximum(layers[-1], 0) if layers else point) + bias)
        return layers

    def lead(self, point: Array, label: int, other: int) -> float:
        """Return the logit of another class minus the label's: nonnegative where the point is adversarial."""
        logits = self.units(point)[-1]
        return float(logits[other] - logits[label])


@dataclass(frozen=True)
class Exact:
    """The minimum for one input."""

    distance: float
    bound: float
    """Nothing smaller exists: equal to the distance up to the gap of the solver, unless the time ran out."""
    point: Array | None
    """The minimizer; None if nothing smaller than the given distance was found."""
    seconds: float


@dataclass
class _Program:
    """A mixed-integer program as it is written down, block by block."""

    low: list[Array] = field(default_factory=list)
    high: list[Array] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    rows: list[tuple[dict[int, Any], Array | float, Array | float]] = field(default_factory=list)
    """Constraints: the matrix of each block of variables, lower and upper sides."""

    def variables(self, low: Array, high: Array, *, integer: bool = False, cost: float = 0.0) -> int:
        """Add a block of variables and return its number."""
        self.low.append(low)
        self.high.append(high)
        self.integer.append(integer)
        self.cost.append(cost)
        return len(self.low) - 1

    def between(self, terms: dict[int, Any], low: Array | float, high: Array | float) -> None:
        """Add the constraints low <= sum of matrix times block <= high."""
        self.rows.append((terms, low, high))

    def constraints(self) -> Iterator[LinearConstraint]:
        sizes = [len(block) for block in self.low]
        for terms, low, high in self.rows:
            height = next(iter(terms.values())).shape[0]
            blocks = [terms.get(number, csr_matrix((height, size))) for number, size in enumerate(sizes)]
            yield LinearConstraint(hstack(blocks, format="csr"), low, high)

    def solve(self, *, seconds: float) -> Any:
        """Return SciPy's result."""
        sizes = [len(block) for block in self.low]
        return milp(
            np.repeat(self.cost, sizes),
            integrality=np.repeat(self.integer, sizes).astype(int),
            bounds=Bounds(np.concatenate(self.low), np.concatenate(self.high)),
            constraints=list(self.constraints()),
            options={"mip_rel_gap": RELATIVE_GAP, "time_limit": seconds},
        )


def size(delta: Array, norm: str) -> float:
    """Return the norm of a perturbation."""
    if norm == "l0":
        return float((np.abs(delta) > 0).sum())
    return float(np.abs(delta).max() if norm == "linf" else np.abs(delta).sum())


def gains(weight: Array, origin: Array, norm: str, radius: float) -> Array:
    """Return the largest increase of each row of weight @ x over the perturbations of at most that size in the box."""
    room = np.where(weight > 0, 1.0 - origin, origin)
    steep = np.abs(weight)
    if norm == "l1":
        order = np.argsort(-steep, axis=1)
        steep, room = (np.take_along_axis(values, order, 1) for values in (steep, room))
        before = np.cumsum(room, 1) - room
        reached = steep * np.clip(radius - before, 0.0, room)
    elif norm == "linf":
        reached = steep * np.minimum(room, radius)
    else:
        reached = -np.sort(-steep * room, axis=1)[:, : int(radius)]
    total: Array = reached.sum(1)
    return total


def unit_bounds(net: ReluNet, origin: Array, norm: str, radius: float) -> list[tuple[Array, Array]]:
    """Return bounds of the inputs of the ReLUs within a radius: exact in the first layer, by intervals after it."""
    bounds: list[tuple[Array, Array]] = []
    for weight, bias in zip(net.weights[:-1], net.biases[:-1], strict=True):
        if bounds:
            low, high = (np.maximum(side, 0.0) for side in bounds[-1])
            up, down = np.maximum(weight, 0), np.minimum(weight, 0)
            bounds.append((up @ low + down @ high + bias, up @ high + down @ low + bias))
        else:
            middle = weight @ origin + bias
            bounds.append((middle - gains(-weight, origin, norm, radius), middle + gains(weight, origin, norm, radius)))
    return bounds


def _write(
    net: ReluNet, origin: Array, label: int, other: int, norm: str, units: Sequence[tuple[Array, Array]], radius: float
) -> _Program:
    """Write the program for one class; block 0 is the point."""
    program = _Program()
    # In l0 no entry is tied to the radius; in the other norms each one is.
    reach = 1.0 if norm == "l0" else radius
    point = program.variables(np.maximum(origin - reach, 0.0), np.minimum(origin + reach, 1.0))
    _measure(program, point, origin, norm, radius)
    below = point
    for weight, bias, (low, high) in zip(net.weights[:-1], net.biases[:-1], units, strict=True):
        width = len(bias)
        output = program.variables(np.zeros(width), np.maximum(high, 0.0))
        active = program.variables((low >= 0).astype(float), (high > 0).astype(float), integer=True)
        one = eye(width)
        program.between({output: one, below: csr_matrix(-weight)}, bias, math.inf)
        program.between(
            {output: one, below: csr_matrix(-weight), active: csr_matrix(np.diag(-low))}, -math.inf, bias - low
        )
        program.between({output: one, active: csr_matrix(np.diag(-high))}, -math.inf, 0.0)
        below = output
    difference = (net.weights[-1][other] - net.weights[-1][label])[None]
    program.between({below: csr_matrix(difference)}, net.biases[-1][label] - net.biases[-1][other], math.inf)
    return program


def _measure(program: _Program, point: int, origin: Array, norm: str, radius: float) -> None:
    """Add the norm as the objective, with a variable per pixel or, in linf, one for all."""
    one, count = eye(len(origin)), len(origin)
    if norm == "linf":
        largest = program.variables(np.zeros(1), np.full(1, radius), cost=1.0)
        spread = csr_matrix(np.ones((count, 1)))
        program.between({point: one, largest: -spread}, -math.inf, origin)
        program.between({point: one, largest: spread}, origin, math.inf)
        return
    change = program.variables(np.zeros(count), np.ones(count), integer=norm == "l0", cost=1.0)
    up, down = (np.ones(count), np.ones(count)) if norm == "l1" else (1.0 - origin, origin)
    program.between({point: one, change: csr_matrix(np.diag(-up))}, -math.inf, origin)
    program.between({point: one, change: csr_matrix(np.diag(down))}, origin, math.inf)
    program.between({change: csr_matrix(np.ones((1, count)))}, -math.inf, radius)


def exact_minimum(net: ReluNet, origin: Array, label: int, norm: str, *, within: float, seconds: float) -> Exact:
    """Find the smallest perturbation of one input inside the box [0, 1].

    Args:
        net: The net.
        origin: The input, flat.
        label: Its class.
        norm: "linf", "l1" or "l0".
        within: A distance that is known to be reached; inf if none is known.
        seconds: Time limit per class.

    Returns:
        The minimum, which is `within` itself if there is nothing smaller. Every point of the solver is evaluated again
        (`_settled`): what is returned is a distance that is reached, and the bound that the solver proved.
    """
    began = time.perf_counter()
    widest = {"linf": 1.0, "l1": float(len(origin)), "l0": float(len(origin))}[norm]
    best, bound, point = within, within, None
    lead = net.units(origin)[-1]
    for other in np.argsort(-lead):
        if other == label:
            continue
        # A smaller count of pixels is smaller by one.
        radius = min(best - 1.0 if norm == "l0" else best, widest)
        if radius <= 0:
            break
        answer = _write(net, origin, label, int(other), norm, unit_bounds(net, origin, norm, radius), radius).solve(
            seconds=seconds
        )
        if answer.status == 2:  # infeasible: nothing as near is of that class
            continue
        bound = min(bound, best if answer.mip_dual_bound is None else _rounded(float(answer.mip_dual_bound), norm))
        if answer.x is None:
            continue
        found = _settled(net, origin, label, int(other), norm, answer.x[: len(origin)])
        if found is not None and size(found - origin, norm) < best:
            best, point = size(found - origin, norm), found
    return Exact(best, min(bound, best), point, time.perf_counter() - began)


def _rounded(bound: float, norm: str) -> float:
    """Round the bound of a count up."""
    return float(math.ceil(bound - 1e-4)) if norm == "l0" else bound


def _settled(net: ReluNet, origin: Array, label: int, other: int, norm: str, point: Array) -> Array | None:
    """Solve again with the ReLUs as they are at the point, and check the answer by evaluating the net.

    With every ReLU fixed the program is linear, and no integer is rounded. None if the solver's point was adversarial
    by its tolerances only.
    """
    point = np.clip(point, 0.0, 1.0)
    if norm == "l0":
        point = np.where(np.abs(point - origin) > FEASIBILITY, point, origin)
    units = []
    for inputs in net.units(point)[:-1]:
        on = inputs > 0
        units.append((np.where(on, 0.0, -math.inf), np.where(on, math.inf, 0.0)))
    program = _Program()
    free = (point != origin) if norm == "l0" else np.ones(len(origin), dtype=bool)
    start = program.variables(np.where(free, 0.0, origin), np.where(free, 1.0, origin))
    if norm != "l0":
        _measure(program, start, origin, norm, float(len(origin)))
    # On this piece of the net every layer is an affine function of the point.
    slope, offset = np.eye(len(origin)), np.zeros(len(origin))
    for weight, bias, (low, high) in zip(net.weights[:-1], net.biases[:-1], units, strict=True):
        slope, offset = weight @ slope, weight @ offset + bias
        program.between({start: csr_matrix(slope)}, low - offset, high - offset)
        on = np.isinf(high).astype(float)
        slope, offset = on[:, None] * slope, on * offset
    towards = net.weights[-1][other] - net.weights[-1][label]
    constant = float(towards @ offset + net.biases[-1][other] - net.biases[-1][label])
    program.between({start: csr_matrix((towards @ slope)[None])}, -constant, math.inf)
    answer = program.solve(seconds=math.inf)
    if answer.x is None:
        return None
    settled: Array = np.where(free, np.clip(answer.x[: len(origin)], 0.0, 1.0), origin)
    return settled if net.lead(settled, label, other) >= -FEASIBILITY else None
