"""Projections on the simplex and the l1 ball."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from pdpgd.proximal import project_l1_ball, project_simplex
from support import prox_oracles as oracles
from support.prox_cases import Operator
from support.prox_checks import Check, concerning
from support.rounding import sum_error


def label(value: object) -> str:
    return value.name if isinstance(value, Operator) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("operator", "check"), concerning("simplex"), ids=label)
def test_simplex_operator_passes_every_check_that_concerns_it(operator: Operator, check: Check) -> None:
    check(operator)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_simplex_projection_agrees_with_a_general_solver() -> None:
    for v in numbers(5, 4).numpy():
        constraint = {"type": "eq", "fun": lambda z: z.sum() - 1}
        solved = minimize(
            lambda z, v=v: ((z - v) ** 2).sum(),
            np.full(4, 0.25),
            bounds=[(0, None)] * 4,
            constraints=constraint,
            tol=1e-14,
        )
        assert np.abs(project_simplex(torch.from_numpy(v[None]))[0].numpy() - solved.x).max() < 1e-6


def test_ball_projection_agrees_with_halving_the_threshold() -> None:
    for radius in (0.0, 0.1, 1.0, 3.0, 100.0):
        for v in numbers(5, 2, 3):
            expected = oracles.l1_ball_projection(v.numpy(), radius)
            slack = float(sum_error(v.abs().sum(), v.numel() + 2))
            assert np.abs(project_l1_ball(v[None], radius)[0].numpy() - expected).max() <= slack


def test_radius_may_differ_between_samples() -> None:
    radius = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    # Sums of six, and a level that is one: of entries up to three.
    slack = float(sum_error(numbers(3, 6).abs().sum(1), 2 * 6).max())
    torch.testing.assert_close(project_simplex(numbers(3, 6), radius).sum(1), radius, rtol=0, atol=slack)
    torch.testing.assert_close(project_l1_ball(numbers(3, 6), radius).abs().sum(1), radius, rtol=0, atol=slack)


def test_projections_take_an_empty_batch() -> None:
    assert project_simplex(torch.empty(0, 3)).shape == (0, 3)
    assert project_l1_ball(torch.empty(0, 3)).shape == (0, 3)
