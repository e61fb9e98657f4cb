"""PGD: on an affine model it finds what is there, it never leaves the ball, and every pass is counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import InvalidInputError, UnknownNameError
from pdpgd.attacks.balls import project, spread, steepest
from pdpgd.attacks.pgd import PGDConfig, pgd
from pdpgd.norms import norm_of
from support.models import Affine, Counting, Stubborn, TinyConv, random_affine

DUAL = {"linf": 1, "l2": 2}
RADIUS = {"linf": 0.03, "l2": 0.2}


def exact_distances(model: Affine, inputs: Tensor, labels: Tensor, norm: str) -> Tensor:
    """min over j of (z_y - z_j) / ||w_y - w_j||_dual; true where the box does not come in between."""
    logits = model(inputs).detach()
    gaps = logits.gather(1, labels[:, None]) - logits
    slopes = torch.linalg.vector_norm(
        model.weight[labels][:, None] - model.weight[None], ord=DUAL[norm], dim=2
    ).detach()
    return (gaps / slopes).scatter(1, labels[:, None], torch.inf).amin(1)


@pytest.fixture
def affine(generator: torch.Generator) -> Affine:
    # Two classes: with more, the loss may lead PGD to another class than the nearest.
    return random_affine(generator, features=40, classes=2)


@pytest.fixture
def inputs(generator: torch.Generator) -> Tensor:
    return 0.5 + 0.02 * torch.randn(20, 40, generator=generator)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("share", "found"), [(1.02, True), (0.98, False)])
def test_a_point_is_found_if_and_only_if_the_ball_reaches_the_boundary(
    affine: Affine, inputs: Tensor, norm: str, share: float, found: bool
) -> None:
    labels = affine.labels(inputs)
    distances = exact_distances(affine, inputs, labels, norm)
    assert float(distances.max()) < 0.4, "the box would come in between"
    for row in range(len(inputs)):
        config = PGDConfig(radius=share * float(distances[row]))
        result = pgd(affine, inputs[row : row + 1], labels[row : row + 1], norm=norm, config=config)
        assert bool(result.found) is found


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_points_are_adversarial_inside_the_ball_and_inside_the_box(
    conv: TinyConv, images: Tensor, labels: Tensor, norm: str
) -> None:
    config = PGDConfig(radius=RADIUS[norm], restarts=2)
    result = pgd(conv, images, labels, norm=norm, config=config)
    size = norm_of(norm).size(result.adversarials - images)
    assert 4 <= int(result.found.sum()) < len(images), "the radius must be one that fools some and not all"
    assert torch.equal(conv(result.adversarials).argmax(1), result.labels)
    assert torch.equal(result.labels != labels, result.found)
    assert torch.equal(result.distances[result.found], size[result.found])
    assert bool((size <= config.radius * (1 + 1e-5)).all())
    assert bool(result.distances[~result.found].isinf().all())
    assert torch.equal(result.adversarials[~result.found], images[~result.found])
    assert result.distances[[3, 8]].tolist() == [0, 0]
    assert float(result.adversarials.min()) >= 0
    assert float(result.adversarials.max()) <= 1


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_sample_is_treated_alike_in_any_batch_and_the_seed_decides(
    conv: TinyConv, images: Tensor, labels: Tensor, norm: str
) -> None:
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
    assert torch.equal(affine.labels(result.adversarials), 1 - labels)


@pytest.mark.parametrize(
    "settings",
    [{"radius": 0.0}, {"radius": float("nan")}, {"radius": 1.0, "steps": 0}, {"radius": 1.0, "restarts": 1.5}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        PGDConfig(**settings)


def test_a_norm_without_a_ball_is_refused(affine: Affine, inputs: Tensor) -> None:
    with pytest.raises(UnknownNameError, match="norm of a ball"):
        pgd(affine, inputs, affine.labels(inputs), norm="l0", config=PGDConfig(radius=1.0))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_projection_and_direction_are_those_of_the_ball(norm: str, generator: torch.Generator) -> None:
    size, vectors = norm_of(norm).size, torch.randn(200, 3, 4, 4, generator=generator)
    inside = project(vectors, norm, 2.5)
    assert float(size(inside).max()) <= 2.5 * (1 + 1e-6)
    kept = size(vectors) <= 2.5
    assert bool(kept.any()) or norm == "l2"
    assert torch.equal(inside[kept], vectors[kept])
    # No point of the ball is nearer: the rest of the way is at a right or wider angle to every other point of it.
    others = spread(torch.rand(200, 3, 4, 4, generator=generator) * 2 - 1, norm, 2.5)
    assert float(size(others).max()) <= 2.5 * (1 + 1e-6)
    assert float(((vectors - inside) * (others - inside)).flatten(1).sum(1).max()) <= 1e-4
    # <g, u> over the unit ball is at most the dual norm of g, and steepest attains it.
    dual = torch.linalg.vector_norm(vectors.flatten(1), ord=DUAL[norm], dim=1)
    torch.testing.assert_close((vectors * steepest(vectors, norm)).flatten(1).sum(1), dual)
    assert torch.equal(steepest(torch.zeros(1, 4), norm), torch.zeros(1, 4))
    assert torch.equal(project(torch.zeros(1, 4), norm, 1.0), torch.zeros(1, 4))
