"""PGD finds every point within reach on an affine model, never leaves the ball, and counts every pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd import InvalidInputError, Norm, UnknownNameError, l0
from pdpgd.attacks.balls import Room, ball_of, project, spread, steepest
from pdpgd.attacks.catalogue import ATTACKS, paper_settings
from pdpgd.attacks.frame import Framed
from pdpgd.attacks.pgd import PGD, PGDConfig, pgd
from pdpgd.attacks.radius_search import AtRadii
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model
from pdpgd.norms import norm_of
from pdpgd.proximal import prox_l2
from support.affine_distances import DUAL, to_each_class
from support.models import Affine, Counting, Stubborn, TinyConv, random_affine
from support.results import assert_sizes, within_radius
from support.rounding import assert_answers, eps_of, size_error, sum_error

RADIUS = {"linf": 0.03, "l2": 0.2, "l1": 0.5, "l0": 1.0}
RATE = {"linf": 2.5, "l2": 2.5, "l1": 10.0, "l0": 400.0}
ALL = ["linf", "l2", "l1", "l0"]


@pytest.fixture
def affine(generator: torch.Generator) -> Affine:
    # Two classes: with more, the loss may lead PGD to another class than the nearest.
    return random_affine(generator, features=40, classes=2)


@pytest.fixture
def inputs(generator: torch.Generator) -> Tensor:
    return 0.5 + 0.02 * torch.randn(20, 40, generator=generator)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(("share", "found"), [(1.02, True), (0.98, False)])
def test_a_point_is_found_if_and_only_if_the_ball_reaches_the_boundary(
    affine: Affine, inputs: Tensor, norm: str, share: float, found: bool
) -> None:
    labels = affine.labels(inputs)
    distances = to_each_class(affine, inputs, labels, norm).amin(1)
    # In l1 all of it goes to one entry. Those the box would come in between of are left out.
    near = (distances < 0.4).nonzero().flatten()
    assert len(near) >= (5 if norm == "l1" else len(inputs))
    for row in near.tolist():
        config = PGDConfig(radius=share * float(distances[row]), rate=RATE[norm])
        result = pgd(affine, inputs[row : row + 1], labels[row : row + 1], norm=norm, config=config)
        assert bool(result.found) is found


@pytest.mark.parametrize("norm", ALL)
def test_points_are_adversarial_inside_the_ball_and_inside_the_box(
    conv: TinyConv, images: Tensor, labels: Tensor, norm: str
) -> None:
    config = PGDConfig(radius=RADIUS[norm], restarts=2, rate=RATE[norm])
    result = pgd(conv, images, labels, norm=norm, config=config)
    assert 4 <= int(result.found.sum()) < len(images), "the radius must be one that fools some and not all"
    assert_answers(conv, result.adversarials, result.labels)
    assert torch.equal(result.labels != labels, result.found)
    assert_sizes(result, images, norm, at=result.found)
    assert within_radius(result.adversarials, images, norm, config.radius).all()
    assert bool(result.distances[~result.found].isinf().all())
    assert torch.equal(result.adversarials[~result.found], images[~result.found])
    assert result.distances[[3, 8]].tolist() == [0, 0]
    assert float(result.adversarials.min()) >= 0
    assert float(result.adversarials.max()) <= 1


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_sample_is_treated_alike_in_any_batch_and_the_seed_decides(
    conv: TinyConv, images: Tensor, labels: Tensor, norm: str
) -> None:
    # In double precision: in single, a slope of about zero may have another sign in another batch.
    conv.double()
    images = images.double()
    config = PGDConfig(radius=RADIUS[norm], steps=5)
    together = pgd(conv, images, labels, norm=norm, config=config, seed=3)
    small = PGDConfig(radius=RADIUS[norm], steps=5, max_batch=5)
    apart = pgd(conv, images, labels, norm=norm, config=small, seed=3)
    torch.testing.assert_close(together.adversarials, apart.adversarials)
    assert torch.equal(together.found, apart.found)
    tail = pgd(conv, images[6:], labels[6:], norm=norm, config=config, seed=3, indices=torch.arange(6, 12))
    torch.testing.assert_close(together.adversarials[6:], tail.adversarials)
    other = pgd(conv, images, labels, norm=norm, config=config, seed=4)
    assert not torch.equal(together.adversarials, other.adversarials)


def test_every_pass_is_counted_and_what_is_fooled_costs_no_more() -> None:
    counting = Counting(Stubborn())
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 0, 1])  # the third is wrong already
    result = pgd(counting, images, labels, norm="linf", config=PGDConfig(radius=0.1, steps=4, restarts=2))
    # A look at the inputs, then for each restart four steps and the last point.
    assert result.forwards.tolist() == [11, 11, 1]
    assert result.backwards.tolist() == [8, 8, 0]
    assert sum(counting.forwards) == 23
    assert sum(counting.backwards) == 16


def test_a_targeted_attack_ends_at_its_target(affine: Affine, inputs: Tensor) -> None:
    labels = affine.labels(inputs)
    result = pgd(affine, inputs, labels, norm="linf", targets=1 - labels, config=PGDConfig(radius=0.4))
    assert bool(result.found.all())
    assert torch.equal(result.labels, 1 - labels)
    assert_answers(affine, result.adversarials, 1 - labels)


@pytest.mark.parametrize(
    "settings",
    [{"radius": 0.0}, {"radius": float("nan")}, {"radius": 1.0, "steps": 0}, {"radius": 1.0, "restarts": 1.5}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        PGDConfig(**settings)


@pytest.mark.parametrize("name", ["mine", "l2"])
def test_a_norm_without_a_ball_is_refused_whatever_it_is_called(affine: Affine, inputs: Tensor, name: str) -> None:
    mine = Norm(name, lambda delta: 2 * norm_of("l2").size(delta), prox_l2)
    with pytest.raises(UnknownNameError, match="norm of a ball"):
        pgd(affine, inputs, affine.labels(inputs), norm=mine, config=PGDConfig(radius=1.0))


@pytest.mark.parametrize("norm", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_box_of_flat_inputs_is_kept_and_targets_are_reached(
    generator: torch.Generator, norm: str, dtype: torch.dtype
) -> None:
    affine = random_affine(generator, features=30, classes=4, dtype=dtype)
    inputs = torch.rand(15, 30, generator=generator, dtype=dtype)
    labels = affine.labels(inputs)
    targets = (labels + 1) % 4
    moved = Affine(affine.weight.detach() / 255, affine.bias.detach() + affine.weight.detach().sum(1) * 10 / 255)
    radius = {"linf": 0.8, "l2": 3.0, "l1": 12.0, "l0": 20}[norm]
    config = PGDConfig(radius=radius if norm == "l0" else 255 * radius, rate=RATE[norm])
    call = {"norm": norm, "targets": targets, "bounds": (-10.0, 245.0)}
    result = pgd(moved, 255 * inputs - 10, labels, config=config, **call)
    assert int(result.found.sum()) >= 12
    assert torch.equal(result.labels[result.found], targets[result.found])
    assert_answers(moved, result.adversarials, result.labels)
    assert float(result.adversarials.min()) >= -10
    assert float(result.adversarials.max()) <= 245
    assert within_radius(result.adversarials, 255 * inputs - 10, norm, config.radius).all()
    same = pgd(affine, inputs, labels, config=PGDConfig(radius=radius, rate=RATE[norm]), norm=norm, targets=targets)
    assert torch.equal(same.found, result.found), "the unit of the inputs must not matter"
    if dtype == torch.float64:  # in float32 rounding may choose another of two like entries
        torch.testing.assert_close((result.adversarials + 10) / 255, same.adversarials)


def test_entries_are_counted_where_the_norm_counts_entries(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    config = PGDConfig(radius=3.0, rate=400.0)
    result = pgd(conv, images, labels, norm=l0(unit="element"), config=config)
    assert int(result.found.sum()) >= 4
    assert int((result.adversarials != images).flatten(1).sum(1).max()) == 3


def test_the_first_start_in_l0_is_the_input_and_the_next_is_random(affine: Affine, inputs: Tensor) -> None:
    seen: list[Tensor] = []

    def model(points: Tensor) -> Tensor:
        seen.append(points.detach().clone())
        return Stubborn()(points)

    labels = torch.zeros(len(inputs), dtype=torch.long)
    pgd(model, inputs, labels, norm="l0", config=PGDConfig(radius=4.0, steps=1, restarts=2))
    _clean, first, _moved, second, _last = seen
    assert torch.equal(first, inputs)
    assert (second != inputs).sum(1).tolist() == [4] * len(inputs)


@pytest.mark.parametrize("radius", [2.0, 9.0])
def test_a_step_in_l0_is_of_the_same_length_whatever_the_radius(radius: float) -> None:
    gradient, delta = torch.tensor([[[[3.0, -1.0]]]]), torch.zeros(1, 1, 1, 2)
    room = Room(torch.tensor([radius]), delta - 2, delta + 2, 4.0)
    assert ball_of(norm_of("l0")).ahead(delta, gradient, room, 1.0).flatten().tolist() == [3.0, -1.0]


class Unmoved(nn.Module):
    """A net that always predicts class 0 and records the points it is queried at."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.seen = net, list[Tensor]()

    def forward(self, points: Tensor) -> Tensor:
        self.seen.append(points.detach().clone())
        logits: Tensor = self.net(points)
        return logits + 100 * nn.functional.one_hot(torch.tensor(0), logits.shape[1])

    def slope(self, point: Tensor) -> np.ndarray[Any, Any]:
        """Gradient of the loss to ascend, -max(0, 1 + margin)."""
        leaf = point[None].clone().requires_grad_()
        logits = self.net(leaf)
        lead = logits[0, 1:].max() - logits[0, 0]
        return torch.autograd.grad(lead, leaf)[0][0].numpy()


def followed(net: Unmoved, inputs: Tensor, norm: str, radius: float, settings: dict[str, Any]) -> list[Tensor]:
    """The points that PGD visits, including the start."""
    method = AtRadii(balls=((radius, PGD(surrogate="hinge", **settings)),))
    attack = Framed("pgd", (norm,), lambda classes: method)
    attack(net, inputs, torch.zeros(len(inputs), dtype=torch.long), norm=norm)
    return net.seen[1:]  # the first is a look at the inputs


@pytest.fixture
def edged(conv: TinyConv, generator: torch.Generator) -> tuple[Unmoved, Tensor]:
    """A net in double precision, and images of which half the entries stand at an edge of the box."""
    images = (2 * torch.rand(3, 3, 6, 6, generator=generator, dtype=torch.float64) - 0.5).clamp(0, 1)
    return Unmoved(conv.double()).eval(), images


def test_in_l0_every_step_is_the_one_that_a_slow_transcription_takes(edged: tuple[Unmoved, Tensor]) -> None:
    net, images = edged
    points = followed(net, images, "l0", 4.0, {"steps": 6, "step": 40.0})
    assert torch.equal(points[0], images)
    for before, after in pairwise(points):
        for row, image in enumerate(images.numpy()):
            slope = net.slope(before[row])
            moved = before[row].numpy() + 40.0 * slope / np.abs(slope).sum()
            inside = np.clip(moved, 0.0, 1.0)
            # What a pixel saves, of the square of the distance to `moved`, by not staying as it was.
            saved = ((moved - image) ** 2 - (moved - inside) ** 2).sum(0)
            expected = image.copy()
            for place in np.argsort(-saved.flatten(), kind="stable")[:4]:
                expected[:, place // 6, place % 6] = inside[:, place // 6, place % 6]
            torch.testing.assert_close(after[row], torch.from_numpy(expected))
    assert not torch.equal(points[-1], points[1]), "the pixels must change on the way"


def onto_l1_ball(v: np.ndarray[Any, Any], radius: float) -> np.ndarray[Any, Any]:
    """Project by sorting (Duchi et al. 2008)."""
    if np.abs(v).sum() <= radius:
        return v
    sizes = np.sort(np.abs(v).flatten())[::-1]
    levels = (np.cumsum(sizes) - radius) / np.arange(1, sizes.size + 1)
    return np.sign(v) * np.maximum(np.abs(v) - levels[np.nonzero(sizes > levels)[0].max()], 0.0)


def test_in_l1_every_step_in_turn_is_the_one_that_a_slow_transcription_takes(edged: tuple[Unmoved, Tensor]) -> None:
    net, images = edged
    settings = {"steps": 6, "step": 0.7, "sparsity": 0.1}
    points = followed(net, images, "l1", 5.0, {**settings, "exact": False})
    starts = (points[0] - images).flatten(1).abs().sum(1)
    assert (starts < 5.0).all(), "the box cuts a start that is as long as the radius"
    at_edge = 0
    for before, after in pairwise(points):
        for row, image in enumerate(images.numpy()):
            slope, here = net.slope(before[row]), before[row].numpy()
            largest = np.argsort(-np.abs(slope).flatten())[: round(0.1 * slope.size)]
            step = np.zeros(slope.size)
            step[largest] = 0.7 * 5.0 / len(largest) * np.sign(slope.flatten()[largest])
            moved = np.clip(here + step.reshape(slope.shape), 0.0, 1.0)
            at_edge += int((moved == here).flatten()[largest].sum())
            expected = np.clip(image + onto_l1_ball(moved - image, 5.0), 0.0, 1.0)
            torch.testing.assert_close(after[row], torch.from_numpy(expected))
    assert at_edge > 0, "some of the largest slopes must lead out of the box"


def test_in_l1_exactly_is_another_way_than_in_turn(edged: tuple[Unmoved, Tensor]) -> None:
    net, images = edged
    settings = {"steps": 2, "step": 0.7, "sparsity": 0.1, "from_input": True}
    exactly = followed(net, images, "l1", 5.0, settings)
    net.seen.clear()
    in_turn = followed(net, images, "l1", 5.0, {**settings, "exact": False})
    assert torch.equal(exactly[0], in_turn[0])
    assert not torch.allclose(exactly[1], in_turn[1])


def test_a_step_in_l1_moves_the_largest_slopes_that_can_move() -> None:
    gradient = torch.tensor([[5.0, -4.0, 3.0, -2.0, 1.0, 0.0, 0.5, 0.1, 0.2, 0.3], [0.0] * 10])
    delta = torch.zeros(2, 10)
    low, high = torch.full((2, 10), -1.0), torch.full((2, 10), 1.0)
    high[0, 0] = 0.0  # the steepest entry stands at its edge
    room = Room(torch.tensor([6.0, 6.0]), low, high, 1.0)
    ahead = ball_of(norm_of("l1")).ahead(delta, gradient, room, 0.2)
    assert ahead.tolist() == [[0.0, -3.0, 3.0] + [0.0] * 7, [0.0] * 10]


def test_a_step_of_the_ball_is_its_share_of_the_radius_and_has_a_default_for_each_norm() -> None:
    assert PGDConfig(radius=1.0, steps=50, rate=5.0).ball("l0").step == pytest.approx(0.1)
    assert PGDConfig(radius=1.0, steps=50).ball("l2").step == pytest.approx(0.05)
    assert PGDConfig(radius=1.0, steps=50).ball("l0").step is None
    assert PGD().step is None
    for settings in ({"step": 0.0}, {"sparsity": 0.0}, {"sparsity": 1.5}, {"steps": 0}):
        with pytest.raises(InvalidInputError, match="expected"):
            PGD(**settings)


def test_the_papers_pgd_is_cleverhans_in_l1_and_has_steps_in_l0_that_the_radius_does_not_measure() -> None:
    found = {norm: paper_settings("pgd", "mnist", norm, "plain") for norm in ALL}
    exactly = {"steps": 500}
    assert found == {"linf": exactly, "l2": exactly, "l1": {**exactly, "exact": False}, "l0": exactly}
    steps = {norm: sorted({choice["step"] for choice in ATTACKS["pgd"].combinations(norm)}) for norm in ALL}
    assert steps["linf"] == steps["l2"] == steps["l1"] == [0.01, 0.02, 0.04, 0.1, 0.2, 0.5, 1.0]
    scripts = {first * share for first in (1000, 10000) for share in steps["linf"]}
    assert steps["l0"] == pytest.approx(sorted(scripts))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_projection_and_direction_are_those_of_the_ball(norm: str, generator: torch.Generator) -> None:
    size, vectors = norm_of(norm).size, torch.randn(200, 3, 4, 4, generator=generator)
    inside = project(vectors, norm, 2.5)
    share = 2 * float(size_error(vectors, norm).amax())
    assert float(size(inside).max()) <= 2.5 * (1 + share)
    inner = size(vectors) <= 2.5 * (1 - share)
    assert bool(inner.any()) or norm == "l2"
    assert torch.equal(inside[inner], vectors[inner])
    # No point of the ball is nearer: the rest of the way is at a right or wider angle to every other point of it.
    others = spread(torch.rand(200, 3, 4, 4, generator=generator) * 2 - 1, norm, 2.5)
    assert float(size(others).max()) <= 2.5 * (1 + share)
    products = ((vectors - inside) * (others - inside)).flatten(1)
    # Each of the factors is off by a share of the vector's length, and so is the sum.
    lengths = vectors.flatten(1).norm(dim=1) * (others - inside).flatten(1).norm(dim=1)
    assert (products.sum(1) <= sum_error(lengths, products.shape[1] + 4)).all()
    # <g, u> over the unit ball is at most the dual norm of g, and steepest attains it.
    dual = torch.linalg.vector_norm(vectors.flatten(1), ord=DUAL[norm], dim=1)
    torch.testing.assert_close(
        (vectors * steepest(vectors, norm)).flatten(1).sum(1), dual, rtol=(2 * 48 + 2) * eps_of(dual), atol=0
    )
    assert torch.equal(steepest(torch.zeros(1, 4), norm), torch.zeros(1, 4))
    assert torch.equal(project(torch.zeros(1, 4), norm, 1.0), torch.zeros(1, 4))


def test_in_l0_the_allowed_number_of_pixels_is_never_exceeded_on_mnist() -> None:
    images, labels = load_data("mnist-1000").batch(torch.arange(20))
    model = load_model("mnist-plain")
    fooled = []
    for most in (3, 8, 20):
        config = PGDConfig(radius=most, steps=30, restarts=2)
        result = pgd(model, images, labels, norm="l0", config=config)
        changed = (result.adversarials != images).any(1).flatten(1).sum(1)
        assert int(changed.max()) <= most
        assert torch.equal(changed[result.found].float(), result.distances[result.found])
        fooled.append(int(result.found.sum()))
    assert fooled == sorted(fooled)
    assert 1 <= fooled[0] < fooled[2]
