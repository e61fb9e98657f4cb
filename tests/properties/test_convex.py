"""Proximal operators of l1, l2 and l-infinity."""

from __future__ import annotations

import pytest
import torch

from pdpgd.proximal import prox_l1, prox_l2, prox_linf
from support.prox_cases import Operator
from support.prox_checks import Check, concerning


def label(value: object) -> str:
    return value.name if isinstance(value, Operator) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("operator", "check"), concerning("convex"), ids=label)
def test_convex_operator_passes_every_check_that_concerns_it(operator: Operator, check: Check) -> None:
    check(operator)


def test_known_answers() -> None:
    v = torch.tensor([[3.0, -4.0, 0.0]])
    assert prox_l1(v, 1.0).tolist() == [[2.0, -3.0, 0.0]]
    assert prox_l2(v, 1.0).tolist() == [[pytest.approx(2.4), pytest.approx(-3.2), 0.0]]
    assert prox_linf(v, 1.0).tolist() == [[3.0, -3.0, 0.0]]
    assert prox_linf(v, 3.0).tolist() == [[pytest.approx(2.0), pytest.approx(-2.0), 0.0]]


def test_l1_takes_a_weight_for_each_entry() -> None:
    v = torch.tensor([[3.0, -4.0], [1.0, 2.0]])
    assert prox_l1(v, torch.tensor([[1.0, 2.0], [3.0, 0.0]])).tolist() == [[2.0, -2.0], [0.0, 2.0]]


@pytest.mark.parametrize("prox", [prox_l1, prox_l2, prox_linf])
def test_an_empty_batch_stays_empty(prox: Check) -> None:
    assert prox(torch.empty(0, 3, 2), 0.1).shape == (0, 3, 2)
