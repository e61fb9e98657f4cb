"""On a ReLU net of a few units the exact minimum is known, by mixed-integer programming: `auto` is compared with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from pdpgd import auto
from relu_programs import NORMS, ReluNet, exact_minimum, gains, size

PIXELS, UNITS, CLASSES, SAMPLES = 25, 6, 4, 8
# The solver satisfies constraints up to 1e-6; the slopes of the nets here are about 1.
SOLVER = 1e-5


def relu_net(generator: torch.Generator, *widths: int) -> nn.Sequential:
    """A dense net with normal weights, which keep the size of the signal; in float64."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in zip([PIXELS, *widths], [*widths, CLASSES], strict=True):
        dense = nn.Linear(before, width, dtype=torch.float64)
        with torch.no_grad():
            dense.weight.copy_(torch.randn(width, before, generator=generator, dtype=torch.float64) / before**0.5)
            dense.bias.copy_(0.3 * torch.randn(width, generator=generator, dtype=torch.float64))
        layers += [dense, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).requires_grad_(False).eval()


def exact(net: nn.Sequential, origin: torch.Tensor, label: int, norm: str, within: float = math.inf) -> float:
    found = exact_minimum(ReluNet.of(net), origin.flatten().numpy(), label, norm, within=within, seconds=60.0)
    assert found.bound == pytest.approx(found.distance, rel=1e-4)
    return found.distance


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("widths", [(UNITS,), (UNITS, UNITS)], ids=["one layer", "two layers"])
def test_auto_comes_close_to_the_exact_minimum_and_never_below_it(widths: tuple[int, ...], norm: str) -> None:
    generator = torch.Generator().manual_seed(len(widths))
    net = relu_net(generator, *widths)
    inputs = torch.rand(SAMPLES, 1, 5, 5, generator=generator, dtype=torch.float64)
    labels = net(inputs).argmax(1)

    result = auto(net, inputs, labels, norm=norm, budget=1000)
    smallest = torch.tensor([exact(net, x, int(y), norm) for x, y in zip(inputs, labels, strict=True)])

    print(f"{norm} {widths}: {[f'{ratio:.4f}' for ratio in (result.distances / smallest).tolist()]}")
    assert bool(result.found.all())
    assert bool((result.distances >= smallest * (1 - SOLVER)).all())
    if norm == "l0":
        assert bool((result.distances <= smallest + 1).all())
    else:
        assert bool((result.distances <= 1.02 * smallest).all())


@pytest.mark.parametrize("norm", NORMS)
def test_the_program_finds_the_same_from_any_distance_that_is_reached(norm: str) -> None:
    generator = torch.Generator().manual_seed(2)
    net = relu_net(generator, UNITS)
    origin = torch.rand(1, 1, 5, 5, generator=generator, dtype=torch.float64)
    label = int(net(origin).argmax())
    smallest = exact(net, origin, label, norm)
    far = smallest + 1 if norm == "l0" else 1.5 * smallest
    assert exact(net, origin, label, norm, within=far) == pytest.approx(smallest, rel=SOLVER)
    assert exact(net, origin, label, norm, within=smallest) == pytest.approx(smallest, rel=SOLVER)


@pytest.mark.parametrize("norm", NORMS)
def test_on_a_piece_of_the_net_that_is_affine_the_program_agrees_with_the_closed_form(norm: str) -> None:
    """Units that are always on make the net affine: the lead is closed by the steepest entries first."""
    generator = torch.Generator().manual_seed(3)
    net = relu_net(generator, UNITS)
    net[1].bias += 100.0
    net[3].bias -= 100.0 * net[3].weight.sum(1)
    weights = ReluNet.of(net)
    slope = weights.weights[1] @ weights.weights[0]
    origin = np.full(PIXELS, 0.5)
    logits = weights.units(origin)[-1]
    label = int(logits.argmax())
    others = [other for other in range(CLASSES) if other != label]

    def reached(radius: float) -> bool:
        return any(
            gains((slope[o] - slope[label])[None], origin, norm, radius)[0] >= logits[label] - logits[o] for o in others
        )

    smallest = exact(net, torch.from_numpy(origin).view(1, 5, 5), label, norm)
    assert reached(smallest * (1 + SOLVER))
    assert not reached(smallest - 1 if norm == "l0" else smallest * (1 - SOLVER))


@pytest.mark.parametrize("norm", NORMS)
def test_the_gain_within_a_radius_is_the_largest_over_the_corners(norm: str) -> None:
    """Of three entries, every perturbation that could be the best is tried."""
    weight, origin = np.array([[2.0, -1.0, 0.5]]), np.array([0.75, 0.25, 0.0])
    radius = {"linf": 0.3, "l1": 0.6, "l0": 2.0}[norm]
    steps = np.linspace(-1.0, 1.0, 41)
    grid = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 3)
    inside = ((origin + grid >= -1e-9) & (origin + grid <= 1 + 1e-9)).all(1)
    allowed = [delta for delta in grid[inside] if size(np.where(np.abs(delta) < 1e-9, 0, delta), norm) <= radius + 1e-9]
    assert gains(weight, origin, norm, radius)[0] == pytest.approx(max(weight[0] @ delta for delta in allowed))
