from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from pdpgd.runs.metrics import difference, median_change, wilson


@pytest.mark.parametrize("samples", [1, 7, 100, 1000])
def test_an_interval_of_a_share_is_scipys(samples: int) -> None:
    right = np.unique(np.linspace(0, samples, 5).round().astype(int))
    low, high = wilson(right / samples, samples)
    for place, count in enumerate(right.tolist()):
        expected = binomtest(count, samples).proportion_ci(method="wilson")
        assert (low[place], high[place]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def shares(right: int, samples: int) -> np.ndarray:
    return np.arange(samples) < right


def test_a_difference_of_two_groups_is_newcombes_own_example() -> None:
    """56 of 70 against 48 of 80 (Statistics in Medicine 17, 873-890, method 10)."""
    found = difference(shares(48, 80), shares(56, 70), paired=False)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert found.clear


def test_a_difference_turned_round_is_the_negative() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random((2, 60)) < 0.6
    for paired in (True, False):
        there, back = difference(first, second, paired=paired), difference(second, first, paired=paired)
        assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_pairs_that_agree_make_the_interval_narrower() -> None:
    generator = np.random.default_rng(0)
    first = generator.random(200) < 0.5
    second = first ^ (generator.random(200) < 0.05)
    paired, unpaired = (difference(first, second, paired=each) for each in (True, False))
    assert paired.value == unpaired.value
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_holds_the_truth_in_about_95_of_100_draws(paired: bool) -> None:
    generator = np.random.default_rng(1)
    held = []
    for _ in range(600):
        common = generator.random(80)
        first = common < 0.7
        second = (common if paired else generator.random(80)) < 0.55
        found = difference(first, second, paired=paired)
        held.append(found.low <= -0.15 <= found.high)
    assert 0.92 <= np.mean(held) <= 0.995


def test_no_difference_of_few_samples_is_not_a_sure_one() -> None:
    found = difference(shares(5, 5), shares(5, 5), paired=True)
    assert found.low < -0.2
    assert found.high > 0.2
    assert not found.clear


def test_a_median_that_moves_by_the_same_for_all_moves_by_that() -> None:
    distances = np.linspace(1, 2, 51)
    found = median_change(distances, distances + 0.5, paired=True)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    loose = median_change(distances, distances + 0.5, paired=False)
    assert loose is not None
    assert loose.low < 0.4 < 0.6 < loose.high


def test_there_is_no_change_of_a_median_that_is_not_there() -> None:
    assert median_change(np.zeros(5), np.ones(5), paired=True) is None
    assert median_change(np.ones(5), np.full(5, np.inf), paired=True) is None
    assert median_change(np.ones(5), np.full(5, np.inf), paired=False) is None
