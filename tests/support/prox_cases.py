"""Operators under test, and the inputs Hypothesis writes for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from pdpgd import proximal
from support import prox_oracles as oracles


@dataclass(frozen=True)
class Operator:
    """`apply(v, weight, *geometry)`; the geometry is (), (metric,) or (low, high)."""

    name: str
    apply: Callable[..., Tensor]

    @property
    def size_name(self) -> str:
        return self.name.removeprefix("prox_").removesuffix("_metric").removesuffix("_box")

    @property
    def size(self) -> oracles.Size:
        return oracles.SIZES[self.size_name]

    @property
    def degree(self) -> float:
        """p with f(c z) = c^p f(z); a projection counts as 1, its radius is as long as its input."""
        if self.name.startswith("project_"):
            return 1
        return oracles.DEGREES[self.size_name.removeprefix("pixel_").removesuffix("_largest_channel")]

    @property
    def is_convex(self) -> bool:
        return self.degree == 1 and self.is_minimiser

    @property
    def geometry(self) -> str:
        return next((g for g in ("metric", "box") if self.name.endswith(g)), "plain")

    @property
    def is_minimiser(self) -> bool:
        return "largest_channel" not in self.name


OPERATORS = [
    Operator(name, getattr(proximal, name))
    for name in proximal.__all__
    if name.startswith("prox_") and name != "prox_by_inner_loop"
]


@dataclass(frozen=True)
class Case:
    v: Tensor
    weight: Tensor
    geometry: tuple[Tensor, ...]

    def sample(self, i: int) -> Case:
        return Case(self.v[i : i + 1], self.weight[i : i + 1], tuple(g[i : i + 1] for g in self.geometry))

    def arrays(self) -> tuple[Any, float, tuple[Any, ...]]:
        """The only sample, its weight and its geometry in float64 NumPy."""
        assert len(self.v) == 1
        return wide(self.v)[0], float(self.weight[0]), tuple(wide(g)[0] for g in self.geometry)


def wide(t: Tensor) -> Any:
    return t.double().numpy()


ROWS_AND_IMAGES = ((3, 5), (3, 1, 4), (2, 3, 2, 1), (1, 7), (3, 2, 3))


@st.composite
def cases(draw: st.DrawFn, operator: Operator, shapes: tuple[tuple[int, ...], ...] = ROWS_AND_IMAGES) -> Case:
    """Entries and weights of matching size, so that the answer is neither always v nor always 0.

    A byte an entry is ten times faster to draw than a float, repeats and vanishes often, and shrinks to 0.
    """
    shape, dtype = draw(st.sampled_from(shapes)), draw(st.sampled_from([torch.float32, torch.float64]))
    scale = 0.7390851 * 10.0 ** draw(st.integers(-5, 3))

    def entries(shape: tuple[int, ...] = shape) -> Tensor:
        """Between -1 and 1."""
        count = int(np.prod(shape))
        drawn = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), dtype=np.int8)
        return torch.tensor(drawn / 128, dtype=dtype).reshape(shape)

    v = scale * entries()
    geometry: tuple[Tensor, ...] = ()
    if operator.geometry == "metric":
        geometry = (10 ** (draw(st.sampled_from([0.5, 2.0, 4.0])) * entries()),)
    if operator.geometry == "box":
        tight = draw(st.sampled_from([0.3, 0.8, 0.1])) * scale
        geometry = (-tight * entries().abs(), tight * entries().abs())
    strength = (geometry[0] if operator.geometry == "metric" else 1) * v.abs() ** (2 - operator.degree)
    # 0.6 is about where a jump happens, 8 swallows the whole batch.
    middle, decades = draw(st.sampled_from([0.6, 0.1, 8])), draw(st.sampled_from([0.2, 1, 4]))
    fractions = middle * 10 ** (decades * entries(shape[:1]))
    return Case(v, fractions * strength.flatten(1).amax(1), geometry)


def run(operator: Operator, case: Case) -> Tensor:
    return operator.apply(case.v, case.weight, *case.geometry)


def metric_and_box(operator: Operator, case: Case) -> tuple[Any, Any, Any]:
    v, _, geometry = case.arrays()
    free = np.ones_like(v), np.full_like(v, -np.inf), np.full_like(v, np.inf)
    return {"plain": free, "metric": (*geometry, *free[1:]), "box": (free[0], *geometry)}[operator.geometry]
