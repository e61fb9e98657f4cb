"""Attacks that return false results, in a whole run: no number of it may depend on their claims."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pdpgd.errors import UnfinishedError
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.runs.reliability import CHEAP
from pdpgd.runs.result import Evaluation
from support.models import Stubborn, TinyConv, ramp_affine

NORMS = ("linf", "l2", "l1", "l0")
Attack = Callable[..., Any]


def claims(points: Tensor, found: Tensor | None = None) -> SimpleNamespace:
    """Found everywhere, if nothing else is said."""
    return SimpleNamespace(
        adversarials=points, found=torch.ones(len(points), dtype=torch.bool) if found is None else found
    )


def outside_by_much(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(3 - 5 * inputs)


def outside_by_an_ulp(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    points = 1 - inputs
    points[:, 0, 0, 0] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    return claims(points)


def still_right(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    """A gray level away, in the direction in which the model becomes surer."""
    leaf = inputs.clone().requires_grad_()
    model(leaf).gather(1, labels[:, None]).sum().backward()
    assert leaf.grad is not None
    return claims((inputs + leaf.grad.sign() / 2550).clamp(0, 1))


def the_input_itself(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(inputs)


def nothing_but_nan(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(torch.full_like(inputs, torch.nan))


def one_nan(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    points = 1 - inputs
    points[:, 2, 5, 5] = torch.nan
    return claims(points)


def infinity(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(torch.full_like(inputs, -torch.inf))


def bytes_for_floats(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(inputs.mul(255).round().to(torch.uint8).clamp(min=2))


REFUSED: list[Attack] = [
    outside_by_much,
    outside_by_an_ulp,
    still_right,
    the_input_itself,
    nothing_but_nan,
    one_nan,
    infinity,
    bytes_for_floats,
]


def garbage(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str, seed: int) -> Any:
    random = torch.Generator().manual_seed(seed + NORMS.index(norm))
    points = torch.randn(inputs.shape, generator=random)
    points[::2] = points[::2].sigmoid()
    points[1, 0, 0, 0] = torch.nan
    return claims(points, torch.rand(len(points), generator=random) < 0.7)


def black(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(torch.zeros_like(inputs))


def black_in_integers(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(torch.zeros(inputs.shape, dtype=torch.long))


def double_noise(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str, seed: int) -> Any:
    random = torch.Generator().manual_seed(seed)
    return claims((inputs.double() + torch.randn(inputs.shape, generator=random).double() / 3).clamp(0, 1 + 1e-12))


def far_but_for_linf(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims(1 - inputs if norm == "linf" else (inputs < 0.5).float())


def writes_to_its_inputs(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str, starts: Tensor) -> Any:
    """What it returns is at no distance from what it leaves in the inputs."""
    for given in (inputs, starts):
        given.copy_(1 - given)
    labels.fill_(0)
    return claims(inputs)


def found_as_numbers_with_a_graph(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    return claims((1 - inputs).requires_grad_() * 1, torch.full((len(inputs),), 2.0))


BAD: list[Attack] = [
    *REFUSED,
    garbage,
    black,
    black_in_integers,
    double_noise,
    far_but_for_linf,
    writes_to_its_inputs,
    found_as_numbers_with_a_graph,
]


def size_of(delta: NDArray[Any], norm: str) -> NDArray[Any]:
    """Over again, in numpy."""
    flat = np.abs(delta).reshape(len(delta), -1)
    pixels = (delta != 0).any(axis=1).reshape(len(delta), -1)
    sizes: dict[str, NDArray[Any]] = {
        "linf": flat.max(1),
        "l1": flat.sum(1),
        "l2": np.sqrt((flat**2).sum(1)),
        "l0": pixels.sum(1).astype(np.float64),
    }
    return sizes[norm]


def check_every_point(evaluation: Evaluation, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Nothing is taken from the run but what it says."""
    with torch.no_grad():
        initially_wrong = (model(images).argmax(1) != labels).numpy()
    for norm in evaluation.norms:
        status, distance = evaluation.column("status", norm), evaluation.distances(norm)
        fooled = status == "fooled"
        assert np.array_equal(status == "initially wrong", initially_wrong)
        assert (distance[initially_wrong] == 0).all()
        assert np.isinf(distance[~fooled & ~initially_wrong]).all()
        assert ((evaluation.column("source", norm) != "") == fooled).all()

        points = evaluation.examples(norm)
        assert points.dtype == np.float32
        assert np.isfinite(points).all()
        assert points.min() >= 0
        assert points.max() <= 1
        assert np.array_equal(points[~fooled], images.numpy()[~fooled])
        with torch.no_grad():
            prediction = model(torch.from_numpy(points)).argmax(1).numpy()
        assert (prediction != labels.numpy())[fooled].all()
        assert np.array_equal(prediction[fooled], evaluation.column("prediction", norm)[fooled])
        delta = points.astype(np.float64) - images.numpy().astype(np.float64)
        np.testing.assert_allclose(distance[fooled], size_of(delta, norm)[fooled], rtol=1e-13)
        for name in NORMS:
            np.testing.assert_allclose(
                evaluation.column(f"size_{name}", norm)[fooled], size_of(delta, name)[fooled], rtol=1e-13
            )

        pixels, rough = evaluation.examples(norm, eight_bit=True), evaluation.distances(norm, eight_bit=True)
        found = np.isfinite(rough) & ~initially_wrong
        assert pixels.dtype == np.uint8
        assert not (found & ~fooled).any()
        with torch.no_grad():
            prediction = model(torch.from_numpy(pixels.astype(np.float32) / np.float32(255))).argmax(1).numpy()
        assert (prediction != labels.numpy())[found].all()
        steps = pixels.astype(np.float64) - np.rint(images.numpy().astype(np.float64) * 255)
        np.testing.assert_allclose(rough[found], size_of(steps / 255, norm)[found], rtol=1e-13)


def alarms(evaluation: Evaluation) -> set[str]:
    return {check.name for check in evaluation.reliability.alarms}


@pytest.mark.parametrize("attack", BAD)
def test_no_point_counts_that_a_second_pass_does_not_confirm(
    attack: Attack, model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    given, weights = images.clone(), {name: value.clone() for name, value in model.state_dict().items()}
    evaluation = evaluate(model, (images, labels), norms=NORMS, attack=attack, chunk_size=4, batch_size=3)
    assert torch.equal(images, given)
    assert not model.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    check_every_point(evaluation, model, images, labels)


@pytest.mark.parametrize("attack", REFUSED)
def test_a_refused_point_is_unverified_unless_a_cheap_attack_found_another(
    attack: Attack, model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    evaluation = evaluate(model, (images, labels), norms=("linf", "l1"), attack=attack, chunk_size=4)
    for norm in evaluation.norms:
        status, source = evaluation.column("status", norm), evaluation.column("source", norm)
        attacked = status != "initially wrong"
        assert attacked.sum() == 9
        assert set(status[attacked]) <= {"fooled", "unverified"}
        assert set(source[status == "fooled"]) <= set(CHEAP)
        assert not set(evaluation.column("verdict", norm)[attacked]) & {"verified", "none"}
        assert np.isinf(evaluation.column("own_distance", norm)).all()
    assert "unverified" in alarms(evaluation)


@pytest.mark.parametrize("attack", BAD)
def test_a_model_that_cannot_be_fooled_is_not_be_the_claims_what_they_may(attack: Attack, images: Tensor) -> None:
    labels = torch.zeros(len(images), dtype=torch.long)
    labels[4] = 2
    model = Stubborn()
    evaluation = evaluate(model, (images, labels), norms=("l2", "l0"), attack=attack, chunk_size=6)
    check_every_point(evaluation, model, images, labels)
    for norm in evaluation.norms:
        counts = evaluation.counts(norm)
        assert counts["fooled"] == 0
        assert counts["initially wrong"] == 1
        if attack is not garbage:
            assert counts["unverified"] == 9
        assert evaluation.robust_accuracy(1e9, norm) == 0.9
    assert "unverified" in alarms(evaluation)


def test_an_attack_that_claims_nothing_is_not_unverified(images: Tensor) -> None:
    def modest(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        return claims(1 - inputs, torch.zeros(len(inputs), dtype=torch.bool))

    labels = torch.zeros(len(images), dtype=torch.long)
    evaluation = evaluate(Stubborn(), (images, labels), norms=("l2",), attack=modest)
    assert evaluation.counts("l2")["not fooled"] == len(images)
    assert "unverified" not in alarms(evaluation)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda inputs: None, "got NoneType with no adversarials"),
        (lambda inputs: inputs, "got Tensor with no adversarials"),
        (
            lambda inputs: claims(inputs[1:]),
            r"expected adversarial examples of shape \(4, 3, 6, 6\).*got \(3, 3, 6, 6\)",
        ),
        (lambda inputs: claims(inputs.flatten(1)), r"got \(4, 108\) and \(4,\)"),
        (lambda inputs: claims(inputs, torch.ones(len(inputs), 1)), r"got \(4, 3, 6, 6\) and \(4, 1\)"),
        (lambda inputs: 1 / 0, "got ZeroDivisionError: division by zero"),
        (lambda inputs: sys.exit(0), "expected adversarial examples, got SystemExit: 0"),
    ],
)
def test_what_is_no_result_stops_the_run_and_is_named(
    images: Tensor, given: Callable[[Tensor], Any], message: str
) -> None:
    def mine(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        return given(inputs)

    labels = torch.zeros(len(images), dtype=torch.long)
    with pytest.raises(UnfinishedError, match=rf"(?s)chunk-00000 \(samples 0 to 3\): attack .*mine: .*{message}"):
        evaluate(Stubborn(), (images, labels), norms=("l2",), attack=mine, chunk_size=4)


def history_of(passes: Any, distances: Any) -> SimpleNamespace:
    return SimpleNamespace(passes=passes, distances=distances)


FALLING = torch.tensor([[2, 1]] * 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"faults": ["broke"]}, "expected faults that map positions 0 to 3 of the call .*, got list"),
        ({"faults": {4: "broke"}}, "got the position 4"),
        ({"faults": {-1: "broke"}}, "got the position -1"),
        ({"faults": {"first": "broke"}}, "got the position 'first'"),
        ({"faults": {True: "broke"}}, "got the position True"),
        ({"faults": {0: ValueError("broke")}}, "got ValueError for position 0, not a string"),
        ({"history": "long"}, r"expected a history .* of shape \(4, records\), got str with no passes"),
        ({"history": history_of(torch.ones(4, 2), None)}, "got SimpleNamespace with no distances"),
        ({"history": history_of(torch.ones(3, 2), torch.ones(3, 2))}, r"got \(3, 2\) and \(3, 2\)"),
        ({"history": history_of(torch.ones(4), torch.ones(4))}, r"got \(4,\) and \(4,\)"),
        ({"history": history_of(torch.ones(4, 2), torch.ones(4, 3))}, r"got \(4, 2\) and \(4, 3\)"),
        ({"history": history_of(torch.ones(4, 0), torch.ones(4, 0))}, "with at least one record"),
        ({"history": history_of(FALLING, torch.ones(4, 2))}, "with passes that never decrease"),
    ],
)
def test_a_history_or_faults_that_cannot_be_read_stop_the_run_and_are_named(
    images: Tensor, more: dict[str, Any], message: str
) -> None:
    def mine(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        return SimpleNamespace(**vars(claims(1 - inputs)), **more)

    labels = torch.zeros(len(images), dtype=torch.long)
    with pytest.raises(UnfinishedError, match=rf"(?s)chunk-00000 \(samples 0 to 3\): attack .*mine: .*{message}"):
        evaluate(Stubborn(), (images, labels), norms=("l2",), attack=mine, chunk_size=4)


def test_a_history_with_a_graph_in_half_precision_is_read(images: Tensor) -> None:
    def mine(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        sizes = torch.ones(len(inputs), 2, dtype=torch.bfloat16, requires_grad=True)
        history = history_of(torch.tensor([[1, 2]] * len(inputs)), 2 * sizes)
        return SimpleNamespace(**vars(claims(1 - inputs)), history=history, faults=None)

    labels = torch.zeros(len(images), dtype=torch.long)
    evaluation = evaluate(Stubborn(), (images, labels), norms=("l2",), attack=mine, chunk_size=4)
    trace = evaluation.trace("l2")
    assert trace is not None
    assert (trace.distances == 2).all()


@pytest.mark.parametrize("norms", [("linf", "l2"), ("l2", "linf")])
def test_the_distance_is_the_smallest_of_any_norms_attack(norms: tuple[str, ...]) -> None:
    """Beyond the boundary by a hair in every feature: the best linf point, and nearly the best l2 one."""

    def lopsided(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        return claims(inputs - 0.1001 if norm == "linf" else torch.zeros_like(inputs))

    model, images = ramp_affine(12), torch.full((8, 3, 2, 2), 0.6)
    labels = torch.zeros(8, dtype=torch.long)
    evaluation = evaluate(model, (images, labels), norms=norms, attack=lopsided)
    check_every_point(evaluation, model, images, labels)
    assert set(evaluation.column("source", "l2")) == {"linf"}
    assert set(evaluation.column("source", "linf")) == {"linf"}
    assert evaluation.distances("l2") == pytest.approx(0.1001 * 12**0.5, rel=1e-6)
    assert evaluation.column("own_distance", "l2") == pytest.approx(0.6 * 12**0.5, rel=1e-6)
    assert "dominated" in alarms(evaluation)
    assert "unverified" not in alarms(evaluation)


def test_a_cheap_point_stands_where_the_attack_is_worse_and_says_whose_it_is() -> None:
    model, images = ramp_affine(12), torch.full((8, 3, 2, 2), 0.6)
    labels = torch.zeros(8, dtype=torch.long)
    evaluation = evaluate(model, (images, labels), norms=("linf",), attack=black)
    check_every_point(evaluation, model, images, labels)
    assert set(evaluation.column("source", "linf")) == {"sign step"}
    assert (evaluation.distances("linf") < 0.11).all()
    assert evaluation.column("own_distance", "linf") == pytest.approx(0.6)
    assert "cheap attack" in alarms(evaluation)
