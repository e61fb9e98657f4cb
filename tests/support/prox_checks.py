"""What a proximal operator must satisfy, as functions of the operator: `test_mutants.py` feeds them broken ones.

Each check lets Hypothesis write the inputs, and fails with an AssertionError. CHECKS says whom each one concerns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pdpgd import proximal
from support import prox_oracles as oracles
from support.prox_cases import OPERATORS, Case, Operator, cases, metric_and_box, run, wide
from support.rounding import eps_of

Check = Callable[[Operator], None]


def is_cheapest_on_a_grid(operator: Operator) -> None:
    """No point of a two-entry sample (two features, or one pixel of two channels) costs less than the answer."""

    @given(cases(operator, shapes=((5, 2), (5, 2, 1))))
    def check(batch: Case) -> None:
        answers = run(operator, batch)
        for i, z in enumerate(wide(answers)):
            case = batch.sample(i)
            v, weight, _ = case.arrays()
            metric, low, high = metric_and_box(operator, case)
            assert ((low <= z) & (z <= high)).all(), "left the box"
            found = oracles.cheapest_on_zooming_grid(operator.size, v, weight, metric, low, high)
            slack = 32 * eps_of(case.v) * 0.5 * (metric * v**2).sum()
            assert oracles.cost(operator.size, z[None], v, weight, metric)[0] <= found + slack

    check()


def jumps_where_the_definition_does(operator: Operator) -> None:
    """The scalar operator against the grid at weights 1e-8 ... 1e2, densely around the jump, in both dtypes.

    The grid places a minimum to the root of float64's rounding; the slope of the cost there does the rest.
    """
    offsets = np.concatenate([10.0 ** np.arange(-5, 0, 0.5), [0.3, 1, 10, 1e3]])
    jump = {0: 2**0.5, 1 / 2: 1.5, 2 / 3: 2 * (2 / 3) ** 0.75}[operator.degree]
    ratios = np.concatenate([1 - offsets[:-4], 1 + offsets, np.linspace(0.3, 2, 18)])
    for dtype in (torch.float32, torch.float64):
        for weight in torch.tensor([1e-8, 3e-6, 1e-3, 0.07, 1.0, 100.0], dtype=dtype):
            a = torch.tensor(ratios * jump * float(weight) ** (1 / (2 - operator.degree)), dtype=dtype)
            answers = operator.apply(a[None], weight[None])[0]
            for magnitude, answer in zip(a.tolist(), answers.tolist(), strict=True):
                z, inner, zero = oracles.scalar_minimiser(operator.degree, magnitude, float(weight))
                if abs(inner - zero) > (4 * eps_of(a) + 1e-13) * zero:
                    expected = z if inner < zero else 0.0
                    assert abs(answer - expected) <= (8 * eps_of(a) + 1e-7) * magnitude, (magnitude, float(weight))
                if answer != 0 and operator.degree > 0:
                    slope = float(weight) * operator.degree * answer ** (operator.degree - 1) + answer - magnitude
                    assert abs(slope) <= 16 * eps_of(a) * magnitude, (magnitude, float(weight))


def has_an_optimality_certificate(operator: Operator) -> None:
    """u = h (v - z)/w has dual norm at most 1 and <u, z> = ||z||."""

    @given(cases(operator))
    def check(case: Case) -> None:
        metric = wide(case.geometry[0]) if case.geometry else np.ones(case.v.shape)
        v, z, weight = wide(case.v), wide(run(operator, case)), wide(case.weight)
        dual = oracles.DUAL_SIZES[operator.size_name]
        pull = metric * (v - z)
        slack = 16 * eps_of(case.v) * dual(metric * v)
        assert (dual(pull) <= weight + slack).all(), "dual norm above 1"
        aligned = oracles.by_sample(pull * z).sum(1)
        assert (np.abs(aligned - weight * operator.size(z)) <= 2 * slack * operator.size(z)).all(), "not aligned"

    check()


def splits_v_as_moreau_says(operator: Operator) -> None:
    """v - z is the projection of v on the ball of radius w in the dual norm."""

    @given(cases(operator))
    def check(case: Case) -> None:
        z = wide(run(operator, case))
        for i in range(len(z)):
            v, weight, _ = case.sample(i).arrays()
            rest = oracles.dual_ball_projection(operator.size_name, v, weight)
            assert np.abs(v - z[i] - rest).max() <= 16 * eps_of(case.v) * np.abs(v).max()

    check()


def agrees_with_a_slow_search(operator: Operator) -> None:
    """The coupled forms, row by row, against root finding and minimisation by SciPy."""
    oracle = getattr(oracles, operator.name.removeprefix("prox_"))

    @given(cases(operator))
    def check(case: Case) -> None:
        z = wide(run(operator, case))
        for i in range(len(z)):
            v, weight, geometry = case.sample(i).arrays()
            assert np.abs(z[i] - oracle(v, weight, *geometry)).max() <= (32 * eps_of(case.v) + 1e-7) * np.abs(v).max()

    check()


def stays_accurate_on_a_long_row(operator: Operator) -> None:
    """float32 on 30000 entries; a metric of eight decades, or a box."""
    generator = torch.Generator().manual_seed(7)
    v = torch.randn(2, 30000, generator=generator)
    first, second = (torch.rand(v.shape, generator=generator) for _ in range(2))
    geometry = {"metric": (10 ** (11 * first - 8),), "box": (-2 * first, 2 * second), "plain": ()}[operator.geometry]
    strength = (geometry[0] if operator.geometry == "metric" else 1) * v.abs()
    for share in (1e-6, 1e-3, 0.1, 0.6):
        total = strength.sum(1) if operator.size_name == "linf" else strength.square().sum(1).sqrt()
        case = Case(v, share * total, geometry)
        z = run(operator, case)
        exact = operator.apply(v.double(), case.weight.double(), *(g.double() for g in geometry))
        assert float((z - exact).abs().max()) <= 16 * eps_of(v) * float(v.abs().max()), share


def is_non_expansive(operator: Operator) -> None:
    """The answers to two inputs are no further apart than the inputs, in the metric of the operator."""

    @given(cases(operator), st.floats(-2, 2, width=32))
    def check(case: Case, factor: float) -> None:
        metric = wide(case.geometry[0]) if operator.geometry == "metric" else np.ones(case.v.shape)
        other = Case(factor * case.v.roll(1, -1), case.weight, case.geometry)

        def distance(a: Tensor, b: Tensor) -> Any:
            return np.sqrt(oracles.by_sample(metric * (wide(a) - wide(b)) ** 2).sum(1))

        slack = 32 * eps_of(case.v) * (distance(case.v, 0 * case.v) + distance(other.v, 0 * case.v))
        assert (distance(run(operator, case), run(operator, other)) <= distance(case.v, other.v) + slack).all()

    check()


def is_the_identity_at_weight_zero(operator: Operator) -> None:
    """Bit for bit; in a box, v clipped."""

    @given(cases(operator))
    def check(case: Case) -> None:
        expected = case.v.clamp(*case.geometry) if operator.geometry == "box" else case.v
        for nothing in (0, torch.zeros_like(case.weight)):
            assert torch.equal(operator.apply(case.v, nothing, *case.geometry), expected)

    check()


def is_zero_at_a_large_weight(operator: Operator) -> None:
    @given(cases(operator))
    def check(case: Case) -> None:
        metric = case.geometry[0] if operator.geometry == "metric" else torch.ones_like(case.v)
        strength = (metric * case.v.abs() ** (2 - operator.degree)).flatten(1).sum(1)
        for weight in (3 * strength, 1e6 * strength, torch.full_like(strength, torch.inf)):
            assert not operator.apply(case.v, weight, *case.geometry).any()

    check()


def moves_little_at_a_small_weight(operator: Operator) -> None:
    """1/2 ||z - v||_h^2 <= w f(v): moving further would have cost more than staying at (the clipped) v."""

    @given(cases(operator, shapes=((1, 4), (1, 2, 2))), st.integers(3, 9))
    def check(case: Case, decades: int) -> None:
        case = Case(case.v, case.weight * 10.0**-decades, case.geometry)
        v, weight, _ = case.arrays()
        metric, low, high = metric_and_box(operator, case)
        stay = oracles.cost(operator.size, np.clip(v, low, high)[None], v, weight, metric)[0]
        moved = oracles.cost(operator.size, wide(run(operator, case)), v, weight, metric)[0]
        assert moved <= stay + eps_of(case.v) * 0.5 * (metric * v**2).sum()

    check()


def is_odd(operator: Operator) -> None:
    @given(cases(operator))
    def check(case: Case) -> None:
        mirrored = (-case.geometry[1], -case.geometry[0]) if operator.geometry == "box" else case.geometry
        assert torch.equal(operator.apply(-case.v, case.weight, *mirrored), -run(operator, case))

    check()


def treats_each_sample_alone(operator: Operator) -> None:
    @given(cases(operator))
    def check(case: Case) -> None:
        together = run(operator, case)
        for i in range(len(together)):
            alone = run(operator, case.sample(i))[0]
            assert float((alone - together[i]).abs().max()) <= 8 * eps_of(case.v) * float(case.v[i].abs().max())

    check()


def leaves_its_inputs_untouched(operator: Operator) -> None:
    @given(cases(operator))
    def check(case: Case) -> None:
        inputs = (case.v, case.weight, *case.geometry)
        before = [t.clone() for t in inputs]
        run(operator, case)
        assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True))

    check()


def keeps_dtype_and_shape(operator: Operator) -> None:
    @given(cases(operator), st.booleans())
    def check(case: Case, wide_weight: bool) -> None:
        weight = case.weight.double() if wide_weight else case.weight
        z = operator.apply(case.v, weight, *case.geometry)
        assert (z.dtype, z.shape, z.device) == (case.v.dtype, case.v.shape, case.v.device)

    check()


def stays_between_zero_and_v_at_the_extremes(operator: Operator) -> None:
    """Entries from the smallest float32 to 1e30 and weights from 0 to infinity: finite, of v's sign, not longer."""
    extremes = [0.0, 1e-45, 1e-38, 1e-30, 1e-10, 1.0, 1e10, 1e30]
    entries = st.sampled_from(extremes + [-x for x in extremes])

    @given(
        st.lists(entries, min_size=6, max_size=6), st.sampled_from([0.0, 1e-45, 1e-30, 1e-8, 1.0, 1e8, 1e30, torch.inf])
    )
    def check(numbers: list[float], weight: float) -> None:
        v = torch.tensor(numbers).reshape(1, 2, 3)
        bound = v.abs().flip(-1).clamp(max=1.0)
        metric = torch.tensor([1e-8, 1e-4, 1.0, 1e3, 1e-8, 10.0]).reshape(v.shape)
        geometry = {"plain": (), "metric": (metric,), "box": (-bound, bound)}[operator.geometry]
        z = operator.apply(v, torch.tensor([weight]), *geometry)
        assert bool((z * v.sign() >= 0).all() and (z.abs() <= v.abs()).all())

    check()


def takes_the_weight_in_every_form(operator: Operator) -> None:
    """A number, (batch,) and (batch, 1, ..., 1) mean the same."""

    @given(cases(operator))
    def check(case: Case) -> None:
        weight = float(case.weight[0])
        as_vector = torch.full_like(case.weight, weight)
        answer = operator.apply(case.v, weight, *case.geometry)
        for form in (as_vector, as_vector.reshape(-1, *[1] * (case.v.ndim - 1))):
            torch.testing.assert_close(
                operator.apply(case.v, form, *case.geometry), answer, rtol=8 * eps_of(case.v), atol=0
            )

    check()


def follows_the_largest_channel(operator: Operator) -> None:
    """Pixel by pixel in plain Python: the scalar minimiser on the largest channel, the others stay or go with it."""

    @given(cases(operator, shapes=((1, 3, 5), (1, 2, 3))))
    def check(case: Case) -> None:
        v, weight, geometry = case.arrays()
        metric = geometry[0] if geometry else np.ones_like(v)
        answers = wide(run(operator, case))[0]
        for pixel, h, answer in zip(v.T, metric.T, answers.T, strict=True):
            leader = int(np.abs(pixel).argmax())
            z, inner, zero = oracles.scalar_minimiser(operator.degree, abs(pixel[leader]), weight / h[leader])
            expected = pixel.copy()
            expected[leader] = np.sign(pixel[leader]) * z
            if abs(inner - zero) > 16 * eps_of(case.v) * zero:
                expected = expected if inner < zero else 0 * pixel
                assert np.abs(answer - expected).max() <= (8 * eps_of(case.v) + 1e-7) * np.abs(pixel).max()

    check()


def equals_the_element_form_on_one_channel(operator: Operator) -> None:
    element = getattr(proximal, operator.name.replace("pixel_", "").replace("_largest_channel", ""))

    @given(cases(operator, shapes=((2, 5), (2, 1, 4), (1, 1, 2, 3))))
    def check(case: Case) -> None:
        assert torch.equal(run(operator, case), element(case.v, case.weight, *case.geometry))

    check()


def equals_the_plain_form_in_a_metric_of_ones(operator: Operator) -> None:
    plain = getattr(proximal, operator.name.removesuffix("_metric"))

    @given(cases(operator))
    def check(case: Case) -> None:
        answer = operator.apply(case.v, case.weight, torch.ones_like(case.v))
        slack = 8 * eps_of(case.v) * float(case.v.abs().max())
        torch.testing.assert_close(answer, plain(case.v, case.weight), rtol=0, atol=slack)

    check()


def is_the_nearest_point_of_its_set(projection: Operator) -> None:
    """z is in the set and <v - z, y - z> <= 0 for every corner y of it: the condition that defines the projection."""
    on_simplex = projection.name == "project_simplex"

    @given(cases(projection))
    def check(case: Case) -> None:
        answers = wide(projection.apply(case.v, case.weight))
        for i in range(len(answers)):
            v, radius, _ = case.sample(i).arrays()
            v, z = v.ravel(), answers[i].ravel()
            slack = 16 * eps_of(case.v) * (np.abs(v).sum() + radius)
            assert not on_simplex or ((z >= 0).all() and abs(z.sum() - radius) <= slack)
            assert np.abs(z).sum() <= radius + slack
            corners = radius * np.eye(len(v)) if on_simplex else radius * np.vstack([np.eye(len(v)), -np.eye(len(v))])
            assert ((corners - z) @ (v - z) <= slack * (np.abs(v).max() + radius)).all()

    check()


def leaves_points_inside_as_they_are(projection: Operator) -> None:
    """A batch inside the ball, wholly or in part, keeps every bit of the inner samples, signs included."""

    @given(cases(projection), st.booleans())
    def check(case: Case, all_inside: bool) -> None:
        size = case.v.abs().flatten(1).sum(1)
        radius = torch.where(torch.arange(len(size)) >= (0 if all_inside else 1), 1.5 * size, 0.5 * size)
        z = projection.apply(case.v, radius)
        inside = size <= radius
        assert torch.equal(z[inside], case.v[inside])

    check()


def collapses_at_radius_zero(projection: Operator) -> None:
    @given(cases(projection))
    def check(case: Case) -> None:
        for nothing in (0, torch.zeros_like(case.weight)):
            assert not projection.apply(case.v, nothing).any()

    check()


PROJECTIONS = [Operator(name, getattr(proximal, name)) for name in ("project_simplex", "project_l1_ball")]


def _coupled(operator: Operator) -> bool:
    return operator.size_name in ("l2", "linf") and operator.geometry != "plain"


def _is_pixel(operator: Operator) -> bool:
    return "pixel" in operator.name


def _is_prox(operator: Operator) -> bool:
    return operator.name.startswith("prox")


def _is_projection(operator: Operator) -> bool:
    return not _is_prox(operator)


CHECKS: dict[Check, Callable[[Operator], bool]] = {
    is_cheapest_on_a_grid: lambda o: _is_prox(o) and o.is_minimiser,
    jumps_where_the_definition_does: lambda o: o.name in ("prox_l0", "prox_l12", "prox_l23"),
    has_an_optimality_certificate: lambda o: _is_prox(o) and o.is_convex and o.geometry != "box",
    splits_v_as_moreau_says: lambda o: _is_prox(o) and o.is_convex and o.geometry == "plain",
    agrees_with_a_slow_search: lambda o: _is_prox(o) and _coupled(o),
    stays_accurate_on_a_long_row: lambda o: _is_prox(o) and (_coupled(o) or o.name in ("prox_linf", "prox_l2")),
    is_non_expansive: lambda o: _is_projection(o) or o.is_convex,
    is_the_identity_at_weight_zero: _is_prox,
    is_zero_at_a_large_weight: _is_prox,
    moves_little_at_a_small_weight: lambda o: _is_prox(o) and o.is_minimiser,
    is_odd: lambda o: o.name != "project_simplex",
    treats_each_sample_alone: lambda _: True,
    leaves_its_inputs_untouched: lambda _: True,
    keeps_dtype_and_shape: lambda _: True,
    stays_between_zero_and_v_at_the_extremes: lambda o: o.name != "project_simplex",
    takes_the_weight_in_every_form: lambda _: True,
    follows_the_largest_channel: lambda o: not o.is_minimiser,
    equals_the_element_form_on_one_channel: _is_pixel,
    equals_the_plain_form_in_a_metric_of_ones: lambda o: o.geometry == "metric",
    is_the_nearest_point_of_its_set: _is_projection,
    leaves_points_inside_as_they_are: lambda o: o.name == "project_l1_ball",
    collapses_at_radius_zero: _is_projection,
}


def concerning(module: str) -> list[tuple[Operator, Check]]:
    """Every pair of an operator of pdpgd.proximal.<module> and a check that concerns it."""
    subjects = [o for o in OPERATORS + PROJECTIONS if o.apply.__module__ == f"pdpgd.proximal.{module}"]
    return [(operator, check) for operator in subjects for check, where in CHECKS.items() if where(operator)]
