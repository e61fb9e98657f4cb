"""Wrong specs are refused with the place of the error; the shipped ones describe the paper's experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.experiments.plan import planned_runs
from pdpgd.experiments.spec import ExperimentSpec, changed, load_spec, parse_spec, shipped
from pdpgd.models import zoo
from pdpgd.models.paper_nets import PAPER_NETS
from pdpgd.paper import PAPER_RADII

SPEC = """
title = "one"
norms = ["linf", "l2"]
budget = 40

[datasets.digits]
source = "mnist-1000"
like = "mnist"
limit = 5

[datasets.digits.models]
plain = "mnist-plain"
mine = { source = "mnist-linf-at", like = "linf-at" }

[[attacks]]
name = "auto"

[[attacks]]
name = "pgd"
restarts = [1, 3]
norms = ["l2"]
settings = { step = 0.2 }
"""


def test_every_combination_is_planned_once() -> None:
    spec = parse_spec(SPEC)
    cells = [(run.model.name, run.norm, run.attack.label) for run in planned_runs(spec)]
    assert cells == [
        (model, norm, label)
        for model in ("plain", "mine")
        for norm, label in (("linf", "auto"), ("l2", "auto"), ("l2", "pgd:1"), ("l2", "pgd:3"))
    ]
    assert {run.attack.budget for run in planned_runs(spec)} == {40}


def test_changes_are_also_made_in_the_text() -> None:
    spec = parse_spec(SPEC)
    assert changed(spec) is spec
    other = changed(spec, limit=3, models={"mine": 'my "net".pt'})
    (dataset,) = other.datasets
    (before,) = spec.datasets
    assert dataset.limit == 3 != before.limit
    assert [model.source for model in dataset.models] == [before.models[0].source, 'my "net".pt']
    assert [model.like for model in dataset.models] == [model.like for model in before.models]
    assert other.attacks == spec.attacks
    assert parse_spec(other.text) == other
    assert changed(other, limit=before.limit).datasets[0].limit == before.limit


def test_a_replaced_model_leaves_no_weights_normalization_or_need_for_consent() -> None:
    heavy = '{ source = "nets:resnet", like = "l2-at", weights = "w.pt", mean = "cifar10", trust_pickle = true }'
    spec = parse_spec(SPEC.replace('plain = "mnist-plain"', f"plain = {heavy}"))
    (model, _) = changed(spec, models={"plain": "mnist-l2-at"}).datasets[0].models
    assert (model.source, model.like, model.weights, model.mean) == ("mnist-l2-at", "l2-at", None, None)
    assert not model.trust_model_code


def test_the_replacement_of_a_pooled_model_is_pooled_too() -> None:
    pooled = SPEC.replace('plain = "mnist-plain"', 'plain = { source = "timm:resnet50", pool = "restricted-imagenet" }')
    spec = parse_spec(pooled)
    assert [model.pool for model in spec.datasets[0].models] == ["restricted-imagenet", None]
    other = changed(spec, models={"plain": "nets:resnet", "mine": "nets:small"})
    assert [(model.source, model.pool) for model in other.datasets[0].models] == [
        ("nets:resnet", "restricted-imagenet"),
        ("nets:small", None),
    ]
    with pytest.raises(UnknownNameError, match=r"pool in datasets\.digits\.models\.plain\.pool.*did you mean"):
        parse_spec(pooled.replace("restricted-imagenet", "restricted-imagnet"))


def test_a_model_can_be_left_out_with_its_radii_but_not_the_last_one() -> None:
    spec = parse_spec(f"{SPEC}\n[datasets.digits.radii.mine]\nl2 = [3, 0.5]\n")
    other = changed(spec, without=["mine"])
    assert [model.name for model in other.datasets[0].models] == ["plain"]
    assert parse_spec(other.text) == other
    with pytest.raises(UnknownNameError, match="did you mean 'mine'"):
        changed(spec, without=["mime"])
    with pytest.raises(InvalidInputError, match="models: expected at least one, got none"):
        changed(spec, without=["mine", "plain"])


@pytest.mark.parametrize("entry", ["trust_model_code", "trust_pickle"])
def test_the_need_for_consent_can_be_declared_by_either_name(entry: str) -> None:
    spec = parse_spec(SPEC.replace('like = "linf-at" }', f'like = "linf-at", {entry} = true }}'))
    assert [model.trust_model_code for model in spec.datasets[0].models] == [False, True]


def test_radii_are_those_of_the_paper_for_the_kind_of_model_or_those_given() -> None:
    spec = parse_spec(f"{SPEC}\n[datasets.digits.radii.mine]\nl2 = [3, 0.5]\n")
    radii = {(run.model.name, run.norm): run.radii for run in planned_runs(spec)}
    assert radii["plain", "l2"] == PAPER_RADII["mnist", "l2", "plain"]
    assert radii["mine", "linf"] == PAPER_RADII["mnist", "linf", "linf-at"]
    assert radii["mine", "l2"] == (0.5, 3.0)
    within = [
        run.attack.settings for run in planned_runs(spec) if run.attack.name == "pgd" and run.model.name == "mine"
    ]
    assert all(settings == {"step": 0.2, "radii": [0.5, 3.0]} for settings in within)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "one"', "", "title: expected a string, got nothing"),
        ('title = "one"', "title = 3", "title: expected a string, got 3"),
        ('title = "one"', 'titel = "one"', "title: expected a string, got nothing"),
        ("budget = 40", "budjet = 40", r"unknown entry of the spec: expected one of .*, got 'budjet'.*budget"),
        ("budget = 40", 'budget = "much"', "budget: expected an integer, got 'much'"),
        ("budget = 40", "budget = true", "budget: expected an integer, got True"),
        ('norms = ["linf", "l2"]', 'norms = ["linf", "linf"]', "norms: expected at least one, and each one once"),
        ('norms = ["linf", "l2"]', "norms = []", "norms: expected a list of strings, got"),
        ('norms = ["linf", "l2"]', 'norms = ["l7"]', "unknown norm"),
        ('like = "mnist"', 'like = "emnist"', r"data set of the paper in datasets\.digits\.like.*'emnist'"),
        ('like = "mnist"', "", r"datasets\.digits\.radii\.plain\.linf: expected radii"),
        ("limit = 5", "limit = 0", r"datasets\.digits\.limit: expected an integer >= 1, got 0"),
        ('name = "auto"', 'name = "outo"', "unknown attack: .*did you mean 'auto'"),
        ("restarts = [1, 3]", "restarts = [1, 1]", r"attacks\[1\]\.restarts: expected different integers >= 1"),
        ("restarts = [1, 3]", "restarts = [0]", r"attacks\[1\]\.restarts: expected different integers >= 1"),
        ('norms = ["l2"]', 'norms = ["l7"]', r"attacks\[1\]\.norms: expected linf, l2, l1, l0 for pgd, got 'l7'"),
        ('name = "pgd"', 'name = "auto"', "attacks: expected at least one, and each one once, got auto, auto"),
        ('like = "linf-at" }', 'like = "robust" }', r"kind of model in datasets\.digits\.models\.mine\.like"),
        ("budget = 40", 'preset = "papers"', "unknown preset"),
        ("[[attacks]]", "[attacks", "expected TOML, got a file that cannot be parsed"),
        ("budget = 40", "[figures]\nexamples = 'fab'", r"figures\.examples: expected an attack of the experiment"),
        ("budget = 40", "[figures.restarts]\nattacks = ['fab']", r"figures\.restarts\.attacks"),
        ("budget = 40", "[figures.queries]\ngradients = [2]", r"figures\.queries: expected gradients of at least 5"),
        ("budget = 40", "[run]\nthreads = 0", "threads: expected an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_place(old: str, new: str, words: str) -> None:
    assert old in SPEC
    with pytest.raises(InvalidInputError, match=words):
        parse_spec(SPEC.replace(old, new, 1))


def test_missing_and_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'paper-mnist'"):
        load_spec("paper-mnits")
    with pytest.raises(InvalidInputError, match=r"elsewhere/x\.toml: expected the spec of an experiment"):
        load_spec(tmp_path / "elsewhere/x.toml")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('norms = ["l2"]\ntitle = 1')
    with pytest.raises(InvalidInputError, match=r"wrong\.toml: title: expected a string, got 1"):
        load_spec(wrong)


def test_six_specs_are_shipped() -> None:
    names = {
        f"paper-{dataset}{size}" for dataset in ("mnist", "cifar10", "restricted-imagenet") for size in ("", "-small")
    }
    assert set(shipped()) == names


@pytest.mark.parametrize(
    ("dataset", "restarts"), [("mnist", (1, 10, 100)), ("cifar10", (1, 10, 100)), ("restricted-imagenet", (1, 10))]
)
def test_the_full_specs_describe_the_paper(dataset: str, restarts: tuple[int, ...]) -> None:
    spec = load_spec(f"paper-{dataset}")
    asked = [run for run in planned_runs(spec) if run.role == "table"]
    assert {run.model.like for run in asked} == {"plain", "linf-at", "l2-at"}
    assert all(run.dataset.limit == 1000 for run in asked)
    assert all(run.radii == PAPER_RADII[dataset, run.norm, run.model.like or ""] for run in asked)
    labels = {norm: {run.attack.label for run in asked if run.norm == norm} for norm in spec.norms}
    assert labels["l2"] == {"deepfool", "bb", "cw", "ddn", "auto"} | {
        f"{name}:{count}" for name in ("pgd", "fab", "pdpgd") for count in restarts
    }
    ours = {run.norm: run.attack.settings for run in asked if run.attack.name == "pdpgd"}
    assert {settings["steps"] for settings in ours.values()} == {500}
    assert {settings["finetune_steps"] for settings in ours.values()} == {500}
    assert spec.tune > 0
    assert {run.attack.name for run in asked if run.to_tune} >= {"pdpgd", "pgd", "bb", "ddn"}


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_full_specs_use_the_nets_of_the_paper_and_the_small_ones_the_shipped_nets(dataset: str) -> None:
    kinds = ("plain", "linf-at", "l2-at")
    full, small = (
        {model.name: model.source for model in load_spec(f"paper-{dataset}{size}").datasets[0].models}
        for size in ("", "-small")
    )
    assert full == {kind: f"paper:{dataset}-{kind}" for kind in kinds}
    assert small == {kind: f"{dataset}-{kind}" for kind in kinds}
    assert {source.removeprefix("paper:") for source in full.values()} <= set(PAPER_NETS)
    assert set(small.values()) <= set(zoo.names())


def test_in_the_figure_over_queries_all_have_the_same_gradients_and_no_random_start() -> None:
    spec: ExperimentSpec = load_spec("paper-mnist-small")
    queries = [run for run in planned_runs(spec) if run.role == "queries"]
    assert {run.penalty for run in queries if run.attack.name == "pdpgd"} == {0.1, 1.0, 10.0}
    for run in queries:
        if run.attack.name == "pgd":
            assert run.attack.settings["steps"] * len(run.attack.settings["radii"]) == run.gradients
            assert run.attack.settings["from_input"] is True
        else:
            assert run.attack.settings["steps"] == run.gradients
            assert (run.attack.settings["start_radius"], run.attack.settings["finetune_steps"]) == (0.0, 0)


def test_names_with_a_dot_are_whole_names() -> None:
    """Names of data sets and models; the part after the dot was once taken for the name."""
    part = SPEC[SPEC.index("[datasets.digits]") : SPEC.index("[[attacks]]")].replace("mine =", '"mine-v1.0" =')
    two = "".join(
        part.replace("datasets.digits", f'datasets."{name}"')
        + f'[datasets."{name}".radii."mine-v1.0"]\nl2 = [{radius}]\n'
        for name, radius in (("set-v1.0", 1.5), ("set-v2.0", 2.5))
    )
    spec = parse_spec(SPEC.replace(SPEC[SPEC.index("[datasets.digits]") : SPEC.index("[[attacks]]")], two))
    assert [dataset.name for dataset in spec.datasets] == ["set-v1.0", "set-v2.0"]
    radii = {
        (run.dataset.name, run.radii) for run in planned_runs(spec) if (run.model.name, run.norm) == ("mine-v1.0", "l2")
    }
    assert radii == {("set-v1.0", (1.5,)), ("set-v2.0", (2.5,))}
