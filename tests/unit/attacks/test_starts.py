from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.attacks.base import Problem, pose, random_rows


def problem(indices: list[int], *, seed: int = 3, dtype: torch.dtype = torch.float32) -> Problem:
    inputs = torch.full((len(indices), 2, 4, 4), 0.5, dtype=dtype)
    return pose(
        lambda x: x.flatten(1)[:, :2],
        inputs,
        torch.zeros(len(indices), dtype=torch.long),
        norm="l2",
        targets=None,
        bounds=(0.0, 1.0),
        seed=seed,
        indices=torch.tensor(indices),
    )


def draw(posed: Problem, rows: list[tuple[int, int]], step: int = 0) -> Tensor:
    samples, restarts = (torch.tensor(column) for column in zip(*rows, strict=True))
    return random_rows(posed, samples, restarts, step)


def test_the_draw_of_a_sample_is_the_same_bits_in_any_batch() -> None:
    whole = draw(problem(list(range(10))), [(i, 2) for i in range(10)])
    alone = draw(problem([7]), [(0, 2)])
    shuffled = draw(problem([9, 7, 1]), [(2, 2), (1, 2), (0, 2)])
    assert torch.equal(alone[0], whole[7])
    assert torch.equal(shuffled, whole[[1, 7, 9]])


def test_draws_differ_by_sample_restart_step_and_seed() -> None:
    base = problem([0, 1])
    draws = [
        draw(base, [(0, 0)]),
        draw(base, [(1, 0)]),
        draw(base, [(0, 1)]),
        draw(base, [(0, 0)], step=1),
        draw(problem([0, 1], seed=4), [(0, 0)]),
    ]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert not torch.equal(one, other)


def test_draws_fill_the_interval_from_minus_one_to_one() -> None:
    values = draw(problem(list(range(200))), [(i, 0) for i in range(200)])
    assert values.min() >= -1
    assert values.max() < 1
    assert values.min() < -0.99
    assert values.max() > 0.99
    assert abs(values.mean()) < 0.03
    assert abs(values.square().mean() - 1 / 3) < 0.03


def test_draws_have_the_shape_and_dtype_of_the_inputs() -> None:
    for dtype in (torch.float32, torch.float64):
        values = draw(problem([0, 1], dtype=dtype), [(0, 0), (1, 0), (0, 1)])
        assert values.shape == (3, 2, 4, 4)
        assert values.dtype == dtype


def test_global_random_state_is_neither_used_nor_moved() -> None:
    before = torch.get_rng_state()
    draw(problem([0]), [(0, 0)])
    assert torch.equal(torch.get_rng_state(), before)
