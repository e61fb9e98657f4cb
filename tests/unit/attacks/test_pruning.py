"""Superfluous changes are reverted one by one, and no necessary change with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pdpgd import Norm, l0
from pdpgd.attacks.auto_config import AutoConfig
from pdpgd.attacks.auto_plan import prune
from pdpgd.attacks.base import pose
from pdpgd.attacks.best import Best
from pdpgd.attacks.descent import Search
from pdpgd.attacks.frame import Attempt
from pdpgd.norms import norm_of
from support.models import Affine, Counting

FEATURES = 6


@pytest.fixture
def model() -> Affine:
    """Two classes; class 0 leads by 4 x_0 + x_1 + x_2 + ... - 1: the first feature alone can decide."""
    weight = torch.tensor([4.0] + [1.0] * (FEATURES - 1))
    return Affine(torch.stack([weight, 0 * weight]), torch.tensor([-1.0, 0.0]))


def search_of(model: Affine | Counting, inputs: Tensor, points: Tensor, *, norm: str | Norm = "l0") -> Search:
    """A search that has found `points`, all of class 1."""
    labels = torch.zeros(len(inputs), dtype=torch.long)
    problem = pose(model, inputs, labels, norm=norm, targets=None, bounds=(0.0, 1.0), seed=0, indices=None, starts=None)
    attempt = Attempt(problem, labels, labels != 0, 2, torch.zeros(len(inputs)), Best.none(inputs), max_batch=256)
    search = Search(attempt, budget=1000, observe=None, config=AutoConfig())
    size = norm_of(norm).size(points - inputs)
    found = Best(size, points.clone(), torch.ones_like(labels), torch.full_like(size, torch.nan))
    search.best.improve(found, at=torch.arange(len(inputs)))
    return search


def everyone(search: Search) -> Tensor:
    return torch.arange(len(search.problem.inputs))


def changed(inputs: Tensor, changes: dict[int, float], row: int = 0) -> Tensor:
    points = inputs.clone()
    for feature, change in changes.items():
        points[row, feature] += change
    return points


@pytest.fixture
def inputs() -> Tensor:
    """The lead is about 4/2 + 5/5 - 1 = 2: the first feature has to fall by more than a half, and a little of the rest.

    Without the first, the rest leads by 0.005: by far more than their sum is rounded.
    """
    inputs = torch.full((1, FEATURES), 0.201)
    inputs[:, 0] = 0.52
    return inputs


def test_superfluous_features_are_taken_back(model: Affine, inputs: Tensor) -> None:
    points = changed(inputs, {0: -0.52, 1: -0.2, 3: -0.1, 5: -0.05})
    search = search_of(model, inputs, points)
    assert model.labels(points).tolist() == [1]
    prune(search, everyone(search), passes=10)
    # With the first in place 2.08 + 1 - 1 > 0; without it the rest leads by 0.005, so that one more has to stay.
    assert search.best.size.tolist() == [2.0]
    assert torch.equal(search.best.point, changed(inputs, {0: -0.52, 1: -0.2}))


def test_the_smallest_changes_are_tried_first(model: Affine, inputs: Tensor) -> None:
    search = search_of(model, inputs, changed(inputs, {0: -0.52, 5: -0.2, 2: -0.03, 4: -0.1}))
    prune(search, everyone(search), passes=1)
    assert torch.equal(search.best.point, changed(inputs, {0: -0.52, 5: -0.2, 4: -0.1}))
    assert search.best.size.tolist() == [3.0]


def test_changes_that_are_all_needed_stay(model: Affine, inputs: Tensor) -> None:
    """Without the first the rest leads by 0.065; the two changes of 0.05 are 0.1 together."""
    inputs[:, 3] += 0.06
    needed = changed(inputs, {0: -0.52, 3: -0.05, 5: -0.05})
    search = search_of(model, inputs, needed)
    assert model.labels(needed).tolist() == [1]
    prune(search, everyone(search), passes=10)
    assert torch.equal(search.best.point, needed)
    assert search.best.size.tolist() == [3.0]


def test_after_a_change_that_is_needed_the_next_one_is_tried(model: Affine) -> None:
    """The first feature moves the least, and is needed; the others are not."""
    inputs = torch.full((1, FEATURES), 0.02)
    inputs[:, 0] = 0.25
    inputs[:, 1] = 0.9
    inputs[:, 2] = 0.8
    points = changed(inputs, {0: -0.25, 1: -0.9, 2: -0.8})
    search = search_of(model, inputs, points)
    prune(search, everyone(search), passes=2)
    assert torch.equal(search.best.point, changed(inputs, {0: -0.25, 1: -0.9}))


@pytest.mark.parametrize("unit", ["pixel", "element"])
def test_pixels_of_images_are_taken_back_with_all_their_channels(unit: str) -> None:
    """The mean of all channels decides; one pixel is enough, four were changed, each in another number of channels."""
    model = Affine(torch.stack([torch.ones(48), torch.zeros(48)]), torch.tensor([-46.5, 0.0]))
    inputs = torch.ones(1, 3, 4, 4)
    points = inputs.clone()
    points[0, :, 1, 2] = 0.0
    points[0, 0, 0, 0] = 0.9
    points[0, :2, 3, 1] = 0.7
    points[0, 1, 2, 2] = 0.5
    norm = l0(unit=unit)  # type: ignore[arg-type]  # one of the two
    search = search_of(model, inputs, points, norm=norm)
    prune(search, everyone(search), passes=10)
    wanted = inputs.clone()
    wanted[0, :, 1, 2] = 0.0
    assert torch.equal(search.best.point, wanted)
    assert search.best.size.tolist() == [1.0 if unit == "pixel" else 3.0]


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 50])
def test_no_more_than_the_passes_given_are_spent_and_all_are_in_the_books(
    passes: int, model: Affine, inputs: Tensor
) -> None:
    counting = Counting(model)
    points = changed(inputs, {0: -0.52, 1: -0.2, 2: -0.2, 3: -0.1, 4: -0.15, 5: -0.05})
    search = search_of(counting, inputs, points)
    prune(search, everyone(search), passes=passes)
    assert len(counting.forwards) == int(search.problem.ledger.forwards) == min(passes, 6)
    assert int(search.problem.ledger.backwards) == 0
    # Five are superfluous, but the sixth of six tries may be one of the needed two.
    assert search.best.size.tolist() == [6.0 - min(passes, 4)]


def test_a_batch_is_pruned_row_by_row(model: Affine, generator: torch.Generator) -> None:
    inputs = torch.full((5, FEATURES), 0.201)
    inputs[:, 0] = 0.52
    points = inputs * (torch.rand(5, FEATURES, generator=generator) < 0.5)
    points[:, 0] = 0.0
    points[:, 1] = 0.1
    points[3] = inputs[3]
    points[3, :2] = 0.0
    counts = (points != inputs).sum(1)
    assert len(counts.unique()) >= 3
    assert model.labels(points).eq(1).all()
    search = search_of(model, inputs, points)
    prune(search, everyone(search), passes=100)
    assert model.labels(search.best.point).eq(1).all()
    assert torch.equal(search.best.size, norm_of("l0").size(search.best.point - inputs))
    assert (search.best.size <= 2).all()
    assert torch.equal(search.problem.ledger.forwards, counts)
    for row in range(5):
        alone = search_of(model, inputs[row : row + 1], points[row : row + 1])
        prune(alone, everyone(alone), passes=100)
        assert torch.equal(alone.best.point[0], search.best.point[row])


def test_samples_that_are_not_named_are_left_alone(model: Affine, inputs: Tensor) -> None:
    inputs = inputs.repeat(3, 1)
    points = inputs.clone()
    points[:] = 0.0
    search = search_of(model, inputs, points)
    prune(search, torch.tensor([2, 0]), passes=100)
    assert search.best.size.tolist() == [2.0, 6.0, 2.0]
    assert torch.equal(search.best.point[1], points[1])
    assert search.problem.ledger.forwards.tolist() == [6, 0, 6]


def test_only_entries_that_were_changed_are_moved_and_only_to_where_they_came_from(
    model: Affine, generator: torch.Generator
) -> None:
    inputs = 0.2 + 0.1 * torch.rand(20, FEATURES, generator=generator)
    points = torch.where(torch.rand(20, FEATURES, generator=generator) < 0.7, 0.1 * inputs, inputs)
    points[:, 0] = 0.0
    right = model.labels(inputs) == 0
    fooled = model.labels(points) == 1
    inputs, points = inputs[right & fooled], points[right & fooled]
    assert len(inputs) >= 8
    search = search_of(model, inputs, points)
    prune(search, everyone(search), passes=100)
    after = search.best.point
    assert ((after == points) | (after == inputs)).all()
    assert model.labels(after).eq(1).all()
    # Nothing that is left can be taken back alone: each was tried on the point as it was by then.
    for feature in range(FEATURES):
        fewer = after.clone()
        fewer[:, feature] = inputs[:, feature]
        same = (after[:, feature] == inputs[:, feature]) | (model.labels(fewer) == 0)
        assert same.all(), feature
