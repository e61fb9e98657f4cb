"""How the results describe runs that did not fool every sample."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pdpgd import Evaluation, evaluate
from pdpgd.errors import StorageError
from pdpgd.experiments.gathering import cell_of, results_of
from pdpgd.experiments.plan import planned_runs
from pdpgd.experiments.results import Cell, Results, load_results
from pdpgd.experiments.spec import parse_spec
from pdpgd.runs import records
from support.models import tiny_conv_problem

INF = float("inf")
SPEC = """
title = "a figure"
norms = ["l2"]
budget = 10
iteration_cost = false
datasets.mine = { source = "mnist-1000", like = "mnist", models = { plain = "mnist-plain" } }
attacks = [{ name = "pdpgd", restarts = [1] }, { name = "fab", restarts = [1] }]
figures.restarts = { attacks = ["pdpgd", "fab"], restarts = [1, 2] }
"""
# The first sample is misclassified without an attack. With two starts, FAB fools one more hard sample and finds smaller
# perturbations of the easy ones: the mean over the fooled samples rises from 2 to 3.6.
PDPGD_1, PDPGD_2 = [0.0, 1.0, 2.0, 4.0, 6.0], [0.0, 0.5, 1.5, 3.5, 5.5]
FAB_1, FAB_2 = [0.0, 1.0, 3.0, INF, INF], [0.0, 0.9, 2.9, 7.0, INF]


@pytest.fixture(scope="module")
def run() -> Evaluation:
    return evaluate(*tiny_conv_problem(5), norms=["l2"], attack="pdpgd", budget=4, checks=False, threads=1)


def with_distances(run: Evaluation, distances: list[float]) -> Evaluation:
    """Return the run with these distances."""
    found: NDArray[np.float64] = np.array(distances)
    status = np.where(found == 0, records.INITIALLY_WRONG, np.where(np.isinf(found), "not fooled", "fooled"))
    return replace(run, columns={**run.columns, "own_distance": found, "distance": found, "status": status})


def gathered(run: Evaluation, **distances: list[float]) -> Results:
    """Return results of runs with these distances, named by attack and restarts such as pdpgd_1."""
    spec = parse_spec(SPEC)
    outcomes = {name: with_distances(run, own) for name, own in distances.items()}
    cells = []
    for planned in planned_runs(spec):
        name = f"{planned.attack.name}_{planned.attack.restarts}"
        cells.append(cell_of(planned, name, outcomes.get(name, "no memory")))
    return results_of(spec, cells, outcomes, samples={"mine": 5}, costs=(), environment={})


def figure_cells(results: Results) -> dict[str, Cell]:
    return {cell.id: cell for cell in results.of("restarts")}


def test_the_figure_over_restarts_has_the_mean_over_the_samples_that_every_run_fooled(run: Evaluation) -> None:
    results = gathered(run, pdpgd_1=PDPGD_1, pdpgd_2=PDPGD_2, fab_1=FAB_1, fab_2=FAB_2)
    cells = figure_cells(results)
    assert {cell.common for cell in cells.values()} == {2}
    means = {name: cell.common_mean for name, cell in cells.items()}
    assert means == pytest.approx({"pdpgd_1": 1.5, "pdpgd_2": 1.0, "fab_1": 2.0, "fab_2": 1.9})
    # The mean over the samples that each run fooled rises.
    assert [cells[name].mean_distance for name in ("fab_1", "fab_2")] == pytest.approx([2.0, 3.6])
    assert [cells[name].part for name in ("fab_1", "fab_2")] == ["2 of 4", "3 of 4"]
    assert [cell.whole for cell in cells.values()] == [True, True, False, False]
    assert all(cell.common is None and cell.common_mean is None for cell in results.of("table"))


def test_runs_that_failed_or_fooled_none_do_not_reduce_the_common_samples(run: Evaluation) -> None:
    cells = figure_cells(gathered(run, pdpgd_1=PDPGD_1, fab_1=[0.0, INF, INF, INF, INF], fab_2=FAB_2))
    assert (cells["pdpgd_1"].common, cells["fab_2"].common) == (3, 3)
    assert cells["fab_1"].common is None
    assert cells["pdpgd_2"].failure == "no memory"
    assert cells["pdpgd_2"].common is None


def test_runs_without_a_sample_in_common_have_no_mean(run: Evaluation) -> None:
    cells = figure_cells(gathered(run, fab_1=[0.0, 1.0, INF, INF, INF], fab_2=[0.0, INF, 1.0, 1.0, 1.0]))
    assert [(cells[name].common, cells[name].common_mean) for name in ("fab_1", "fab_2")] == [(0, None)] * 2


def test_results_without_the_later_common_mean_are_read_and_those_that_lack_more_are_refused(
    run: Evaluation, tmp_path: Path
) -> None:
    results = gathered(run, pdpgd_1=PDPGD_1, pdpgd_2=PDPGD_2, fab_1=FAB_1, fab_2=FAB_2)
    file = tmp_path / "results.json"
    file.write_text(results.to_json())
    assert load_results(tmp_path) == results
    entries = json.loads(file.read_text())
    del entries["sha256"]
    for cell in entries["cells"]:
        del cell["common"], cell["common_mean"]
    file.write_text(json.dumps(entries))
    old = load_results(tmp_path)
    assert old.cells == tuple(replace(cell, common=None, common_mean=None) for cell in results.cells)
    del entries["cells"][0]["fooled"]
    file.write_text(json.dumps(entries))
    with pytest.raises(StorageError, match="expected cells with the entries"):
        load_results(tmp_path)
