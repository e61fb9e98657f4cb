"""The cheap attacks find adversarial examples, the same alone and in a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pdpgd.evaluation.referee import Referee
from pdpgd.evaluation.sanity import cheap_points
from pdpgd.runs.reliability import CHEAP
from support.models import Counting, Stubborn, TinyConv, ramp_affine
from support.rounding import assert_fooled

Found = dict[str, tuple[Tensor, Tensor]]
ALONE = CHEAP[:-1]


def run(model: nn.Module, images: Tensor, labels: Tensor, *, indices: Tensor | None = None, seed: int = 0) -> Found:
    referee = Referee(model, images, labels, batch_size=4)
    clean = referee.judge_inputs()
    indices = torch.arange(len(images)) if indices is None else indices
    offered = cheap_points(referee, model, clean.prediction, ~clean.valid, seed=seed, indices=indices)
    return {name: (points, found) for name, points, found in offered}


@pytest.fixture
def right(model: TinyConv, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        right: Tensor = model(images).argmax(1) == labels
    return right


def test_every_point_is_inside_the_box_and_adversarial(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    offered = run(model, images, labels)
    assert tuple(offered) == CHEAP
    for points, found in offered.values():
        assert found.any()
        assert_fooled(model, points[found], labels[found])
        assert points.amin() >= 0
        assert points.amax() <= 1
        assert points.dtype == torch.float32


def test_a_misclassified_row_is_never_returned(model: TinyConv, images: Tensor, labels: Tensor, right: Tensor) -> None:
    for points, found in run(model, images, labels).values():
        assert not (found & ~right).any()
        assert torch.equal(points[~right], images[~right])


def test_a_row_that_is_not_fooled_stands_as_it_came(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    for points, found in run(model, images, labels).values():
        torch.testing.assert_close(points[~found], images[~found], rtol=0, atol=0)


@pytest.mark.parametrize("rows", [[0], [9, 2], [1, 3, 5, 7, 9]])
def test_other_samples_in_the_batch_change_nothing(
    model: TinyConv, images: Tensor, labels: Tensor, rows: list[int]
) -> None:
    whole = run(model, images, labels)
    part = run(model, images[rows], labels[rows], indices=torch.tensor(rows))
    for name in ALONE:
        points, found = whole[name]
        assert torch.equal(part[name][1], found[rows])
        torch.testing.assert_close(part[name][0], points[rows], rtol=0, atol=1e-5)


def test_noise_depends_on_the_seed_and_the_place_in_the_data_set(
    model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    first, again, other, moved = (
        run(model, images, labels, seed=seed, indices=torch.arange(10) + shift)["noise"][0]
        for seed, shift in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, moved)


def test_a_model_that_cannot_be_fooled_is_not() -> None:
    inputs = torch.linspace(0, 0.02, 3 * 12).reshape(3, 3, 2, 2)
    offered = run(Stubborn(), inputs, torch.zeros(3, dtype=torch.long))
    # No image is of another class, so there is none to go towards.
    assert tuple(offered) == ALONE
    for points, found in offered.values():
        assert not found.any()
        assert torch.equal(points, inputs)


def test_nothing_is_returned_where_every_row_is_misclassified(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    with torch.no_grad():
        wrong = (model(images).argmax(1) + 1) % 5
    assert run(model, images, wrong) == {}


def test_the_sign_step_is_near_the_exact_distance_of_an_affine_model() -> None:
    inputs = torch.full((2, 3, 2, 2), 0.6)
    inputs[1] = 0.5 + 1 / 64
    points, found = run(ramp_affine(12), inputs, torch.zeros(2, dtype=torch.long))["sign step"]
    size = (points - inputs).flatten(1).abs().amax(1)
    exact = torch.tensor([0.1, 1 / 64])
    assert found.all()
    # Bisected to an eighth of the last halving.
    assert (size > exact).all()
    assert (size < exact * 1.13).all()


def test_the_steepest_pixels_are_whole_pixels_and_few() -> None:
    model = ramp_affine(12)
    inputs = torch.full((1, 3, 2, 2), 0.52)
    points, found = run(model, inputs, torch.zeros(1, dtype=torch.long))["steepest pixels"]
    changed = (points != inputs)[0]
    assert found.all()
    # The last pixel has the largest weights, and one pixel to black is enough.
    assert changed.any(0).flatten().tolist() == [False, False, False, True]
    assert (points[0][changed] == 0).all()


def test_another_image_is_the_nearest_of_another_class() -> None:
    inputs = torch.tensor([0.9, 0.45, 0.1, 0.8]).reshape(4, 1, 1, 1).expand(4, 3, 2, 2).clone()
    model = ramp_affine(12)
    points, found = run(model, inputs, model.labels(inputs))["another image"]
    assert found.all()
    # Each point lies between its image and the nearest one beyond 1/2: rows 1 and 3 are each other's.
    for row, other in ((0, 1), (1, 3), (2, 3), (3, 1)):
        low, high = sorted((float(inputs[row, 0, 0, 0]), float(inputs[other, 0, 0, 0])))
        assert low <= float(points[row].min()) <= float(points[row].max()) <= high


def test_every_pass_is_counted_and_the_model_left_as_it_was(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    counting = Counting(model)
    referee = Referee(counting, images, labels, batch_size=4)
    clean = referee.judge_inputs()
    list(cheap_points(referee, counting, clean.prediction, ~clean.valid, seed=0, indices=torch.arange(len(images))))
    assert referee.forwards == sum(counting.forwards)
    assert referee.backwards == sum(counting.backwards) == int((~clean.valid).sum())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training
