"""The attacks of ART: they change few pixels or approach the exact distance, and all their passes are counted."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd.attacks.radius_search import AtRadii
from pdpgd.baselines import art as theirs
from pdpgd.errors import InvalidInputError, MissingExtraError, PdpgdError
from support.frames import framed
from support.models import Affine, Counting, Stubborn, TinyConv, random_affine
from support.rounding import assert_answers

FEATURES, SAMPLES = 20, 4


@pytest.fixture
def affine(generator: torch.Generator) -> Affine:
    return random_affine(generator, features=FEATURES, classes=3, spread=0.2)


@pytest.fixture
def inputs(generator: torch.Generator) -> Tensor:
    return 0.5 + 0.02 * torch.randn(SAMPLES, FEATURES, generator=generator)


def check(result: Any, counting: Counting, model: Any, labels: Tensor) -> None:
    assert bool(result.found.all())
    assert not result.faults
    assert bool((result.labels != labels).all())
    assert_answers(model, result.adversarials, result.labels)
    assert int(result.forwards.sum()) == sum(counting.forwards)
    assert int(result.backwards.sum()) == sum(counting.backwards)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("theta", [1.0, -1.0, 0.1])
def test_jsma_moves_pairs_of_entries_towards_the_easiest_class(affine: Affine, inputs: Tensor, theta: float) -> None:
    labels, counting = affine.labels(inputs), Counting(affine)
    result = framed(theirs.ArtJSMA(theta=theta), "l0")(counting, inputs, labels, norm="l0")
    check(result, counting, affine, labels)
    assert int(result.backwards.sum()) > 0
    assert torch.equal(result.distances, (result.adversarials != inputs).sum(1).float())
    assert bool(((result.adversarials - inputs) * theta >= 0).all())
    assert float(result.distances.max()) <= 8
    one = framed(theirs.ArtJSMA(theta=theta, targets=1), "l0")(affine, inputs, labels, norm="l0")
    assert bool((result.distances <= one.distances).all())
    assert int(one.forwards.sum()) < int(result.forwards.sum())


def test_jsma_aims_at_the_target_alone(affine: Affine, inputs: Tensor) -> None:
    labels = affine.labels(inputs)
    targets = (labels + 1) % 3
    result = framed(theirs.ArtJSMA(), "l0")(affine, inputs, labels, norm="l0", targets=targets)
    assert bool(result.found.all())
    assert_answers(affine, result.adversarials, targets)


def test_pixel_changes_no_more_pixels_than_the_radius_and_no_other_entry(generator: torch.Generator) -> None:
    conv, images = TinyConv(generator), torch.rand(3, 3, 6, 6, generator=generator)
    labels, counting = conv(images).argmax(1), Counting(conv)
    method = AtRadii(balls=((3.0, theirs.ArtPixel(steps=4)), (6.5, theirs.ArtPixel(steps=4))))
    result = framed(method, "l0")(counting, images, labels, norm="l0")
    check(result, counting, conv, labels)
    assert result.backwards.tolist() == [0, 0, 0]
    changed = (result.adversarials != images).any(1).flatten(1).sum(1)
    assert torch.equal(changed.float(), result.distances)
    assert 1 <= int(changed.min()) <= int(changed.max()) <= 6
    again = framed(method, "l0")(conv, images, labels, norm="l0")
    assert torch.equal(again.adversarials, result.adversarials)
    nothing = framed(AtRadii(balls=((0.5, theirs.ArtPixel(steps=1)),)), "l0")(conv, images, labels, norm="l0")
    assert not bool(nothing.found.any())


def test_pixel_refuses_what_is_no_image(affine: Affine, inputs: Tensor) -> None:
    with pytest.raises(InvalidInputError, match="expected images"):
        framed(AtRadii(balls=((1.0, theirs.ArtPixel()),)), "l0")(affine, inputs, affine.labels(inputs), norm="l0")


def test_deepfool_comes_near_the_exact_distance(affine: Affine, inputs: Tensor) -> None:
    labels, counting = affine.labels(inputs), Counting(affine)
    result = framed(theirs.ArtDeepFool(), "l2")(counting, inputs, labels, norm="l2")
    check(result, counting, affine, labels)
    logits = affine(inputs).detach()
    apart = (affine.weight[labels][:, None] - affine.weight[None]).detach().norm(dim=2)
    least = ((logits.gather(1, labels[:, None]) - logits) / apart).scatter(1, labels[:, None], torch.inf).amin(1)
    assert bool((result.distances <= 1.05 * least).all())
    with pytest.raises(InvalidInputError, match="expected no targets"):
        framed(theirs.ArtDeepFool(), "l2")(affine, inputs, labels, norm="l2", targets=(labels + 1) % 3)


def test_ead_ends_at_its_target(affine: Affine, inputs: Tensor) -> None:
    labels, counting = affine.labels(inputs), Counting(affine)
    method = theirs.ArtEAD(binary_search_steps=4, steps=30, regularization=0.01, initial_const=1.0)
    targets = (labels + 1) % 3
    result = framed(method, "l1")(counting, inputs, labels, norm="l1", targets=targets)
    check(result, counting, affine, labels)
    assert_answers(affine, result.adversarials, targets)


@pytest.mark.parametrize(
    ("method", "norm"),
    [
        (theirs.ArtJSMA(), "l0"),
        (AtRadii(balls=((2.0, theirs.ArtPixel(steps=1)),)), "l0"),
        (theirs.ArtDeepFool(steps=1), "l2"),
        (theirs.ArtEAD(binary_search_steps=1, steps=1), "l1"),
    ],
)
def test_one_step_one_sample_two_classes_and_a_hopeless_input_will_do(
    generator: torch.Generator, method: Any, norm: str
) -> None:
    model, inputs = random_affine(generator, features=16, classes=2), torch.full((1, 1, 4, 4), 0.5)
    result = framed(method, norm)(model, inputs, model.labels(inputs), norm=norm)
    assert not result.faults
    stubborn = framed(method, norm)(Stubborn(), inputs, torch.zeros(1, dtype=torch.long), norm=norm)
    assert not bool(stubborn.found)
    assert not stubborn.faults


def test_without_the_library_the_user_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, affine: Affine, inputs: Tensor
) -> None:
    monkeypatch.setitem(sys.modules, "art", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pdpgd\[art\]'"):
        framed(theirs.ArtJSMA(), "l0")(affine, inputs, affine.labels(inputs), norm="l0")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (theirs.ArtJSMA, {"theta": 0.0}),
        (theirs.ArtJSMA, {"gamma": 1.5}),
        (theirs.ArtJSMA, {"targets": 0}),
        (theirs.ArtPixel, {"steps": 0}),
        (theirs.ArtDeepFool, {"overshoot": -0.1}),
        (theirs.ArtEAD, {"steps": 0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(PdpgdError, match="expected"):
        kind(**settings)
