"""The gain of the last fifth of the iterations, from iterations given by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pdpgd.attacks.base import Observation
from pdpgd.errors import AttackError
from pdpgd.evaluation.tracking import DistanceLog


def seen(samples: list[int], sizes: list[float]) -> Observation:
    nothing = torch.zeros(len(samples))
    return Observation("search", 1, 10, torch.tensor(samples), nothing, torch.tensor(sizes), nothing)


def watched(*sights: Observation) -> DistanceLog:
    late = DistanceLog()
    for sight in sights:
        late.record(sight)
    return late


def test_the_gain_is_that_of_the_last_fifth() -> None:
    late = watched(*(seen([0], [size]) for size in (8.0, 6.0, 5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 1.0)))
    assert late.late_gain(1, smallest=0.0).tolist() == [0.75]


def test_what_was_gained_before_does_not_count() -> None:
    late = watched(*(seen([0], [size]) for size in (8.0, 6.0, 5.0, 4.0, 4.0, 4.0, 2.0, 1.0, 1.0, 1.0)))
    assert late.late_gain(1, smallest=0.0).tolist() == [0.0]


def test_samples_that_come_in_batches_and_in_any_order_keep_their_own_history() -> None:
    late = watched(
        *(seen([2, 0], [4.0, 4.0 - 0.5 * step]) for step in range(5)),
        *(seen([1], [1.0]) for _ in range(5)),
        # The second batch of samples 0 and 2, now in the other order: ten iterations each in all.
        *(seen([0, 2], [2.0, size]) for size in (4.0, 4.0, 4.0, 4.0, 2.0)),
    )
    assert late.late_gain(3, smallest=0.0).tolist() == [0.0, 0.0, 0.5]


def test_a_row_that_leaves_early_is_measured_by_its_own_iterations() -> None:
    late = watched(
        *(seen([0, 1], [size, 4.0]) for size in (4.0, 4.0, 4.0, 4.0, 1.0)),
        *(seen([1], [4.0]) for _ in range(15)),
    )
    assert late.late_gain(2, smallest=0.0).tolist() == [0.75, 0.0]


def test_a_sample_found_only_at_the_end_gained_everything() -> None:
    late = watched(*(seen([0], [size]) for size in (math.inf, math.inf, math.inf, math.inf, 2.0)))
    assert late.late_gain(1, smallest=0.0).tolist() == [1.0]


def test_a_sample_found_in_time_gains_from_where_it_was_found() -> None:
    late = watched(*(seen([0], [size]) for size in (math.inf, math.inf, math.inf, 2.0, 1.5)))
    assert late.late_gain(1, smallest=0.0).tolist() == [0.25]


def test_nothing_is_known_of_what_was_not_seen_or_never_found() -> None:
    late = watched(*(seen([0, 2], [math.inf, 1.0]) for _ in range(5)))
    assert np.isnan(late.late_gain(3, smallest=0.0)).tolist() == [True, True, False]
    assert np.isnan(DistanceLog().late_gain(2, smallest=0.0)).all()


def test_a_sample_at_the_smallest_size_was_done() -> None:
    late = watched(*(seen([0, 1], [9.0, 9.0]) for _ in range(4)), seen([0, 1], [1.0, 2.0]))
    assert late.late_gain(2, smallest=1.0).tolist() == [0.0, pytest.approx(7 / 9)]


def test_one_iteration_has_no_last_fifth() -> None:
    assert watched(seen([0], [3.0])).late_gain(1, smallest=0.0).tolist() == [0.0]


def test_several_restarts_of_a_sample_are_one_history() -> None:
    late = watched(*(seen([0, 0], [4.0, size]) for size in (9.0, 9.0, 9.0, 9.0, 1.0)))
    assert late.late_gain(1, smallest=0.0).tolist() == [0.75]


def test_an_attack_may_go_on_writing_to_the_tensors_it_showed() -> None:
    late, samples, sizes = DistanceLog(), torch.tensor([0]), torch.zeros(1)
    for size in (4.0, 4.0, 4.0, 4.0, 1.0):
        sizes.fill_(size)
        late.record(Observation("search", 1, 5, samples, sizes, sizes, sizes))
    samples.fill_(5)
    assert late.late_gain(1, smallest=0.0).tolist() == [0.75]


def test_an_observation_that_cannot_be_read_is_the_attacks_fault() -> None:
    nothing = torch.zeros(2)
    with pytest.raises(AttackError, match=r"as many sizes, got \(2,\) of torch.int64 and \(3,\)"):
        watched(seen([0, 1], [1.0, 1.0, 1.0]))
    with pytest.raises(AttackError, match="expected an observation with the tensor size, got Observation"):
        watched(Observation("search", 1, 10, torch.tensor([0, 1]), nothing, [1.0, 1.0], nothing))  # type: ignore[arg-type]
    for place in (-1, 2):
        with pytest.raises(AttackError, match="expected samples 0 to 1, positions in the call, got"):
            watched(seen([0, place], [1.0, 1.0])).late_gain(2, smallest=0.0)
