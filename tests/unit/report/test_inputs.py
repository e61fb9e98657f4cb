from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pdpgd import Comparison, Evaluation, compare
from pdpgd.errors import InvalidInputError, PdpgdError, StorageError
from pdpgd.experiments.results import load_results
from pdpgd.report.inputs import inputs_of
from pdpgd.report.provenance import starts_of
from pdpgd.report.sections import marked_radii
from support.experiments import results_of, table_cells
from support.models import tiny_conv_problem


def test_two_runs_of_one_name_get_distinct_labels(evaluation: Evaluation) -> None:
    labels = [model.label for model in inputs_of([evaluation, evaluation, evaluation]).models]
    assert labels[1:] == [f"{labels[0]} (2)", f"{labels[0]} (3)"]


def test_a_comparison_has_a_series_an_attack_and_the_least_of_all(comparison: Comparison) -> None:
    (model,) = inputs_of(comparison).models
    assert [series.label for series in model.series] == ["auto", "pdpgd", "pgd", "fmn"]
    own = [row.distances for row in comparison.of("l2")]
    assert np.array_equal(model.distances("l2"), np.min(own, axis=0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "expected the directory of a run, a comparison or an experiment, got nothing"),
        (lambda folder: folder.write_text(""), "got a file"),
        (lambda folder: folder.mkdir(), r"got one without spec\.json, comparison\.json or results\.json"),
    ],
)
def test_what_is_no_directory_of_results_is_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "run")
    with pytest.raises(InvalidInputError, match=message):
        inputs_of(tmp_path / "run")


@pytest.mark.parametrize("name", ["spec.json", "comparison.json", "results.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", '{"l2": 3}', "3", "\x00"])
def test_a_broken_file_is_refused_by_its_name(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(StorageError, match=f"{name}: expected .*, got"):
        inputs_of(tmp_path)


def flipped(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    model, data = tiny_conv_problem(4)
    compare(model, data, norms=["l2"], attacks=["auto"], budget=4, threads=1, radii={"l2": [0.5]}, out=tmp_path / "all")
    return tmp_path / "all"


@pytest.mark.parametrize(("old", "new"), [("0.5", "0.7"), ('"auto"', '"auuo"'), ('"sha256"', '"sha257"'), ("l2", "l0")])
def test_a_damaged_comparison_is_refused_by_its_name_and_written_again(old: str, new: str, compared: Path) -> None:
    path = compared / "comparison.json"
    content = path.read_bytes()
    assert marked_radii(inputs_of(compared), {})["l2"].radii
    flipped(path, old, new)
    with pytest.raises(
        StorageError, match=r"comparison\.json: expected the numbers of a comparison.*start the command"
    ):
        inputs_of(compared)
    model, data = tiny_conv_problem(4)
    compare(model, data, norms=["l2"], attacks=["auto"], budget=4, threads=1, radii={"l2": [0.5]}, out=compared)
    assert path.read_bytes() == content


def test_a_comparison_of_before_it_had_a_checksum_is_read(compared: Path) -> None:
    path = compared / "comparison.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in entries.items() if name != "sha256"}))
    assert [series.label for series in inputs_of(compared).models[0].series] == ["auto"]


def test_a_damaged_start_of_a_run_is_named_and_not_shown(compared: Path) -> None:
    run = compared / "l2" / "auto"
    assert len(starts_of([run])[1]) == 1
    flipped(run / "history.json", '"engine": "local"', '"engine": "focal"')
    (said,) = starts_of([run])[1]
    assert said == f"{run / 'history.json'} has 1 of 1 starts damaged: not shown"


def test_damaged_results_of_an_experiment_are_refused_by_their_name(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(results_of(*table_cells(norms=("linf",))).to_json())
    assert load_results(tmp_path).cells[0].seconds == 12.5
    for old, new in (("12.5", "12.7"), ('"sha256"', '"sha257"')):
        content = path.read_text()
        flipped(path, old, new)
        with pytest.raises(
            StorageError, match=r"results\.json: expected the results of an experiment.*start the command"
        ):
            load_results(tmp_path)
        path.write_text(content)


def test_a_comparison_whose_runs_are_gone_says_which(tmp_path: Path) -> None:
    content = {"l2": {"radii": [1.0], "attacks": [{"attack": "auto", "failure": None}]}}
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(PdpgdError, match=r"l2/auto: expected the directory of a run"):
        inputs_of(tmp_path)


def test_a_comparison_in_which_every_attack_failed_says_why(tmp_path: Path) -> None:
    content = {"l2": {"radii": [], "attacks": [{"attack": "cw", "failure": "needs foolbox"}]}}
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(PdpgdError, match=r"got none: cw \(l2\) failed: needs foolbox"):
        inputs_of(tmp_path)


def test_no_source_and_a_strange_one_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected at least one directory, Evaluation or Comparison, got none"):
        inputs_of([])
    with pytest.raises(InvalidInputError, match=r"expected directories, Evaluations or Comparisons, got int \(3\)"):
        inputs_of([3])


def test_radii_are_those_asked_for_then_the_papers_then_quantiles(changed: Callable[..., Evaluation]) -> None:
    shipped = inputs_of(changed(model={"source": "mnist-plain"}, data={"name": "mnist-1000"}))
    assert marked_radii(shipped, {"linf": [0.2, 0.1]})["linf"].radii == (0.1, 0.2)
    assert marked_radii(shipped, {})["linf"].radii == (0.03, 0.05, 0.07, 0.09, 0.11)
    own = marked_radii(inputs_of(changed(distances={"linf": np.linspace(0.1, 1.4, 14)})), {})["linf"]
    assert own.radii == (0.2, 0.5, 0.7, 1.0, 1.3)
    assert own.middle == 0.7
    assert "linf" not in marked_radii(inputs_of(changed(distances={"linf": np.inf})), {})


@pytest.mark.parametrize("radii", [{"l2": [0.1]}, {"linf": [0.0]}, {"linf": [float("nan")]}, {"linf": ["a"]}])
def test_wrong_radii_are_refused(radii: dict[str, list[float]], evaluation: Evaluation) -> None:
    with pytest.raises(InvalidInputError, match="radii: expected"):
        marked_radii(inputs_of(evaluation), radii)
