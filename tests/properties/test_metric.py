"""Proximal operators in a diagonal metric."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from pdpgd import proximal
from pdpgd.proximal import prox_by_inner_loop, prox_l1, prox_l1_metric
from support.prox_cases import Case, Operator, cases
from support.prox_checks import Check, concerning
from support.rounding import eps_of


def label(value: object) -> str:
    return value.name if isinstance(value, Operator) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("operator", "check"), concerning("metric"), ids=label)
def test_metric_operator_passes_every_check_that_concerns_it(operator: Operator, check: Check) -> None:
    check(operator)


@pytest.mark.parametrize("name", ["prox_l1", "prox_l2", "prox_linf"])
def test_many_inner_steps_reach_the_exact_answer(name: str) -> None:
    exact, euclidean = getattr(proximal, f"{name}_metric"), getattr(proximal, name)

    @given(cases(Operator(f"{name}_metric", exact)))
    def check(case: Case) -> None:
        mild = case.geometry[0].clamp(0.1, 10)
        approached = prox_by_inner_loop(euclidean, case.v, case.weight, mild, steps=3000, tolerance=0.0)
        # Each step comes nearer by 1 - 0.1/10, and its roundings are forgotten at that rate: a hundred of them add up.
        slack = (0.99**3000 + 100 * 8 * eps_of(case.v)) * float(case.v.abs().max())
        torch.testing.assert_close(approached, exact(case.v, case.weight, mild), rtol=0, atol=slack)

    check()


def test_five_inner_steps_shrink_by_five_weights_where_the_exact_form_shrinks_by_a_hundred() -> None:
    v, metric = torch.full((1, 2), 1000.0, dtype=torch.float64), torch.tensor([[1.0, 0.01]], dtype=torch.float64)
    truncated = prox_by_inner_loop(prox_l1, v, 1.0, metric, steps=5, tolerance=0.0)
    assert float(1000 - truncated[0, 1]) == pytest.approx(4.9, abs=0.01)
    assert float(1000 - prox_l1_metric(v, 1.0, metric)[0, 1]) == pytest.approx(100)


def test_an_inner_loop_stops_each_sample_by_itself() -> None:
    v, metric = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.01]])
    together = prox_by_inner_loop(prox_l1, v, 0.3, metric, steps=50)
    for i in range(2):
        assert torch.equal(prox_by_inner_loop(prox_l1, v[i : i + 1], 0.3, metric[i : i + 1], steps=50)[0], together[i])


def test_an_inner_loop_hands_the_prox_one_weight_per_sample() -> None:
    shapes = []

    def prox(v: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shapes.append(weight.shape)
        return v

    prox_by_inner_loop(prox, torch.ones(3, 2, 2), 0.1, torch.ones(3, 2, 2), steps=1)
    assert shapes == [(3,)]
