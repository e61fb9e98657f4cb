"""A given start competes with what the attack finds, and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch import Tensor, nn

from pdpgd import InvalidInputError, Observation, PDPGDConfig, l0, pdpgd
from support.models import Affine, Counting, TinyConv

if TYPE_CHECKING:
    from .conftest import Case

FEATURES = 12
# One look at the input itself, which is right, and one at a step from it that is too short to matter.
HOPELESS = {"steps": 1, "finetune_steps": 0, "start_radius": 0.0, "primal_rate": 1e-9}


@pytest.fixture
def slope() -> Affine:
    """Two classes; z_0 - z_1 = w (x - 1/2). The weights differ much, so that l0 has something to choose."""
    weight = 1.5 ** torch.arange(FEATURES, dtype=torch.float64)
    return Affine(torch.stack([weight, 0 * weight]), torch.tensor([-float(weight.sum()) / 2, 0.0], dtype=torch.float64))


@pytest.fixture
def inputs(generator: torch.Generator) -> Tensor:
    """Eight points of class 0."""
    return 0.52 + 0.1 * torch.rand(8, FEATURES, generator=generator, dtype=torch.float64)


@pytest.fixture
def labels(inputs: Tensor) -> Tensor:
    return torch.zeros(len(inputs), dtype=torch.long)


def far(inputs: Tensor) -> Tensor:
    """Of class 1 and farther than any attack would end: every feature of it is changed by more than a half."""
    return torch.zeros_like(inputs)


def test_an_adversarial_start_is_returned_where_the_search_finds_nothing(
    case: Case, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    starts = inputs.clone()
    starts[2], starts[5] = 0.25, 0.4
    result = case.run(slope, inputs, labels, starts=starts, settings=HOPELESS)
    given = torch.zeros(8, dtype=torch.bool)
    given[[2, 5]] = True
    assert torch.equal(result.found, given)
    assert torch.equal(result.adversarials, starts)
    assert torch.equal(result.distances[given], case.size(starts - inputs)[given])
    assert torch.equal(result.labels, given.long())
    assert torch.equal(result.penalty[given], torch.full((2,), 0.1, dtype=torch.float64))
    assert result.distances[~given].isinf().all()


@pytest.mark.parametrize("kind", ["adversarial but worse", "not adversarial", "the input"])
def test_a_start_of_no_use_changes_nothing_but_a_forward_pass(
    case: Case, kind: str, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    starts = {"adversarial but worse": far(inputs), "not adversarial": torch.ones_like(inputs), "the input": inputs}
    settings = {"steps": 150}
    without = case.run(slope, inputs, labels, settings=settings)
    result = case.run(slope, inputs, labels, starts=starts[kind], settings=settings)
    assert without.found.all()
    assert torch.equal(result.distances, without.distances)
    assert torch.equal(result.adversarials, without.adversarials)
    assert torch.equal(result.labels, without.labels)
    assert torch.equal(result.penalty, without.penalty)
    assert torch.equal(result.forwards, without.forwards + 1)
    assert torch.equal(result.backwards, without.backwards)


def test_fine_tuning_begins_at_the_start_where_that_is_the_best(
    case: Case, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    starts = far(inputs)
    settings = {**HOPELESS, "finetune_steps": 200, "finetune_primal": 0.05 / HOPELESS["primal_rate"], "dual_rate": 0.5}
    result = case.run(slope, inputs, labels, starts=starts, settings=settings)
    assert (result.distances < case.size(starts - inputs)).all()
    assert (slope.labels(result.adversarials) == 1).all()


def test_a_sample_that_is_wrong_already_ignores_its_start(
    case: Case, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    labels[6] = 1
    model = Counting(slope)
    result = case.run(model, inputs, labels, starts=far(inputs), settings=HOPELESS)
    assert result.distances[6] == 0
    assert torch.equal(result.adversarials[6], inputs[6])
    assert result.forwards.tolist() == [4, 4, 4, 4, 4, 4, 1, 4]
    assert sum(model.forwards) == result.forwards.sum()


def test_starts_are_judged_in_batches_within_the_memory_limit(
    case: Case, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    model = Counting(slope)
    narrow = case.run(model, inputs, labels, starts=far(inputs), settings={**HOPELESS, "max_batch": 3})
    assert max(model.forwards) == 3
    assert torch.equal(narrow.adversarials, far(inputs))


def test_a_start_counts_when_it_has_the_target_and_only_then(case: Case, conv: TinyConv, images: Tensor) -> None:
    with torch.no_grad():
        answers = conv(images).argmax(1)
    targets = answers.roll(1)
    starts = images.roll(1, 0)
    differs = answers != targets
    assert differs.any()
    result = case.run(conv, images, answers, targets=targets, starts=starts, settings=HOPELESS)
    assert result.found.all()
    assert torch.equal(result.labels, targets)
    assert torch.equal(result.adversarials[differs], starts[differs])
    others = case.run(conv, images, answers, targets=(targets + 1) % 5, starts=starts, settings=HOPELESS)
    assert torch.equal(others.found, answers == (targets + 1) % 5)


@pytest.mark.parametrize("unit", ["pixel", "element"])
def test_a_start_of_one_pixel_settles_its_sample_at_once(
    unit: Literal["pixel", "element"], slope: Affine, labels: Tensor
) -> None:
    """Nothing is smaller in l0, so no iteration is made, neither for one sample nor for all of them."""
    inputs = torch.full((8, FEATURES), 0.5, dtype=torch.float64)
    inputs[:, 3] = 0.6
    starts = inputs.clone()
    starts[:, 3] = 0.4
    norm, config = l0(unit=unit), PDPGDConfig(steps=5, finetune_steps=5, restarts=2)
    seen: list[Observation] = []
    result = pdpgd(slope, inputs, labels, norm=norm, config=config, starts=starts, observe=seen.append)
    assert result.distances.tolist() == [1.0] * 8
    assert torch.equal(result.adversarials, starts)
    assert result.forwards.tolist() == [2] * 8
    assert result.backwards.tolist() == [0] * 8
    assert seen == []
    starts[5] = inputs[5]
    result = pdpgd(slope, inputs, labels, norm=norm, config=config, starts=starts)
    assert (result.backwards > 0).tolist() == [sample == 5 for sample in range(8)]


class Fickle(nn.Module):
    """Gives another answer in its second call, as a model near the boundary may in another batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.model(x)
        return logits.flip(1) if self.calls == 2 else logits


def test_the_input_itself_is_no_perturbation_whatever_the_model_says_of_it_later(
    case: Case, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    result = case.run(Fickle(slope), inputs, labels, starts=inputs, settings=HOPELESS)
    assert not result.found.any()


def test_a_start_outside_the_box_by_float_noise_is_clipped(
    case: Case, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    starts = far(inputs)
    starts[3, 4] = -5e-5
    result = case.run(slope, inputs, labels, starts=starts, settings=HOPELESS)
    assert torch.equal(result.adversarials, far(inputs))
    assert starts[3, 4] == -5e-5


def changed(points: Tensor, value: float) -> Tensor:
    points = points.clone()
    points[1, 2] = value
    return points


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda points: points[:7], r"expected \(8, 12\) of torch.float64 .*, got \(7, 12\) of torch.float64"),
        (lambda points: points.float(), r"expected \(8, 12\) of torch.float64 .*, got \(8, 12\) of torch.float32"),
        (lambda points: points.tolist(), "expected a tensor, got list"),
        (lambda points: changed(points, torch.nan), r"expected finite values, got NaN or inf in samples \[1\]"),
        (lambda points: changed(points, 1.01), r"expected values inside the box .*, got 0.* to 1.01; .* samples \[1\]"),
        (lambda points: changed(points, -0.01), r"expected values inside the box .*, got -0.01 to .* samples \[1\]"),
    ],
    ids=["shape", "dtype", "list", "nan", "above", "below"],
)
def test_bad_starts_are_refused(
    case: Case, spoil: Callable[[Tensor], Any], words: str, slope: Affine, inputs: Tensor, labels: Tensor
) -> None:
    with pytest.raises(InvalidInputError, match=f"^starts: {words}"):
        case.run(slope, inputs, labels, starts=spoil(inputs))
