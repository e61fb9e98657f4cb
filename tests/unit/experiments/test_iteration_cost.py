"""The counted cost of an iteration is the one that the catalogue states."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from pdpgd.attacks.catalogue import ATTACKS
from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.experiments import iteration_cost
from pdpgd.experiments.iteration_cost import countable, measure_cost
from support.models import TinyConv, WithLogits
from support.plain_numba import compile_no_classes

compile_no_classes()

CLASSES = 5
CASES = [(name, norm) for name in countable() for norm in ATTACKS[name].norms]


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(4, 3, 6, 6, generator=generator)


def stated(cost: str) -> tuple[int, int]:
    """Parse the passes of an iteration from a cost such as "1f + (k-1)b, in DeepFool"."""
    found = re.match(r"(\d+)f(?: \+ (\d+|\(k-1\))b)?", cost)
    assert found is not None
    backwards = found[2] or "0"
    return int(found[1]), CLASSES - 1 if backwards == "(k-1)" else int(backwards)


@pytest.mark.parametrize(("attack", "norm"), CASES, ids=[f"{attack}-{norm}" for attack, norm in CASES])
def test_an_iteration_costs_what_the_catalogue_says(attack: str, norm: str, conv: TinyConv, images: Tensor) -> None:
    with torch.no_grad():
        labels = conv(images).argmax(1)
    cost = measure_cost(attack, norm, conv, images, labels)
    forwards, backwards = stated(ATTACKS[attack].cost)
    assert (cost.forwards, cost.backwards) == (forwards, backwards)
    assert (cost.attack, cost.norm) == (attack, norm)


def test_every_attack_of_the_catalogue_is_counted_except_alternative_sources_and_autoattack() -> None:
    assert set(countable()) == {name for name in ATTACKS if "@" not in name} - {"autoattack"}


def test_labels_do_not_matter_where_the_prediction_is_fixed(conv: TinyConv, images: Tensor) -> None:
    """Not even wrong labels, with which attacks would skip every sample."""
    wrong = (conv(images).argmax(1) + 1) % CLASSES
    cost = measure_cost("deepfool", "l2", conv, images, wrong)
    assert (cost.forwards, cost.backwards) == (1, CLASSES - 1)


def test_an_attack_that_needs_the_boundary_is_counted_only_on_correctly_classified_samples(
    conv: TinyConv, images: Tensor
) -> None:
    labels = conv(images).argmax(1)
    labels[0] = (labels[0] + 1) % CLASSES
    cost = measure_cost("bb", "l2", conv, images, labels)
    assert (cost.forwards, cost.backwards) == (1, 1)
    with pytest.raises(InvalidInputError, match="expected correctly classified samples, got none"):
        measure_cost("bb", "l2", conv, images[:1], labels[:1])


def test_a_model_that_returns_a_record_with_logits_is_supported(conv: TinyConv, images: Tensor) -> None:
    cost = measure_cost("pdpgd", "l1", WithLogits(conv), images, torch.zeros(4, dtype=torch.long))
    assert (cost.forwards, cost.backwards, cost.iteration) == (1, 1, "steps")


def test_the_model_is_not_modified(conv: TinyConv, images: Tensor) -> None:
    measure_cost("pgd", "linf", conv, images, torch.zeros(4, dtype=torch.long))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in conv.parameters())
    assert not conv.training


def test_alternative_sources_and_unknown_names_are_refused(conv: TinyConv, images: Tensor) -> None:
    labels = torch.zeros(4, dtype=torch.long)
    with pytest.raises(InvalidInputError, match=r"attack cw@adv-lib: expected one whose iterations are counted \(auto"):
        measure_cost("cw@adv-lib", "l2", conv, images, labels)
    with pytest.raises(UnknownNameError, match="did you mean 'pgd'"):
        measure_cost("pgdd", "l2", conv, images, labels)
    with pytest.raises(InvalidInputError, match="expected one of the norms l2, got 'l1'"):
        measure_cost("cw", "l1", conv, images, labels)


def test_a_fraction_of_an_iteration_is_measured(
    conv: TinyConv, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If half of the samples were not attacked, the measured cost would be one half."""

    original = iteration_cost.prepared

    def partly(*arguments: object, **settings: object) -> object:
        attack = original(*arguments, **settings)  # type: ignore[arg-type]
        return lambda model, inputs, labels, norm: attack(model, inputs[:2], labels[:2], norm=norm)

    monkeypatch.setattr(iteration_cost, "prepared", partly)
    assert measure_cost("pgd", "l2", conv, images, torch.zeros(4, dtype=torch.long)).forwards == 0.5
