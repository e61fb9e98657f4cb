"""The bridge to other libraries: failures, returned points, passes and random numbers are all checked."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd.attacks.base import AttackResult
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Framed, Task
from pdpgd.baselines.bridge import Foreign, by_library, within_radius
from pdpgd.errors import AttackError, InvalidInputError, ModelError
from support.models import Affine, Counting, RootAtHalf, TinyConv, random_affine
from support.results import assert_sizes
from support.rounding import assert_answers

FEATURES = 8


def run(attack: Foreign, model: Any, inputs: Tensor, labels: Tensor, *, settings: Any = None, **call: Any) -> Any:
    """Run the attack in its frame."""

    def method(task: Task) -> Best:
        return by_library(task, attack, name="theirs", **(settings or {}))

    frame = Framed("theirs", ("linf", "l2", "l1", "l0"), lambda classes: method)
    result: AttackResult = frame(model, inputs, labels, **{"norm": "l2", **call})
    return result


@pytest.fixture
def affine(generator: torch.Generator) -> Affine:
    return random_affine(generator, features=FEATURES, classes=3, spread=0.1)


@pytest.fixture
def inputs(generator: torch.Generator) -> Tensor:
    return 0.5 + 0.05 * torch.randn(6, FEATURES, generator=generator)


@pytest.fixture
def labels(affine: Affine, inputs: Tensor) -> Tensor:
    return affine.labels(inputs)


def climb(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
    """A working attack of another library: one long ascent step on the loss, by `backward` as libraries do."""
    leaf = inputs.requires_grad_()
    nn.functional.cross_entropy(model(leaf), classes, reduction="sum").backward()
    assert leaf.grad is not None
    return (leaf + 0.4 * leaf.grad.sign()).clamp(0, 1)


def test_what_is_returned_is_judged_and_paid(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    counting = Counting(affine)
    result = run(climb, counting, inputs, labels)
    assert bool(result.found.all())
    assert_answers(affine, result.adversarials, result.labels)
    assert_sizes(result, inputs, "l2")
    # One pass of the frame for the input, one for the step, and one for the result.
    assert result.forwards.tolist() == [3] * 6
    assert result.backwards.tolist() == [1] * 6
    assert sum(counting.forwards) == 18
    assert sum(counting.backwards) == 6


def test_passes_that_cannot_be_shared_evenly_are_all_counted(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        model(inputs[:4])
        return inputs

    result = run(attack, affine, inputs, labels)
    assert int(result.forwards.sum()) == 6 + 4 + 6


def test_the_model_is_left_without_gradients(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    run(climb, affine, inputs, labels)
    assert affine.weight.grad is None
    assert affine.bias.grad is None


def test_several_slopes_of_one_forward_pass_are_counted_each(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    seen = []

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        logits = model(inputs.requires_grad_())
        for column in range(3):
            seen.append(torch.autograd.grad(logits[:, column].sum(), inputs, retain_graph=True)[0])
        return inputs

    result = run(attack, affine, inputs, labels)
    assert result.backwards.tolist() == [3] * 6
    for column, slope in enumerate(seen):
        torch.testing.assert_close(slope, affine.weight[column].expand_as(slope))


def failing_at(victim: Callable[[Tensor], Tensor], error: type[Exception] = AssertionError) -> Foreign:
    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        if bool(victim(rows).any()):
            raise error("no luck")
        return climb(model, inputs, classes, rows)

    return attack


@pytest.mark.parametrize("victim", [0, 2, 5])
def test_a_sample_on_which_the_library_raises_is_the_only_one_lost(
    affine: Affine, inputs: Tensor, labels: Tensor, victim: int
) -> None:
    result = run(failing_at(lambda rows: rows == victim), affine, inputs, labels)
    assert (~result.found).nonzero().flatten().tolist() == [victim]
    assert result.faults == {victim: "AssertionError: no luck"}
    assert bool(result.distances[victim].isinf())
    assert torch.equal(result.adversarials[victim], inputs[victim])


def test_a_library_that_raises_on_every_sample_is_an_error_with_its_cause(
    affine: Affine, inputs: Tensor, labels: Tensor
) -> None:
    with pytest.raises(AttackError, match=r"theirs: it failed on every sample \(KeyError: 'no luck'\)") as caught:
        run(failing_at(lambda rows: rows >= 0, KeyError), affine, inputs, labels)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(AttackError, match="every sample"):
        run(failing_at(lambda rows: rows >= 0), affine, inputs[:1], labels[:1])


def test_a_lone_sample_of_a_larger_call_is_a_fault_and_no_error(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    def method(task: Task) -> Best:
        attack = failing_at(lambda rows: torch.full_like(rows, int(len(task) == 1)))
        return by_library(task, attack, name="theirs")

    result = Framed("theirs", ("l2",), lambda classes: method, max_batch=5)(affine, inputs, labels, norm="l2")
    assert result.found.tolist() == [True] * 5 + [False]
    assert list(result.faults) == [5]


def test_what_the_model_does_wrong_is_the_models_error(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    calls = []

    def breaks_later(points: Tensor) -> Tensor:
        calls.append(len(points))
        if len(calls) > 1:
            raise ValueError("out of paper")
        return affine(points)

    with pytest.raises(ModelError, match="out of paper"):
        run(climb, breaks_later, inputs, labels)
    assert len(calls) == 2, "it is not asked again, part by part"


def test_a_model_without_a_slope_is_the_models_error(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    with pytest.raises(ModelError, match="depend on the inputs"):
        run(climb, lambda points: affine(points.detach()), inputs, labels)


def test_a_slope_that_is_not_a_number_is_no_direction() -> None:
    slopes = []

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        slopes.append(torch.autograd.grad(model(inputs.requires_grad_())[:, 1].sum(), inputs)[0])
        return inputs

    run(attack, RootAtHalf(), torch.full((1, 3), 0.5), torch.zeros(1, dtype=torch.long))
    assert slopes[0].tolist() == [[0, 4, 4]]


def returning(change: Callable[[Tensor], Tensor]) -> Foreign:
    return lambda model, inputs, classes, rows: change(climb(model, inputs, classes, rows).detach())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_point_that_is_not_finite_is_no_success(affine: Affine, inputs: Tensor, labels: Tensor, bad: float) -> None:
    def spoil(points: Tensor) -> Tensor:
        points[1, 3] = bad
        return points

    result = run(returning(spoil), affine, inputs, labels)
    # An infinite entry is outside the box and is clipped; NaN is discarded.
    assert bool(result.found[1]) == (bad == bad)
    assert int(result.found.sum()) >= 5
    assert bool(result.adversarials.isfinite().all())


def test_points_outside_the_box_are_brought_back_before_they_are_judged(
    affine: Affine, inputs: Tensor, labels: Tensor
) -> None:
    result = run(returning(lambda points: 3 * (points - 0.5) + 0.5), affine, inputs, labels)
    assert float(result.adversarials.min()) >= 0
    assert float(result.adversarials.max()) <= 1
    assert torch.equal(result.labels != labels, result.found)
    assert_answers(affine, result.adversarials, result.labels)


def test_points_of_another_shape_are_an_error(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    with pytest.raises(AttackError, match=r"expected points of shape \(6, 8\), got \(5, 8\)"):
        run(returning(lambda points: points[1:]), affine, inputs, labels)


def test_the_input_itself_is_no_success(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    result = run(lambda model, inputs, classes, rows: inputs, affine, inputs, labels)
    assert not bool(result.found.any())


def test_a_blank_image_is_a_failure_where_the_library_means_one(affine: Affine, inputs: Tensor) -> None:
    blank = torch.zeros(1, FEATURES)
    other = affine.labels(inputs) != affine.labels(blank)
    assert bool(other.any()), "some input must be of another class than the blank image"
    x, y = inputs[other], affine.labels(inputs)[other]
    attack = returning(torch.zeros_like)
    assert bool(run(attack, affine, x, y).found.all())
    assert not bool(run(attack, affine, x, y, settings={"blank_is_failure": True}).found.any())


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.0, 255.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_another_box_and_precision_are_the_same_problem_in_other_units(
    affine: Affine, inputs: Tensor, labels: Tensor, bounds: tuple[float, float], dtype: torch.dtype
) -> None:
    low, width = bounds[0], bounds[1] - bounds[0]
    seen: list[Tensor] = []

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        seen.append(inputs.clone())
        points = climb(model, inputs, classes, rows).detach()
        points[:, 0] = inputs[:, 0].detach()
        return points

    def model(points: Tensor) -> Tensor:
        assert points.dtype == dtype
        return affine.to(dtype)((points - low) / width)

    plain = run(attack, affine, inputs, labels)
    moved = (low + width * inputs).to(dtype)
    result = run(attack, model, moved, labels, bounds=bounds)
    assert seen[1].dtype == torch.float32
    torch.testing.assert_close(seen[1], inputs)
    assert result.adversarials.dtype == dtype
    assert bool(plain.found.any())
    assert torch.equal(result.found, plain.found)
    torch.testing.assert_close(result.distances.float(), width * plain.distances, rtol=1e-4, atol=1e-4)
    # Unchanged entries equal the input bit for bit, whatever rounding the mapping to [0, 1] and back introduces.
    assert torch.equal(result.adversarials[:, 0], moved[:, 0])
    assert float(result.adversarials.max()) <= bounds[1]


def test_a_box_of_unequal_sides_is_refused_and_one_given_entry_by_entry_is_not(
    affine: Affine, inputs: Tensor, labels: Tensor
) -> None:
    high = torch.ones(FEATURES)
    assert bool(run(climb, affine, inputs, labels, bounds=(0.0, high)).found.all())
    high[2] = 2
    with pytest.raises(InvalidInputError, match="the same for every entry"):
        run(climb, affine, inputs, labels, bounds=(0.0, high))


def test_chance_is_seeded_and_the_global_generators_are_left_as_they_were(
    affine: Affine, inputs: Tensor, labels: Tensor
) -> None:
    draws: list[list[float]] = []

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        draws.append([float(torch.rand(())), float(np.random.rand()), random.random()])
        return inputs

    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    for call in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {"seed": 1, "settings": {"restart": 1}}):
        run(attack, affine, inputs, labels, **call)
    run(attack, affine, inputs, labels, seed=1, indices=torch.arange(10, 16))
    with pytest.raises(AttackError):
        run(failing_at(lambda rows: rows >= 0), affine, inputs, labels)
    after = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert draws[0] == draws[1]
    for column in zip(*(draws[row] for row in (0, 2, 3, 4)), strict=True):
        assert len(set(column)) == 4, "another seed, restart or sample draws other numbers"
    assert torch.equal(before[0], after[0])
    assert all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert before[2] == after[2]


def test_a_target_is_what_the_library_is_given_and_what_counts(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    targets = (labels + 1) % 3
    given = []

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        given.append(classes)
        return climb(model, inputs, classes, rows)  # away from the target

    result = run(attack, affine, inputs, labels, targets=targets)
    assert torch.equal(given[0], targets)
    assert torch.equal(result.found, result.labels == targets)
    assert_answers(affine, result.adversarials, result.labels)


def test_the_callers_tensors_are_left_alone(generator: torch.Generator) -> None:
    conv = TinyConv(generator)
    images = torch.rand(3, 3, 6, 6, generator=generator)
    copy, labels = images.clone(), conv(images).argmax(1)

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        classes.zero_()
        return inputs.mul_(0.5)

    run(attack, conv, images, labels)
    assert torch.equal(images, copy)
    assert torch.equal(labels, conv(images).argmax(1))


def test_what_lies_outside_the_ball_is_not_found_there(affine: Affine, inputs: Tensor, labels: Tensor) -> None:
    distances = run(climb, affine, inputs, labels).distances

    def method(task: Task) -> Best:
        radius = distances * torch.tensor([0.99, 0.999, 0.99999, 1.0, 1.01, 2.0])
        return within_radius(by_library(task, climb, name="theirs"), radius, task)

    result = Framed("theirs", ("l2",), lambda classes: method)(affine, inputs, labels, norm="l2")
    assert result.found.tolist() == [False, False, True, True, True, True]


def test_no_library_is_loaded_before_it_is_used() -> None:
    import subprocess

    program = "import pdpgd.baselines.advlib, pdpgd.baselines.foolbox, pdpgd.baselines.art, sys\n"
    program += "import pdpgd.baselines.autoattack, pdpgd.baselines.autoattack_parts\n"
    program += "libraries = {'adv_lib', 'foolbox', 'art', 'pyautoattack', 'numba', 'scipy', 'torchvision', 'visdom'}\n"
    program += "print(libraries & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
