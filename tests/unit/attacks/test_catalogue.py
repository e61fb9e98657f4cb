"""The catalogue: its rows, the calls it refuses, and how budgets and settings become an attack."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import InvalidInputError, UnknownNameError, norms
from pdpgd.attacks.catalogue import ATTACKS, paper_settings, prepared
from pdpgd.attacks.prepare import Preparable
from pdpgd.errors import MissingExtraError
from support.models import TinyConv

GAMES = [(name, norm) for name in ("pdpgd", "pdgd") for norm in ATTACKS[name].norms]
OURS = [(name, norm) for name in ("auto", "auto-shared") for norm in ATTACKS[name].norms]
# Long budgets are slow, and divided in the same way in every norm.
SPENT = [
    *((name, norm, budget) for name, norm in GAMES for budget in (2, 14, 200)),
    *((name, norm, budget) for name, norm in (("pdpgd", "l1"), ("pdgd", "l2")) for budget in (2000, 3000)),
]


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def image(generator: torch.Generator) -> Tensor:
    return torch.rand(1, 3, 6, 6, generator=generator)


def settings(name: str, norm: str, budget: int) -> Any:
    """Return the config that the prepared attack has bound."""
    attack: Any = prepared(name, norm, budget=budget, max_batch=64)
    return attack.keywords["config"]


def test_the_catalogue_has_ours_the_papers_twelve_baselines_a_variant_and_later_attacks() -> None:
    every, convex = ("linf", "l2", "l1", "l0"), ("linf", "l2", "l1")
    ours = {"auto": every, "auto-shared": every, "pdpgd": every, "pdgd": convex}
    twelve = {
        "bb": every,
        "cw": ("l2",),
        "corner-search": ("l0",),
        "ddn": ("l2",),
        "deepfool": ("linf", "l2"),
        "daa": ("linf",),
        "ead": ("l1",),
        "fab": convex,
        "jsma": ("l0",),
        "one-pixel": ("l0",),
        "pgd": every,
        "sparsefool": ("l1", "l0"),
    }
    variants = {"daa-attraction": ("linf",)}
    later = {
        "fmn": every,
        "alma": ("l2", "l1"),
        "sigma-zero": ("l0",),
        "apgd": convex,
        "apgd-t": convex,
        "autoattack": convex,
        "apgd-ce": convex,
        "fab-t": convex,
        "superdeepfool": ("l2",),
        "vfga": ("l0",),
        "square": convex,
        "sparse-rs": ("l0",),
    }
    found = {name: info.norms for name, info in ATTACKS.items() if "@" not in name}
    assert found == {**ours, **twelve, **variants, **later}
    assert {name for name, info in ATTACKS.items() if info.in_paper} == {"pdpgd", "pdgd", *twelve}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_row_has_its_name_a_description_in_one_line_and_a_class_that_can_be_loaded(name: str) -> None:
    info = ATTACKS[name]
    assert info.name == name
    assert info.about
    assert "\n" not in info.about
    assert issubclass(info.load(), Preparable)


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
    [
        *((1, 1, 0, 1), (3, 1, 0, 1), (14, 4, 3, 1), (1999, 500, 499, 1)),
        *((2000, 500, 500, 1), (2999, 500, 500, 1), (10000, 500, 500, 9)),
    ],
)
@pytest.mark.parametrize(("name", "norm"), GAMES)
def test_a_budget_is_shared_out_by_the_rule(
    name: str, norm: str, budget: int, steps: int, finetune_steps: int, restarts: int
) -> None:
    config = settings(name, norm, budget)
    assert (config.steps, config.finetune_steps, config.restarts) == (steps, finetune_steps, restarts)
    assert config.max_batch == 64


@pytest.mark.parametrize(("budget", "rates"), [(1999, (0.1, 1.0)), (2000, (0.01, 0.1))])
@pytest.mark.parametrize(("name", "norm"), GAMES)
def test_a_short_game_has_a_livelier_fine_tuning_and_else_the_authors_settings(
    name: str, norm: str, budget: int, rates: tuple[float, float]
) -> None:
    config = settings(name, norm, budget)
    assert (config.finetune_primal, config.finetune_dual) == rates
    assert (config.primal_rate, config.dual_rate, config.start_radius, config.penalty) == (1.0, 0.1, 0.5, 0.1)


@pytest.mark.parametrize(("name", "norm", "budget"), SPENT)
def test_half_of_the_budget_is_gradients_and_all_of_it_is_spent_where_it_can_be(
    name: str, norm: str, budget: int, conv: TinyConv, image: Tensor
) -> None:
    with torch.no_grad():
        label = conv(image).argmax(1)
    (spent,) = prepared(name, norm, budget=budget, max_batch=64)(conv, image, label, norm=norm).backwards.tolist()
    assert 0 < spent <= budget // 2
    # In l0 a sample may converge early; samples that a short search has not fooled are not fine-tuned.
    if norm != "l0" and budget >= 200:
        assert spent == budget // 2


@pytest.mark.parametrize("budget", [1, 9, 150])
@pytest.mark.parametrize(("name", "norm"), OURS)
def test_auto_never_spends_more_passes_than_the_budget(
    name: str, norm: str, budget: int, conv: TinyConv, image: Tensor
) -> None:
    with torch.no_grad():
        label = conv(image).argmax(1)
    result = prepared(name, norm, budget=budget, max_batch=64)(conv, image, label, norm=norm)
    assert 0 < int(result.forwards + result.backwards) <= budget


def test_auto_takes_a_norm_of_the_users_own_by_its_name_and_the_papers_attack_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(norms, "_NORMS", {**norms._NORMS, "twice": replace(norms.L2, name="twice")})
    assert prepared("auto", "twice", budget=100, max_batch=64)
    with pytest.raises(InvalidInputError, match="attack pdpgd: expected one of the norms"):
        prepared("pdpgd", "twice", budget=100, max_batch=64)
    with pytest.raises(UnknownNameError, match="unknown norm"):
        prepared("auto", "thrice", budget=100, max_batch=64)


def test_an_unknown_attack_is_answered_with_a_suggestion() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown attack: expected one of alma, .*, vfga, got 'pdpdg'; did you mean 'pdpgd'\?"
    ):
        prepared("pdpdg", "l2", budget=100, max_batch=64)


def test_a_norm_the_attack_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^attack pdgd: expected one of the norms linf, l2, l1, got 'l0'$"):
        prepared("pdgd", "l0", budget=100, max_batch=64)


@pytest.mark.parametrize("budget", [0, -5, 10.0, "100", True])
def test_a_budget_that_is_no_positive_integer_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        prepared("pdpgd", "l2", budget=budget, max_batch=64)
    assert str(caught.value) == f"budget: expected an integer >= 1, got {budget!r}"


def test_a_memory_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_batch: expected at least 1, got 0"):
        prepared("pdpgd", "l2", budget=100, max_batch=0)


@pytest.mark.parametrize("name", [name for name, info in ATTACKS.items() if info.library is not None])
def test_without_its_library_an_attack_is_listed_and_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ATTACKS[name].library
    assert library is not None
    monkeypatch.setitem(sys.modules, library.module, None)
    with pytest.raises(MissingExtraError) as caught:
        prepared(name, ATTACKS[name].norms[0], budget=100, max_batch=64)
    assert str(caught.value) == f"attack {name} needs {library.name}: {library.install}"


def test_settings_come_before_what_the_budget_makes_of_them() -> None:
    config = settings("pdpgd", "l1", 100)
    attack: Any = prepared("pdpgd", "l1", budget=100, settings={"restarts": 3}, max_batch=64)
    assert attack.keywords["config"] == replace(config, restarts=3)


@pytest.mark.parametrize(("name", "norm"), [("pdpgd", "l1"), ("pgd", "l2"), ("ddn", "l2"), ("auto", "l2")])
def test_a_setting_that_an_attack_does_not_have_is_refused(name: str, norm: str) -> None:
    with pytest.raises(InvalidInputError, match=f"attack {name}: expected .*wings"):
        prepared(name, norm, budget=100, settings={"wings": 2}, max_batch=64)


PAPERS = [
    (name, norm, dataset)
    for name, info in ATTACKS.items()
    if info.in_paper
    for norm in info.norms
    for dataset in ("mnist", "cifar10", "restricted-imagenet")
]


@pytest.mark.parametrize(("name", "norm", "dataset"), PAPERS)
def test_the_papers_settings_and_every_choice_of_its_grid_are_settings_that_the_attack_has(
    name: str, norm: str, dataset: str
) -> None:
    found = paper_settings(name, dataset, norm, "linf-at")
    for choice in ATTACKS[name].combinations(norm) or [{}]:
        assert json.loads(json.dumps({**found, **choice}))
        assert prepared(name, norm, settings={**found, **choice}, max_batch=64)


@pytest.mark.parametrize("name", ["auto", "fmn", "cw@adv-lib"])
def test_the_paper_has_no_settings_for_attacks_it_does_not_have(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"attack {name}: expected one that the paper has settings for"):
        paper_settings(name, "mnist", "l2", "plain")
