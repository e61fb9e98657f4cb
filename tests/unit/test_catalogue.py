"""Attacks by name: what there is, what is refused, and that a budget is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import InvalidInputError, UnknownNameError
from pdpgd.catalogue import ATTACKS, prepared
from support.models import TinyConv

EVERY = [(name, norm) for name, entry in ATTACKS.items() for norm in entry.norms]
# The long ones are slow, and shared out alike in every norm.
SPENT = [
    *((name, norm, budget) for name, norm in EVERY for budget in (1, 7, 100)),
    *((name, norm, budget) for name, norm in (("pdpgd", "l1"), ("pdgd", "l2")) for budget in (1000, 1500)),
]


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def image(generator: torch.Generator) -> Tensor:
    return torch.rand(1, 3, 6, 6, generator=generator)


def settings(name: str, norm: str, budget: int) -> Any:
    """The config that the prepared attack has bound."""
    attack: Any = prepared(name, norm, budget=budget, max_batch=64)
    return attack.keywords["config"]


def test_the_catalogue_has_the_papers_choice_and_pdgd() -> None:
    assert {name: entry.norms for name, entry in ATTACKS.items()} == {
        "pdpgd": ("linf", "l2", "l1", "l0"),
        "pdgd": ("linf", "l2", "l1"),
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_an_entry_knows_its_name_and_says_what_it_is_in_one_line(name: str) -> None:
    entry = ATTACKS[name]
    assert entry.name == name
    assert entry.about
    assert "\n" not in entry.about


@pytest.mark.parametrize(("norm", "played"), [("linf", "pdpgd"), ("l2", "pdgd"), ("l1", "pdpgd"), ("l0", "pdpgd")])
def test_the_papers_choice_is_pdgd_in_l2_and_pdpgd_elsewhere(norm: str, played: str) -> None:
    attack: Any = prepared("pdpgd", norm, budget=100, max_batch=64)
    assert attack.func.__name__ == played
    if played == "pdpgd":
        assert attack.keywords["config"].project_first


@pytest.mark.parametrize("norm", ATTACKS["pdgd"].norms)
def test_pdgd_is_pdgd_in_every_norm(norm: str) -> None:
    attack: Any = prepared("pdgd", norm, budget=100, max_batch=64)
    assert attack.func.__name__ == "pdgd"


@pytest.mark.parametrize(
    ("budget", "steps", "finetune_steps", "restarts"),
    [(1, 1, 0, 1), (7, 4, 3, 1), (999, 500, 499, 1), (1000, 500, 500, 1), (1499, 500, 500, 1), (5000, 500, 500, 9)],
)
@pytest.mark.parametrize(("name", "norm"), EVERY)
def test_a_budget_is_shared_out_by_the_rule(
    name: str, norm: str, budget: int, steps: int, finetune_steps: int, restarts: int
) -> None:
    config = settings(name, norm, budget)
    assert (config.steps, config.finetune_steps, config.restarts) == (steps, finetune_steps, restarts)
    assert config.max_batch == 64


@pytest.mark.parametrize(("budget", "rates"), [(999, (0.1, 1.0)), (1000, (0.01, 0.1))])
@pytest.mark.parametrize(("name", "norm"), EVERY)
def test_a_short_game_has_a_livelier_fine_tuning_and_else_the_authors_settings(
    name: str, norm: str, budget: int, rates: tuple[float, float]
) -> None:
    config = settings(name, norm, budget)
    assert (config.finetune_primal, config.finetune_dual) == rates
    assert (config.primal_rate, config.dual_rate, config.start_radius, config.penalty) == (1.0, 0.1, 0.5, 0.1)


@pytest.mark.parametrize(
    ("norm", "budget", "prox"),
    [
        *(("linf", 100, "exact"), ("linf", 1000, "exact")),
        *(("l1", 148, "exact"), ("l1", 149, "loop"), ("l1", 1000, "loop")),
        *(("l0", 148, "exact"), ("l0", 149, "loop"), ("l0", 1000, "loop")),
    ],
)
def test_the_paper_s_inner_loop_is_taken_where_it_is_worth_its_time(norm: str, budget: int, prox: str) -> None:
    assert settings("pdpgd", norm, budget).prox == prox


@pytest.mark.parametrize(("name", "norm", "budget"), SPENT)
def test_no_sample_gets_more_gradients_than_the_budget_and_all_of_it_where_it_can(
    name: str, norm: str, budget: int, conv: TinyConv, image: Tensor
) -> None:
    with torch.no_grad():
        label = conv(image).argmax(1)
    (spent,) = prepared(name, norm, budget=budget, max_batch=64)(conv, image, label, norm=norm).backwards.tolist()
    assert 0 < spent <= budget
    # Under l0 a sample may be settled early; what a short search has not found is not fine-tuned.
    if norm != "l0" and budget >= 100:
        assert spent == budget


def test_an_unknown_attack_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="unknown attack: expected one of pdgd, pdpgd, got 'pdpdg'; did you"):
        prepared("pdpdg", "l2", budget=100, max_batch=64)


def test_a_norm_the_attack_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^attack pdgd: expected one of the norms linf, l2, l1, got 'l0'$"):
        prepared("pdgd", "l0", budget=100, max_batch=64)


@pytest.mark.parametrize("budget", [0, -5, 10.0, "100", None, True])
def test_a_budget_that_is_no_positive_integer_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        prepared("pdpgd", "l2", budget=budget, max_batch=64)
    assert str(caught.value) == f"budget: expected an integer >= 1, got {budget!r}"


def test_a_memory_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_batch: expected at least 1, got 0"):
        prepared("pdpgd", "l2", budget=100, max_batch=0)
