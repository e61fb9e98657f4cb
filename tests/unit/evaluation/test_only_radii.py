"""A run that asks about radii only: what it asks, what it records, and what it does not say about distances."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pdpgd
from pdpgd import Evaluation, evaluate, load_evaluation
from pdpgd.attacks.catalogue import prepared
from pdpgd.attacks.prepare import OwnAuto
from pdpgd.errors import InvalidInputError
from pdpgd.report.inputs import inputs_of
from pdpgd.report.page import contents_of
from pdpgd.report.sections import marked_radii
from pdpgd.report.summary import ONLY_RADII
from pdpgd.runs.summary import norm_summary
from support.models import tiny_conv_problem

SAMPLES, BUDGET = 8, 30
RADII = {"linf": [0.03, 0.01], "l2": 0.1}
ASCENDING = {"linf": (0.01, 0.03), "l2": (0.1,)}


@pytest.fixture(scope="module")
def asked() -> Evaluation:
    return evaluate(*tiny_conv_problem(SAMPLES), only_radii=RADII, budget=BUDGET, threads=1)


@pytest.fixture(scope="module")
def searched() -> Evaluation:
    return evaluate(*tiny_conv_problem(SAMPLES), norms=["linf", "l2"], budget=BUDGET, threads=1)


def test_the_attack_of_each_norm_gets_the_radii_of_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    got = []

    def auto(*arguments: Any, norm: str, radius: Any, **others: Any) -> Any:
        got.append((norm, radius, others["starts"] is not None))
        return pdpgd.auto(*arguments, norm=norm, radius=radius, **others)

    monkeypatch.setattr("pdpgd.attacks.prepare.auto", auto)
    evaluate(*tiny_conv_problem(SAMPLES), only_radii=RADII, budget=BUDGET, threads=1, checks=False)
    assert got == [("linf", ASCENDING["linf"], True), ("l2", ASCENDING["l2"], True)]


def test_the_norms_are_those_of_the_radii_and_the_spec_records_them(asked: Evaluation, searched: Evaluation) -> None:
    assert asked.norms == ("linf", "l2")
    assert asked.spec.only_radii == ASCENDING
    assert asked.spec.budget == BUDGET
    assert asked.spec.settings == {"radii": {norm: list(radii) for norm, radii in ASCENDING.items()}}
    assert searched.spec.only_radii == {}
    assert searched.spec.settings == {}


def test_a_budget_need_not_be_given() -> None:
    run = evaluate(*tiny_conv_problem(2), only_radii={"l2": 9.0}, checks=False, threads=1)
    assert run.spec.budget == 1000


def test_a_fooled_sample_costs_no_further_passes(searched: Evaluation) -> None:
    far = evaluate(*tiny_conv_problem(SAMPLES), only_radii={"linf": 0.9}, budget=BUDGET, threads=1)
    assert far.robust_accuracy(0.9, "linf") == 0
    assert far.column("forwards", "linf").sum() < searched.column("forwards", "linf").sum() / 2


def test_a_run_with_other_radii_is_another_run(tmp_path: Path) -> None:
    problem = tiny_conv_problem(2)
    radii: list[Any] = [{"l2": 0.1}, {"l2": [0.1, 0.2]}, None]
    evaluate(*problem, norms=["l2"], only_radii=radii[0], budget=BUDGET, threads=1, out=tmp_path / "run")
    assert load_evaluation(tmp_path / "run").spec.only_radii == {"l2": (0.1,)}
    for other in radii[1:]:
        with pytest.raises(InvalidInputError, match=r"settings\.radii\.l2: 0\.1 stored"):
            evaluate(*problem, norms=["l2"], only_radii=other, budget=BUDGET, threads=1, out=tmp_path / "run")


@pytest.mark.parametrize("radius", [0.02, 0.005, 0.05, 0.0])
def test_robust_accuracy_is_told_at_the_radii_only(asked: Evaluation, radius: float) -> None:
    assert 0 <= asked.robust_accuracy(0.03, "linf") <= asked.robust_accuracy(0.01, "linf") <= 1
    with pytest.raises(
        InvalidInputError, match=r"eps: expected a radius that the run asked about in linf, 0\.01, 0\.03"
    ):
        asked.robust_accuracy(radius, "linf")
    with pytest.raises(InvalidInputError, match="eps: expected a radius that the run asked about in linf"):
        asked.robust_accuracy({"l2": 0.1, "linf": radius})


def test_the_summary_has_radii_and_passes_and_no_distances(asked: Evaluation, searched: Evaluation) -> None:
    text = str(asked)
    robust = round(asked.robust_accuracy(0.01, "linf") * SAMPLES)
    assert f"Robust accuracy at linf radius 0.01: {robust / SAMPLES:.1%} ({robust} of {SAMPLES})" in text
    passes = asked.column("forwards", "l2") + asked.column("backwards", "l2")
    assert f"Passes in l2: {passes.mean():.0f} per attacked sample on average, at most {passes.max()}" in text
    assert "mean" not in text
    assert "median" not in text
    assert "median" in str(searched)
    assert norm_summary(searched, "l2").mean is not None


def test_json_has_the_radii_and_no_statistics_of_distances(asked: Evaluation, searched: Evaluation) -> None:
    entries = json.loads(json.dumps(asked.as_json()))
    assert entries["only_radii"] == {"linf": [0.01, 0.03], "l2": [0.1]}
    assert [(each["norm"], each["radius"]) for each in entries["robust_accuracy"]] == [
        ("linf", 0.01),
        ("linf", 0.03),
        ("l2", 0.1),
    ]
    assert entries["robust_accuracy"][2]["share"] == asked.robust_accuracy(0.1, "l2")
    for numbers in entries["norms"].values():
        assert [numbers[name] for name in ("mean", "median", "mean_8bit", "median_8bit")] == [None] * 4
        assert set(numbers["deciles"]) == {None}
    assert not {"only_radii", "robust_accuracy"} & set(searched.as_json())


def test_the_report_says_that_distances_are_upper_bounds(asked: Evaluation, searched: Evaluation) -> None:
    page = contents_of(inputs_of(asked), radii={}, pictures=0, title=None)
    assert page.sentences[-1] == ONLY_RADII
    assert page.sentences[0].startswith("Robust accuracy at linf radius 0.01: ")
    assert not any("Half of" in sentence for sentence in page.sentences)
    assert all("distances are upper bounds" in section.lead for section in page.sections)
    usual = contents_of(inputs_of(searched), radii={}, pictures=0, title=None)
    assert ONLY_RADII not in usual.sentences
    assert not any("distances are upper bounds" in section.lead for section in usual.sections)


def test_the_report_marks_the_radii_that_were_asked_about(asked: Evaluation, searched: Evaluation) -> None:
    for sources in (asked, [searched, asked]):
        marks = marked_radii(inputs_of(sources), {})
        assert {norm: each.radii for norm, each in marks.items()} == ASCENDING
        assert marks["l2"].origin == "the radii that the run asked about"
    both = contents_of(inputs_of([searched, asked]), radii={}, pictures=0, title=None)
    assert both.sentences[-1] == ONLY_RADII
    assert sum("half of" in sentence for sentence in both.sentences) == 1, "of the run that searched, not of the other"


def test_the_checks_of_the_run_compare_at_the_radii(asked: Evaluation, searched: Evaluation) -> None:
    for name, words in (("dominated", "the run asked about radii only"), ("restarts", "within an l")):
        (said,) = (check.sentence for check in asked.reliability.checks if check.name == name)
        (usual,) = (check.sentence for check in searched.reliability.checks if check.name == name)
        assert words in said
        assert words not in usual


def own(model: Any, inputs: torch.Tensor, labels: torch.Tensor, *, norm: str) -> Any:
    raise AssertionError("nothing may run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"only_radii": {}}, r"only_radii: expected radii by norm such as \{'linf': \[8/255\]\}, got \{\}"),
        ({"only_radii": 0.1}, "only_radii: expected radii by norm such as"),
        (
            {"norms": ["linf", "l1"]},
            r"radii for each norm of the run, got none for l1; give them \(--radius l1:RADIUS\)",
        ),
        ({"norms": ["l1"], "only_radii": {"l1": 1, "l2": 1}}, "only_radii: expected norms of the run, l1, got l2; add"),
        ({"attack": "pgd"}, r"auto or auto-shared, got pgd; an attack within a radius takes settings=\{'radii'"),
        ({"attack": "deepfool"}, r"auto or auto-shared, got deepfool; leave out only_radii \(--only-radius\)"),
        ({"attack": own}, "auto or auto-shared, got own; leave out"),
        (
            {"only_radii": {"linf": [0.1, -1]}},
            r"radii: expected one or several numbers above 0 for linf, got \[0.1, -1\]",
        ),
        ({"only_radii": {"linf": []}}, r"numbers above 0 for linf, got \[\]"),
        ({"only_radii": {"linf": "0.1"}}, "numbers above 0 for linf, got '0.1'"),
        ({"only_radii": {"linf": [float("nan")]}}, "numbers above 0 for linf"),
        ({"only_radii": {"linf": True}}, "numbers above 0 for linf"),
    ],
)
def test_a_wrong_question_is_refused_before_the_model_is_loaded(arguments: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        evaluate("no-such-model", "no-such-data", **{"only_radii": {"linf": 0.1}, **arguments})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 3}, "attack auto: expected a budget and no settings except radii, got steps"),
        (
            {"radii": [0.1]},
            r"attack auto: expected radii by norm such as \{'l2': \[0.1\]\} with those of l2, got \[0.1\]",
        ),
        ({"radii": {"l1": [0.1]}}, "with those of l2, got"),
        ({"radii": {"l2": 0.1}}, "radii: expected one or several numbers above 0 for l2, got 0.1"),
    ],
)
def test_settings_that_auto_does_not_have_are_refused(settings: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        prepared("auto", "l2", budget=10, settings=settings, max_batch=4)


def test_both_forms_of_auto_can_be_asked() -> None:
    assert OwnAuto.only_radii
    run = evaluate(*tiny_conv_problem(3), only_radii={"l2": 0.1}, attack="auto-shared", budget=BUDGET, threads=1)
    assert run.spec.attack == "auto-shared"
    assert np.isin(run.robust_accuracy(0.1), np.arange(4) / 3)
