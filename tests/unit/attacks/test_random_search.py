"""What Square and Sparse-RS share: points in ball and box, margins that never grow, slices, starts and counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd import InvalidInputError, Norm
from pdpgd.attacks.base import Bounds, Problem, pose
from pdpgd.attacks.frame import Rows, game_mode
from pdpgd.attacks.proposals import CHECK_EVERY, Schedule, Searched
from pdpgd.attacks.random_search import random_search
from pdpgd.norms import norm_of
from support.models import Affine, Counting, Stubborn, random_affine

NORMS = ("linf", "l2", "l1", "l0")
RADIUS = {"linf": 0.15, "l2": 0.6, "l1": 2.0, "l0": 4.0}
SHAPES = {"gray": (1, 8, 8), "color": (3, 6, 7), "sound": (2, 20), "flat": (40,)}
SAMPLES = 6


def scene(shape: tuple[int, ...], generator: torch.Generator, norm: str | Norm, **call: Any) -> Problem:
    """Pose a problem with a linear model in double precision, whose margins no batch changes by much."""
    features = int(torch.Size(shape).numel())
    model: nn.Module = call.pop("model", None) or random_affine(
        generator, features=features, classes=4, spread=2.0, dtype=torch.float64
    )
    inputs = torch.rand(SAMPLES, *shape, generator=generator, dtype=torch.float64)
    bounds: Bounds = call.pop("bounds", (0.0, 1.0))
    with torch.no_grad():
        labels = model(inputs).argmax(1)
    targets = (labels + 1) % 4 if call.pop("targeted", False) else None
    return pose(model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=3, indices=None, **call)


def searched(problem: Problem, radius: float | Tensor, rows: Rows | None = None, **settings: Any) -> Searched:
    rows = Rows.of(problem, torch.arange(len(problem.inputs))) if rows is None else rows
    radii = torch.as_tensor(radius, dtype=problem.inputs.dtype).expand(len(rows.samples))
    with game_mode():
        return random_search(problem, rows, radii, **settings)


each_norm = pytest.mark.parametrize("norm", NORMS)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@each_norm
def test_points_stay_in_the_ball_and_the_box_and_have_the_margin_that_is_stated(
    norm: str, shape: tuple[int, ...], generator: torch.Generator
) -> None:
    channels = shape[0] if len(shape) > 1 else 1
    low, high = -0.2 - 0.1 * torch.arange(channels), 1.3 + 0.5 * torch.arange(channels)
    bounds = (low, high) if len(shape) > 1 else (-0.2, 1.5)
    problem = scene(shape, generator, norm, bounds=bounds)
    radius = RADIUS[norm] * torch.tensor([0.25, 0.5, 1.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    found = searched(problem, radius, queries=40)
    assert (norm_of(norm).size(found.point - problem.inputs) <= radius * (1 + 1e-12)).all()
    assert torch.equal(problem.box.clip(found.point), found.point)
    assert not torch.equal(found.point.clamp(0, 1), found.point), "the whole box is used"
    margin = problem.criterion.margin(problem.classifier.logits(found.point, None))
    torch.testing.assert_close(found.margin, margin)
    assert torch.equal(found.prediction != problem.labels, found.margin < 0)


@pytest.mark.parametrize("targeted", [False, True])
@each_norm
def test_more_queries_never_raise_the_margin_and_lower_most(
    norm: str, targeted: bool, generator: torch.Generator
) -> None:
    problem = scene((3, 6, 6), generator, norm, targeted=targeted)
    margins = [searched(problem, RADIUS[norm] / 2, queries=n, total=200).margin for n in (1, 2, 9, 50, 200)]
    for before, after in pairwise(margins):
        assert (after <= before).all()
    assert (margins[-1] < margins[0])[margins[0] >= 0].all()
    assert (margins[0] >= 0).any()


@each_norm
def test_a_row_is_searched_alike_alone_and_in_a_batch(norm: str, generator: torch.Generator) -> None:
    problem = scene((3, 6, 6), generator, norm)
    radius = RADIUS[norm] * torch.tensor([0.5, 1.0, 3.0, 2.0, 0.02, 1.5], dtype=torch.float64)
    radius = radius.clamp(min=norm_of(norm).smallest)
    together = searched(problem, radius, queries=150)
    assert len(together.queries.unique()) > 1, "some leave earlier than others, which do not notice"
    for sample in range(SAMPLES):
        alone = searched(problem, radius[sample], Rows.of(problem, torch.tensor([sample])), queries=150)
        assert torch.equal(alone.point[0], together.point[sample])
        assert alone.queries[0] == together.queries[sample]


@each_norm
def test_restarts_and_seeds_differ(norm: str, generator: torch.Generator) -> None:
    problem = scene((3, 6, 6), generator, norm)
    rows = Rows.of(problem, torch.tensor([0, 0]), torch.tensor([0, 1]))
    first, second = searched(problem, RADIUS[norm], rows, queries=3).point
    assert not torch.equal(first, second)
    again = searched(replace(problem, seed=4), RADIUS[norm], rows, queries=3).point[0]
    assert not torch.equal(first, again)


@each_norm
def test_queries_are_counted_as_they_are_made_and_fooled_rows_leave(norm: str, generator: torch.Generator) -> None:
    net = random_affine(generator, features=108, classes=4, spread=2.0, dtype=torch.float64)
    model = Counting(net)
    problem = scene((3, 6, 6), generator, norm, model=model)
    model.forwards.clear()
    found = searched(problem, 2 * RADIUS[norm], queries=120)
    assert torch.equal(problem.ledger.forwards, found.queries)
    assert int(found.queries.sum()) == sum(model.forwards)
    assert not model.backwards
    fooled = found.margin < 0
    assert fooled.any()
    assert (found.queries[~fooled] == 120).all()
    first = next(
        n
        for n in range(1, 121)
        if bool((searched(problem, 2 * RADIUS[norm], queries=n, total=120).margin < 0)[fooled].any())
    )
    assert int(found.queries.min()) <= first + CHECK_EVERY


def test_a_hopeless_row_costs_all_queries_and_no_more() -> None:
    inputs = torch.rand(2, 1, 5, 5)
    model = Counting(Stubborn())
    for number, norm in enumerate(NORMS, start=1):
        problem = pose(
            model, inputs, torch.zeros(2).long(), norm=norm, targets=None, bounds=(0.0, 1.0), seed=0, indices=None
        )
        found = searched(problem, RADIUS[norm], queries=21)
        assert found.queries.tolist() == [21, 21]
        assert model.forwards == [2] * 21 * number


@each_norm
def test_a_start_is_projected_and_never_left_for_a_worse_point(norm: str, generator: torch.Generator) -> None:
    problem = scene((3, 6, 6), generator, norm)
    rows = Rows.of(problem, torch.arange(SAMPLES))
    inside = searched(problem, RADIUS[norm] / 2, queries=30)
    start = inside.point - rows.inputs
    looked = searched(problem, RADIUS[norm], start=start, queries=1)
    torch.testing.assert_close(looked.margin, inside.margin)
    torch.testing.assert_close(looked.point, inside.point)
    further = searched(problem, RADIUS[norm], start=start, queries=30, done=30, total=60)
    assert (further.margin <= looked.margin).all()
    shrunk = searched(problem, RADIUS[norm] / 4, start=start, queries=20)
    assert (norm_of(norm).size(shrunk.point - rows.inputs) <= RADIUS[norm] / 4 * (1 + 1e-12)).all()


@each_norm
def test_a_slice_draws_other_numbers_than_the_one_before(norm: str, generator: torch.Generator) -> None:
    problem = scene((3, 6, 6), generator, norm)
    start = torch.zeros_like(problem.inputs)
    points = [
        searched(problem, RADIUS[norm] / 8 if norm != "l0" else 1, start=start, queries=9, done=done, total=100).point
        for done in (0, 9)
    ]
    assert not torch.equal(*points)


@pytest.mark.parametrize("settings", [{"queries": 0}, {"queries": 5, "done": 6, "total": 10}])
def test_queries_that_do_not_fit_are_refused(settings: dict[str, int], generator: torch.Generator) -> None:
    with pytest.raises(InvalidInputError, match="queries: expected at least 1"):
        searched(scene((4,), generator, "linf"), 0.1, **settings)


def test_a_schedule_is_stretched_to_the_total_or_not() -> None:
    steps = ((10, 2.0), (5000, 4.0))
    assert [Schedule(0.8, steps).share(query, 100) for query in (0, 1, 50, 51, 99)] == [0.8, 0.4, 0.4, 0.2, 0.2]
    fixed = Schedule(0.8, steps, stretched=False)
    assert [fixed.share(query, 100) for query in (10, 11, 99)] == [0.8, 0.4, 0.4]


@each_norm
def test_candidates_are_adversarial_points_only(norm: str, generator: torch.Generator) -> None:
    problem = scene((3, 6, 6), generator, norm)
    rows = Rows.of(problem, torch.arange(SAMPLES))
    found = searched(problem, RADIUS[norm], queries=60)
    best = found.candidates(rows, problem)
    assert torch.equal(best.size.isfinite(), found.margin < 0)


@pytest.mark.parametrize("norm", ["linf", "l2", "l0"])
def test_a_plateau_is_crossed(norm: str) -> None:
    """Only a far corner of a staircase is adversarial, and a step that does not change the margin is kept."""

    class Stairs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            height = (x.flatten(1) > 0.5).sum(1).to(x.dtype)
            return torch.stack([torch.full_like(height, 2.5), (height / 3).floor()], 1)

    inputs = torch.full((1, 1, 4, 4), 0.45)
    problem = pose(
        Stairs().eval(), inputs, torch.zeros(1).long(), norm=norm, targets=None, bounds=(0.0, 1.0), seed=0, indices=None
    )
    radius = {"linf": 0.1, "l2": 0.6, "l0": 12}[norm]
    assert float(searched(problem, radius, queries=400).margin) < 0


def test_affine_margins_reach_the_exact_minimum_in_linf(generator: torch.Generator) -> None:
    """Two classes and a linear model: the smallest margin in the ball is known."""
    weight = torch.randn(2, 16, generator=generator, dtype=torch.float64)
    model = Affine(weight, torch.tensor([100.0, 0.0], dtype=torch.float64))
    problem = scene((1, 4, 4), generator, "linf", model=model)
    found = searched(problem, 0.05, queries=1500)
    slope = (weight[0] - weight[1]).reshape(1, 1, 4, 4)
    corner = problem.box.clip(problem.inputs - 0.05 * slope.sign())
    least = problem.criterion.margin(model(corner).detach())
    torch.testing.assert_close(found.margin, least)
