"""`auto` at a radius: it answers the question asked, spends no passes beyond the answer, and stays in the ball."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AutoConfig, InvalidInputError, auto, load_data, load_model
from pdpgd.attacks.auto_config import BallRule
from support.models import Affine

CONVEX = ("linf", "l2", "l1")


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, Tensor, Tensor]:
    model = load_model("mnist-plain").requires_grad_(False)
    inputs, labels = load_data("mnist-1000").batch(torch.arange(12))
    return model, inputs, labels


def spent(result: Any) -> Tensor:
    passes: Tensor = result.forwards + result.backwards
    return passes


@pytest.mark.parametrize("norm", [*CONVEX, "l0"])
def test_a_sample_fooled_within_the_radius_is_done(norm: str, plain: tuple[nn.Module, Tensor, Tensor]) -> None:
    free = auto(*plain, norm=norm, budget=300)
    radius = float(free.distances.median())
    asked = auto(*plain, norm=norm, budget=300, radius=radius)
    done = asked.distances <= radius
    assert torch.equal(asked.fooled, done[:, None])
    assert asked.radii == (radius,)
    # Far within the radius, the first descent gives the answer.
    easy = free.distances < 0.7 * radius
    assert easy.any()
    assert done[easy].all()
    assert (spent(asked)[easy] <= 60).all()
    assert (spent(asked) <= 300).all()


def test_of_several_radii_each_is_answered(plain: tuple[nn.Module, Tensor, Tensor]) -> None:
    result = auto(*plain, norm="linf", budget=200, radius=[0.1, 0.05, 0.1, 0.3])
    assert result.radii == (0.05, 0.1, 0.3)
    assert result.fooled.shape == (12, 3)
    for column, radius in enumerate(result.radii):
        assert torch.equal(result.fooled[:, column], result.distances <= torch.tensor(radius))
    assert result.fooled[:, 2].all()


@pytest.mark.parametrize("norm", [*CONVEX, "l0"])
def test_the_answer_does_not_depend_on_the_batch(norm: str, plain: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = plain
    model, inputs = model.double(), inputs.double()
    radius = float(auto(model, inputs, labels, norm=norm, budget=100).distances.median()) * 0.97
    call: dict[str, Any] = {"norm": norm, "budget": 700, "radius": radius, "indices": torch.arange(12)}
    together = auto(model, inputs, labels, **call)
    apart = auto(model, inputs, labels, **call, max_batch=5)
    model.float()
    assert torch.equal(together.fooled, apart.fooled)
    assert torch.equal(spent(together), spent(apart))


@pytest.mark.parametrize("norm", CONVEX)
def test_climbs_alone_find_what_is_inside_the_ball(norm: str, generator: torch.Generator) -> None:
    """Against a linear model with an inactive box, the exact distance is the margin over the dual norm of the slope."""
    slope = torch.randn(40, generator=generator, dtype=torch.float64)
    dual = {"linf": slope.abs().sum(), "l2": slope.square().sum().sqrt(), "l1": slope.abs().max()}[norm]
    inputs, exact = torch.full((1, 40), 0.5, dtype=torch.float64), 0.2
    bias = torch.stack([exact * dual - inputs[0] @ slope, torch.zeros((), dtype=torch.float64)])
    model, labels = Affine(torch.stack([slope, torch.zeros_like(slope)]), bias), torch.zeros(1, dtype=torch.long)
    for factor, found in ((1.05, True), (0.95, False)):
        config = replace(AutoConfig(), first=(), polish_share=0.0, ball=BallRule(share=0.9, query_share=0.0))
        result = auto(model, inputs, labels, norm=norm, budget=200, radius=factor * exact, config=config)
        assert bool(result.fooled) is found
        assert bool((result.distances <= factor * exact) | ~result.fooled[:, 0])


def test_queries_find_what_has_no_gradient(plain: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Rounding the inputs leaves no gradient, so that only queries can tell what a change does."""
    model, inputs, labels = plain

    class Rounded(nn.Module):
        def forward(self, points: Tensor) -> Tensor:
            out: Tensor = model((points * 16).round() / 16 + 0.0 * points)
            return out

    result = auto(Rounded().eval(), inputs, labels, norm="linf", budget=1000, radius=0.3)
    assert result.fooled.all()
    without = replace(AutoConfig(), ball=BallRule(query_share=0.0))
    blind = auto(Rounded().eval(), inputs, labels, norm="linf", budget=1000, radius=0.15, config=without)
    sighted = auto(Rounded().eval(), inputs, labels, norm="linf", budget=1000, radius=0.15)
    assert sighted.fooled.sum() > blind.fooled.sum()


@pytest.mark.parametrize("radius", [0, -1.0, float("inf"), float("nan"), [], [0.1, -0.2], "wide", None])
def test_a_radius_that_is_none_is_refused(radius: Any, plain: tuple[nn.Module, Tensor, Tensor]) -> None:
    if radius is None:
        assert auto(*plain, norm="linf", budget=10).radii == ()
        return
    with pytest.raises(InvalidInputError, match="radius: expected one or several numbers above 0, got"):
        auto(*plain, norm="linf", budget=10, radius=radius)
