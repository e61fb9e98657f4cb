"""A mean that is not over all samples is marked, in the terminal and on the page; others are not."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pdpgd import Comparison, Evaluation, compare, evaluate
from pdpgd.cli import compare as comparing
from pdpgd.cli import evaluate as evaluating
from pdpgd.report.inputs import inputs_of
from pdpgd.report.scores import numbers
from pdpgd.report.table import Table, TableCell
from pdpgd.runs import records
from support.models import tiny_conv_problem

INF = float("inf")
SAMPLES = 4
# Distances with a mean of 1 over three of four samples, and with a mean of 2 over all.
PARTIAL, WHOLE = (0.5, 1.0, 1.5, INF), (1.0, 2.0, 2.0, 3.0)


def with_distances(run: Evaluation, distances: tuple[float, ...], missed: str = records.NOT_FOOLED) -> Evaluation:
    """Return the run with these distances in all norms; `missed` is the status of infinite ones."""
    found = np.tile(distances, len(run.norms))
    status = np.where(np.isinf(found), missed, records.FOOLED)
    columns = {**run.columns, "status": status, **dict.fromkeys(("distance", "own_distance", "distance_8bit"), found)}
    return replace(run, columns=columns)


@pytest.fixture(scope="module")
def run() -> Evaluation:
    return evaluate(*tiny_conv_problem(SAMPLES), norms=["l2"], budget=4, threads=1)


@pytest.fixture(scope="module")
def three() -> Comparison:
    return compare(
        *tiny_conv_problem(SAMPLES),
        norms=["l2"],
        attacks=["auto", "pdpgd", "pgd"],
        radii={"l2": [0.5]},
        budget=4,
        threads=1,
    )


def compared(three: Comparison, *distances: tuple[float, ...]) -> Comparison:
    """Return the comparison with these distances, one tuple per attack."""
    rows = []
    for row, own in zip(three.rows, distances, strict=True):
        assert row.evaluation is not None
        rows.append(replace(row, evaluation=with_distances(row.evaluation, own)))
    return replace(three, rows=tuple(rows))


def printed(show: Any, *what: Any) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show(console, *what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line(text: str, name: str) -> list[str]:
    return next(words for each in text.splitlines() if (words := each.split()) and words[0] == name)


@pytest.mark.parametrize("missed", [records.NOT_FOOLED, records.UNVERIFIED])
def test_evaluate_marks_a_mean_of_fewer_samples(run: Evaluation, missed: str) -> None:
    text = printed(evaluating.show, with_distances(run, PARTIAL, missed), [], [])
    assert line(text, "l2")[4:6] == ["1*", "1"]
    assert "* not all were fooled" in text
    summary = str(with_distances(run, PARTIAL, missed))
    assert line(summary, "l2")[4:6] == ["1*", "1"]
    assert "* mean over the fooled samples only: not all were fooled" in summary


def test_evaluate_marks_nothing_where_all_were_fooled(run: Evaluation) -> None:
    whole = with_distances(run, WHOLE)
    text = printed(evaluating.show, whole, [], [])
    assert line(text, "l2")[4:6] == ["2", "2"]
    assert "*" not in text + str(whole)


def test_evaluate_counts_what_each_of_its_means_is_over(run: Evaluation) -> None:
    found = with_distances(run, PARTIAL).as_json()["norms"]["l2"]
    assert (found["mean"], found["counts"]["fooled"], found["median"]) == (1.0, 3, 1.0)
    assert (found["mean_8bit"], found["fooled_8bit"]) == (1.0, 3)


def test_compare_marks_the_attacks_that_did_not_fool_all(three: Comparison) -> None:
    text = printed(comparing.show, compared(three, PARTIAL, WHOLE, PARTIAL))
    assert line(text, "auto")[1:3] == ["75.0%", "1*"]
    assert line(text, "pdpgd")[1:3] == ["100.0%", "2"]
    # An attack at given radii has no mean.
    assert line(text, "pgd")[1:3] == ["75.0%", "-"]
    assert "* not all were fooled, so it is not comparable" in text
    assert "…" not in text, "80 columns are enough"
    assert "*" not in printed(comparing.show, compared(three, WHOLE, WHOLE, PARTIAL))


def test_the_tables_of_a_page_mark_them_too(run: Evaluation, three: Comparison) -> None:
    (table,) = tables_of(with_distances(run, PARTIAL))
    assert cell(table, "mean", 0) == TableCell(1.0, shown="1*")
    attacks, _ = tables_of(compared(three, PARTIAL, WHOLE, PARTIAL))
    assert [cell(attacks, "mean", place).text for place in range(3)] == ["1*", "2", "\N{EN DASH}"]


def tables_of(source: Evaluation | Comparison) -> tuple[Table, ...]:
    (part,) = numbers(inputs_of(source)).parts
    return part.tables


def cell(table: Table, heading: str, place: int) -> TableCell:
    return table.rows[place][table.headings.index(heading)]
