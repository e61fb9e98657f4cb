"""A norm of the user's own, from its formula to an attack: l1 with a price a_i for each feature.

f(r) = sum_i a_i |r_i|. Its prox is a soft threshold at weight * a_i; in a metric h, at weight * a_i / h_i. On an affine
model a margin m costs the least at the feature with the most slope for its price: min f = m / max_i (|w_i| / a_i).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult, Norm, PDGDConfig, PDPGDConfig, pdgd, pdpgd
from support.models import Affine
from support.rounding import eps_of, margin_error, size_error

FEATURES, SAMPLES = 20, 30


@pytest.fixture
def price(generator: torch.Generator) -> Tensor:
    return 0.5 + 1.5 * torch.rand(FEATURES, generator=generator)


@pytest.fixture
def model(generator: torch.Generator) -> Affine:
    """Two classes with a boundary through x = 1/2."""
    weight = torch.randn(2, FEATURES, generator=generator)
    return Affine(weight, -weight.sum(1) / 2)


@pytest.fixture
def inputs(model: Affine, generator: torch.Generator) -> Tensor:
    """Near the center, moved along the weights until class 0 leads by 0.2 to 0.6."""
    slope = (model.weight[0] - model.weight[1]).detach()
    noise = 0.02 * torch.rand(SAMPLES, FEATURES, generator=generator) - 0.01
    noise -= (noise @ slope)[:, None] * slope / slope.square().sum()
    lead = torch.linspace(0.2, 0.6, SAMPLES)
    return 0.5 + noise + lead[:, None] * slope / slope.square().sum()


def size_of(price: Tensor):  # type: ignore[no-untyped-def]  # the test's own lambda
    return lambda delta: (price * delta.abs()).sum(1)


def soft(v: Tensor, threshold: Tensor) -> Tensor:
    return v.sign() * (v.abs() - threshold).clamp(min=0)


def margins(model: Affine, inputs: Tensor) -> Tensor:
    """z_0 - z_1 in float64."""
    weight, bias = model.weight.detach().double(), model.bias.detach().double()
    return inputs.double() @ (weight[0] - weight[1]) + bias[0] - bias[1]


def spared(model: Affine, points: Tensor) -> Tensor:
    """What rounding may take from the margin at these points, and so need not be crossed."""
    return margin_error(model, points, torch.zeros(len(points), dtype=torch.long))[:, 1]


def exact(model: Affine, inputs: Tensor, price: Tensor) -> Tensor:
    slope = (model.weight[0] - model.weight[1]).detach().double()
    value, where = (slope.abs() / price.double()).max(0)
    margin = margins(model, inputs)
    move = margin / slope[where].abs()
    room = torch.where(slope[where] > 0, inputs[:, where], 1 - inputs[:, where])
    assert (move < room).all(), "the box must not stand in the way of the exact answer"
    return margin / value


def judged_ratio(result: AttackResult, model: Affine, inputs: Tensor, price: Tensor) -> float:
    """Assert that no distance is below the exact one beyond rounding; return the ratio of the means."""
    best = exact(model, inputs, price)
    value = ((model.weight[0] - model.weight[1]).detach().abs() / price).max().double()
    least = best - spared(model, result.adversarials) / value
    assert result.found.all()
    assert (result.distances.double() >= least * (1 - size_error(inputs, "weighted l1"))).all()
    return float(result.distances.double().mean() / best.mean())


def test_weighted_l1_without_a_metric_prox_reaches_its_exact_minimum(
    model: Affine, inputs: Tensor, price: Tensor
) -> None:
    norm = Norm("weighted l1", size_of(price), prox=lambda v, weight: soft(v, weight[:, None] * price))
    result = pdpgd(model, inputs, torch.zeros(SAMPLES, dtype=torch.long), norm=norm)
    ratio = judged_ratio(result, model, inputs, price)
    print(f"\nweighted l1, by the inner loop: {ratio:.4f} of the exact minimum")
    assert ratio <= 1.05


def test_weighted_l1_with_its_metric_prox_reaches_its_exact_minimum(
    model: Affine, inputs: Tensor, price: Tensor
) -> None:
    norm = Norm(
        "weighted l1",
        size_of(price),
        prox=lambda v, weight: soft(v, weight[:, None] * price),
        metric_prox=lambda v, weight, h: soft(v, weight[:, None] * price / h),
    )
    result = pdpgd(model, inputs, torch.zeros(SAMPLES, dtype=torch.long), norm=norm)
    ratio = judged_ratio(result, model, inputs, price)
    print(f"\nweighted l1, by its metric prox: {ratio:.4f} of the exact minimum")
    assert ratio <= 1.05


def test_the_price_is_what_decides(model: Affine, inputs: Tensor, price: Tensor) -> None:
    """Forbid the feature that plain l1 would change, and the attack changes another one."""
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    plain = pdpgd(model, inputs, labels, norm="l1", config=PDPGDConfig(steps=300))
    favorite = (plain.adversarials - inputs).abs().sum(0).argmax()
    dear = torch.ones(FEATURES)
    dear[favorite] = 50.0
    norm = Norm("weighted l1", size_of(dear), prox=lambda v, weight: soft(v, weight[:, None] * dear))
    other = pdpgd(model, inputs, labels, norm=norm, config=PDPGDConfig(steps=300))
    moved = (other.adversarials - inputs).abs()
    assert (moved[:, favorite] <= 0.01 * moved.sum(1)).all()


def test_pdgd_differentiates_a_norm_of_ones_own(model: Affine, inputs: Tensor) -> None:
    """||r||_3 has a slope but no prox in closed form: PDGD asks for the slope only."""

    def no_prox(v: Tensor, weight: Tensor) -> Tensor:
        raise AssertionError("pdgd has no use for a prox")

    norm = Norm("l3", lambda delta: delta.abs().pow(3).sum(1).pow(1 / 3), no_prox)
    slope = (model.weight[0] - model.weight[1]).detach().double()
    dual = slope.abs().pow(1.5).sum().pow(2 / 3)
    result = pdgd(model, inputs, torch.zeros(SAMPLES, dtype=torch.long), norm=norm, config=PDGDConfig())
    best = margins(model, inputs) / dual
    least = best - spared(model, result.adversarials) / dual
    assert result.found.all()
    # As a sum of cubes under a cube root; the powers themselves are good to a few ulp.
    assert (result.distances >= least * (1 - size_error(inputs, "l3") - 8 * eps_of(inputs))).all()
    assert result.distances.mean() <= 1.1 * best.mean()
