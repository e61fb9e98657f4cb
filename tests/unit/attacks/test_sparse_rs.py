"""Sparse-RS: which pixels it replaces, with which colors, and what it finds in l0 without gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AttackResult, InvalidInputError, Norm, UnknownNameError, l0
from pdpgd.attacks.base import Problem, pose
from pdpgd.attacks.catalogue import prepared
from pdpgd.attacks.frame import Framed, Rows
from pdpgd.attacks.proposals import Proposals, State
from pdpgd.attacks.sparse_rs import SparseRS, _first_of_equals, proposals_of
from support.models import Affine, Counting

SHAPES = {"gray": (1, 6, 7), "color": (3, 6, 7), "sound": (2, 9), "flat": (30,)}


def run(
    model: Any, inputs: Tensor, radius: float | list[float], norm: str | Norm = "l0", queries: int = 500, **call: Any
) -> AttackResult:
    radii = torch.as_tensor(radius, dtype=inputs.dtype).expand(len(inputs))
    ball = SparseRS(queries=queries)
    attack = Framed("sparse-rs", ("l0",), lambda classes: lambda task: ball(task, radii[task.samples], 0))
    labels = call.pop("labels", torch.zeros(len(inputs)).long())
    return attack(model, inputs, labels, norm=norm, **call)


def fragile(shape: tuple[int, ...], place: tuple[int, ...]) -> Affine:
    """A model of class 0 with a margin of 0.8 at x = 1/2, which one pixel can remove, and three others cannot."""
    weight = torch.full(shape, 0.05)
    pixel = (slice(None), *place) if len(shape) > 1 else place
    weight[pixel] = 2.0 / weight[pixel].numel()
    flat = weight.flatten()
    return Affine(torch.stack([flat, torch.zeros_like(flat)]), torch.tensor([0.8 - float(flat.sum()) / 2, 0.0]))


def start(
    inputs: Tensor, counts: list[float], norm: str | Norm = "l0", **call: Any
) -> tuple[Problem, Proposals, State]:
    problem = pose(
        lambda x: x.flatten(1), inputs, torch.zeros(len(inputs)).long(), norm=norm, targets=None,
        seed=0, indices=None, **{"bounds": (0.0, 1.0), **call},
    )  # fmt: skip
    moves = proposals_of(problem, Rows.of(problem, torch.arange(len(inputs))), torch.tensor(counts))
    draws = torch.rand(len(inputs), max(moves.first_draws), generator=torch.Generator().manual_seed(1))
    return problem, moves, moves.begin(draws)


@pytest.mark.parametrize(
    ("shape", "place"),
    [((1, 6, 7), (1, 5)), ((3, 6, 7), (5, 6)), ((2, 9), (8,)), ((30,), (4,))],
    ids=SHAPES,
)
@pytest.mark.parametrize("radius", [1.0, 3.5])
def test_the_pixel_that_matters_is_found(shape: tuple[int, ...], place: tuple[int, ...], radius: float) -> None:
    inputs = torch.full((2, *shape), 0.5)
    result = run(fragile(shape, place), inputs, radius, queries=1500)
    assert result.found.all()
    assert (result.distances <= radius).all()
    changed = result.adversarials != inputs
    pixels = changed.any(1) if len(shape) > 1 else changed
    assert pixels[(slice(None), *place)].all()


def test_no_more_pixels_change_than_the_radius_of_each_sample_allows() -> None:
    # A pixel reduces the margin by at most 0.5: a margin of 0.8 needs two pixels.
    model = Counting(Affine(torch.stack([torch.ones(9), torch.zeros(9)]), torch.tensor([-3.7, 0.0])))
    inputs = torch.full((6, 1, 3, 3), 0.5)
    result = run(model, inputs, [0.5, 1.0, 1.99, 2.0, 4.0, 100.0])
    assert result.found.tolist() == [False, False, False, True, True, True]
    assert (result.distances[3:] <= torch.tensor([2.0, 4.0, 9.0])).all()
    assert int(result.forwards[0]) == 1, "nothing may be changed, so nothing is tried"
    assert int(result.forwards.sum()) == sum(model.forwards)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_start_changes_k_pixels_to_other_corners_of_the_box(
    shape: tuple[int, ...], generator: torch.Generator
) -> None:
    counts = [1.0, 2.0, 7.0, 9.0]
    # Half of the entries are at a corner already, where the same corner would change nothing.
    inputs = (2 * torch.rand(4, *shape, generator=generator)).clamp(max=1.0)
    channels = shape[0] if len(shape) > 1 else 1
    low, high = -torch.arange(float(channels)), 1 + torch.arange(float(channels))
    bounds = (low, high) if len(shape) > 1 else (0.0, 1.0)
    problem, _, state = start(inputs, counts, bounds=bounds)
    changed = state.point != inputs
    assert problem.norm.size(state.point - inputs).tolist() == counts
    corner = (state.point == problem.box.low) | (state.point == problem.box.high)
    assert corner[changed].all()


def test_a_proposal_replaces_a_share_of_the_pixels_and_at_least_one(generator: torch.Generator) -> None:
    counts = [1.0, 5.0, 20.0, 40.0]
    inputs = torch.rand(4, 3, 20, 20, generator=generator)
    problem, moves, state = start(inputs, counts)
    for share, most in ((0.3, [1, 1, 6, 12]), (0.01, [1, 1, 1, 1])):
        for _ in range(5):
            after = moves.propose(state, torch.rand(4, max(moves.draws), generator=generator), share)
            assert problem.norm.size(after.point - inputs).tolist() == counts
            for row, (count, new) in enumerate(zip(counts, most, strict=True)):
                before, now = (set(at.places[row, : int(count)].tolist()) for at in (state, after))
                assert len(now) == count
                assert len(now - before) <= new
                untouched = list(now & before)
                planes, earlier = (at.point[row].flatten(1)[:, untouched] for at in (after, state))
                assert (planes == earlier).float().mean() > 1 - 2 / count or count == 1
            state = after


def test_with_all_pixels_changed_the_colors_are_searched(generator: torch.Generator) -> None:
    inputs = torch.full((2, 3, 2, 2), 0.5)
    weight = torch.randn(12, generator=generator)
    least = float(weight.sum() / 2 - weight.clamp(min=0).sum())
    # Only the best corner of all, or one nearly as good, is adversarial.
    model = Affine(torch.stack([weight, torch.zeros(12)]), torch.tensor([-float(weight.sum()) / 2 - 0.95 * least, 0.0]))
    assert run(model, inputs, 4.0, queries=800).found.all()


def test_elements_are_counted_where_the_norm_counts_them(generator: torch.Generator) -> None:
    norm = l0(unit="element")
    inputs = torch.rand(3, 3, 4, 4, generator=generator)
    problem, moves, state = start(inputs, [2.0, 5.0, 11.0], norm)
    assert (state.point != inputs).flatten(1).sum(1).tolist() == [2, 5, 11]
    after = moves.propose(state, torch.rand(3, max(moves.draws), generator=generator), 0.3)
    assert problem.norm.size(after.point - inputs).tolist() == [2, 5, 11]


def test_a_given_perturbation_keeps_its_pixels_and_colors(generator: torch.Generator) -> None:
    inputs = torch.rand(2, 3, 5, 5, generator=generator)
    _, moves, _ = start(inputs, [3.0, 4.0])
    delta = torch.zeros_like(inputs)
    delta[0, :, 1, 2], delta[1, 0, 4, 4], delta[1, :, 0, 3] = 0.1, 0.2, -0.1
    delta = (inputs + delta).clamp(0, 1) - inputs
    state = moves.resume(delta, torch.rand(2, max(moves.first_draws), generator=generator))
    torch.testing.assert_close(state.point, inputs + delta)
    assert 7 in state.places[0, :3]
    assert {3, 24} <= set(state.places[1].tolist())
    assert int(state.places[0, 3]) == 25, "the spare pixel"


def test_the_first_of_equal_places_is_found() -> None:
    places = torch.tensor([[3, 1, 3, 1, 0], [4, 4, 4, 2, 1]])
    assert _first_of_equals(places, 5).tolist() == [[True, True, False, False, True], [True, False, False, True, True]]


def test_more_queries_fool_more_images_also_without_gradients(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    class Rounded(nn.Module):
        """Gradients of zero everywhere."""

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = net((4 * x).round() / 4)
            return logits

    model = Rounded().eval()
    found = []
    for queries in (10, 300):
        attack = prepared("sparse-rs", "l0", settings={"radii": [20], "queries": queries}, max_batch=64)
        result = attack(model, *data, norm="l0")
        assert (result.distances[result.found] <= 20).all()
        assert (result.backwards == 0).all()
        found.append(int(result.found.sum()))
    assert found[1] >= max(12, found[0] + 2)


def test_a_target_is_reached_and_has_its_own_schedule(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    targets = net(data[0]).topk(2).indices[:, 1]
    attack = prepared("sparse-rs", "l0", settings={"radii": [30], "queries": 300}, max_batch=64)
    result = attack(net, *data, norm="l0", targets=targets)
    assert int(result.found.sum()) >= 8
    assert torch.equal(result.labels == targets, result.found)
    assert SparseRS().schedule(targeted=True).initial == 0.1
    assert SparseRS().schedule(targeted=False).initial == 0.3
    assert SparseRS(alpha=0.5).schedule(targeted=True).initial == 0.5


def test_without_radii_the_fewest_pixels_are_searched(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    result = prepared("sparse-rs", "l0", budget=400, max_batch=64)(net, *data, norm="l0")
    assert result.found.all()
    assert float(result.distances.median()) < 100
    assert int(result.forwards.max()) <= 401


@pytest.mark.parametrize("settings", [{"queries": 0}, {"alpha": 0.0}, {"alpha": 1.5}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        SparseRS(**settings)  # type: ignore[arg-type]  # on purpose


def test_other_balls_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="norm of Sparse-RS"):
        start(torch.rand(1, 4), [1.0], "l2")


def test_pixels_stay_distinct_in_a_crowd(generator: torch.Generator) -> None:
    inputs = torch.rand(40, 1, 4, 4, generator=generator)
    problem, moves, state = start(inputs, [7.0] * 40)
    after = moves.propose(state, torch.rand(40, max(moves.draws), generator=generator), 1.0)
    assert all(len(set(places)) == 7 for places in after.places.tolist())
    assert (problem.norm.size(after.point - inputs) == 7).all()
