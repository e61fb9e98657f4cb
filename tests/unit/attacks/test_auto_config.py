"""AutoConfig: wrong settings are refused, budgets are divided within their bounds, and each setting has an effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import InvalidInputError, PDPGDConfig, auto
from pdpgd.attacks.auto_config import (
    CLASS,
    NEAR,
    POLISH,
    STEADY,
    AutoConfig,
    BallRule,
    BlindRule,
    PriceSearch,
    TrustRule,
)
from pdpgd.attacks.auto_plan import Plan
from support.models import Affine, TinyConv

DEFAULTS = AutoConfig()


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(4, 3, 6, 6, generator=generator)


@pytest.mark.parametrize(
    "settings",
    [
        *({"then": ()}, {"shared": ()}, {"min_descent_steps": 0}, {"patience": 1.5}, {"ranked_classes": 0}),
        *({"pruning_passes": -1}, {"polish_share": 1.0}, {"counting_polish_share": 1.0}, {"worthwhile": -0.1}),
        *({"hop_scale": -1.0}, {"least_length": 0.0}, {"level_step": 0.0}),
    ],
)
def test_settings_outside_of_their_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=rf"AutoConfig\.{next(iter(settings))}: expected"):
        AutoConfig(**settings)


def test_a_config_of_another_attack_is_refused(conv: TinyConv, images: Tensor) -> None:
    with pytest.raises(InvalidInputError, match="config: expected a AutoConfig, got a PDPGDConfig"):
        auto(conv, images, torch.zeros(4, dtype=torch.long), norm="l2", config=PDPGDConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("config", [DEFAULTS, replace(DEFAULTS, min_descent_steps=500, pruning_passes=0)])
@pytest.mark.parametrize("cost", [2, 3])
def test_a_plan_spends_no_more_than_its_passes(config: AutoConfig, counts: bool, cost: int) -> None:
    for passes in range(1, 1200):
        plan = Plan.within(passes, counts=counts, config=config, cost=cost)
        polish = cost * plan.polish + 1 if plan.polish else 0
        steps = plan.descents * (cost * plan.steps + 1) if plan.steps else 0
        assert 0 <= steps + polish + plan.pruning <= passes
        assert min(plan.steps, plan.polish, plan.pruning) >= 0
        if passes > cost:
            assert plan.steps >= 1


CHANGES: dict[str, dict[str, Any]] = {
    "first": {"first": (NEAR, STEADY, CLASS)},
    "then": {"then": (NEAR,)},
    "other_class": {"other_class": NEAR},
    "class_patience": {"class_patience": 14},
    "local_start": {"local_start": POLISH},
    "local_hop": {"local_hop": NEAR},
    "far_limit": {"far_limit": 1e9},
    "extension_steps": {"extension_steps": 8, "extension_gain": 0.0},
    "extension_gain": {"extension_gain": 0.0},
    "extension_limit": {"extension_limit": 1},
    "min_descent_steps": {"min_descent_steps": 30},
    "polish_share": {"polish_share": 0.4},
    "counting_polish_share": {"counting_polish_share": 0.9},
    "polish": {"polish": replace(DEFAULTS.polish, style=replace(DEFAULTS.polish.style, trust=0.1))},
    "several_from": {"several_from": 1000},
    "rank_from": {"rank_from": 1000},
    "ranked_classes": {"ranked_classes": 1},
    "patience": {"patience": 1},
    "worthwhile": {"worthwhile": 0.9, "patience": 3},
    "start_radius": {"start_radius": 0.1},
    "near_scale": {"near_scale": 0.5},
    "hop_scale": {"hop_scale": 0.5},
    "overshoot_power": {"overshoot_power": 1.0},
    "least_length": {"least_length": 0.5},
    "level_step": {"level_step": 0.05},
    "prices": {"prices": PriceSearch(rounds=8)},
    "trust": {"trust": TrustRule(more=1.05)},
    "relaxed_trust": {"relaxed_trust": TrustRule(more=1.05)},
    "shared": {"shared": (NEAR,)},
    "shared_steps": {"shared_steps": 10},
    "pruning_passes": {"pruning_passes": 40},
    "random_limit": {"random_limit": 1e9},
    "counting_random_limit": {"counting_random_limit": 1e9},
    "rounding": {"rounding": 1e6},
    "hidden_limits": {"hidden_limits": (1.1, -1.0)},
    "hair": {"hair": 0.2, "hidden_limits": (1.1, -1.0)},
    "fine_hair": {"fine_hair": 0.01},
    "check_every": {"check_every": 1},
    "ball": {"ball": BallRule(share=0.6)},
    "blind": {"blind": BlindRule(rounds=(0.3, 0.1))},
}


def test_every_setting_is_listed_here() -> None:
    assert CHANGES.keys() == vars(DEFAULTS).keys()


def margins(model: torch.nn.Module, inputs: Tensor, labels: Tensor, **call: Any) -> list[list[float]]:
    """Return every margin that an attack saw, in order."""
    seen: list[list[float]] = []
    auto(model, inputs, labels, **call, observe=lambda moment: seen.append(moment.margin.tolist()))
    return seen


COUNTING = ("counting_polish_share", "pruning_passes", "relaxed_trust")
# These have tests of their own.
ELSEWHERE = (
    "shared",
    "shared_steps",
    "extension_limit",
    "counting_random_limit",
    "hair",
    "fine_hair",
    "check_every",
    "ball",
    "blind",
)


@pytest.mark.parametrize("setting", [setting for setting in CHANGES if setting not in ELSEWHERE])
def test_every_setting_has_an_effect(setting: str, conv: TinyConv, images: Tensor) -> None:
    labels = conv(images).argmax(1)
    call = {"norm": "l0" if setting in COUNTING else "linf", "budget": 600}
    changed = replace(DEFAULTS, **CHANGES[setting])
    assert margins(conv, images, labels, **call) != margins(conv, images, labels, **call, config=changed)


def test_a_descent_that_finds_nothing_in_a_norm_that_counts_goes_on() -> None:
    """No point of the box fools the model: every descent takes as long as it may, and there are fewer of them."""
    model = Affine(torch.eye(2, 10), torch.tensor([5.0, 0.0]))
    inputs, labels = torch.full((1, 10), 0.5), torch.zeros(1, dtype=torch.long)
    ended, went_on = (
        margins(model, inputs, labels, norm="l0", budget=300, config=replace(DEFAULTS, extension_limit=limit))
        for limit in (1, 3)
    )
    assert ended != went_on


@pytest.mark.parametrize("setting", ["check_every", "ball"])
def test_settings_of_a_radius_have_an_effect(setting: str, conv: TinyConv, images: Tensor) -> None:
    labels = conv(images).argmax(1)
    distances = auto(conv, images, labels, norm="linf", budget=400).distances
    call = {"norm": "linf", "budget": 400, "radius": float(distances.median())}
    changed = replace(DEFAULTS, **CHANGES[setting])
    assert margins(conv, images, labels, **call) != margins(conv, images, labels, **call, config=changed)


def test_how_far_inside_the_box_gradients_are_taken_has_an_effect(conv: TinyConv, images: Tensor) -> None:
    labels = conv(images).argmax(1)
    settings = CHANGES["hair"]
    one, other = (
        margins(conv, images, labels, norm="linf", budget=400, config=replace(DEFAULTS, **{**settings, "hair": hair}))
        for hair in (0.01, 0.2)
    )
    assert one != other


@pytest.mark.parametrize("setting", ["shared", "shared_steps"])
def test_settings_of_shared_passes_have_an_effect(setting: str) -> None:
    """One feature is enough for six samples, which leave passes over; the other two need three."""
    weight, inputs = torch.zeros(2, 10), torch.full((8, 10), 0.9)
    weight[0] = 1.0
    weight[0, 0] = 5.0
    inputs[:6], inputs[6:, 0] = 0.5, 0.0
    model, labels = Affine(weight, torch.tensor([0.0, 5.7])), torch.zeros(8, dtype=torch.long)
    changed = replace(DEFAULTS, **CHANGES[setting])
    for share in (False, True):
        ways = [margins(model, inputs, labels, norm="l0", budget=180, share=share, config=c) for c in (None, changed)]
        assert (ways[0] != ways[1]) is share


def test_the_defaults_are_what_no_config_means(conv: TinyConv, images: Tensor) -> None:
    labels = conv(images).argmax(1)
    one, other = (auto(conv, images, labels, norm="l1", budget=150, config=config) for config in (None, DEFAULTS))
    assert torch.equal(one.adversarials, other.adversarials)
