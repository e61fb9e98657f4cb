"""Proximal operators inside a box."""

from __future__ import annotations

import pytest
import torch

from pdpgd.proximal import prox_l0_box, prox_l23_box, prox_linf_box
from support.prox_cases import Operator
from support.prox_checks import Check, concerning


def label(value: object) -> str:
    return value.name if isinstance(value, Operator) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("operator", "check"), concerning("box"), ids=label)
def test_box_operator_passes_every_check_that_concerns_it(operator: Operator, check: Check) -> None:
    check(operator)


def test_a_clipped_entry_must_still_pay_for_its_place() -> None:
    v, low, high = torch.tensor([[2.0, 2.0]]), torch.zeros(1, 2), torch.tensor([[0.1, 2.0]])
    assert prox_l0_box(v, 1.0, low, high).tolist() == [[0.0, 2.0]]
    assert prox_l23_box(v, 1.0, low, high)[0, 0] == 0


def test_entries_at_their_bound_leave_the_level_to_the_others() -> None:
    v, low, high = torch.tensor([[5.0, 2.0]]), torch.zeros(1, 2), torch.tensor([[0.5, 2.0]])
    assert prox_linf_box(v, 1.0, low, high).tolist() == [[0.5, 1.0]]


def test_bounds_may_be_infinite_or_shared_by_the_batch() -> None:
    v = torch.tensor([[5.0, 2.0], [-1.0, 3.0]])
    free = torch.full((1, 1), torch.inf)
    assert torch.equal(prox_linf_box(v, 1.0, -free, free), torch.tensor([[4.0, 2.0], [-1.0, 2.0]]))
