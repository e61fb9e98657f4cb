"""The checks of a run that asked about radii only compare what is fooled within them, never distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pdpgd.runs import records
from pdpgd.runs.records import Columns
from pdpgd.runs.reliability import Check
from pdpgd.runs.result_checks import result_checks

INF = float("inf")
RADIUS = 1.0
SAMPLES = 10


def rows(*, norm: str = "l2", **columns: Any) -> Columns:
    """Return the records of samples that an attack fooled just within the radius, with some columns changed."""
    usual = {
        "sample": np.arange(SAMPLES),
        "norm": np.full(SAMPLES, norm, dtype=object),
        "status": np.full(SAMPLES, records.FOOLED, dtype=object),
        "source": np.full(SAMPLES, norm, dtype=object),
        "verdict": np.full(SAMPLES, "verified", dtype=object),
        "distance": np.full(SAMPLES, 0.99),
        "own_distance": np.full(SAMPLES, 0.99),
        "cheap_distance": np.full(SAMPLES, INF),
        "late_gain": np.full(SAMPLES, 0.9),
        "fragile": np.zeros(SAMPLES, dtype=bool),
        "backwards": np.zeros(SAMPLES, dtype=int),
    }
    return {name: np.broadcast_to(columns.get(name, value), SAMPLES) for name, value in usual.items()}


def checks(columns: Columns, second: Columns | None, *radii: float) -> dict[str, Check]:
    asked = {"l2": radii} if radii else None
    return {check.name: check for check in result_checks(columns, second, [], classes=10, only_radii=asked)}


def first(count: int, then: float, others: float) -> np.ndarray:
    return np.where(np.arange(SAMPLES) < count, then, others)


def test_what_only_smallest_distances_show_is_not_measured() -> None:
    found = checks(rows(), rows(), RADIUS)
    for name in ("still moving", "dominated"):
        assert found[name].passed is None
        assert found[name].sentence == "not measured: the run asked about radii only, not for the smallest distances"
    assert checks(rows(), rows())["still moving"].passed is False


def test_a_smaller_distance_within_the_same_radius_is_no_alarm() -> None:
    columns, second = rows(cheap_distance=0.1), rows(distance=0.1)
    assert {checks(columns, second, RADIUS)[name].value for name in ("restarts", "cheap attack")} == {0.0}
    usual = checks(columns, second)
    assert not usual["restarts"].passed
    assert not usual["cheap attack"].passed


@pytest.mark.parametrize(("missed", "passed"), [(0, True), (1, False), (3, False)])
def test_samples_that_only_a_second_start_fools_within_a_radius_are_counted(missed: int, passed: bool) -> None:
    beyond = first(missed, 1.01, 0.99)
    check = checks(rows(distance=beyond, own_distance=beyond), rows(), 0.5, RADIUS)["restarts"]
    assert (check.passed, check.value, check.bound) == (passed, missed / SAMPLES, 0.05)
    assert check.sentence == (
        f"a second start fools {missed / SAMPLES:.1%} of the samples within an l2 radius that the first did not, on a "
        "subset of the samples"
    )


def test_the_second_start_covers_some_samples_only() -> None:
    beyond = first(3, 1.01, 0.99)
    second = {name: column[:4] for name, column in rows().items()}
    assert checks(rows(distance=beyond, own_distance=beyond), second, RADIUS)["restarts"].value == 3 / 4
    wrong = np.where(np.arange(SAMPLES) == 0, records.INITIALLY_WRONG, records.FOOLED)
    columns = rows(status=wrong, distance=first(1, 0.0, 1.01), own_distance=1.01)
    assert checks(columns, second, RADIUS)["restarts"].value == 1.0
    far, again = rows(distance=1.01, own_distance=1.01), rows(status=wrong, distance=first(1, 0.0, 1.01))
    assert checks(far, again, RADIUS)["restarts"].value == 0.0, "no attack of the second start fooled a sample"


def test_no_second_start_is_said() -> None:
    assert checks(rows(), None, RADIUS)["restarts"].passed is None


def test_samples_that_only_a_cheap_attack_fools_within_a_radius_are_counted() -> None:
    columns = rows(source="noise", distance=0.9, cheap_distance=0.9, own_distance=first(2, 1.5, 0.99))
    check = checks(columns, rows(), RADIUS)["cheap attack"]
    assert (check.passed, check.value) == (False, 0.2)
    assert "fool 20.0% of the samples within an l2 radius that the attack did not" in check.sentence


def test_an_attack_that_was_done_with_its_warm_start_was_not_beaten() -> None:
    """It returns the start, which the records do not count as its own; noise then found a smaller point."""
    kept = rows(source="noise", distance=0.9, cheap_distance=0.9, own_distance=INF)
    found = checks(kept, rows(), RADIUS)
    assert found["cheap attack"].value == 0.0
    assert found["restarts"].value == 0.0
    failed = checks({**kept, "verdict": np.full(SAMPLES, "none", dtype=object)}, rows(), RADIUS)
    assert failed["cheap attack"].value == 1.0


def test_samples_without_any_adversarial_example_are_still_an_alarm() -> None:
    columns = rows(status=records.NOT_FOOLED, distance=INF, own_distance=INF, source="", verdict="none")
    assert checks(columns, rows(), RADIUS)["never fooled"].passed is False
