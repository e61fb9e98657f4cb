"""Responses in place against the prox they stand for, and the search for a price against functions with known roots."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pdpgd.attacks.auto_config import AutoConfig
from pdpgd.attacks.linearized import Geometry, Linear
from pdpgd.attacks.responses import AnyResponse, Guess, Level, Scratch, Step, least_price, response_of
from pdpgd.norms import L0, L1, L2, LINF, Norm, l0
from pdpgd.tensors import clip

ROWS = 8
CHEAP, DEAR = math.exp(-8), math.exp(14)
NORMS = [
    pytest.param(norm, shape, id=f"{name}-{len(shape)}d")
    for name, norm in {"l2": L2, "l1": L1, "pixels": L0, "elements": l0(unit="element")}.items()
    for shape in ((6,), (3, 4, 4), (1, 5, 5))
]


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def step_of(generator: torch.Generator, shape: tuple[int, ...]) -> Step:
    low, high = -draw(generator, ROWS, *shape), draw(generator, ROWS, *shape)
    delta = low + (high - low) * draw(generator, ROWS, *shape)
    slope = torch.randn(ROWS, *shape, generator=generator, dtype=torch.float64)
    return Step(delta, slope, 0.05 + draw(generator, ROWS), low, high)


@pytest.mark.parametrize(("norm", "shape"), NORMS)
@pytest.mark.parametrize("price", [0.0, 0.3, 2.0, 1e4])
def test_a_response_in_place_is_that_of_the_prox(
    norm: Norm, shape: tuple[int, ...], price: float, generator: torch.Generator
) -> None:
    step = step_of(generator, shape)
    known, any_prox = response_of(norm, step, Scratch()), AnyResponse(norm.prox_in_box, step)
    assert type(known) is not AnyResponse
    prices = price * (0.5 + draw(generator, ROWS))
    torch.testing.assert_close(known.at(prices), any_prox.at(prices))
    torch.testing.assert_close(known.reach(prices), any_prox.reach(prices))
    torch.testing.assert_close(known.at(prices), any_prox.at(prices))


@pytest.mark.parametrize("level", [0.0, 0.1, 0.4, 1.0])
def test_a_level_moves_down_the_slope_and_clips_what_has_none(level: float, generator: torch.Generator) -> None:
    step = step_of(generator, (3, 4, 4))
    slope = step.slope * (draw(generator, *step.slope.shape) < 0.7)
    delta = step.delta * (draw(generator, *step.delta.shape) < 0.8)
    step = Step(delta, slope, 0.3 * step.size, step.low, step.high)
    t = step.size.view(-1, 1, 1, 1)
    low, high = torch.maximum(delta - t, step.low), torch.minimum(delta + t, step.high)
    wanted = torch.where(
        slope == 0, clip(delta.clamp(-level, level), low, high), clip(-level * slope.sign(), low, high)
    )
    response, levels = Level(step, Scratch()), torch.full((ROWS,), level, dtype=torch.float64)
    torch.testing.assert_close(response.at(levels), wanted)
    torch.testing.assert_close(response.reach(levels), -(slope * wanted).flatten(1).sum(1))


def test_an_answer_outlives_the_memory_of_the_next_step(generator: torch.Generator) -> None:
    for norm in (L2, L1, L0, LINF):
        propose, step = Geometry(norm, AutoConfig()), step_of(generator, (3, 4, 4))
        linear = Linear.of(draw(generator, ROWS), step.slope)
        first = propose(step.delta, linear, step.size, 0.1, step.low, step.high)
        copy = first.clone()
        propose(-step.delta.clamp(-0.1, 0.1), linear, step.size, 0.1, step.low, step.high)
        assert torch.equal(first, copy)


GEOMETRIES = pytest.mark.parametrize("norm", [L2, L1, L0, LINF], ids=lambda norm: norm.name)


@GEOMETRIES
def test_steps_from_the_last_price_are_those_of_a_search_without_it(norm: Norm, generator: torch.Generator) -> None:
    """Over a descent on a margin that bends: each step begins where the last one ended."""
    warm, step = Geometry(norm, AutoConfig()), step_of(generator, (3, 6, 6))
    trust, delta, gradient = 3 * torch.ones(ROWS, dtype=torch.float64), torch.zeros_like(step.delta), step.slope
    far = []
    for _ in range(12):
        linear = Linear.of(2.0 + (gradient * delta).flatten(1).sum(1), gradient)
        ours = warm(delta, linear, trust, 0.05, step.low, step.high)
        fresh = Geometry(norm, AutoConfig())(delta, linear, trust, 0.05, step.low, step.high)
        crosses = linear.descent(ours - delta) >= linear.gap - 1e-12
        assert crosses.tolist() == (linear.descent(fresh - delta) >= linear.gap - 1e-12).tolist()
        far.append((norm.size(ours) / norm.size(fresh) - 1).abs())
        delta = ours
        gradient = gradient + 0.1 * torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
    assert float(torch.cat(far).quantile(0.9)) < (0.04 if norm is L0 else 1e-3)


@GEOMETRIES
def test_a_step_crosses_whatever_the_last_price_was(norm: Norm, generator: torch.Generator) -> None:
    warm, trust = Geometry(norm, AutoConfig()), torch.full((ROWS,), 30.0, dtype=torch.float64)
    for _ in range(6):
        step = step_of(generator, (3, 6, 6))
        linear = Linear.of(step.slope.flatten(1).norm(dim=1) * draw(generator, ROWS), step.slope)
        delta = 10.0 ** (-3 * draw(generator, ROWS, 1, 1, 1)) * step.delta
        u = warm(delta, linear, trust, 0.1, step.low, step.high)
        assert (linear.descent(u - delta) >= linear.gap - 1e-12).all()


def search(
    reach: Callable[[Tensor], Tensor], need: float, *, start: float = 1.0, slope: float = 0.0, rounds: int = 24
) -> float:
    column = torch.tensor([need], dtype=torch.float64)
    guess = Guess(torch.full_like(column, start), torch.full_like(column, slope))
    price, _ = least_price(reach, column, lowest=CHEAP, highest=DEAR, rounds=rounds, guess=guess)
    return float(price)


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("need", [0.3, 5.0, 4e3])
def test_the_least_price_that_reaches_is_found_to_a_part_in_ten_thousand(need: float, start: float) -> None:
    for reach in (lambda p: 1.0 * p, lambda p: 7 * p.sqrt(), lambda p: (p - 3).clamp(min=0) ** 1.5):
        price = torch.tensor([search(reach, need, start=start)], dtype=torch.float64)
        assert float(reach(price)) >= need
        assert float(reach(price * (1 - 2e-4))) < need


def test_a_good_guess_takes_few_rounds() -> None:
    assert search(lambda p: 2.0 * p, 0.62, start=0.3, slope=2.0, rounds=4) == pytest.approx(0.31, rel=3e-4)


def test_a_jump_is_reached_from_above() -> None:
    price = search(lambda p: (p > 0.7).to(p) + (p > 40).to(p), 0.5)
    assert 0.7 < price < 0.71


def test_what_is_out_of_reach_has_the_highest_price_and_does_not_spoil_the_guess() -> None:
    need = torch.tensor([2.0, 0.5], dtype=torch.float64)
    guess = Guess(torch.tensor([0.2, 0.4], dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    price, after = least_price(lambda p: p.clamp(max=1.0), need, lowest=CHEAP, highest=DEAR, rounds=8, guess=guess)
    assert price.tolist() == pytest.approx([DEAR, 0.5], rel=1e-4)
    assert after.price.tolist() == pytest.approx([0.2, 0.5], rel=1e-4)


def test_what_is_reached_for_nothing_costs_next_to_nothing() -> None:
    assert search(lambda p: 1.0 + p, 0.5, rounds=12) < 10 * CHEAP


def test_a_reach_that_does_not_move_ends_in_a_finite_price() -> None:
    for need in (0.0, 1.0, -1.0):
        assert math.isfinite(search(torch.zeros_like, need))
