"""Proximal operators of l0, l1/2 and l2/3, by element and by pixel."""

from __future__ import annotations

import pytest
import torch

from pdpgd.proximal import prox_l0, prox_l12, prox_l23, prox_pixel_l0, prox_pixel_l0_largest_channel
from support.prox_cases import Operator
from support.prox_checks import Check, concerning


def label(value: object) -> str:
    return value.name if isinstance(value, Operator) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("operator", "check"), concerning("sparse"), ids=label)
def test_sparse_operator_passes_every_check_that_concerns_it(operator: Operator, check: Check) -> None:
    check(operator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("prox", "jump", "landing"),
    [(prox_l0, 2**0.5, 1.0), (prox_l12, 1.5, 2 / 3), (prox_l23, 2 * (2 / 3) ** 0.75, 1 / 2)],
)
def test_at_weight_one_the_answer_jumps_from_zero_to_the_known_share(prox, jump, landing, dtype) -> None:  # type: ignore[no-untyped-def] # pytest fills in the table
    # The threshold is a product of powers, each good to a few ulp; the answer moves no more than thrice as fast.
    near = 64 * torch.finfo(dtype).eps
    below, above = prox(jump * torch.tensor([[1 - near, 1 + near]], dtype=dtype), 1.0)[0].tolist()
    assert below == 0
    assert above == pytest.approx(landing * jump, rel=4 * near)


def test_l23_is_zero_between_its_last_stationary_point_and_its_jump() -> None:
    weights = torch.logspace(-8, 2, 11)
    v = torch.linspace(1.3, 1.475, 50) * weights[:, None] ** 0.75
    assert not prox_l23(v, weights).any()


def test_l23_keeps_every_float32_above_its_jump_at_small_weights() -> None:
    v = torch.linspace(1.48, 500, 5000) * 1e-8**0.75
    assert bool((prox_l23(v[None], 1e-8) >= 0.49 * v).all())


def test_elements_take_a_weight_for_each_entry() -> None:
    v = torch.tensor([[3.0, -4.0, 2.0]])
    assert prox_l0(v, torch.tensor([[4.0, 9.0, 1.0]])).tolist() == [[3.0, 0.0, 2.0]]


def test_pixels_take_a_weight_for_each_pixel() -> None:
    v = torch.tensor([[[3.0, 3.0], [4.0, 4.0]]])
    assert prox_pixel_l0(v, torch.tensor([[[12.0, 13.0]]])).tolist() == [[[3.0, 0.0], [4.0, 0.0]]]


def test_largest_channel_form_uses_the_weight_at_that_channel() -> None:
    v = torch.tensor([[[3.0, 3.0], [4.0, 4.0]]])
    weight = torch.tensor([[[0.0, 99.0], [9.0, 7.0]]])
    assert prox_pixel_l0_largest_channel(v, weight).tolist() == [[[0.0, 3.0], [0.0, 4.0]]]
