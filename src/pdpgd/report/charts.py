"""Charts as plain data in Plotly's format; the page draws them.

Colors are names that the page resolves for its light and dark themes: "@0" is the first color of the palette, "@0:0.2"
the same with opacity 0.2, "@text" and "@line" the colors of text and lines. Texts from users are escaped, since Plotly
interprets some HTML.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.report.figures import Point
from pdpgd.runs import metrics
from pdpgd.runs.metrics import wilson

Chart = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """Data drawn in one color. `place`, its position in the palette, is the same in all charts of a page."""

    label: str
    place: int
    values: Any
    """Distances, medians by class, a trace, or points, depending on the chart."""


DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
# Most curves with confidence bands: those of more curves would hide each other.
BANDS = 3
# An axis is logarithmic if the largest value is more than this multiple of the smallest.
WIDE = 30
# With many curves, the axis ends at this multiple of the radius at which the strongest attack has fooled all.
FAR = 3
BINS = 24


def curves(lines: Sequence[Line], norm: str, radii: Sequence[float], *, steps: int) -> Chart:
    """Robust accuracy over the radius, with 95% bands and the marked radii; all curves end at the same radius."""
    end = end_of(lines, radii)
    data: list[Chart] = []
    for line in lines:
        label, place, distances = line.label, line.place, line.values
        curve = metrics.curve(distances)
        steps_shown = _thinned(len(curve.radius), steps)
        x = np.append(curve.radius[steps_shown], end)
        y = np.append(curve.accuracy[steps_shown], curve.accuracy[-1])
        if len(lines) <= BANDS:
            low, high = wilson(y, len(distances))
            data += _band(x, 100 * low, 100 * high, place)
        data.append(
            {
                "x": tidy(x),
                "y": tidy(100 * y),
                "mode": "lines",
                "name": html.escape(label),
                "legendgroup": str(place),
                "line": {"shape": "hv", "width": 2, **_stroke(place)},
                "hovertemplate": "%{y:.1f}% robust at %{x:.4g}" + _extra(lines),
            }
        )
        data.append(
            {
                "x": list(radii),
                "y": [round(100 * metrics.robust_accuracy(distances, radius), 3) for radius in radii],
                "mode": "markers",
                "name": html.escape(label),
                "legendgroup": str(place),
                "showlegend": False,
                "hoverinfo": "skip",
                "marker": {"size": 7, "color": f"@{place}", "symbol": SYMBOLS[place % len(SYMBOLS)]},
            }
        )
    layout = _layout(f"radius ({norm})", "robust accuracy (%)", legend=len(lines) > 1)
    layout["yaxis"].update(range=[-2, 104], tickvals=[0, 25, 50, 75, 100])
    layout["xaxis"].update(range=[0, end])
    layout["shapes"] = [_vertical_line(radius) for radius in radii]
    return {"data": data, "layout": layout}


def end_of(lines: Sequence[Line], radii: Sequence[float]) -> float:
    """Where the axis of the curves ends: where all have fallen, or, with many, not far beyond the strongest attack."""
    farthest = [float(line.values[np.isfinite(line.values)].max(initial=0.0)) for line in lines]
    end = max(farthest) if len(lines) <= BANDS else min(max(farthest), FAR * min(filter(None, farthest), default=0.0))
    return 1.04 * max(end, max(radii, default=0.0)) or 1.0


def histogram(lines: Sequence[Line], norm: str) -> Chart | None:
    """Histograms of the distances; None if no sample was fooled."""
    found = [line.values[(line.values > 0) & np.isfinite(line.values)] for line in lines]
    every = np.concatenate(found)
    if not len(every):
        return None
    edges, log = _edges(every)
    data: list[Chart] = []
    for line, distances in zip(lines, found, strict=True):
        place = line.place
        counts = np.histogram(distances, edges)[0]
        common = {
            "name": html.escape(line.label),
            "customdata": [[_number(low), _number(high)] for low, high in itertools.pairwise(edges)],
            "hovertemplate": "%{y} from %{customdata[0]} to %{customdata[1]}" + _extra(lines),
        }
        if len(found) == 1:
            middle = np.sqrt(edges[:-1] * edges[1:]) if log else (edges[:-1] + edges[1:]) / 2
            colors = {"color": f"@{place}:0.75", "line": {"color": f"@{place}", "width": 1}}
            bar = {"type": "bar", "x": tidy(middle), "y": counts.tolist(), "width": tidy(np.diff(edges))}
            # On a logarithmic axis, Plotly centers a bar in units of the axis: begin it at its left edge instead.
            if log:
                bar = {**bar, "x": tidy(edges[:-1]), "offset": 0}
            data.append({**common, **bar, "marker": colors})
        else:
            stroke = {"shape": "hv", "width": 2, **_stroke(place)}
            fill = {"fill": "tozeroy", "fillcolor": f"@{place}:0.12"} if len(found) <= BANDS else {}
            heights = [*counts.tolist(), 0]
            data.append({**common, "mode": "lines", "x": tidy(edges), "y": heights, "line": stroke, **fill})
    layout = _layout(f"distance ({norm})", "samples", legend=len(lines) > 1)
    if log:
        layout["xaxis"].update(_logarithmic(every.tolist()))
    layout["yaxis"]["rangemode"] = "tozero"
    layout["bargap"] = 0
    return {"data": data, "layout": layout}


def boxes(lines: Sequence[Line], norm: str) -> Chart | None:
    """Box plots of the distances of many attacks: quartiles of the fooled samples, and the range of 90% of them.

    A star marks attacks that did not fool all samples: their boxes cover only the easier ones.
    """
    data = []
    for line in reversed(lines):
        place, found = line.place, line.values[(line.values > 0) & np.isfinite(line.values)]
        if len(found):
            low, lower, middle, upper, high = (
                [value] for value in tidy(np.quantile(found, [0.05, 0.25, 0.5, 0.75, 0.95]))
            )
            box = {"lowerfence": low, "q1": lower, "median": middle, "q3": upper, "upperfence": high}
            colors = {"line": {"color": f"@{place}", "width": 1.5}, "fillcolor": f"@{place}:0.25"}
            name = html.escape(line.label) + (metrics.PARTIAL if np.isinf(line.values).any() else "")
            data.append({"type": "box", "name": name, "y": [name], "orientation": "h", **box, **colors})
    if not data:
        return None
    layout = _layout(f"distance ({norm})", "", legend=False)
    layout["yaxis"].update(automargin=True, type="category", showgrid=False)
    layout["xaxis"]["rangemode"] = "tozero"
    layout["height"] = max(240, 90 + 30 * len(data))
    return {"data": data, "layout": layout}


def convergence(lines: Sequence[Line], norm: str) -> Chart | None:
    """Smallest distance so far over passes: median of the attacked samples, and quartiles if there are few lines."""
    data: list[Chart] = []
    seen: list[float] = []
    for line in lines:
        place, trace = line.place, line.values
        rows = trace.distances[~np.isnan(trace.distances).all(1)]
        low, middle, high = (_quantile(rows, share) for share in (0.25, 0.5, 0.75))
        there = np.isfinite(middle) & (low > 0)
        if not there.any():
            continue
        seen += [*middle[there].tolist(), *low[there].tolist(), *high[np.isfinite(high)].tolist()]
        if len(lines) <= BANDS:
            band = there & np.isfinite(high)
            data += _band(trace.passes[band], low[band], high[band], place)
        data.append(
            {
                "x": tidy(trace.passes[there]),
                "y": tidy(middle[there]),
                "mode": "lines",
                "name": html.escape(line.label),
                "line": {"shape": "hv", "width": 2, **_stroke(place)},
                "hovertemplate": "median %{y:.4g} after %{x} passes" + _extra(lines),
            }
        )
    if not data:
        return None
    layout = _layout("forward + backward passes", f"smallest distance so far ({norm})", legend=len(lines) > 1)
    passes = [value for each in data for value in each["x"]]
    layout["xaxis"].update(_logarithmic(passes))
    layout["yaxis"].update(_logarithmic([value for value in seen if value > 0]))
    return {"data": data, "layout": layout}


def classes(names: Sequence[str], lines: Sequence[Line], norm: str) -> Chart:
    """Median distance of each class."""
    shown = [html.escape(name) for name in names]
    data = [
        {
            "type": "bar",
            "x": shown,
            "y": tidy(line.values),
            "name": html.escape(line.label),
            "marker": {"color": f"@{line.place}:0.8"},
            "hovertemplate": "class %{x}: median %{y:.4g}" + _extra(lines),
        }
        for line in lines
    ]
    layout = _layout("class", f"median distance ({norm})", legend=len(lines) > 1)
    layout["xaxis"].update(type="category", tickangle="auto", automargin=True, showgrid=False)
    layout["yaxis"]["rangemode"] = "tozero"
    layout["bargap"] = 0.25
    return {"data": data, "layout": layout}


def changes(first: str, second: str, pairs: tuple[NDArray[Any], NDArray[Any]], samples: NDArray[Any]) -> Chart | None:
    """Distance of each sample in two runs: above the diagonal, the second model is more robust."""
    before, after = pairs
    both = np.isfinite(before) & np.isfinite(after) & (before > 0) & (after > 0)
    if not both.any():
        return None
    x, y = before[both], after[both]
    ends = [float(min(x.min(), y.min())) / 1.1, 1.1 * float(max(x.max(), y.max()))]
    more = y > x
    data = [
        {"x": ends, "y": ends, "mode": "lines", "line": {"color": "@line", "dash": "dot"}, "hoverinfo": "skip"},
        *(
            {
                "x": tidy(x[where]),
                "y": tidy(y[where]),
                "customdata": samples[both][where].tolist(),
                "mode": "markers",
                "marker": {"size": 6, "color": f"@{place}:0.7", "symbol": SYMBOLS[place]},
                "hovertemplate": "sample %{customdata}: %{x:.4g} → %{y:.4g}<extra></extra>",
            }
            for place, where in ((0, more), (1, ~more))
        ),
    ]
    layout = _layout(f"distance, {html.escape(first)}", f"distance, {html.escape(second)}", legend=False)
    if ends[1] > WIDE * ends[0]:
        for axis in ("xaxis", "yaxis"):
            layout[axis].update(_logarithmic(ends))
    return {"data": data, "layout": layout}


def points(lines: Sequence[Line], across: str, up: str) -> Chart:
    """Lines with few points each. Markers are open where a run did not fool all samples (see `figures.Point`)."""
    data: list[Chart] = []
    for line in lines:
        ordered = sorted(line.values, key=lambda point: point.x)
        joined = [point for point in ordered if not point.part]
        alone = [point for point in ordered if point.part]
        common = {"name": html.escape(line.label), "legendgroup": str(line.place)}
        hover = f"%{{y:.4g}} with %{{x}} {across}"
        if joined:
            data.append(
                {
                    **common,
                    **_markers(joined, line.place),
                    "mode": "lines+markers",
                    "line": {"width": 2, **_stroke(line.place)},
                    "hovertemplate": hover + _extra(lines),
                }
            )
        if alone:
            data.append(
                {
                    **common,
                    **_markers(alone, line.place),
                    "mode": "markers+text",
                    "showlegend": not joined,
                    "text": [point.part for point in alone],
                    "textposition": "top center",
                    "cliponaxis": False,
                    "hovertemplate": f"{hover}, over %{{text}} samples" + _extra(lines),
                }
            )
    layout = _layout(across, up, legend=len(lines) > 1)
    layout["xaxis"].update(_logarithmic([point.x for line in lines for point in line.values]))
    if up.endswith("(%)"):
        layout["yaxis"].update(range=[-2, 104], tickvals=[0, 25, 50, 75, 100])
    return {"data": data, "layout": layout}


def _markers(some: Sequence[Point], place: int) -> Chart:
    symbol = SYMBOLS[place % len(SYMBOLS)]
    symbols = [symbol if point.whole else f"{symbol}-open" for point in some]
    return {
        "x": tidy([point.x for point in some]),
        "y": tidy([point.y for point in some]),
        "marker": {"size": 7, "color": f"@{place}", "symbol": symbols},
    }


def tidy(values: NDArray[Any] | Sequence[float]) -> list[float | None]:
    """Round to five digits, more than a screen resolves; nan and inf, which JSON lacks, become None."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=float).tolist()]


def _layout(x: str, y: str, *, legend: bool) -> Chart:
    axis = {"gridcolor": "@grid", "linecolor": "@line", "zerolinecolor": "@grid", "ticks": "outside"}
    return {
        "xaxis": {**axis, "title": {"text": x}, "tickcolor": "@line"},
        "yaxis": {**axis, "title": {"text": y}, "tickcolor": "@line", "automargin": True},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "margin": {"l": 56, "r": 14, "t": 10, "b": 48},
        "hovermode": "closest",
    }


def _band(x: NDArray[Any], low: NDArray[Any], high: NDArray[Any], place: int) -> list[Chart]:
    edge = {
        "mode": "lines",
        "x": tidy(x),
        "line": {"shape": "hv", "width": 0, "color": f"@{place}"},
        "showlegend": False,
        "legendgroup": str(place),
        "hoverinfo": "skip",
    }
    return [
        {**edge, "y": tidy(high)},
        {**edge, "y": tidy(low), "fill": "tonexty", "fillcolor": f"@{place}:0.18"},
    ]


def _stroke(place: int) -> Chart:
    return {"color": f"@{place}", "dash": DASHES[place % len(DASHES)]}


def _vertical_line(radius: float) -> Chart:
    line = {"color": "@line", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": radius, "x1": radius, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _extra(lines: Sequence[object]) -> str:
    """The name beside a hover label, if there are several lines."""
    return "<extra>%{fullData.name}</extra>" if len(lines) > 1 else "<extra></extra>"


def _edges(values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Edges of the bins, and whether they are logarithmic: whole numbers for counts, factors if values vary widely."""
    low, high = float(values.min()), float(values.max())
    if high == low:
        return np.array([0.9 * low, 1.1 * high]), False
    whole = bool((values == np.round(values)).all())
    if whole and high - low <= 4 * BINS:
        width = max(1, int(np.ceil((high - low + 1) / BINS)))
        return np.arange(low - 0.5, high + width, width), False
    if high > WIDE * low:
        return np.geomspace(low, high * 1.0001, BINS + 1), True
    return np.linspace(low, high, BINS + 1), False


def _logarithmic(values: Sequence[float]) -> Chart:
    """A logarithmic axis with ticks at 1, 2, 5, 10 ..., or at powers of ten if it is long."""
    low, high = min(values), max(values)
    steps = (1, 2, 5) if high <= 300 * low else (1,)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,.6g}" for tick in ticks]}


def _quantile(rows: NDArray[Any], share: float) -> NDArray[Any]:
    """Quantile of each column, without interpolation, since values may be inf."""
    ordered = np.sort(rows, axis=0)
    quantile: NDArray[Any] = ordered[max(0, int(np.ceil(share * len(rows))) - 1)]
    return quantile


def _thinned(length: int, most: int) -> NDArray[np.int64]:
    """Evenly spaced indices of at most `most` steps of a curve, including the first and the last."""
    places: NDArray[np.int64] = np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))
    return places


def _number(value: float) -> float:
    return float(f"{value:.4g}")
