from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pdpgd import Evaluation
from pdpgd.report import differences
from pdpgd.report.inputs import ReportedModel, inputs_of
from pdpgd.report.page import contents_of
from pdpgd.report.sections import MarkedRadii

MARKS = {"linf": MarkedRadii((0.1, 0.3, 0.5), "asked for")}


@pytest.fixture
def pair(changed: Callable[..., Evaluation]) -> Callable[..., differences.ModelPair]:
    def make(first: object, second: object, *, same: bool = True) -> differences.ModelPair:
        data = {} if same else {"sha256": "another"}
        runs = [
            changed(distances={"linf": first}, model={"source": "old"}),
            changed(distances={"linf": second}, model={"source": "new"}, data=data),
        ]
        return differences.pairs_of(inputs_of(runs).models)[0]

    return make


def test_the_verdict_says_which_is_more_robust_and_how_certain_that_is(
    pair: Callable[..., differences.ModelPair],
) -> None:
    (better,) = [text for text in differences.verdicts([pair(0.2, 0.4)], MARKS) if "linf" in text]
    assert (
        "new is more robust than old: robust accuracy 100.0% versus 0.0% at a radius of 0.3, +100.0 percentage points"
        in better
    )
    assert "paired on the same 14 samples" in better
    (worse,) = [text for text in differences.verdicts([pair(0.4, 0.2)], MARKS) if "linf" in text]
    assert "new is less robust than old" in worse
    assert "\N{MINUS SIGN}100.0 percentage points" in worse


def test_a_difference_of_one_sample_is_not_clear(pair: Callable[..., differences.ModelPair]) -> None:
    before = np.full(14, 0.4)
    after = before.copy()
    after[0] = 0.2
    text = differences.verdicts([pair(before, after)], MARKS)[0]
    assert "no significant difference between new and old" in text


def test_other_samples_are_said_to_be_other_ones(pair: Callable[..., differences.ModelPair]) -> None:
    mixed = pair(0.2, 0.4, same=False)
    assert "unpaired, since the samples differ" in differences.verdicts([mixed], MARKS)[0]
    section = differences.section([mixed], MARKS)
    assert not [figure for part in section.parts for figure in part.figures]
    assert "lost" not in section.parts[0].tables[0].headings


def test_the_samples_that_changed_are_named_worst_first(pair: Callable[..., differences.ModelPair]) -> None:
    before = np.full(14, 0.4)
    after = before.copy()
    after[[2, 5]] = 0.1, 0.3
    after[7] = np.inf
    section = differences.section([pair(before, after)], MARKS)
    (table,) = [each for part in section.parts for each in part.tables if each.name == "changed-0-linf"]
    assert [(row[0].value, row[-1].value) for row in table.rows] == [
        (2, "less robust"),
        (5, "less robust"),
        (7, "more robust"),
    ]
    assert "2 got less robust and 1 more robust" in table.title
    assert table.rows[-1][3].text == "not fooled"


def test_gained_and_lost_are_what_the_difference_is_made_of(pair: Callable[..., differences.ModelPair]) -> None:
    before = np.where(np.arange(14) < 5, 0.2, 0.4)
    after = np.where(np.arange(14) < 12, 0.4, 0.2)
    table = differences.section([pair(before, after)], MARKS).parts[0].tables[0]
    row = next(row for row in table.rows if (row[0].value, row[1].value) == ("linf", 0.3))
    found = dict(zip(table.headings, row, strict=True))
    assert (found["gained"].value, found["lost"].value) == (5, 2)
    assert found["points"].value == pytest.approx(3 / 14, abs=1e-6)


def test_runs_without_a_common_norm_are_said_to_have_none(evaluation: Evaluation) -> None:
    first, second = inputs_of([evaluation, evaluation]).models
    only: ReportedModel = replace(second, series=(replace(second.series[0], runs={"l0": evaluation}),))
    other: ReportedModel = replace(first, series=(replace(first.series[0], runs={"linf": evaluation}),))
    assert "no norm in common" in differences.verdicts([differences.ModelPair(other, only)], MARKS)[0]


def test_three_runs_are_compared_with_the_first(changed: Callable[..., Evaluation]) -> None:
    runs = [changed(model={"source": name}) for name in ("a", "b", "c")]
    contents = contents_of(inputs_of(runs), radii={"linf": [0.1]}, pictures=2, title=None)
    headings = [part.heading for part in contents.before_gallery[0].parts if part.heading]
    assert headings == ["b compared with a", "c compared with a"]
