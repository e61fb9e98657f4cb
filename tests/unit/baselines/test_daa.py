"""DAA follows the formulas of the released code step by step; our variant is no weaker than PGD."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd import InvalidInputError
from pdpgd.attacks.base import AttackResult
from pdpgd.attacks.frame import Framed
from pdpgd.attacks.pgd import PGD
from pdpgd.attacks.radius_search import AtRadii, Ball
from pdpgd.baselines.daa import DAA, Attraction, attraction, blob
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model
from support.models import Affine, Counting, Stubborn, TinyConv, random_affine
from support.rounding import assert_answers, eps_of


def attacked(ball: Ball, model: Any, inputs: Tensor, labels: Tensor, *radii: float, **call: Any) -> AttackResult:
    method = AtRadii(balls=tuple((radius, ball) for radius in radii))
    return Framed("daa", ("linf",), lambda classes: method)(model, inputs, labels, norm="linf", **call)


def slow_argument(x: np.ndarray, g: np.ndarray, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute the direction of the released code pair by pair, and a bound on the rounding error of each entry.

    The attack computes the squared distances, n products each, by a matrix product of the centered points; their error
    affects the kernel and its width, and the M terms of a sum are rounded as they are added.
    """
    count, features = x.shape
    squared = np.array(
        [[sum((x[i, f] - x[j, f]) ** 2 for f in range(features)) for j in range(count)] for i in range(count)]
    )
    middle = float(np.median(squared))
    h2 = middle / (2 * math.log(count))
    eps = float(np.finfo(np.float64).eps)
    off = (features + 8) * eps * 4 * float((x**2).sum(1).max())
    share = off / (2 * h2) * (1 + squared.max() / middle) + off / middle + (count + 8) * eps
    argument, error = np.zeros_like(x), np.zeros_like(x)
    for i in range(count):
        total, size = np.zeros(features), np.zeros(features)
        for j in range(count):
            kernel = math.exp(-squared[i, j] / (2 * h2))
            total += kernel * (g[j] + (x[j] - x[i]) / h2)
            size += kernel * (abs(g[j]) + (abs(x[j]) + abs(x[i])) / h2)
        argument[i] = g[i] + weight / count * total
        error[i] = 4 * eps * abs(g[i]) + weight / count * size * share
    return argument, error


@pytest.mark.parametrize("weight", [1.1, 10.0])
def test_what_the_signs_are_taken_of_is_the_sum_over_pairs(generator: torch.Generator, weight: float) -> None:
    points, slopes = torch.rand(2, 7, 2, 3, generator=generator, dtype=torch.float64)
    expected, error = slow_argument(points.flatten(1).numpy(), slopes.flatten(1).numpy() - 0.5, weight)
    found = blob(points, slopes - 0.5, weight).flatten(1).numpy()
    assert (abs(found - expected) <= error).all()
    assert error.max() < 1e-11


class Recording(nn.Module):
    """An affine model that records the points it is evaluated at."""

    def __init__(self, affine: Affine) -> None:
        super().__init__()
        self.affine = affine
        self.seen: list[np.ndarray] = []
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().numpy().copy())
        logits: Tensor = self.affine(x)
        return logits


def slow_slopes(affine: Affine, x: np.ndarray, labels: list[int], loss: str) -> np.ndarray:
    """Return the gradients of -log p_y, or of -max(0, z_y - max of the others + 50)."""
    weight, bias = affine.weight.detach().numpy(), affine.bias.detach().numpy()
    slopes = np.zeros_like(x)
    for row, label in enumerate(labels):
        z = weight @ x[row] + bias
        if loss == "cross-entropy":
            odds = np.exp(z - z.max())
            for j in range(len(z)):
                slopes[row] += (odds[j] / odds.sum() - (j == label)) * weight[j]
        else:
            other = max((j for j in range(len(z)) if j != label), key=lambda j, z=z: z[j])
            slopes[row] = weight[other] - weight[label] if z[label] - z[other] > -50 else 0.0
    return slopes


@pytest.mark.parametrize("loss", ["cross-entropy", "hinge"])
@pytest.mark.parametrize("cloud", [200, 4])
def test_every_step_is_that_of_a_slow_transcription(generator: torch.Generator, loss: str, cloud: int) -> None:
    weight = {"cross-entropy": 1.1, "hinge": 10.0}[loss]
    affine = random_affine(generator, features=12, classes=4, dtype=torch.float64)
    inputs = torch.rand(9, 12, generator=generator, dtype=torch.float64)
    labels, model = affine.labels(inputs), Recording(affine)
    radius, steps = 0.12, 12
    ball = DAA(steps=steps, step=0.2, surrogate=loss, cloud=cloud, deal_every=5)
    result = attacked(ball, model, inputs, labels, radius)
    # The first call judges the inputs. Samples that are fooled on the way continue to move with the others.
    seen = model.seen[1:]
    assert 0 < int(result.found.sum()) < 9
    assert [len(points) for points in seen] == [9] * (steps + 1)
    assert result.forwards.tolist() == [steps + 2] * 9

    clean, x = inputs.numpy(), seen[0]
    assert (abs(x - clean) <= radius).all()
    # The sums over features and classes in a gradient, and one rounding per operation of a step on numbers up to 1.
    eps = float(np.finfo(np.float64).eps)
    matrix, bias = affine.weight.detach().abs().numpy(), affine.bias.detach().abs().numpy()
    slope_error = 2 * 4 * (12 + 4 + 5) * eps * float((matrix.sum(1) + bias + 1).max()) * float(matrix.sum(0).max())
    for number in range(steps):
        if number % 5 == 0:
            order = np.random.default_rng((0, 0, 0, number)).permutation(9)
            clouds = np.array_split(order, math.ceil(9 / cloud))
        g = slow_slopes(affine, x, labels.tolist(), loss)
        argument = np.zeros_like(x)
        for rows in clouds:
            argument[rows], error = slow_argument(x[rows], g[rows], weight)
            # Otherwise a sign could differ on another machine.
            assert (abs(argument[rows]) > error + (1 + weight) * slope_error).all()
        x = np.clip(np.clip(x + 0.2 * radius * np.sign(argument), clean - radius, clean + radius), 0, 1)
        assert abs(seen[number + 1] - x).max() <= 4 * eps * (number + 1)


def test_samples_are_dealt_to_clouds_of_even_size_and_anew_each_time(generator: torch.Generator) -> None:
    affine = random_affine(generator, features=3, classes=2)
    inputs = torch.rand(450, 3, generator=generator)
    dealt = []

    class Dealing(DAA):
        def _dealt(self, *arguments: Any) -> list[Tensor]:
            dealt.append(super()._dealt(*arguments))
            return dealt[-1]

    framed = Framed("daa", ("linf",), lambda classes: AtRadii(balls=((1e-6, Dealing(steps=11)),)), max_batch=450)
    framed(affine, inputs, affine.labels(inputs), norm="linf")
    assert [[len(cloud) for cloud in clouds] for clouds in dealt] == [[150, 150, 150]] * 2
    for clouds in dealt:
        assert sorted(torch.cat(clouds).tolist()) == list(range(450))
    assert not torch.equal(torch.cat(dealt[0]), torch.cat(dealt[1]))


def test_points_that_are_the_same_see_the_mean_slope_and_one_alone_its_own() -> None:
    slopes = torch.tensor([[1.0, 0.0], [0.0, -2.0], [-4.0, 5.0]])
    assert torch.equal(blob(torch.rand(1, 2), slopes[:1], 3.0), 4 * slopes[:1])
    torch.testing.assert_close(blob(torch.full((3, 2), 0.3), slopes, 3.0), slopes + slopes.sum(0))
    # At least half of the distances are 0: only coinciding points interact.
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    slopes = torch.tensor([[1.0, 0.0], [0.0, -2.0], [-4.0, 5.0], [8.0, 8.0]])
    torch.testing.assert_close(blob(points, slopes, 4.0)[:3], slopes[:3] + slopes[:3].sum(0))
    torch.testing.assert_close(blob(points, slopes, 4.0)[3], 2 * slopes[3])


def test_the_pull_is_the_sum_over_pairs_of_the_formula(generator: torch.Generator) -> None:
    points = torch.rand(7, 2, 3, generator=generator, dtype=torch.float64)
    x = points.flatten(1)
    squared = (x[:, None] - x[None]).square().sum(2)
    pairs = sorted(float(squared[i, j]) for i in range(7) for j in range(i))
    h = pairs[10] / math.log(7)  # the median of 21
    kernel = torch.exp(-squared / h)
    expected = torch.zeros_like(x)
    for i in range(7):
        for j in range(7):
            slope = -2 / h * (x[i] - x[j]) * kernel[i, j]
            expected[i] += slope / kernel[i].sum() + slope / kernel[j].sum()
    torch.testing.assert_close(attraction(points).flatten(1), expected)


def test_one_point_and_equal_points_feel_no_pull() -> None:
    assert torch.equal(attraction(torch.rand(1, 3)), torch.zeros(1, 3))
    assert torch.equal(attraction(torch.full((4, 3), 0.3)), torch.zeros(4, 3))
    assert attraction(torch.tensor([[0.0], [1.0]])).sign().tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize(
    ("ball", "rows"),
    [
        (DAA(steps=8), slice(0, 1)),
        (DAA(steps=8, cloud=1), slice(0, 6)),
        (Attraction(steps=8, strength=5.0), slice(0, 1)),
        (Attraction(steps=8, strength=0.0), slice(0, 6)),
    ],
)
def test_a_sample_alone_and_no_strength_are_pgd(generator: torch.Generator, ball: Ball, rows: slice) -> None:
    conv, images = TinyConv(generator).double(), torch.rand(6, 3, 6, 6, generator=generator, dtype=torch.float64)
    labels = conv(images).argmax(1)
    daa = attacked(ball, conv, images[rows], labels[rows], 0.02)
    pgd = attacked(PGD(steps=8, step=0.1), conv, images[rows], labels[rows], 0.02)
    assert torch.equal(daa.adversarials, pgd.adversarials)
    assert torch.equal(daa.found, pgd.found)


@pytest.mark.parametrize("loss", ["cross-entropy", "hinge"])
@pytest.mark.parametrize("kind", [DAA, Attraction])
def test_points_stay_in_the_ball_and_in_the_box_and_every_pass_is_counted(
    generator: torch.Generator, kind: Any, loss: str
) -> None:
    counting = Counting(Stubborn())
    images = torch.rand(3, 1, 4, 4, generator=generator)
    result = attacked(kind(steps=4, surrogate=loss), counting, images, torch.tensor([0, 0, 1]), 0.1)
    assert result.found.tolist() == [False, False, True]
    assert result.forwards.tolist() == [6, 6, 1]
    assert result.backwards.tolist() == [4, 4, 0]
    assert (sum(counting.forwards), sum(counting.backwards)) == (13, 8)

    affine = random_affine(generator, features=20, classes=3, dtype=torch.float64)
    inputs = 4 * torch.rand(12, 20, generator=generator, dtype=torch.float64) - 2
    labels = affine.labels(inputs)
    targets = (labels + 1) % 3
    ball = kind(steps=30, surrogate=loss)
    aimed = attacked(ball, affine, inputs, labels, 1.0, 2.0, targets=targets, bounds=(-2.0, 2.0))
    assert int(aimed.found.sum()) >= 8
    assert torch.equal(aimed.labels[aimed.found], targets[aimed.found])
    assert_answers(affine, aimed.adversarials, aimed.labels)
    assert float(aimed.adversarials.abs().max()) <= 2
    assert float(aimed.distances[aimed.found].max()) <= 2.0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, bad) for kind in (DAA, Attraction) for bad in ({"steps": 0}, {"step": 0.0}, {"surrogate": "none"})),
        *((DAA, {"cloud": 0}), (DAA, {"deal_every": 0}), (DAA, {"surrogate": "dlr"})),
        (Attraction, {"strength": -1.0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        kind(**settings)


def test_on_a_trained_net_our_variant_is_at_least_as_strong_as_pgd_with_the_same_steps() -> None:
    """Measured robust accuracy at 0.1, 0.2, 0.3 and 0.32: 99, 98, 94 and 34 %; with PGD 99, 98, 96 and 48 %."""
    model = load_model("mnist-linf-at")
    inputs, labels = load_data("mnist-1000").batch(torch.arange(100))
    radii = (0.1, 0.2, 0.3, 0.32)
    ours, pgd = (attacked(ball, model, inputs, labels, *radii) for ball in (Attraction(steps=50), PGD(steps=50)))
    for radius in radii:
        fooled = [int((result.distances <= radius + eps_of(inputs)).sum()) for result in (ours, pgd)]
        # One sample at the radius itself may be fooled or not.
        assert fooled[0] >= fooled[1] - 1, radius
    assert int(ours.found.sum()) > int(pgd.found.sum()) + 5
