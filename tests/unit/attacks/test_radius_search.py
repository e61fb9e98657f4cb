"""Distances from attacks within a ball: at given radii, and by a search over radii."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult, InvalidInputError
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Framed, Method, Task
from pdpgd.attacks.radius_search import AtRadii, BySearch
from support.models import Affine

FEATURES = 64


class Oracle:
    """Knows the distance of every sample, and records its queries."""

    def __init__(self, distances: list[float], *, lucky_restart: int = 0) -> None:
        self.distances = torch.tensor(distances)
        self.lucky_restart = lucky_restart
        self.asked: dict[int, list[float]] = {row: [] for row in range(len(distances))}

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        assert len(task) == len(radius) > 0
        for sample, asked in zip(task.samples.tolist(), radius.tolist(), strict=True):
            self.asked[sample].append(asked)
        distance = self.distances[task.samples]
        hit = (distance <= radius) & (restart >= self.lucky_restart)
        best = Best.none(task.inputs)
        # A point of just the size of the radius: the worst that a ball may return.
        best.size.copy_(radius.masked_fill(~hit, torch.inf))
        return best


def attacked(
    method: Method, samples: int, norm: str = "linf", observe: Callable[..., None] | None = None
) -> AttackResult:
    model = Affine(torch.zeros(2, FEATURES), torch.tensor([3.0, 0.0]))
    inputs, labels = torch.zeros(samples, FEATURES), torch.zeros(samples, dtype=torch.long)
    return Framed("oracle", (norm,), lambda classes: method)(model, inputs, labels, norm=norm, observe=observe)


def test_what_is_fooled_at_a_radius_is_not_attacked_at_the_next() -> None:
    oracle = Oracle([0.05, 0.15, 0.9])
    result = attacked(AtRadii(balls=((0.1, oracle), (0.2, oracle)), restarts=2), 3)
    assert result.distances.tolist() == pytest.approx([0.1, 0.2, torch.inf])
    asked = [[round(radius, 3) for radius in radii] for radii in oracle.asked.values()]
    assert asked == [[0.1], [0.1, 0.1, 0.2], [0.1, 0.1, 0.2, 0.2]]


def test_each_radius_has_its_own_attack() -> None:
    near, far = Oracle([0.5]), Oracle([0.5])
    attacked(AtRadii(balls=((0.1, near), (0.7, far))), 1)
    assert [len(oracle.asked[0]) for oracle in (near, far)] == [1, 1]
    assert far.asked[0] == pytest.approx([0.7])


def test_the_search_halves_the_interval_between_failure_and_success() -> None:
    distances = [0.004, 0.0321, 0.3, 0.77, 1.0]
    result = attacked(BySearch(ball=Oracle(distances), evaluations=16), 5)
    for found, distance in zip(result.distances.tolist(), distances, strict=True):
        assert distance <= found <= distance + 0.002


def test_a_search_asks_as_often_as_it_may_and_no_more() -> None:
    oracle = Oracle([0.3, 0.004])
    attacked(BySearch(ball=oracle, evaluations=7), 2)
    assert [len(asked) for asked in oracle.asked.values()] == [7, 7]


def test_a_sample_that_nothing_in_the_box_fools_is_given_up() -> None:
    oracle = Oracle([2.0])
    result = attacked(BySearch(ball=oracle, evaluations=30), 1)
    assert not bool(result.found)
    assert oracle.asked[0] == pytest.approx([1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])


def test_counts_are_searched_in_whole_numbers_down_to_one() -> None:
    oracle = Oracle([1.0, 3.0, 64.0, 65.0])
    result = attacked(BySearch(ball=oracle, evaluations=30), 4, norm="l0")
    assert result.distances.tolist() == [1.0, 3.0, 64.0, torch.inf]
    for asked in oracle.asked.values():
        assert len(asked) == len(set(asked)), "asked twice"
        assert all(radius == int(radius) >= 1 for radius in asked)


def test_a_restart_is_made_only_for_what_was_not_found() -> None:
    unlucky = Oracle([0.03], lucky_restart=1)
    result = attacked(BySearch(ball=unlucky, evaluations=1, restarts=3), 1)
    assert result.distances.tolist() == pytest.approx([1 / 32])
    assert len(unlucky.asked[0]) == 2


def test_progress_is_reported_up_to_the_whole() -> None:
    for method in (BySearch(ball=Oracle([0.3]), evaluations=4), AtRadii(balls=((0.1, Oracle([0.3])),))):
        seen: list[tuple[int, int]] = []
        attacked(method, 1, observe=lambda moment, seen=seen: seen.append((moment.done, moment.total)))
        assert seen[-1] == (1000, 1000)
        assert seen == sorted(seen)


@pytest.mark.parametrize("radii", [(), (0.0,), (0.2, 0.1), (0.1, 0.1), (float("nan"),)])
def test_radii_that_do_not_ascend_from_above_zero_are_refused(radii: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"AtRadii\.balls: expected"):
        AtRadii(balls=tuple((radius, Oracle([1.0])) for radius in radii))


@pytest.mark.parametrize("settings", [{"evaluations": 0}, {"restarts": 0}])
def test_a_search_without_a_try_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected at least 1"):
        BySearch(ball=Oracle([1.0]), **settings)
