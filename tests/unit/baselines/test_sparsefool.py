"""SparseFool finds the exact l1 minimum in the box on an affine model, and reports correct results elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from pdpgd import AttackResult, InvalidInputError
from pdpgd.attacks.frame import Framed
from pdpgd.baselines.sparsefool import NUDGE, SparseFool, _cross
from pdpgd.criteria import Box
from support.models import Affine, Cliff, Counting, RootAtHalf, Stubborn, TinyConv, random_affine
from support.results import assert_sizes
from support.rounding import assert_answers


def run(model: Any, inputs: Tensor, labels: Tensor, norm: str = "l1", **call: Any) -> AttackResult:
    settings = call.pop("settings", {})
    attack = Framed("sparsefool", ("l1", "l0"), lambda classes: SparseFool(**settings), targeted=False)
    return attack(model, inputs, labels, norm=norm, **call)


@pytest.fixture
def images(conv: TinyConv, generator: torch.Generator) -> Tensor:
    return (1.2 * torch.rand(12, 3, 6, 6, generator=generator) - 0.1).clamp(0, 1)


@pytest.fixture
def labels(conv: TinyConv, images: Tensor) -> Tensor:
    with torch.no_grad():
        return conv(images).argmax(1)


def exact_l1(model: Affine, point: Tensor, label: int, low: float, high: float) -> float:
    """Minimize sum (up + down) subject to equal logits of the two classes, by linear programming."""
    slope = (model.weight[label] - model.weight[1 - label]).detach().numpy()
    margin = slope @ point.numpy() + (model.bias[label] - model.bias[1 - label]).detach().numpy()
    room = np.concatenate([high - point.numpy(), point.numpy() - low])
    answer = linprog(
        np.ones(2 * len(slope)),
        A_ub=np.concatenate([slope, -slope])[None],
        b_ub=[-margin],
        bounds=np.stack([np.zeros_like(room), room], axis=1),
    )
    assert answer.status == 0
    return float(answer.fun)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 6.0)])
def test_on_an_affine_model_it_is_the_smallest_in_l1(low: float, high: float, generator: torch.Generator) -> None:
    model = random_affine(generator, features=30, classes=2, spread=4.0, dtype=torch.float64)
    inputs = low + (high - low) * torch.rand(25, 30, generator=generator, dtype=torch.float64)
    labels = model.labels(inputs)
    result = run(model, inputs, labels, bounds=(low, high))
    exact = torch.tensor([exact_l1(model, *row, low, high) for row in zip(inputs, labels.tolist(), strict=True)])
    assert bool(result.found.all())
    # DeepFool goes slightly beyond the boundary; where rounding falls short of it, the overshoot adds 2 %.
    # The linear program is solved to 1e-7, its constraint in the units of the weights.
    assert bool((result.distances >= exact - 1e-7 * (1 + exact)).all())
    assert bool((result.distances <= 1.02 * exact + 1e-2 * (high - low)).all())
    assert float((result.distances / exact).median()) < 1.005
    changed = result.adversarials != inputs
    assert bool((((result.adversarials == low) | (result.adversarials == high)) & changed).any()), "the box must matter"
    assert float(result.adversarials.min()) >= low
    assert float(result.adversarials.max()) <= high


@pytest.mark.parametrize("norm", ["l1", "l0"])
def test_points_are_adversarial_inside_the_box_and_of_the_size_said(
    conv: TinyConv, images: Tensor, labels: Tensor, norm: str
) -> None:
    before = images.clone()
    low, high = torch.tensor([0.0, -0.5, 0.0]), torch.tensor([1.0, 1.0, 1.5])
    result = run(conv, images, labels, norm, bounds=(low, high))
    assert bool(result.found.all())
    assert torch.equal(images, before)
    assert_answers(conv, result.adversarials, result.labels)
    assert bool((result.labels != labels).all())
    assert_sizes(result, images, norm)
    assert bool((result.adversarials >= low[:, None, None]).all())
    assert bool((result.adversarials <= high[:, None, None]).all())
    assert float((result.adversarials != images).float().mean()) < 0.3, "few coordinates"


def test_a_sample_is_treated_alike_in_any_batch(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    # In double precision, no choice depends on a last bit that depends on the batch.
    conv, images = conv.double(), images.double()
    together = run(conv, images, labels)
    for row in range(len(images)):
        alone = run(conv, images[row : row + 1], labels[row : row + 1])
        torch.testing.assert_close(alone.adversarials[0], together.adversarials[row])
        assert int(alone.forwards[0]) == int(together.forwards[row])


@pytest.mark.parametrize("model", [Stubborn(), Cliff(0.99)], ids=["stubborn", "without a slope"])
def test_what_cannot_be_fooled_is_not_found(model: nn.Module) -> None:
    inputs = torch.rand(3, 1, 2, 2, generator=torch.Generator().manual_seed(0)) / 2
    result = run(model, inputs, torch.zeros(3, dtype=torch.long), settings={"steps": 3, "deepfool_steps": 4})
    assert bool(result.distances.isinf().all())
    assert torch.equal(result.adversarials, inputs)


def test_an_undefined_slope_does_no_harm() -> None:
    inputs = torch.full((2, 3), 0.5, dtype=torch.float64)
    result = run(RootAtHalf(), inputs, torch.zeros(2, dtype=torch.long))
    assert bool(result.found.all())
    assert result.adversarials.dtype == torch.float64


def test_every_pass_is_counted(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    counting = Counting(conv)
    result = run(counting, images, labels, settings={"candidates": 3})
    assert sum(counting.forwards) == int(result.forwards.sum())
    assert sum(counting.backwards) == int(result.backwards.sum()) > 0


def test_a_step_on_an_affine_model_costs_what_it_must() -> None:
    model = Affine(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([0.0, 1.0]))
    result = run(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    assert bool(result.found)
    # The input, a step of DeepFool and the point beyond it, the normal, and the point itself.
    assert result.forwards.tolist() == [5]
    assert result.backwards.tolist() == [2]
    torch.testing.assert_close(result.adversarials, torch.tensor([[0.5, 0.25]]), atol=1e-3, rtol=0.0)


def test_a_larger_lambda_is_for_what_the_smaller_did_not_fool(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    once: dict[str, Any] = {"steps": 1, "deepfool_steps": 2}
    first = run(conv, images, labels, settings={**once, "lambdas": (1.0,)})
    ladder = run(conv, images, labels, settings=once)
    assert 0 < int(first.found.sum()) < int(ladder.found.sum())
    assert torch.equal(ladder.adversarials[first.found], first.adversarials[first.found])
    assert torch.equal(ladder.forwards[first.found], first.forwards[first.found])


def test_the_hyperplane_is_crossed_coordinate_by_coordinate(generator: torch.Generator) -> None:
    point = torch.rand(40, 12, generator=generator, dtype=torch.float64)
    normal = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    normal[:, 3] = 0.0
    way = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    box = Box(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    crossed = _cross(point, normal, way, box)
    for row in range(40):
        expected, need = point[row].clone(), abs(float(normal[row] @ way[row]))
        for place in normal[row].abs().argsort(descending=True).tolist():
            slope = float(normal[row, place])
            if need <= 1e-12 or slope == 0:
                break
            before = float(expected[place])
            expected[place] = min(1.0, max(0.0, before + need / slope))
            need -= slope * (float(expected[place]) - before)
        torch.testing.assert_close(crossed[row], expected)
        assert torch.equal(crossed[row] != point[row], expected != point[row])


class Slowly:
    """Run SparseFool by its formulas, one image and one entry at a time."""

    def __init__(self, model: nn.Module, label: int) -> None:
        self.model, self.label = model, label

    def logits(self, point: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(point[None])[0]

    def slope(self, point: Tensor, other: int) -> tuple[float, Tensor]:
        """Return z_other - z_label and its gradient."""
        leaf = point.clone().requires_grad_()
        logits = self.model(leaf[None])[0]
        lead = logits[other] - logits[self.label]
        return float(lead.detach()), torch.autograd.grad(lead, leaf)[0]

    def boundary(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the end point of DeepFool, and the normal there."""
        point, other = start, self.label
        for _ in range(50):
            slopes = [self.slope(point, other) for other in range(5) if other != self.label]
            lead, slope = min(slopes, key=lambda pair: abs(pair[0]) / float(pair[1].norm()))
            point = point + (abs(lead) / float(slope.norm()) + NUDGE) * slope / slope.norm()
            other = int(self.logits(start + 1.02 * (point - start)).argmax())
            if other != self.label:
                break
        normal = self.slope(point, other)[1]
        return point, normal / normal.norm()

    def crossed(self, start: Tensor, normal: Tensor, through: Tensor) -> Tensor:
        point = start.clone()
        for place in normal.flatten().abs().argsort(descending=True).tolist():
            lacking = float((normal * (through - point)).sum())
            if lacking <= 0:
                break
            moved = float(point.flatten()[place]) + lacking / float(normal.flatten()[place])
            point.view(-1)[place] = min(1.0, max(0.0, moved))
        return point

    def run(self, image: Tensor, factor: float) -> Tensor:
        point = image
        for _ in range(20):
            beyond, normal = self.boundary(point)
            point = self.crossed(point, normal, point + factor * (beyond - point))
            for found in (point, (image + 1.02 * (point - image)).clamp(0, 1)):
                if int(self.logits(found).argmax()) != self.label:
                    return found
        raise AssertionError("not fooled")


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_every_point_is_the_one_that_a_slow_transcription_reaches(
    conv: TinyConv, images: Tensor, labels: Tensor, factor: float
) -> None:
    conv, images = conv.double(), images.double()
    result = run(conv, images, labels, settings={"lambdas": (factor,)})
    for row, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        torch.testing.assert_close(result.adversarials[row], Slowly(conv, label).run(image, factor))


@pytest.mark.parametrize(
    "settings",
    [{"steps": 0}, {"candidates": 1}, {"deepfool_steps": 1.5}, {"overshoot": -0.1}, {"lambdas": ()}]
    + [{"lambdas": lambdas} for lambdas in ((2.0, 1.0), (0.0, 1.0))],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        SparseFool(**settings)
