"""Any box, in any unit: a result in [0, 255] is the result in [0, 1], times 255."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from support.models import Affine, TinyConv, random_affine

if TYPE_CHECKING:
    from .conftest import Case


@pytest.fixture
def model(generator: torch.Generator) -> Affine:
    return random_affine(generator, features=27, classes=4, dtype=torch.float64)


@pytest.fixture
def inputs(model: Affine, generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 3, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-1.0, 1.0), (10.0, 10.01)])
def test_another_unit_gives_the_same_distances_in_that_unit(
    case: Case, low: float, high: float, model: Affine, inputs: Tensor
) -> None:
    width = high - low
    labels = model.labels(inputs)
    settings = {"steps": 60, "finetune_steps": 20}
    plain = case.run(model, inputs, labels, settings=settings)
    scaled = case.run(
        lambda x: model((x - low) / width), low + inputs * width, labels, bounds=(low, high), settings=settings
    )
    assert plain.found.all()
    assert scaled.adversarials.min() >= low
    assert scaled.adversarials.max() <= high
    if "l0" in case.name:
        assert torch.equal(scaled.distances, plain.distances)
    else:
        torch.testing.assert_close(scaled.distances, plain.distances * width, rtol=1e-3, atol=0.0)


def test_single_precision_in_0_to_255_is_single_precision_in_0_to_1(case: Case, model: Affine, inputs: Tensor) -> None:
    model, inputs = model.float(), inputs.float()
    labels = model.labels(inputs)
    plain = case.run(model, inputs, labels)
    scaled = case.run(lambda x: model(x / 255), inputs * 255, labels, bounds=(0, 255))
    if "l0" in case.name:
        # A threshold turns a last bit into a whole pixel, so rounding may part a run from its twin.
        assert (scaled.distances == plain.distances).sum() >= 6
    else:
        torch.testing.assert_close(scaled.distances, plain.distances * 255, rtol=1e-3, atol=0.0)


def test_each_channel_stays_in_the_bounds_of_its_own(case: Case, conv: TinyConv, images: Tensor) -> None:
    low, high = torch.tensor([0.0, 0.2, -1.0]), torch.tensor([1.0, 0.8, 1.0])
    inputs = low[:, None, None] + images * (high - low)[:, None, None]
    with torch.no_grad():
        labels = conv(inputs).argmax(1)
    result = case.run(conv, inputs, labels, bounds=(low, high))
    assert result.found.sum() >= 6
    for channel in range(3):
        values = result.adversarials[:, channel]
        assert values.min() >= low[channel]
        assert values.max() <= high[channel]
    # Not the intersection of the channels either: the wide one is used.
    assert result.adversarials[:, 2].min() < -0.5


def test_bounds_may_be_given_value_by_value(case: Case, conv: TinyConv, images: Tensor) -> None:
    low, high = (images - 0.05).clamp(min=0).amin(0), (images + 0.05).clamp(max=1).amax(0)
    with torch.no_grad():
        labels = conv(images).argmax(1)
    result = case.run(conv, images, labels, bounds=(low, high))
    assert (result.adversarials >= low).all()
    assert (result.adversarials <= high).all()
    assert result.found.any()


def test_flat_inputs_take_one_bound_a_feature(case: Case, generator: torch.Generator) -> None:
    model = random_affine(generator, features=6, classes=3)
    low, high = torch.tensor([0.0, 0.4, 0.4, 0.0, 0.45, 0.0]), torch.tensor([1.0, 0.6, 0.6, 1.0, 0.55, 1.0])
    inputs = low + (high - low) * torch.rand(5, 6, generator=generator)
    result = case.run(model, inputs, model.labels(inputs), bounds=(low, high))
    assert (result.adversarials >= low).all()
    assert (result.adversarials <= high).all()
    assert result.found.any()
