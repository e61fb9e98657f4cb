"""Accuracies and curves from distances, by hand and by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdpgd.runs.metrics import curve, fooled_by_all, mean, quantile, robust_accuracy, union_accuracy, withstood

INF = math.inf
# Wrong to begin with, four that fall, and one that does not.
DISTANCES = np.array([0.0, 0.1, 0.3, 0.3, 2.0, INF])

# Multiples of 1/64: no distance is so near a radius that the tolerance decides.
distances = st.lists(st.one_of(st.just(INF), st.integers(0, 640).map(lambda k: k / 64)), min_size=1, max_size=30)
radii = st.integers(0, 1400).map(lambda k: k / 128)


def test_at_radius_zero_it_is_the_clean_accuracy() -> None:
    assert robust_accuracy(DISTANCES, 0.0) == pytest.approx(5 / 6)


@pytest.mark.parametrize(("radius", "left"), [(0.05, 5), (0.1, 4), (0.2, 4), (0.3, 2), (1.99, 2), (2.0, 1), (1e9, 1)])
def test_a_sample_at_its_distance_has_fallen(radius: float, left: int) -> None:
    assert robust_accuracy(DISTANCES, radius) == pytest.approx(left / 6)


def test_the_rounding_of_float32_is_forgiven() -> None:
    just_above = np.array([float(np.float32(0.3)), float(np.float32(8 / 255)), float(np.float32(0.1))])
    assert just_above[0] > 0.3
    assert withstood(just_above, 0.3).tolist() == [False, False, False]
    assert withstood(just_above[1:2], 8 / 255).tolist() == [False]
    assert withstood(np.array([30.00001]), 30.0).tolist() == [False]


@pytest.mark.parametrize(("radius", "beyond"), [(0.3, 0.30001), (0.001, 0.00101), (30.0, 30.001)])
def test_more_than_rounding_is_not_forgiven(radius: float, beyond: float) -> None:
    assert withstood(np.array([beyond]), radius).tolist() == [True]


def test_what_was_never_fooled_never_falls() -> None:
    assert robust_accuracy(np.array([INF, INF]), 1e300) == 1.0


def test_the_curve_is_right_at_its_jumps() -> None:
    steps = curve(DISTANCES)
    assert steps.radius.tolist() == [0.0, 0.1, 0.3, 2.0]
    assert steps.accuracy == pytest.approx(np.array([5, 4, 2, 1]) / 6)


def test_a_curve_without_a_fall_is_one_point() -> None:
    steps = curve(np.array([INF, INF]))
    assert steps.radius.tolist() == [0.0]
    assert steps.accuracy.tolist() == [1.0]


@settings(derandomize=True, deadline=None, database=None)
@given(distances, radii)
def test_the_curve_is_the_robust_accuracy_everywhere(values: list[float], radius: float) -> None:
    steps = curve(np.array(values))
    at = np.searchsorted(steps.radius, radius, side="right") - 1
    assert steps.accuracy[at] == pytest.approx(robust_accuracy(np.array(values), radius), abs=1e-12)
    assert steps.accuracy[at] == pytest.approx(sum(value > radius for value in values) / len(values), abs=1e-12)
    assert (np.diff(steps.accuracy) < 0).all()
    assert (np.diff(steps.radius) > 0).all()


@settings(derandomize=True, deadline=None, database=None)
@given(st.data())
def test_the_union_is_at_most_each_and_counts_whom_all_leave(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    rows = st.lists(st.one_of(st.just(INF), st.integers(0, 64).map(lambda k: k / 8)), min_size=count, max_size=count)
    norms = {norm: np.array(data.draw(rows)) for norm in ("linf", "l2")}
    radius = {"linf": data.draw(st.integers(0, 64)) / 8, "l2": data.draw(st.integers(0, 64)) / 8}
    union = union_accuracy(norms, radius)
    assert union <= min(robust_accuracy(norms[norm], radius[norm]) for norm in norms)
    left = sum(all(norms[norm][row] > radius[norm] for norm in norms) for row in range(count))
    assert union == pytest.approx(left / count)


def test_the_union_by_hand() -> None:
    norms = {"linf": np.array([0.1, 0.5, INF, 0.0]), "l2": np.array([3.0, 1.0, INF, 0.0])}
    assert union_accuracy(norms, {"linf": 0.2, "l2": 2.0}) == 0.25
    assert union_accuracy(norms, {"linf": 0.2}) == 0.5


@pytest.mark.parametrize(
    ("share", "radius"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (0.76, INF), (1.0, INF)]
)
def test_a_quantile_is_the_radius_that_fools_the_share(share: float, radius: float) -> None:
    assert quantile(np.array([3.0, 0.0, 1.0, INF, 2.0, 0.0]), share) == radius


@settings(derandomize=True, deadline=None, database=None)
@given(distances, st.integers(1, 9))
def test_a_decile_fools_at_least_its_share_and_anything_smaller_does_not(values: list[float], tenths: int) -> None:
    attacked = [value for value in values if value > 0]
    radius = quantile(np.array(values), tenths / 10)
    if not attacked:
        assert math.isnan(radius)
        return
    assert 10 * sum(value <= radius for value in attacked) >= tenths * len(attacked)
    assert 10 * sum(value < radius for value in attacked) < tenths * len(attacked)


def test_the_mean_is_over_samples_that_were_correctly_classified_and_fooled() -> None:
    assert mean([0.0, 1.0, 2.0, INF]) == 1.5
    assert math.isnan(mean([0.0, INF]))
    assert math.isnan(quantile(np.array([0.0]), 0.5))


def test_over_the_samples_that_all_fooled_a_mean_does_not_rise_when_more_are_fooled() -> None:
    few, many = np.array([0.0, 1.0, 3.0, INF, INF]), np.array([0.0, 0.9, 2.9, 8.0, INF])
    assert mean(many) > mean(few)
    common = fooled_by_all([few, many])
    assert common.tolist() == [False, True, True, False, False]
    assert mean(many[common]) < mean(few[common])


def test_without_a_sample_that_all_fooled_there_is_none() -> None:
    assert not fooled_by_all([np.array([1.0, INF, 0.0]), np.array([INF, 1.0, 0.0])]).any()
