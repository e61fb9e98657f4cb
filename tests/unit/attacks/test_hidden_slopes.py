"""A first layer that is flat at the edge of the box hides gradients there, and `auto` sees through it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AutoConfig, auto, load_data, load_model
from pdpgd.attacks.ball_search import climb_in_ball
from pdpgd.attacks.base import pose
from pdpgd.attacks.descent import Aim, Search
from pdpgd.attacks.frame import Attempt, Rows, game_mode
from pdpgd.norms import norm_of

# A step behind some of these layers takes three passes instead of two: it costs some of the descents.
TOLERANCE = 1.08


class Clamp(nn.Module):
    """Flat on the first and last 0.002 of the box."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.clamp(0.002, 0.998)


FRONTS = {"relu": nn.ReLU(), "hard tanh": nn.Hardtanh(0.0, 1.0), "clamp": Clamp()}


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return load_data("mnist-1000").batch(torch.arange(16))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return load_model("mnist-plain").requires_grad_(False)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_distances_are_those_of_the_bare_net(
    norm: str, front: str, net: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    hidden = nn.Sequential(FRONTS[front], net).eval()
    bare, seen = (auto(model, *images, norm=norm, budget=300) for model in (net, hidden))
    assert (seen.forwards + seen.backwards <= 300).all()
    # Of so few images, one that needs twice the pixels would decide the mean in l0.
    assert (seen.distances / bare.distances).log().mean().exp() < TOLERANCE


def test_without_a_look_inside_the_distances_are_too_large(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    hidden = nn.Sequential(nn.ReLU(), net).eval()
    blind = replace(AutoConfig(), hidden_limits=(-1.0, 2.0))
    bare, misled = (
        auto(net, *images, norm="linf", budget=300),
        auto(hidden, *images, norm="linf", budget=300, config=blind),
    )
    assert misled.distances.mean() > 1.15 * bare.distances.mean()


@pytest.mark.parametrize("name", ["mnist-plain", "mnist-linf-at", "mnist-l2-at"])
def test_honest_nets_take_two_passes_per_step(name: str, images: tuple[Tensor, Tensor]) -> None:
    result = auto(load_model(name).requires_grad_(False), *images, norm="l2", budget=300)
    assert (result.forwards < 1.3 * result.backwards).all()


@pytest.mark.parametrize(
    ("norm", "front", "passes"), [("l2", "relu", 2), ("l1", "hard tanh", 2), ("l2", "clamp", 3), ("l0", "relu", 3)]
)
def test_a_step_judges_points_at_the_edge_only_where_it_must(
    norm: str, front: str, passes: int, net: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    result = auto(nn.Sequential(FRONTS[front], net).eval(), *images, norm=norm, budget=300)
    steps = result.backwards.double()
    assert ((result.forwards / steps - (passes - 1)).abs() < 0.3).all()


def test_a_fine_hair_hardly_enlarges_the_perturbation(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    hidden = nn.Sequential(nn.ReLU(), net).eval()
    result = auto(hidden, *images, norm="l1", budget=300)
    change = (result.adversarials - images[0]).abs().flatten(1)
    tiny = change.masked_fill(change > 2e-6, 0.0).sum(1)
    assert (tiny < 1e-3 * result.distances).all()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_balls_hold_the_points_inside_the_box(norm: str, net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    inputs, labels = images
    radius, seen = torch.full((len(inputs),), {"linf": 0.01, "l2": 0.2, "l1": 1.0}[norm]), []

    def recorded(points: Tensor) -> Tensor:
        seen.append(points.detach())
        logits: Tensor = net(points)
        return logits

    call = {"norm": norm, "targets": None, "bounds": (0.0, 1.0), "seed": 0, "indices": None, "starts": None}
    problem = pose(recorded, inputs, labels, **call)
    with game_mode():
        search = Search(Attempt.begin(problem, max_batch=256), budget=100, observe=None, config=AutoConfig())
        search.hair[:] = AutoConfig().fine_hair
        rows = Rows.of(problem, (net(inputs).argmax(1) == labels).nonzero().squeeze(1))
        seen.clear()
        # Every sample stays to the end: nothing within a radius that small fools this net.
        climb_in_ball(search, rows, radius[rows.samples], steps=20, aim=Aim(), start=None)
    assert len(seen) == 21
    sizes = torch.stack([norm_of(norm).size(points - rows.inputs) for points in seen])
    assert (sizes <= radius[rows.samples]).all()
    assert (sizes.amax(0) > 0.9 * radius[rows.samples]).all()


def test_targeted_attacks_see_through_it_too(net: nn.Module, images: tuple[Tensor, Tensor]) -> None:
    inputs, labels = images
    targets = (labels + 1) % 10
    hidden = nn.Sequential(nn.ReLU(), net).eval()
    bare, seen = (auto(model, inputs, labels, norm="linf", budget=300, targets=targets) for model in (net, hidden))
    assert seen.distances.mean() < TOLERANCE * bare.distances.mean()
