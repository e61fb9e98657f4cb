"""Projections on a ball cut by a box: against brute force, a general solver, and the conditions of optimality."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from pdpgd.norms import count_pixels
from pdpgd.proximal import project_l0_ball_box, project_l1_ball, project_l1_ball_box
from support.rounding import eps_of, sum_error, ulp


class Case(NamedTuple):
    v: Tensor
    radius: Tensor
    low: Tensor
    high: Tensor


@st.composite
def cases(draw: st.DrawFn, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[torch.dtype, ...]) -> Case:
    """Few values, so that entries tie, vanish and stand on the edges of the box; radii from 0 to far outside."""
    shape, dtype = draw(st.sampled_from(shapes)), draw(st.sampled_from(dtypes))
    scale = 10.0 ** draw(st.integers(-3, 3))
    count = int(np.prod(shape))

    def entries(lowest: int) -> Tensor:
        drawn = draw(st.lists(st.integers(lowest, 6), min_size=count, max_size=count))
        return scale / 4 * torch.tensor(drawn, dtype=dtype).reshape(shape)

    radii = draw(st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.5, 100.0]), min_size=shape[0], max_size=shape[0]))
    return Case(entries(-6), scale * torch.tensor(radii, dtype=dtype), -entries(0), entries(0))


BOTH = (torch.float32, torch.float64)


def certify_l1(case: Case, z: Tensor) -> None:
    """Feasible, and z = clip(soft(v, t)) for one t >= 0 that is 0 unless the radius binds: this is sufficient."""
    v, radius, low, high = (t.double().flatten(1).numpy() if t.ndim > 1 else t.double().numpy() for t in case)
    eps = eps_of(case.v)
    sizes = z.flatten(1).abs().sum(1)
    assert (sizes <= case.radius + sum_error(sizes, z[0].numel())).all(), "left the ball"
    assert ((case.low <= z) & (z <= case.high)).all(), "left the box"
    for row, mine in enumerate(z.double().flatten(1).numpy()):
        slack = 64 * eps * max(np.abs(v[row]).max(), 1e-30)
        inside = np.clip(v[row], low[row], high[row])
        size, rounding = np.abs(inside).sum(), len(mine) * eps * np.abs(inside).sum()
        if size <= radius[row] - rounding:
            assert (mine == inside).all(), "moved more than the box asks for"
            continue
        if size <= radius[row] + rounding:
            # On the sphere, as far as a sum in the dtype of v can tell: it may be shrunk by that rounding.
            assert (np.abs(mine - inside) <= slack).all(), "moved more than rounding explains"
            continue
        assert abs(np.abs(mine).sum() - radius[row]) <= slack * len(mine), "left some of the radius unused"
        assert (mine * v[row] >= 0).all(), "a sign changed"
        cut = np.abs(v[row]) - np.abs(mine)
        bound = np.where(v[row] > 0, high[row], -low[row])
        free = (mine != 0) & (np.abs(mine) < bound - slack)
        at_zero, held = mine == 0, (mine != 0) & ~free
        least = max([0.0, *cut[at_zero & (bound > 0)], *cut[free]])
        most = min([np.inf, *cut[free], *cut[held]])
        assert least <= most + slack, "no level explains the answer"


def test_the_l1_projection_has_an_optimality_certificate() -> None:
    @given(cases(((1, 1), (3, 5), (2, 3, 2, 2), (2, 1, 3, 3)), BOTH))
    def check(case: Case) -> None:
        certify_l1(case, project_l1_ball_box(*case))

    check()


def test_no_general_solver_finds_a_nearer_point_of_the_l1_ball() -> None:
    @given(cases(((1, 4),), (torch.float64,)))
    def check(case: Case) -> None:
        z = project_l1_ball_box(*case)[0].numpy()
        v, low, high = (t[0].numpy() for t in (case.v, case.low, case.high))
        unit = max(np.abs(v).max(), 1e-30)
        v, low, high, radius = v / unit, low / unit, high / unit, float(case.radius) / unit
        # In z = p - q with p, q >= 0 the ball is one linear constraint.
        bounds = [(0, h) for h in high] + [(0, -low_i) for low_i in low]

        def cost(pq: Any) -> Any:
            return ((pq[:4] - pq[4:] - v) ** 2).sum()

        solved = minimize(
            cost,
            np.zeros(8),
            jac=lambda pq: np.concatenate([2 * (pq[:4] - pq[4:] - v), -2 * (pq[:4] - pq[4:] - v)]),
            bounds=bounds,
            constraints={"type": "ineq", "fun": lambda pq: radius - pq.sum(), "jac": lambda pq: -np.ones(8)},
            method="SLSQP",
            tol=1e-12,
        )
        mine = ((z / unit - v) ** 2).sum()
        assert mine <= cost(solved.x) + 1e-6, "the solver found a nearer point"

    check()


def test_the_l0_projection_keeps_the_best_support_of_all() -> None:
    @given(cases(((2, 4), (2, 2, 2, 2), (1, 3, 4, 1)), BOTH), st.sampled_from([0.0, 1.0, 1.9, 2.0, 3.0, 50.0]))
    def check(case: Case, count: float) -> None:
        z = project_l0_ball_box(case.v, count, case.low, case.high)
        assert (count_pixels(z) <= count).all(), "left the ball"
        assert ((case.low <= z) & (z <= case.high)).all(), "left the box"
        by_pixel = [t.double().numpy() for t in (case.v, z, case.low, case.high)]
        if case.v.ndim == 2:
            by_pixel = [array[:, None] for array in by_pixel]
        for v, mine, low, high in zip(*by_pixel, strict=True):
            v, mine, low, high = (array.reshape(len(v), -1) for array in (v, mine, low, high))
            inside, pixels = np.clip(v, low, high), v.shape[1]
            costs = []
            for support in combinations(range(pixels), min(int(count), pixels)):
                kept = np.zeros_like(v)
                kept[:, support] = inside[:, support]
                costs.append(((kept - v) ** 2).sum())
            # A saving is a product of two roots of differences, over the channels a length: some roundings of |v|^2.
            assert ((mine - v) ** 2).sum() <= min(costs) + 16 * eps_of(case.v) * (v**2).sum(), "another is nearer"

    check()


def test_without_a_box_it_is_the_projection_on_the_l1_ball() -> None:
    @given(cases(((4, 6),), BOTH))
    def check(case: Case) -> None:
        far = torch.full_like(case.v, torch.inf)
        z = project_l1_ball_box(case.v, case.radius, -far, far)
        slack = 32 * eps_of(case.v) * float(case.v.abs().max())
        torch.testing.assert_close(z, project_l1_ball(case.v, case.radius), atol=slack, rtol=0)

    check()


def test_large_entries_that_the_box_cuts_leave_the_level_exact() -> None:
    """Running sums of the breakpoints would lose the radius in 1e10's rounding."""
    v = torch.tensor([[1e10, 3.0, 2.0, -1.0]], dtype=torch.float64)
    bound = torch.tensor([[1.0, 5.0, 5.0, 5.0]], dtype=torch.float64)
    z = project_l1_ball_box(v, 4.0, -bound, bound)
    # A level of 1 from sums of numbers up to 4: a few of their roundings, and none of 1e10.
    assert z.tolist() == [pytest.approx([1.0, 2.0, 1.0, 0.0], abs=16 * eps_of(v))]


def test_a_ball_far_smaller_than_the_point_is_not_left() -> None:
    """The level is rounded to an ulp of the largest entry, which is more than the radius: what is left is shrunk."""
    v = 1e4 * (1 + torch.rand(20, 30, generator=torch.Generator().manual_seed(5)))
    far = torch.full_like(v, torch.inf)
    radius = 0.7 * ulp(v.amax(1))
    sizes = project_l1_ball_box(v, radius, -far, far).sum(1)
    assert (sizes <= radius + sum_error(radius, 30)).all()


def test_rows_do_not_see_each_other_inputs_stay_and_ties_go_to_the_first() -> None:
    generator = torch.Generator().manual_seed(5)
    v = torch.randn(6, 3, 4, 4, generator=generator)
    low, high = -torch.rand(6, 3, 4, 4, generator=generator), torch.rand(6, 3, 4, 4, generator=generator)
    radius, before = torch.tensor([0.0, 0.5, 2.0, 5.0, 9.0, 99.0]), v.clone()
    for project in (project_l1_ball_box, project_l0_ball_box):
        together = project(v, radius, low, high)
        apart = [project(v[i : i + 1], radius[i : i + 1], low[i : i + 1], high[i : i + 1]) for i in range(6)]
        slack = 64 * eps_of(v) * float(v.abs().max())
        torch.testing.assert_close(together, torch.cat(apart), atol=slack, rtol=0)
        assert project(v[:0], radius[:0], low[:0], high[:0]).shape == (0, 3, 4, 4)
    assert torch.equal(v, before)
    ones = torch.ones(1, 4)
    assert project_l0_ball_box(ones, 2, -ones, ones).tolist() == [[1.0, 1.0, 0.0, 0.0]]
