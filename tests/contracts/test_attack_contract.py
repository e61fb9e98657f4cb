"""The contract of every attack in every norm, untargeted and targeted."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult
from support.models import Stubborn, TinyConv, WithLogits, ramp_affine, random_affine
from support.results import assert_left_alone, assert_shapes_and_dtypes, assert_sizes
from support.rounding import assert_answers

if TYPE_CHECKING:
    from .conftest import Case

WRONG_ALREADY = [3, 8]


@pytest.fixture(params=["untargeted", "targeted"])
def aim(request: pytest.FixtureRequest, targets: Tensor) -> dict[str, Any]:
    return {"targets": targets} if request.param == "targeted" else {}


PLAYED: dict[tuple[str, bool], AttackResult] = {}


def played(case: Case, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]) -> AttackResult:
    """The result of a call that many tests share; none of them writes into it."""
    key = case.name, bool(aim)
    if key not in PLAYED:
        PLAYED[key] = case.run(conv, images, labels, **aim)
    return PLAYED[key]


@pytest.fixture
def result(case: Case, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]) -> AttackResult:
    return played(case, conv, images, labels, aim)


@pytest.fixture
def plain(case: Case, conv: TinyConv, images: Tensor, labels: Tensor) -> AttackResult:
    """The untargeted result, to compare with calls that must not change it."""
    return played(case, conv, images, labels, {})


def fresh_answer(model: Any, points: Tensor) -> Tensor:
    with torch.no_grad():
        return model(points).argmax(1)


def assert_same_bits(one: AttackResult, other: AttackResult) -> None:
    for field in ("adversarials", "distances", "found", "labels", "forwards", "backwards"):
        assert torch.equal(getattr(one, field), getattr(other, field)), field
    torch.testing.assert_close(one.penalty, other.penalty, rtol=0, atol=0, equal_nan=True)


def test_most_samples_of_the_fixture_are_found(result: AttackResult) -> None:
    """Otherwise the tests below would pass for lack of results."""
    assert result.found.sum() >= 8


def test_every_point_is_inside_the_box(result: AttackResult) -> None:
    assert result.adversarials.min() >= 0
    assert result.adversarials.max() <= 1


def test_a_fresh_forward_pass_agrees_with_the_labels(result: AttackResult, conv: TinyConv) -> None:
    assert_answers(conv, result.adversarials, result.labels)


def test_what_is_found_is_adversarial(result: AttackResult, labels: Tensor, aim: dict[str, Any]) -> None:
    fooled = result.labels == aim["targets"] if aim else result.labels != labels
    assert torch.equal(fooled, result.found)


def test_distances_are_the_sizes_of_the_perturbations(case: Case, result: AttackResult, images: Tensor) -> None:
    assert_sizes(result, images, case.norm, at=result.found)


def test_what_is_not_found_stands_as_it_came_at_infinite_distance(result: AttackResult, images: Tensor) -> None:
    assert torch.equal(result.found, result.distances.isfinite())
    assert torch.equal(result.adversarials[~result.found], images[~result.found])
    assert result.penalty[~result.found].isnan().all()


def test_an_input_that_is_wrong_already_costs_one_forward_pass_and_is_left_alone(
    result: AttackResult, images: Tensor
) -> None:
    assert_left_alone(result, images, WRONG_ALREADY)


def test_shapes_and_dtypes_are_those_of_the_batch(result: AttackResult, images: Tensor) -> None:
    assert_shapes_and_dtypes(result, images)


def test_found_points_come_with_the_penalty_they_were_found_at(result: AttackResult) -> None:
    played = result.found.clone()
    played[WRONG_ALREADY] = False
    assert (result.penalty[played] > 0).all()
    assert result.penalty[played].isfinite().all()
    assert result.penalty[WRONG_ALREADY].isnan().all()


def test_the_same_seed_gives_the_same_bits(
    case: Case, result: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]
) -> None:
    torch.rand(5)
    assert_same_bits(case.run(conv, images, labels, **aim), result)


def test_another_seed_gives_another_result(
    case: Case, result: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]
) -> None:
    other = case.run(conv, images, labels, seed=1, **aim)
    assert not torch.equal(other.adversarials, result.adversarials)


def test_a_sample_of_a_batch_of_all_wrong_inputs_is_not_attacked(case: Case, conv: TinyConv, images: Tensor) -> None:
    labels = (fresh_answer(conv, images) + 1) % 5
    result = case.run(conv, images, labels)
    assert result.found.all()
    assert result.distances.eq(0).all()
    assert result.backwards.eq(0).all()


@pytest.mark.parametrize("targeted", [False, True])
def test_a_hopeless_input_is_reported_as_not_found(case: Case, targeted: bool, images: Tensor) -> None:
    labels = torch.zeros(len(images), dtype=torch.long)
    aim = {"targets": torch.full_like(labels, 2)} if targeted else {}
    result = case.run(Stubborn(), images, labels, **aim)
    assert not result.found.any()
    assert result.distances.isinf().all()
    assert torch.equal(result.adversarials, images)
    assert result.labels.eq(0).all()
    # Nothing to fine-tune: the search is all it cost.
    assert result.forwards.eq(27).all()
    assert result.backwards.eq(25).all()


def test_a_batch_of_one_works(case: Case, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]) -> None:
    one = {name: value[:1] for name, value in aim.items()}
    result = case.run(conv, images[:1], labels[:1], settings={"steps": 60}, **one)
    assert result.found.tolist() == [True]
    assert_answers(conv, result.adversarials, result.labels)
    assert_sizes(result, images[:1], case.norm)


def test_two_classes_work(case: Case, generator: torch.Generator) -> None:
    model = ramp_affine(8)
    inputs = 0.4 + 0.2 * torch.rand(6, 8, generator=generator)
    labels = model.labels(inputs)
    for aim in ({}, {"targets": 1 - labels}):
        result = case.run(model, inputs, labels, **aim)
        assert result.found.all()
        assert torch.equal(result.labels, 1 - labels)


def test_a_single_step_works(case: Case, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]) -> None:
    result = case.run(conv, images, labels, settings={"steps": 1, "finetune_steps": 1}, **aim)
    assert not result.adversarials.isnan().any()
    assert not result.distances.isnan().any()
    assert_answers(conv, result.adversarials, result.labels)


def test_the_model_is_left_as_it_was(case: Case, conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    conv.first.bias.requires_grad_(False)
    before = copy.deepcopy(conv.state_dict())
    wanted = {name: parameter.requires_grad for name, parameter in conv.named_parameters()}
    case.run(conv, images, labels)
    assert not conv.training
    assert before.keys() == conv.state_dict().keys()
    for name, value in conv.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype
        assert value.device == before[name].device
    assert all(parameter.grad is None for parameter in conv.parameters())
    assert {name: parameter.requires_grad for name, parameter in conv.named_parameters()} == wanted


def test_gradients_that_the_model_already_holds_are_kept(
    case: Case, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    for parameter in conv.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    case.run(conv, images, labels)
    assert all(parameter.grad.eq(7).all() for parameter in conv.parameters())


def test_the_callers_tensors_are_not_modified(
    case: Case, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]
) -> None:
    given, right = images.clone(), labels.clone()
    goals = {name: value.clone() for name, value in aim.items()}
    result = case.run(conv, images, labels, **aim)
    assert torch.equal(images, given)
    assert torch.equal(labels, right)
    assert all(torch.equal(aim[name], value) for name, value in goals.items())
    result.adversarials.zero_()
    assert torch.equal(images, given)


def test_inputs_that_require_a_gradient_are_taken_as_numbers(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    leaf = images.clone().requires_grad_()
    result = case.run(conv, leaf, labels)
    assert leaf.grad is None
    assert not result.adversarials.requires_grad
    assert_same_bits(result, plain)


def test_it_works_inside_inference_mode(
    case: Case, result: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]
) -> None:
    with torch.inference_mode():
        inside = case.run(conv, images, labels, **aim)
    assert_same_bits(inside, result)


def test_it_takes_tensors_that_were_made_in_inference_mode(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    with torch.inference_mode():
        made_inside, labels_inside = images.clone(), labels.clone()
        bounds = torch.zeros(3), torch.ones(3)
        inside = case.run(conv, made_inside, labels_inside, bounds=bounds)
    assert_same_bits(inside, plain)
    assert_same_bits(case.run(conv, made_inside, labels_inside), plain)


def test_it_works_in_any_gradient_mode_and_that_is_the_callers_again_after_the_call(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    case.run(conv, images, labels)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        inside = case.run(conv, images, labels)
        assert not torch.is_grad_enabled()
    assert_same_bits(inside, plain)


def test_outputs_with_logits_are_understood(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    assert_same_bits(case.run(WithLogits(conv), images, labels), plain)


def test_a_plain_function_is_a_model(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    assert_same_bits(case.run(lambda x: conv(x), images, labels), plain)


def test_double_precision_stays_double(case: Case, conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    conv.double()
    result = case.run(conv, images.double(), labels)
    assert result.adversarials.dtype == result.distances.dtype == torch.float64
    assert_answers(conv, result.adversarials, result.labels)
    assert_sizes(result, images.double(), case.norm, at=result.found)


def error_of(conv: TinyConv, points: Tensor) -> Tensor:
    """The dtype of logits under autocast."""
    with torch.autocast("cpu", enabled=False), torch.no_grad():
        return conv.rounding(points, stored=torch.bfloat16)


def test_autocast_lowers_the_models_precision_but_not_the_results(
    case: Case, conv: TinyConv, images: Tensor, aim: dict[str, Any]
) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            assert conv(images).dtype == torch.bfloat16
        labels = fresh_answer(conv, images)
        result = case.run(conv, images, labels, **aim)
        assert_answers(conv, result.adversarials, result.labels, error=error_of(conv, result.adversarials))
    assert result.adversarials.dtype == result.distances.dtype == torch.float32
    assert result.found.sum() >= 8
    assert_sizes(result, images, case.norm, at=result.found)


def test_frozen_and_trainable_models_are_attacked_alike(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    conv.requires_grad_(False)
    assert_same_bits(case.run(conv, images, labels), plain)


def test_labels_of_any_integer_type_mean_the_same(
    case: Case, plain: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    assert_same_bits(case.run(conv, images, labels.to(torch.int32)), plain)


@pytest.mark.parametrize("shape", [(20,), (3, 4, 4), (5, 4)])
def test_inputs_of_any_shape_work(case: Case, shape: tuple[int, ...], generator: torch.Generator) -> None:
    features = torch.Size(shape).numel()
    model = random_affine(generator, features=features, classes=4)
    inputs = torch.rand(5, *shape, generator=generator)
    result = case.run(model, inputs, model.labels(inputs))
    assert result.adversarials.shape == inputs.shape
    assert result.found.all()
    assert_answers(model, result.adversarials, result.labels)
    assert_sizes(result, inputs, case.norm)
