"""Traces: the best distance so far of each sample, at marks that all attacks share."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

import pdpgd
from pdpgd.attacks.base import History
from pdpgd.evaluation.tracking import empty_trace, scattered, trace_rows
from pdpgd.runs import records
from pdpgd.runs.records import MARKS, joined_traces


def at(rows: np.ndarray, row: int, passes: int) -> float:
    return float(rows[row, list(MARKS).index(passes)])


def test_a_history_is_read_off_at_the_marks() -> None:
    history = History(torch.tensor([[1, 4, 20]]), torch.tensor([[torch.inf, 3.0, 2.0]]))
    rows = trace_rows(history, [np.empty(0)], np.array([20]), np.array([2.0]))
    assert at(rows, 0, 1) == np.inf
    assert at(rows, 0, 4) == 3.0
    assert at(rows, 0, 16) == 3.0
    assert at(rows, 0, 20) == 2.0


def test_iterations_without_a_history_share_the_passes_evenly() -> None:
    course = np.array([np.inf, 5.0, 6.0, 1.0])
    rows = trace_rows(None, [course], np.array([8]), np.array([0.5]))
    assert [at(rows, 0, passes) for passes in (2, 4, 6, 8)] == [np.inf, 5.0, 5.0, 0.5]


def test_an_attack_that_shows_nothing_leaves_no_trace() -> None:
    rows = trace_rows(None, [np.empty(0), np.empty(0)], np.array([100, 0]), np.array([1.0, np.inf]))
    assert np.isnan(rows).all()
    assert joined_traces([rows, empty_trace(3)]) is None


def test_rows_come_to_their_places_and_chunks_that_ended_early_stay_where_they_were() -> None:
    short = trace_rows(None, [np.array([4.0])], np.array([2]), np.array([4.0]))
    long = trace_rows(None, [np.array([4.0, 3.0])], np.array([40]), np.array([3.0]))
    whole = joined_traces([scattered(short, np.array([1]), 2), long])
    assert whole is not None
    assert whole.distances.shape == (3, len(whole.passes))
    assert np.isnan(whole.distances[0]).all()
    assert whole.distances[1, -1] == 4.0
    assert whole.distances[2, -1] == 3.0


@pytest.mark.parametrize("attack", ["auto", "pdpgd"])
def test_a_run_keeps_inputs_confidences_and_traces(tmp_path: Path, attack: str) -> None:
    run = pdpgd.evaluate(
        "mnist-plain", "mnist-1000", norms=["l2"], attack=attack, budget=60, limit=6, chunk_size=4, out=tmp_path / "run"
    )
    again = pdpgd.load_evaluation(tmp_path / "run")
    inputs = again.inputs()
    assert inputs is not None
    assert inputs.shape == (6, 1, 28, 28)
    delta = (again.examples("l2").astype(np.float64) - inputs).reshape(6, -1)
    found = again.distances("l2")
    assert np.allclose(np.linalg.norm(delta, axis=1), found)
    course = again.trace("l2")
    assert course is not None
    assert np.array_equal(np.minimum.accumulate(course.distances, axis=1), course.distances)
    assert np.allclose(course.distances[:, -1], run.own_distances("l2"), rtol=1e-5)
    for name in ("confidence", "input_confidence"):
        share = again.column(name, "l2")
        assert ((share >= 0.1) & (share <= 1)).all()
    right = found > 0
    assert (again.column("input_prediction", "l2") == again.column("label", "l2"))[right].all()


def test_runs_from_before_still_read() -> None:
    columns = records.typed({column.name: ["x" if column.dtype is str else 1] for column in records.COLUMNS})
    buffer = io.BytesIO(records.to_parquet(columns, {}))
    table = parquet.read_table(buffer).select(list(records.OLDEST))
    old = io.BytesIO()
    parquet.write_table(table, old)
    read = records.from_parquet(old.getvalue())
    assert tuple(read) == records.NAMES
    assert read["input_prediction"].tolist() == [-1]
    assert np.isnan(read["confidence"]).all()
