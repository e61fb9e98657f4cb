"""The lines of the paper's two kinds of figures, norm by norm and model by model; drawn on paper and on the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdpgd.errors import need
from pdpgd.experiments.results import Cell, DatasetInfo, Results
from pdpgd.files import make_folder, output_path, replace_file
from pdpgd.report.examples_figure import draw_examples, shown_attack
from pdpgd.report.wording import attack_name, cell_name, distance_label, file_stem, norm_name


@dataclass(frozen=True)
class Point:
    """One run in a panel."""

    x: float
    y: float
    whole: bool = True
    """Whether the run fooled every correctly classified sample; the marker is open where it did not."""
    part: str = ""
    """The samples that y is over ("43 of 46") where they are others than those of the other points: such a point stands
    alone, since a line to the others would compare what cannot be compared."""


@dataclass(frozen=True)
class Panel:
    """The runs in one norm on one model."""

    lines: Mapping[str, list[Point]]
    """By name, in the order of the spec."""
    common: str = ""
    """The samples that every run fooled, and that all points are over ("8 of 16"); empty if these are all."""
    without: tuple[str, ...] = ()
    """Attacks that have no point, since they fooled no sample."""

    @property
    def note(self) -> str:
        """What a reader must know of the points, or why there are none; short enough to stand in the panel."""
        if not self.lines and self.common:
            return "no sample was fooled by all runs"
        if not self.lines:
            return "no sample was fooled" if self.without else "no results"
        over = [f"{self.common} samples"] if self.common else []
        return "; ".join(over + ([f"{', '.join(self.without)} fooled none"] if self.without else []))

    @property
    def says(self) -> str:
        """The same as sentences; empty if there is nothing to say."""
        if not self.lines:
            return f"{self.note.capitalize()}."
        over = [f"Over the {self.common} samples that every run fooled."] if self.common else []
        return " ".join(over + ([f"{', '.join(self.without)} fooled none."] if self.without else []))


Panels = dict[tuple[str, str], Panel]
"""By norm and model."""


def over_restarts(results: Results, dataset: str) -> Panels:
    """Mean distance against restarts: in each panel over the samples that all of its runs fooled.

    A mean over what each run fooled by itself rises where more restarts fool more samples, and so would hide what they
    are worth. Results that were written before the samples in common were counted have no other mean: their points that
    are not over all samples are marked as such and stand alone.
    """
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.of("restarts", dataset=dataset):
        # An attack within radii has no distance to draw, unless it fooled nothing at all.
        if cell.failure is None and cell.right and (cell.mean_distance is not None or not cell.fooled):
            cells.setdefault((cell.norm, cell.model), []).append(cell)
    return {place: _of_restarts(own) for place, own in cells.items()}


def _of_restarts(cells: list[Cell]) -> Panel:
    drawn = [cell for cell in cells if cell.mean_distance is not None]
    without = tuple(cell_name(cell) for cell in cells if cell.mean_distance is None)
    counted = all(cell.common is not None for cell in drawn)
    partly = counted and not all(cell.whole for cell in drawn)
    lines: dict[str, list[Point]] = {}
    for cell in drawn:
        mean = cell.common_mean if counted else cell.mean_distance
        if mean is not None:
            part = "" if counted or cell.whole else cell.part
            point = Point(float(cell.restarts or 1), mean, cell.whole, part)
            lines.setdefault(attack_name(cell.attack), []).append(point)
    return Panel(lines, f"{drawn[0].common} of {drawn[0].right}" if partly else "", without)


def over_queries(results: Results, dataset: str) -> Panels:
    """Mean robust accuracy over the radii, in per cent, against gradients a sample."""
    lines: dict[tuple[str, str], dict[str, list[Point]]] = {}
    for cell in results.of("queries", dataset=dataset):
        if cell.failure is None and cell.gradients is not None and cell.robust_accuracy:
            name = attack_name(cell.attack) + ("" if cell.penalty is None else f", C = {cell.penalty:g}")
            point = Point(float(cell.gradients), 100 * sum(cell.robust_accuracy) / len(cell.robust_accuracy))
            lines.setdefault((cell.norm, cell.model), {}).setdefault(name, []).append(point)
    return {place: Panel(own) for place, own in lines.items()}


def partly_fooled(panels: Iterable[Panel]) -> tuple[bool, bool]:
    """Whether some points have open markers: those over the samples in common, and those that stand alone."""
    points = [point for panel in panels for line in panel.lines.values() for point in line if not point.whole]
    return any(not point.part for point in points), any(point.part for point in points)


ALONE = "Open marker with n of m: the mean over the n samples that this run fooled, not comparable with the others."


FOLDER = "figures"
# Okabe & Ito's colours, which the colour-blind can tell apart; markers and dashes differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
# Inches: a panel, and a line of what the marks mean.
PANEL = (2.5, 1.75)
KEY = 0.14
# Of the notes to a panel and to a point: size in points, and a shade of grey that is dark enough in print.
SMALL, TINY, GREY = 7, 6, "0.35"
# Of a figure of images: dots an inch, the best first, and bytes.
DOTS = (160, 130, 110, 90)
LARGEST = 200_000
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pdpgd",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 8,
    "axes.titlesize": 9,
}


def write_figures(results: Results, folder: str | Path) -> list[Path]:
    """Into FOLDER/figures, those that there are results for; the runs are in FOLDER/jobs. Returns the files."""
    folder = output_path(folder)
    drawn: dict[str, bytes] = {}
    for dataset in results.datasets:
        for what, draw in (("restarts", draw_restarts), ("queries", draw_queries)):
            figure = draw(results, dataset.name)
            if figure is not None:
                drawn[_fresh(f"{what}-{file_stem(dataset.name)}", "svg", drawn)] = _svg(figure)
        label = shown_attack(results, dataset.name)
        figure = None if label is None else draw_examples(results, folder, label, dataset.name)
        if figure is not None:
            drawn[_fresh(f"examples-{file_stem(dataset.name)}", "png", drawn)] = _png(figure)
    if drawn:
        make_folder(folder / FOLDER)
    for name, content in drawn.items():
        replace_file(folder / FOLDER / name, content)
    return [folder / FOLDER / name for name in drawn]


def draw_restarts(results: Results, dataset: str) -> Any:
    """Mean distance against restarts, a row of panels for each norm and a column for each model; None if no cells.

    Args:
        results: The results of an experiment.
        dataset: Name of one of its data sets.

    Returns:
        A figure of matplotlib's. Each panel has the means over the samples that all of its runs fooled, and says how
        many these are where they are not all.
    """
    panels = over_restarts(results, dataset)
    return _drawn(results.dataset(dataset), panels, across="restarts", up=distance_label)


def draw_queries(results: Results, dataset: str) -> Any:
    """Mean robust accuracy over the radii against gradients a sample; None if there are no cells."""
    panels = over_queries(results, dataset)
    return _drawn(
        results.dataset(dataset),
        panels,
        across="gradients a sample",
        up=lambda norm: f"{norm_name(norm)} mean robust accuracy (%)",
    )


def _drawn(dataset: DatasetInfo, panels: Panels, *, across: str, up: Callable[[str], str]) -> Any:
    """A grid of panels, one legend above, and what the marks mean below; the panels that have no lines say so."""
    if not panels:
        return None
    norms = list(dict.fromkeys(norm for norm, _ in panels))
    models = [model for model in dataset.models if any(model == other for _, other in panels)]
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel.lines))
    told = _key(panels)
    # The titles of the first row stand above the notes of its panels, all at one height.
    noted = any(panel.note and panel.lines for (norm, _), panel in panels.items() if norm == norms[0])
    matplotlib = need("matplotlib", extra="report", purpose="a figure")
    with matplotlib.rc_context(STYLE):
        size = (PANEL[0] * max(len(models), 2), PANEL[1] * len(norms) + 0.6 + KEY * len(told))
        figure = need("matplotlib.figure", extra="report", purpose="a figure").Figure(
            figsize=size, layout="constrained"
        )
        grid = figure.subplots(len(norms), len(models), squeeze=False)
        for row, norm in enumerate(norms):
            for column, model in enumerate(models):
                axes = grid[row, column]
                panel = panels.get((norm, model), Panel({}))
                _draw_panel(axes, panel, names)
                if row == 0:
                    axes.set_title(_plain(model), pad=14 if noted else None)
                if row == len(norms) - 1:
                    axes.set_xlabel(across)
                if column == 0:
                    axes.set_ylabel(up(norm))
        if names:
            figure.legend(
                [_line_in(grid, name) for name in names],
                [_plain(name) for name in names],
                loc="outside upper center",
                ncols=min(4, len(names)),
                frameon=False,
            )
        if told:
            figure.supxlabel("\n".join(told), fontsize=SMALL, color=GREY)
    return figure


def _key(panels: Panels) -> list[str]:
    """What the marks mean, a line each; none where nothing is marked."""
    common, alone = partly_fooled(panels.values())
    lines = [
        "n of m samples: the mean is over the n samples that every run of the panel fooled.",
        "Open marker: the run did not fool all m correctly classified samples.",
    ]
    return (lines if common else []) + ([ALONE] if alone else [])


def _draw_panel(axes: Any, panel: Panel, names: Sequence[str]) -> None:
    ticks = sorted({point.x for points in panel.lines.values() for point in points})
    if not ticks:
        axes.text(0.5, 0.5, _plain(panel.note), transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    for name, points in panel.lines.items():
        _draw_line(axes, name, names.index(name), points)
    if panel.note:
        axes.text(
            1, 1.02, _plain(panel.note), transform=axes.transAxes, ha="right", va="bottom", fontsize=SMALL, color=GREY
        )
    alone = [point for points in panel.lines.values() for point in points if point.part]
    if alone:
        axes.margins(y=0.15)
    for point in alone:
        # At the edges of the panel the text goes inwards, so that it does not run into the axis.
        side = "left" if point.x == ticks[0] else "right" if point.x == ticks[-1] else "center"
        shift = {"left": -3, "right": 3, "center": 0}[side]
        axes.annotate(
            point.part,
            (point.x, point.y),
            xytext=(shift, 4),
            textcoords="offset points",
            ha=side,
            color=GREY,
            fontsize=TINY,
        )
    if ticks[0] > 0 and ticks[-1] >= 10 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(_thinned(ticks), [f"{tick:g}" for tick in _thinned(ticks)])
    axes.set_xticks([], minor=True)
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_line(axes: Any, name: str, number: int, points: Sequence[Point]) -> None:
    """Through the points that can be compared; runs that did not fool all samples have an open marker."""
    style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
    line = sorted((point.x, point.y) for point in points if not point.part)
    axes.plot(
        [x for x, _ in line],
        [y for _, y in line],
        label=name,
        linestyle=DASHES[number % len(DASHES)],
        linewidth=1.4,
        **style,
    )
    partly = [(point.x, point.y) for point in points if not point.whole]
    if partly:
        axes.plot(
            [x for x, _ in partly],
            [y for _, y in partly],
            label=f"_{name}, open",
            linestyle="none",
            markerfacecolor="white",
            **style,
        )


def _thinned(ticks: list[float], most: int = 6) -> list[float]:
    """The first, the last, and some between them."""
    every = math.ceil((len(ticks) - 1) / (most - 1)) if len(ticks) > most else 1
    return ticks[::-1][::every][::-1]


def _line_in(grid: Any, name: str) -> Any:
    return next(line for axes in grid.flat for line in axes.get_lines() if line.get_label() == name)


def _plain(text: str) -> str:
    """A user's name, in which a dollar is no formula."""
    return text.replace("$", r"\$")


def _fresh(stem: str, ending: str, taken: dict[str, bytes]) -> str:
    """A file name that no other data set has."""
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.{ending}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name.lower() not in {each.lower() for each in taken})


def _svg(figure: Any) -> bytes:
    # A quarter of matplotlib's SVG is indentation.
    return re.sub(rb"\n +", b"\n", _saved(figure, format="svg", metadata={"Date": None}))


def _png(figure: Any) -> bytes:
    """In 256 colours, and with as many dots as fit into a small file; grey images lose nothing by it."""
    image = need("PIL.Image", extra="report", purpose="a figure of images")
    content = b""
    for dots in DOTS:
        drawn = image.open(io.BytesIO(_saved(figure, format="png", dpi=dots))).convert("RGB")
        file = io.BytesIO()
        drawn.quantize(256, dither=0).save(file, format="png", optimize=True)
        content = file.getvalue()
        if len(content) <= LARGEST:
            break
    return content


def _saved(figure: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    with need("matplotlib", extra="report", purpose="a figure").rc_context(STYLE):
        figure.savefig(file, **options)
    return file.getvalue()
