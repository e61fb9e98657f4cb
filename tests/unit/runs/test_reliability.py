"""Each check fails where it should, with its number in the sentence, and passes where all is well."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from pdpgd.attacks.base import AttackResult, Observation, Observe
from pdpgd.classifier import Model
from pdpgd.cli.evaluate import Requirement
from pdpgd.errors import PdpgdWarning
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.evaluation.sanity import preflight
from pdpgd.runs.reliability import Check, model_checks
from pdpgd.runs.result import Evaluation, load_evaluation
from support.bad_models import Dropping, Gregarious, Noisy, NoSlope, Parity, Probabilities, Quantised
from support.models import Affine, TinyConv, ramp_affine

SAMPLES = 12
OF_THE_MODEL = (
    "random weights",
    "train mode",
    "randomised",
    "depends on the batch",
    "probabilities",
    "zero gradients",
    "broken gradients",
    "unstable",
)
OF_THE_INPUTS = ("near chance", "few samples")
OF_THE_RESULTS = (
    "still moving",
    "restarts",
    "dominated",
    "cheap attack",
    "never fooled",
    "unverified",
    "fragile",
    "passes",
)


@pytest.fixture
def conv(generator: Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(generator: Generator) -> Tensor:
    return torch.rand(SAMPLES, 3, 6, 6, generator=generator)


def answers(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images)
    return logits.argmax(1)


def run(model: nn.Module, images: Tensor, labels: Tensor, **settings: Any) -> Evaluation:
    return evaluate(
        model, (images, labels), **{"norms": ("l2",), "budget": 6, "threads": 1, "chunk_size": 6, **settings}
    )


def check_of(evaluation: Evaluation, name: str) -> Check:
    (check,) = (check for check in evaluation.reliability.checks if check.name == name)
    return check


def alarms(evaluation: Evaluation) -> set[str]:
    return {check.name for check in evaluation.reliability.alarms}


def of_the_model(evaluation: Evaluation) -> set[str]:
    return alarms(evaluation) & set(OF_THE_MODEL)


def test_a_healthy_model_and_a_decent_attack_raise_no_alarm(conv: TinyConv, images: Tensor) -> None:
    evaluation = run(conv, images, answers(conv, images), norms=("l2", "l1"), budget=400, chunk_size=SAMPLES)
    assert evaluation.reliability.trusted
    assert evaluation.reliability.verdict == "trusted"
    checks = evaluation.reliability.checks
    assert tuple(check.name for check in checks) == OF_THE_MODEL + OF_THE_INPUTS + OF_THE_RESULTS
    assert all(check.passed for check in checks if check.name != "random weights")
    assert evaluation.as_json()["reliability"]["verdict"] == "trusted"
    said_with_their_numbers(evaluation)


def said_with_their_numbers(evaluation: Evaluation) -> None:
    """And fit for JSON, which knows no NaN."""
    for check in evaluation.reliability.checks:
        assert check.passed is None or re.search(r"\d", check.sentence), check
    assert json.loads(json.dumps(evaluation.as_json()["reliability"], allow_nan=False))


def test_dropout_left_on_is_seen(conv: TinyConv, images: Tensor, generator: Generator) -> None:
    with pytest.warns(PdpgdWarning, match="train mode"):
        evaluation = run(Dropping(conv, generator), images, answers(conv, images))
    assert {"train mode", "randomised"} <= of_the_model(evaluation)
    # The model, not the conv in it, which was put in eval mode.
    assert check_of(evaluation, "train mode").sentence == "1 modules of the model are in train mode"
    said_with_their_numbers(evaluation)


def test_the_same_model_in_eval_mode_is_not(conv: TinyConv, images: Tensor, generator: Generator) -> None:
    assert not of_the_model(run(Dropping(conv, generator).eval(), images, answers(conv, images)))


def test_probabilities_are_seen(conv: TinyConv, images: Tensor) -> None:
    with pytest.warns(PdpgdWarning, match="probabilities"):
        evaluation = run(Probabilities(conv), images, answers(conv, images))
    assert of_the_model(evaluation) == {"probabilities"}
    assert "100.0% of 12 samples" in check_of(evaluation, "probabilities").sentence


def test_quantised_inputs_are_seen_by_their_gradients_and_by_what_cheap_attacks_find(
    conv: TinyConv, images: Tensor
) -> None:
    model = Quantised(conv, levels=4)
    evaluation = run(model, images, answers(model, images), norms=("linf", "l2"))
    assert check_of(evaluation, "zero gradients").value == 1.0
    assert {"zero gradients", "cheap attack", "never fooled"} <= alarms(evaluation)
    said_with_their_numbers(evaluation)


def test_a_model_that_depends_on_the_batch_is_seen(conv: TinyConv, images: Tensor) -> None:
    model = Gregarious(conv)
    assert of_the_model(run(model, images, answers(model, images))) == {"depends on the batch"}


def test_broken_gradients_are_seen(conv: TinyConv, images: Tensor) -> None:
    evaluation = run(NoSlope(conv), images, answers(conv, images))
    assert of_the_model(evaluation) == {"broken gradients"}
    assert check_of(evaluation, "broken gradients").value == 1.0


def test_a_gradient_that_does_not_reach_the_inputs_counts_as_zero(images: Tensor) -> None:
    def shelf(x: Tensor) -> Tensor:
        return torch.eye(2)[(x.flatten(1).sum(1) > 54).long()]

    measured = preflight(shelf, images, shelf(images).argmax(1), batch_size=5, seed=0, random_parameters=None).preflight
    assert measured is not None
    assert measured.no_gradient == 1.0


def test_classes_that_flip_under_tiny_noise_are_seen(images: Tensor) -> None:
    model = Parity()
    evaluation = run(model, images, answers(model, images), attack=nothing, budget=None)
    assert "unstable" in of_the_model(evaluation)


# What follows is on a slope of two classes, z_0 - z_1 = w (x - 1/2), from x = 0.6 everywhere: every size is known.


@pytest.fixture
def slope() -> Affine:
    return ramp_affine(16)


@pytest.fixture
def sixes() -> Tensor:
    return torch.full((SAMPLES, 1, 4, 4), 0.6)


def result_of(points: Tensor, found: bool = True, backwards: int = 0) -> AttackResult:
    count = len(points)
    zeros = torch.zeros(count, dtype=torch.long)
    return AttackResult(
        adversarials=points,
        distances=torch.zeros(count),
        found=torch.full((count,), found),
        labels=zeros,
        forwards=zeros,
        backwards=zeros + backwards,
        penalty=torch.zeros(count),
    )


def nothing(model: Model, inputs: Tensor, labels: Tensor, *, norm: str) -> AttackResult:
    return result_of(inputs, found=False)


def shifted(model: Model, inputs: Tensor, labels: Tensor, *, norm: str, by: float = 0.11) -> AttackResult:
    """Right, but no better than that: 0.1 reaches the boundary."""
    return result_of(inputs - by)


def stopped_while_moving(
    model: Model, inputs: Tensor, labels: Tensor, *, norm: str, observe: Observe, sizes: Sequence[int]
) -> AttackResult:
    samples, zeros = torch.arange(len(inputs)), torch.zeros(len(inputs))
    for done, size in enumerate(sizes, start=1):
        observe(Observation("search", done, len(sizes), samples, zeros, zeros + size, zeros))
    return shifted(model, inputs, labels, norm=norm)


def worse_from_the_first_seed(
    model: Model, inputs: Tensor, labels: Tensor, *, norm: str, seed: int, first: float
) -> AttackResult:
    return result_of(inputs - (first if seed == 0 else 0.2))


def blind_to_its_norm(model: Model, inputs: Tensor, labels: Tensor, *, norm: str) -> AttackResult:
    """Small in linf whatever was asked, but for linf itself, where it is large."""
    return result_of(inputs - (0.4 if norm == "linf" else 0.101))


def lying(model: Model, inputs: Tensor, labels: Tensor, *, norm: str, says: int) -> AttackResult:
    """Three backward passes."""
    for _ in range(3):
        leaf = inputs.clone().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)
    return replace(shifted(model, inputs, labels, norm=norm), backwards=torch.full((len(inputs),), says))


def attacked(slope: nn.Module, sixes: Tensor, attack: Callable[..., AttackResult], *norms: str) -> Evaluation:
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    return run(slope, sixes, labels, norms=norms or ("linf",), attack=attack, budget=None)


@pytest.mark.parametrize(
    ("name", "bad", "value", "words", "good", "norms"),
    [
        (
            "still moving",
            partial(stopped_while_moving, sizes=range(10, 0, -1)),
            1 - 1 / 3,
            "the last fifth of the iterations lowered the linf distance by 66.7%",
            partial(stopped_while_moving, sizes=[*range(10, 2, -1), 3, 3]),
            ("linf",),
        ),
        (
            "restarts",
            partial(worse_from_the_first_seed, first=0.4),
            0.5,
            "a second start lowers the mean linf distance by 50.0%, on a subset of the samples",
            partial(worse_from_the_first_seed, first=0.2),
            ("linf",),
        ),
        (
            "dominated",
            blind_to_its_norm,
            1.0,
            "for 100.0% of the samples, the attack in another norm found a smaller linf distance",
            shifted,
            ("linf", "l2"),
        ),
        (
            "cheap attack",
            nothing,
            1.0,
            "noise, one gradient step or another image beat the linf attack on 100.0% of the samples",
            partial(shifted, by=0.101),
            ("linf",),
        ),
        (
            "never fooled",
            nothing,
            1.0,
            "the attacks found no adversarial example for 100.0% of the samples",
            shifted,
            ("linf", "l2"),
        ),
        (
            "unverified",
            partial(shifted, by=0.05),
            1.0,
            "the referee rejected adversarial examples for 100.0% of the samples",
            shifted,
            ("linf",),
        ),
        (
            "passes",
            partial(lying, says=1),
            2.0,
            "36 backward passes were counted, the attacks report 12",
            partial(lying, says=3),
            ("linf",),
        ),
        (
            "passes",
            partial(lying, says=6),
            -0.5,
            "36 backward passes were counted, the attacks report 72",
            partial(lying, says=3),
            ("linf",),
        ),
    ],
    ids=["still moving", "restarts", "dominated", "cheap", "never fooled", "unverified", "too few", "too many"],
)
def test_an_attack_that_did_not_do_its_work_is_seen_and_one_that_did_is_not(
    name: str,
    bad: Callable[..., AttackResult],
    value: float,
    words: str,
    good: Callable[..., AttackResult],
    norms: tuple[str, ...],
    slope: Affine,
    sixes: Tensor,
) -> None:
    evaluation = attacked(slope, sixes, bad, *norms)
    check = check_of(evaluation, name)
    assert check.passed is False
    assert check.value == pytest.approx(value, rel=1e-6)
    assert check.sentence == words
    said_with_their_numbers(evaluation)
    assert check_of(attacked(slope, sixes, good, *norms), name).passed is True


def test_noise_in_the_logits_is_seen_and_the_referee_refuses_points_that_hang_on_it(
    slope: Affine, sixes: Tensor, generator: Generator
) -> None:
    evaluation = attacked(Noisy(slope, generator, deviation=0.2), sixes, shifted)
    assert {"randomised", "unverified"} <= alarms(evaluation)
    assert check_of(evaluation, "randomised").sentence.endswith("judge by a vote: draws=10, or --draws 10")
    assert "answers differ" in evaluation.column("verdict", "linf")
    said_with_their_numbers(evaluation)


def test_noise_that_is_averaged_over_is_no_alarm(slope: Affine, sixes: Tensor, generator: Generator) -> None:
    measured = attacked(Noisy(slope, generator, deviation=0.2), sixes, shifted).check_stats[0].preflight
    assert measured is not None
    checks = {check.name: check for check in model_checks(measured, draws=4)}
    assert checks["randomised"].passed is True
    assert checks["randomised"].sentence.endswith("it was attacked on the mean of 4 draws")
    assert checks["depends on the batch"].passed is None
    assert {check.name: check.passed for check in model_checks(measured)}["randomised"] is False


def test_points_that_rounding_decides_on_are_fragile(sixes: Tensor) -> None:
    """Logits of about 1000 have roundings of about 1e-4; the margin of -5e-4 is a few of them."""
    weight = torch.stack([torch.full((16,), 1.0), torch.zeros(16)])
    high = Affine(weight, torch.tensor([1000.0 - 8.0, 1000.0]))
    close = attacked(high, sixes, partial(shifted, by=0.1 + 5e-4 / 16))
    assert check_of(close, "fragile").value == 1.0
    assert check_of(close, "fragile").passed is False
    assert check_of(attacked(high, sixes, partial(shifted, by=0.2)), "fragile").passed is True


def test_what_cannot_be_said_is_neither_passed_nor_failed(slope: Affine, sixes: Tensor) -> None:
    evaluation = attacked(slope, sixes, shifted)
    unknown = {check.name: check.sentence for check in evaluation.reliability.checks if check.passed is None}
    assert unknown == {
        "random weights": "where the weights of a model object come from is unknown",
        "still moving": "the attack does not report its progress",
        "dominated": "only one norm was attacked",
    }
    said_with_their_numbers(evaluation)


def test_a_model_that_is_always_wrong_leaves_the_checks_of_the_attack_unmeasured(slope: Affine, sixes: Tensor) -> None:
    evaluation = run(slope, sixes, torch.ones(SAMPLES, dtype=torch.long), norms=("linf", "l2"))
    unknown = {check.name for check in evaluation.reliability.checks if check.passed is None}
    assert unknown == {"random weights", *OF_THE_RESULTS}
    assert alarms(evaluation) == {"near chance", "few samples"}
    said_with_their_numbers(evaluation)


@pytest.mark.parametrize(("right", "near"), [(0, True), (24, True), (25, True), (26, False), (40, False)])
def test_an_accuracy_near_chance_is_seen(right: int, near: bool) -> None:
    """Two classes: chance is one half, and a quarter of the way from there to 1 are 25 samples of 40."""
    labels = (torch.arange(40) >= right).long()
    evaluation = run(ramp_affine(16), torch.full((40, 1, 4, 4), 0.6), labels, norms=("linf",), chunk_size=40)
    check = check_of(evaluation, "near chance")
    assert check.passed is not near
    assert ("near chance" in evaluation.reliability.verdict) is near
    assert check.value == pytest.approx((right / 40 - 0.5) / 0.5)
    assert check.sentence == (
        f"{right / 40:.1%} of the samples are correctly classified, more than 62.5% are expected: chance is 50.0%"
    )


def test_exactly_a_quarter_of_the_way_is_near_chance_whatever_its_rounding() -> None:
    """5 of 16 samples with twelve classes: in floats, a little more than a quarter."""
    model = Affine(torch.eye(12, 16) / 100, torch.eye(12)[0])
    labels = (torch.arange(16) >= 5).long()
    evaluation = run(model, torch.full((16, 1, 4, 4), 0.6), labels, attack=nothing, budget=None)
    assert evaluation.clean_accuracy == 5 / 16
    assert check_of(evaluation, "near chance").passed is False


def test_labels_shifted_by_one_are_seen(conv: TinyConv, images: Tensor) -> None:
    evaluation = run(conv, images, (answers(conv, images) + 1) % 5)
    assert {"near chance", "few samples"} <= alarms(evaluation)
    assert not evaluation.reliability.trusted


@pytest.mark.parametrize(("right", "few"), [(9, True), (10, False)])
def test_too_few_correctly_classified_samples_are_seen(right: int, few: bool, slope: Affine, sixes: Tensor) -> None:
    labels = (torch.arange(SAMPLES) >= right).long()
    check = check_of(run(slope, sixes, labels, norms=("linf",)), "few samples")
    assert check.passed is not few
    assert check.sentence == f"{right} samples are correctly classified, at least 10 are expected"


def test_results_that_were_not_checked_are_not_trusted(conv: TinyConv, images: Tensor) -> None:
    evaluation = run(conv, images, answers(conv, images), checks=False)
    assert evaluation.reliability.verdict == "not checked"
    assert evaluation.as_json()["reliability"]["verdict"] == "not checked"
    assert "reliability: not checked" in str(evaluation)
    assert not evaluation.reliability.trusted
    assert not Requirement.parse("trusted").met(evaluation)
    assert not evaluation.reliability.alarms


def test_an_alarm_of_the_model_is_reported_where_the_results_were_not_checked(conv: TinyConv, images: Tensor) -> None:
    evaluation = run(NoSlope(conv), images, answers(conv, images), checks=False)
    assert evaluation.reliability.verdict == "look at these: broken gradients"
    assert evaluation.as_json()["reliability"]["verdict"] == "look at these"


FACTORIES = """import torch
from torch import nn

def untrained():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

def headless():
    body = nn.Linear(16, 4)
    nn.init.ones_(body.weight)
    nn.init.zeros_(body.bias)
    return nn.Sequential(nn.Flatten(), body, nn.Linear(4, 2))

def trained():
    model = untrained()
    model[1].load_state_dict({"weight": torch.eye(2, 16), "bias": torch.zeros(2)})
    return model

class Mean(nn.Module):
    def forward(self, x):
        mean = x.flatten(1).mean(1)
        return torch.stack([4 * mean, 1 - mean], dim=1)

def without():
    return Mean()
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "some_nets.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("some_nets", None)


@pytest.mark.parametrize(("name", "random"), [("untrained", 34), ("headless", 10), ("trained", 0), ("without", 0)])
def test_random_weights_of_a_factory_are_detected_and_recorded(
    name: str, random: int, factories: Path, sixes: Tensor
) -> None:
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    run(f"some_nets:{name}", sixes, labels, norms=("linf",), out=factories / "run")  # type: ignore[arg-type]
    evaluation = load_evaluation(factories / "run")
    check = check_of(evaluation, "random weights")
    assert check.passed is (random == 0)
    assert check.value == random
    assert check.sentence.startswith(f"{random} parameters are drawn at random when the model is built")
    # The specs of all others stay as they were, and with them the runs that exist.
    assert evaluation.spec.model.get("random_parameters", 0) == random
    assert ("random_parameters" in evaluation.spec.model) is (random > 0)


def test_weights_that_are_given_are_not_random(factories: Path, sixes: Tensor) -> None:
    torch.save({"1.weight": torch.eye(2, 16), "1.bias": torch.zeros(2)}, factories / "weights.pt")
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    evaluation = run("some_nets:untrained", sixes, labels, norms=("linf",), weights="weights.pt")  # type: ignore[arg-type]
    assert check_of(evaluation, "random weights").passed is True


def test_a_preflight_that_is_older_than_a_check_says_so(conv: TinyConv, images: Tensor) -> None:
    measured = preflight(conv, images, answers(conv, images), batch_size=5, seed=0, random_parameters=None).preflight
    assert measured is not None
    measured = replace(measured, random_parameters_measured=False)
    assert "random_parameters" not in measured.as_json()
    check = next(check for check in model_checks(measured) if check.name == "random weights")
    assert check.passed is None
    assert check.sentence == "the run did not record where the weights come from"


def test_the_verdict_names_every_alarm(slope: Affine, sixes: Tensor) -> None:
    reliability = attacked(slope, sixes, nothing).reliability
    assert not reliability.trusted
    assert reliability.verdict == "look at these: cheap attack, never fooled"


def test_an_attack_that_does_not_count_its_passes_is_not_said_to_lie(slope: Affine, sixes: Tensor) -> None:
    (check,) = (
        check for check in attacked(slope, sixes, partial(lying, says=0)).reliability.checks if check.name == "passes"
    )
    assert check.passed is None
    assert check.sentence == "36 backward passes were counted, the attacks report none"
