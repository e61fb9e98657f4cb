from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pdpgd.report import charts
from pdpgd.report.charts import Line
from pdpgd.runs.records import Trace

DISTANCES = np.array([0.0, 0.1, 0.2, 0.2, 0.4, np.inf])
NAME = "<b>&%{x}"


def named(spec: Any, mode: str = "lines") -> list[Any]:
    """The traces that a legend would name."""
    return [each for each in spec["data"] if each.get("name") and each.get("mode", mode) == mode]


def test_a_curve_begins_at_the_clean_accuracy_and_ends_above_zero_if_some_were_not_fooled() -> None:
    spec = charts.curves([Line("a", 0, DISTANCES)], "l2", [0.15], steps=100)
    (line,) = named(spec)
    assert (line["x"][0], line["y"][0]) == (0.0, pytest.approx(100 * 5 / 6, abs=1e-2))
    assert line["y"][-1] == line["y"][-2] == pytest.approx(100 / 6, abs=1e-2)
    assert line["line"]["shape"] == "hv"
    (marked,) = named(spec, "markers")
    assert marked["y"] == [pytest.approx(100 * 4 / 6, abs=1e-2)]


def test_the_band_holds_the_curve_and_there_is_none_among_many() -> None:
    spec = charts.curves([Line("a", 0, DISTANCES)], "l2", [], steps=100)
    high, low, line = spec["data"][:3]
    assert all(below <= at <= above for below, at, above in zip(low["y"], line["y"], high["y"], strict=True))
    many = charts.curves([Line(str(place), place, DISTANCES) for place in range(4)], "l2", [], steps=100)
    assert not [each for each in many["data"] if "fill" in each]


def test_all_curves_of_a_chart_end_at_the_same_radius() -> None:
    spec = charts.curves([Line("a", 0, DISTANCES), Line("b", 1, 3 * DISTANCES)], "l2", [], steps=100)
    first, second = named(spec)
    assert first["x"][-1] == second["x"][-1] > 1.2


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    distances = np.random.default_rng(0).random(5000)
    (line,) = named(charts.curves([Line("a", 0, distances)], "l2", [], steps=200))
    assert len(line["x"]) == 201
    assert line["x"][0] == 0
    assert line["y"][-1] == 0


def test_a_weak_attack_among_many_does_not_push_the_others_into_a_corner() -> None:
    lines = [Line(str(place), place, DISTANCES) for place in range(4)] + [Line("weak", 4, 100 * DISTANCES)]
    assert charts.end_of(lines, []) < 2
    assert charts.end_of(lines[-2:], []) > 40


def every_chart(label: str, distances: np.ndarray) -> list[Any]:
    lines = [Line(label, 0, distances), Line("other", 1, distances * 2)]
    trace = Trace(np.array([1, 10, 100]), np.tile(distances[:, None], (1, 3)))
    return [
        charts.curves(lines, "l2", [0.3], steps=50),
        charts.histogram(lines, "l2"),
        charts.histogram(lines[:1], "l2"),
        charts.boxes(lines, "l2"),
        charts.convergence([Line(label, 0, trace)], "l2"),
        charts.classes([label, "1"], [Line(label, 0, np.array([1.0, np.inf]))], "l2"),
        charts.changes(label, "other", (distances, distances * 2), np.arange(len(distances))),
    ]


@pytest.mark.parametrize(
    "distances",
    [DISTANCES, np.array([0.5]), np.array([np.inf, 0.0]), np.zeros(3), np.full(3, np.inf), np.array([1e-6, 1, 1e4])],
)
def test_every_chart_is_plain_json_whatever_the_distances_are(distances: np.ndarray) -> None:
    for spec in every_chart("a", distances):
        json.dumps(spec, allow_nan=False)


def test_names_from_users_are_escaped_since_plotly_reads_html() -> None:
    for spec in every_chart(NAME, DISTANCES):
        text = json.dumps(spec)
        assert "<b>" not in text
        assert "&lt;b&gt;&amp;" in text or not any("name" in each for each in spec["data"]), text
        # Templates are filled in by Plotly: a name may not be a part of one.
        assert all("b&gt;" not in str(each.get("hovertemplate")) for each in spec["data"])


def test_a_series_keeps_its_color_where_others_are_missing() -> None:
    spec = charts.histogram([Line("a", 0, DISTANCES), Line("c", 2, DISTANCES)], "l2")
    assert spec is not None
    assert [each["line"]["color"] for each in spec["data"]] == ["@0", "@2"]


def test_the_bars_hold_every_distance_on_any_scale() -> None:
    for distances in (DISTANCES, np.geomspace(1e-3, 10, 50), np.arange(1.0, 30.0), np.full(7, 3.0)):
        spec = charts.histogram([Line("a", 0, distances)], "l2")
        assert spec is not None
        assert sum(spec["data"][0]["y"]) == (np.isfinite(distances) & (distances > 0)).sum()


def test_the_ticks_of_a_logarithmic_axis_are_numbers_as_people_write_them() -> None:
    distances = np.geomspace(0.002, 0.2, 40)
    spec = charts.histogram([Line("a", 0, distances)], "l2")
    assert spec is not None
    axis = spec["layout"]["xaxis"]
    assert axis["type"] == "log"
    assert {"0.002", "0.05", "0.1"} <= set(axis["ticktext"])


def test_the_best_so_far_is_drawn_from_where_half_are_fooled() -> None:
    rows = np.array([[np.inf, 2.0, 1.0], [np.inf, np.inf, 3.0], [np.inf, 4.0, 2.0], [np.nan] * 3])
    spec = charts.convergence([Line("a", 0, Trace(np.array([1, 10, 100]), rows))], "l2")
    assert spec is not None
    (line,) = named(spec)
    assert (line["x"], line["y"]) == ([10, 100], [4.0, 2.0])
    nothing = Trace(np.array([1]), np.full((3, 1), np.inf))
    assert charts.convergence([Line("a", 0, nothing)], "l2") is None


def test_a_box_of_fewer_samples_than_all_has_a_star() -> None:
    spec = charts.boxes([Line("a", 0, DISTANCES[:-1]), Line("b", 1, DISTANCES)], "l2")
    assert spec is not None
    assert {each["name"] for each in spec["data"]} == {"a", "b*"}
