"""Entries whose gradient is 0, though the model depends on them: `auto` finds their slopes by differences."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AutoConfig, auto, load_data, load_model
from pdpgd.errors import InvalidInputError

OFF = replace(AutoConfig(), blind=replace(AutoConfig().blind, share=1.0))


class Detached(nn.Module):
    """Passes on the gradient of a fifth of the entries."""

    def __init__(self, net: nn.Module, *, dead: bool = False) -> None:
        super().__init__()
        self.net, self.dead = net, dead
        self.mask = torch.rand(28, 28, generator=torch.Generator().manual_seed(3)) < 0.2

    def forward(self, inputs: Tensor) -> Tensor:
        rest = torch.zeros_like(inputs) if self.dead else inputs.detach()
        logits: Tensor = self.net(torch.where(self.mask, inputs, rest))
        return logits


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return load_data("mnist-1000").batch(torch.arange(900, 908))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return load_model("mnist-plain").requires_grad_(False)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_distances_are_near_those_of_the_bare_net(norm: str, net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    bare, seen = (auto(model, *images, norm=norm, budget=1500) for model in (net, Detached(net).eval()))
    assert (seen.forwards + seen.backwards <= 1500).all()
    assert (seen.distances / bare.distances).log().mean().exp() < 1.25


def test_without_differences_the_distances_are_too_large(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    twin = Detached(net).eval()
    on, off = (auto(twin, *images, norm="linf", budget=1500, config=config) for config in (None, OFF))
    assert 2 * on.distances.mean() < off.distances.mean()


@pytest.mark.parametrize("budget", [110, 150, 301, 700])
@pytest.mark.parametrize("norm", ["linf", "l0"])
def test_no_budget_is_exceeded(norm: str, budget: int, net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    result = auto(Detached(net).eval(), *images, norm=norm, budget=budget)
    assert (result.forwards + result.backwards <= budget).all()


@pytest.mark.parametrize("name", ["mnist-plain", "mnist-linf-at"])
def test_an_ordinary_net_is_attacked_as_before(name: str, images: tuple[Tensor, Tensor]) -> None:
    model = load_model(name).requires_grad_(False)
    on, off = (auto(model, *images, norm="l2", budget=200, config=config) for config in (None, OFF))
    torch.testing.assert_close(on.adversarials, off.adversarials, rtol=0, atol=0)
    assert (on.forwards == off.forwards).all()


def test_dead_entries_are_not_measured(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    result = auto(Detached(net, dead=True).eval(), *images, norm="l2", budget=400)
    assert (result.forwards < 1.3 * result.backwards)[result.backwards > 0].all()


def test_results_do_not_depend_on_the_split(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    # In double precision: what another batch changes in the last bits, the steps of descents enlarge.
    inputs, labels = images[0].double(), images[1]
    twin = Detached(copy.deepcopy(net).double()).eval()
    whole = auto(twin, inputs, labels, norm="l2", budget=300)
    parts = [
        auto(twin, inputs[rows], labels[rows], norm="l2", budget=300, indices=torch.tensor(rows))
        for rows in ([0, 1, 2], [3, 4, 5, 6, 7])
    ]
    torch.testing.assert_close(torch.cat([part.distances for part in parts]), whole.distances, rtol=1e-6, atol=0)


def test_targeted_attacks_measure_too(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    inputs, labels = images
    targets, twin = (labels + 1) % 10, Detached(net).eval()
    on, off = (
        auto(twin, inputs, labels, norm="linf", budget=1500, targets=targets, config=config) for config in (None, OFF)
    )
    assert 1.5 * on.distances.mean() < off.distances.mean()


@pytest.mark.parametrize("setting", [{"share": 1.5}, {"rounds": (0.6, 0.5)}, {"probes": 0}, {"step": 0.0}])
def test_settings_outside_their_range_are_rejected(setting: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(setting))):
        replace(AutoConfig().blind, **setting)  # type: ignore[arg-type]
