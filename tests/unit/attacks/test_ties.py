"""Where logits tie, the model's own argmax decides what is adversarial, consistently everywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from pdpgd import AttackResult, PDPGDConfig, auto, pdpgd
from pdpgd.attacks.catalogue import prepared
from pdpgd.attacks.pgd import PGDConfig, pgd
from pdpgd.classifier import Classifier
from pdpgd.criteria import Criterion
from pdpgd.data.dataset import ArraySamples, numbered_classes
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.evaluation.referee import Referee, from_pixels, quantized
from pdpgd.evaluation.sanity import cheap_points
from pdpgd.training.recipe import clean_accuracy
from support.models import Affine, random_affine

CLASSES, SAMPLES = 4, 80


class Coarse(nn.Module):
    """Logits rounded to even numbers, with the slope of the unrounded ones: many of them tie."""

    def __init__(self, model: Affine) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + (2 * (logits / 2).round() - logits).detach()


@pytest.fixture
def model(generator: Generator) -> Coarse:
    return Coarse(random_affine(generator, features=16, classes=CLASSES))


@pytest.fixture
def images(generator: Generator) -> Tensor:
    return torch.randint(0, 256, (SAMPLES, 1, 4, 4), generator=generator).float().div(255)


def tied(model: nn.Module, points: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax, and another class with the same logit where there is one."""
    with torch.no_grad():
        logits = model(points)
    first = logits.argmax(1)
    rest = logits.scatter(1, first[:, None], -torch.inf)
    return first, torch.where(rest.amax(1) == logits.amax(1), rest.argmax(1), first)


@pytest.fixture
def labels(model: Coarse, images: Tensor) -> Tensor:
    """The second of two classes that tie, where two do: by the argmax, the sample is misclassified."""
    first, second = tied(model, images)
    assert 4 <= (first != second).sum() < SAMPLES - 4
    return second


@pytest.fixture
def wrong(model: Coarse, images: Tensor, labels: Tensor) -> Tensor:
    return tied(model, images)[0] != labels


def fooled(model: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        answers: Tensor = model(points)
    return answers.argmax(1) != labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("targeted", [False, True])
def test_a_margin_is_below_zero_exactly_where_the_argmax_says_fooled(
    targeted: bool, dtype: torch.dtype, generator: Generator
) -> None:
    logits = torch.randint(0, 3, (500, CLASSES), generator=generator).to(dtype).requires_grad_()
    classes = torch.randint(0, CLASSES, (500,), generator=generator)
    margin = Criterion(classes, targeted).margin(logits)
    assert torch.equal(margin < 0, (logits.argmax(1) == classes) == targeted)
    assert ((margin == 0) | (margin.abs() >= 1) | (margin == -torch.finfo(dtype).tiny)).all()


def test_a_tie_does_not_change_the_gradient_of_the_margin() -> None:
    logits = torch.tensor([[2.0, 2.0, 0.0], [2.0, 1.0, 0.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(Criterion(torch.tensor([1, 0])).margin(logits).sum(), logits)
    assert slope.tolist() == [[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]


def test_rounding_the_logits_of_a_model_in_double_precision_makes_no_other_argmax() -> None:
    x = torch.zeros(3, 2, requires_grad=True)
    precise = x.double().sum(1, keepdim=True) + torch.tensor([[1.0, 1.0 + 1e-12, 0.5]], dtype=torch.float64)
    logits = Classifier(lambda points: precise).logits(x, None)
    assert logits.dtype == torch.float32
    assert precise.argmax(1).tolist() == logits.argmax(1).tolist() == [1, 1, 1]
    torch.testing.assert_close(logits.double(), precise, rtol=2e-7, atol=0)
    (slope,) = torch.autograd.grad(logits.sum(), x)
    assert slope.tolist() == [[3.0, 3.0]] * 3


def test_the_referee_and_the_accuracy_call_the_same_inputs_wrong(
    model: Coarse, images: Tensor, labels: Tensor, wrong: Tensor
) -> None:
    clean = Referee(model, images, labels, batch_size=7).judge_inputs()
    assert torch.equal(clean.valid, wrong)
    assert torch.equal(clean.prediction != labels, wrong)
    samples = ArraySamples("ties", images, labels, numbered_classes("ties", labels))
    assert clean_accuracy(model, samples).share == float((~wrong).double().mean())
    evaluation = evaluate(model, (images, labels), norms=("l2",), budget=10, threads=1, chunk_size=SAMPLES)
    assert evaluation.clean_accuracy == float((~wrong).double().mean())


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(lambda *data: auto(*data, norm="l2", budget=40), id="auto"),
        pytest.param(lambda *data: pdpgd(*data, norm="linf", config=PDPGDConfig(steps=20)), id="pdpgd"),
        pytest.param(lambda *data: pgd(*data, norm="linf", config=PGDConfig(radius=0.3, steps=10)), id="pgd"),
        *(
            pytest.param(lambda *data, name=name, norm=norm: prepared(name, norm, budget=60, max_batch=64)(
                *data, norm=norm
            ), id=name)
            for name, norm in (
                ("sparsefool", "l1"),
                ("one-pixel", "l0"),
                ("corner-search", "l0"),
                ("square", "linf"),
                ("sparse-rs", "l0"),
                ("jsma", "l0"),
                ("ddn", "l2"),
                ("fmn", "l2"),
                ("deepfool@foolbox", "l2"),
                ("deepfool@art", "l2"),
            )
        ),
    ],
)  # fmt: skip
def test_every_attack_finds_what_the_argmax_calls_fooled_and_nothing_else(
    attack: Any, model: Coarse, images: Tensor, labels: Tensor, wrong: Tensor
) -> None:
    result: AttackResult = attack(model, images, labels)
    assert (result.distances[wrong] == 0).all()
    assert (result.distances[~wrong] > 0).all()
    assert result.found[~wrong].any()
    assert fooled(model, result.adversarials, labels)[result.found].all()
    assert torch.equal(result.labels != labels, fooled(model, result.adversarials, labels))


def test_cheap_attacks_and_the_grid_of_8_bits_agree(
    model: Coarse, images: Tensor, labels: Tensor, wrong: Tensor
) -> None:
    referee = Referee(model, images, labels, batch_size=SAMPLES)
    clean = referee.judge_inputs()
    every = torch.arange(SAMPLES)
    for _, points, found in cheap_points(referee, model, clean.prediction, ~wrong, seed=0, indices=every):
        assert fooled(model, points, labels)[found].all()
        verdicts = referee.judge(points, found)
        assert torch.equal(verdicts.valid, found)
    # One pixel further each: some of these points tie, and the second class of the tie is the label.
    points = (images + torch.eye(16).repeat(5, 1).reshape(SAMPLES, 1, 4, 4) * 0.4).clamp(0, 1)
    now = fooled(model, points, labels)
    pixels, verdicts = quantized(referee, points, now & ~wrong, "l2")
    assert torch.equal(verdicts.valid, now & ~wrong)
    assert fooled(model, from_pixels(pixels), labels)[verdicts.valid].all()


def test_a_point_that_ties_in_favor_of_another_class_is_fooled_in_a_whole_run(
    model: Coarse, images: Tensor, wrong: Tensor
) -> None:
    """From where the first class leads by one, to where the label ties and the argmax is another."""
    first, second = tied(model, images)
    swapped = torch.where(wrong, first, second)

    def to_a_tie(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        line = torch.linspace(0, 1, 201)[:, None, None, None, None]
        path = inputs + line * (1 - 2 * inputs)
        answers = model(path.flatten(0, 1)).unflatten(0, path.shape[:2])
        own = answers.gather(2, labels.expand(len(line), -1)[..., None]).squeeze(2)
        ties = (own == answers.amax(2)) & (answers.argmax(2) != labels)
        place = ties.float().argmax(0)
        return SimpleNamespace(adversarials=path[place, torch.arange(len(inputs))], found=ties.any(0))

    evaluation = evaluate(model, (images, swapped), norms=("l2",), attack=to_a_tie, threads=1, checks=False)
    verdicts = evaluation.column("verdict", "l2")
    assert (verdicts == "verified").sum() >= 2
    assert set(verdicts) == {"verified", "none"}
