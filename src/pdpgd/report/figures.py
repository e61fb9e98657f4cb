"""The paper's figures over restarts and over gradient queries: their data, and files of them.

The page draws the same data, see `experiment`.
"""

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
    """One run of a panel."""

    x: float
    y: float
    whole: bool = True
    """Whether the run fooled every correctly classified sample; otherwise its marker is open."""
    part: str = ""
    """The samples that y is over ("43 of 46") if they differ from those of the other points. No line joins such a point
    to the others, since they are not comparable."""


@dataclass(frozen=True)
class Panel:
    """The runs in one norm on one model."""

    lines: Mapping[str, list[Point]]
    """By name of the attack, in the order of the spec."""
    common: str = ""
    """The samples that every run fooled, over which all points are means ("8 of 16"); empty if they are all."""
    without: tuple[str, ...] = ()
    """Attacks without a point, since they fooled no sample."""

    @property
    def note(self) -> str:
        """A short text for the panel: which samples the points are over, or why there are none."""
        if not self.lines and self.common:
            return "no sample was fooled by all runs"
        if not self.lines:
            return "no sample was fooled" if self.without else "no results"
        over = [f"{self.common} samples"] if self.common else []
        return "; ".join(over + ([f"{', '.join(self.without)} fooled none"] if self.without else []))

    @property
    def description(self) -> str:
        """The note as sentences; empty if there is nothing to note."""
        if not self.lines:
            return f"{self.note.capitalize()}."
        over = [f"Over the {self.common} samples that every run fooled."] if self.common else []
        return " ".join(over + ([f"{', '.join(self.without)} fooled none."] if self.without else []))


Panels = dict[tuple[str, str], Panel]
"""By norm and model."""


def over_restarts(results: Results, dataset: str) -> Panels:
    """Mean distance by number of restarts, in each panel over the samples that all of its runs fooled.

    A mean over the samples that each run fooled would rise where more restarts fool more samples, and so hide their
    benefit. Results of early versions lack the mean over the common samples: their points that are not over all samples
    are marked, and no line joins them.
    """
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.of("restarts", dataset=dataset):
        # Attacks run within given radii have no distances; those that fooled no sample are still named.
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
    """Mean robust accuracy over the radii, in percent, by number of gradients per sample."""
    lines: dict[tuple[str, str], dict[str, list[Point]]] = {}
    for cell in results.of("queries", dataset=dataset):
        if cell.failure is None and cell.gradients is not None and cell.robust_accuracy:
            name = attack_name(cell.attack) + ("" if cell.penalty is None else f", C = {cell.penalty:g}")
            point = Point(float(cell.gradients), 100 * sum(cell.robust_accuracy) / len(cell.robust_accuracy))
            lines.setdefault((cell.norm, cell.model), {}).setdefault(name, []).append(point)
    return {place: Panel(own) for place, own in lines.items()}


def partly_fooled(panels: Iterable[Panel]) -> tuple[bool, bool]:
    """Whether there are open markers, among points over common samples and among those that no line joins."""
    points = [point for panel in panels for line in panel.lines.values() for point in line if not point.whole]
    return any(not point.part for point in points), any(point.part for point in points)


ALONE = "Open marker with n of m: the mean over the n samples that this run fooled, not comparable with the others."


FOLDER = "figures"
# Okabe and Ito's palette, which color-blind readers can distinguish; markers and dashes differ as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
# Size of a panel and height of a line of the key, in inches.
PANEL = (2.5, 1.75)
KEY = 0.14
# Font sizes of the notes of panels and of points, and a gray that is dark enough in print.
SMALL, TINY, GRAY = 7, 6, "0.35"
# Resolutions of figures of images in dots per inch, in order of preference, and their most bytes.
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
    """Write the figures of an experiment, as far as there are results for them.

    Args:
        results: The results of the experiment.
        folder: Directory of the experiment: FOLDER/jobs has its runs, FOLDER/figures receives the figures.

    Returns:
        The files: SVG for the figures over restarts and over gradient queries, PNG for adversarial examples.

    Raises:
        InvalidInputError: The path of the directory is not usable.
        StorageError: The files cannot be written.
        MissingExtraError: matplotlib or Pillow is not installed.

    Example:
        >>> from pdpgd.experiments.results import load_results
        >>> results = load_results("runs/experiment")
        >>> [path.name for path in write_figures(results, "runs/experiment")]
        ['examples-mnist.png']
    """
    folder = output_path(folder)
    drawn: dict[str, bytes] = {}
    for dataset in results.datasets:
        for what, draw in (("restarts", draw_restarts), ("queries", draw_queries)):
            figure = draw(results, dataset.name)
            if figure is not None:
                drawn[_unused_name(f"{what}-{file_stem(dataset.name)}", "svg", drawn)] = _svg(figure)
        label = shown_attack(results, dataset.name)
        figure = None if label is None else draw_examples(results, folder, label, dataset.name)
        if figure is not None:
            drawn[_unused_name(f"examples-{file_stem(dataset.name)}", "png", drawn)] = _png(figure)
    if drawn:
        make_folder(folder / FOLDER)
    for name, content in drawn.items():
        replace_file(folder / FOLDER / name, content)
    return [folder / FOLDER / name for name in drawn]


def draw_restarts(results: Results, dataset: str) -> Any:
    """Draw mean distance by number of restarts: a row of panels per norm, a column per model.

    Args:
        results: The results of an experiment.
        dataset: Name of one of its data sets.

    Returns:
        A matplotlib figure; None if there are no results. Each panel shows means over the samples that all of its runs
        fooled, and states their number if they are not all.
    """
    panels = over_restarts(results, dataset)
    return _drawn(results.dataset(dataset), panels, across="restarts", up=distance_label)


def draw_queries(results: Results, dataset: str) -> Any:
    """Draw mean robust accuracy over the radii, by number of gradients per sample.

    Args:
        results: The results of an experiment.
        dataset: Name of one of its data sets.

    Returns:
        A matplotlib figure; None if there are no results.
    """
    panels = over_queries(results, dataset)
    return _drawn(
        results.dataset(dataset),
        panels,
        across="gradients per sample",
        up=lambda norm: f"{norm_name(norm)} mean robust accuracy (%)",
    )


def _drawn(dataset: DatasetInfo, panels: Panels, *, across: str, up: Callable[[str], str]) -> Any:
    """Draw a grid of panels with a legend above and a key of the markers below; panels without lines say so."""
    if not panels:
        return None
    norms = list(dict.fromkeys(norm for norm, _ in panels))
    models = [model for model in dataset.models if any(model == other for _, other in panels)]
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel.lines))
    key_lines = _key(panels)
    # Titles of the first row are above the notes of its panels, all at the same height.
    noted = any(panel.note and panel.lines for (norm, _), panel in panels.items() if norm == norms[0])
    matplotlib = need("matplotlib", extra="report", purpose="a figure")
    with matplotlib.rc_context(STYLE):
        size = (PANEL[0] * max(len(models), 2), PANEL[1] * len(norms) + 0.6 + KEY * len(key_lines))
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
        if key_lines:
            figure.supxlabel("\n".join(key_lines), fontsize=SMALL, color=GRAY)
    return figure


def _key(panels: Panels) -> list[str]:
    """What the markers mean, one line each; empty if there are none to explain."""
    common, alone = partly_fooled(panels.values())
    lines = [
        "n of m samples: the mean is over the n samples that every run of the panel fooled.",
        "Open marker: the run did not fool all m correctly classified samples.",
    ]
    return (lines if common else []) + ([ALONE] if alone else [])


def _draw_panel(axes: Any, panel: Panel, names: Sequence[str]) -> None:
    ticks = sorted({point.x for points in panel.lines.values() for point in points})
    if not ticks:
        axes.text(0.5, 0.5, _plain(panel.note), transform=axes.transAxes, ha="center", va="center", color=GRAY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    for name, points in panel.lines.items():
        _draw_line(axes, name, names.index(name), points)
    if panel.note:
        axes.text(
            1, 1.02, _plain(panel.note), transform=axes.transAxes, ha="right", va="bottom", fontsize=SMALL, color=GRAY
        )
    alone = [point for points in panel.lines.values() for point in points if point.part]
    if alone:
        axes.margins(y=0.15)
    for point in alone:
        # At the edges of the panel the text extends inwards, so that it does not overlap the axis.
        side = "left" if point.x == ticks[0] else "right" if point.x == ticks[-1] else "center"
        shift = {"left": -3, "right": 3, "center": 0}[side]
        axes.annotate(
            point.part,
            (point.x, point.y),
            xytext=(shift, 4),
            textcoords="offset points",
            ha=side,
            color=GRAY,
            fontsize=TINY,
        )
    if ticks[0] > 0 and ticks[-1] >= 10 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(_thinned(ticks), [f"{tick:g}" for tick in _thinned(ticks)])
    axes.set_xticks([], minor=True)
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_line(axes: Any, name: str, number: int, points: Sequence[Point]) -> None:
    """Draw a line through comparable points; runs that did not fool all samples have open markers."""
    style = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
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
    """Keep at most `most` ticks, evenly spaced, the last among them."""
    every = math.ceil((len(ticks) - 1) / (most - 1)) if len(ticks) > most else 1
    return ticks[::-1][::every][::-1]


def _line_in(grid: Any, name: str) -> Any:
    return next(line for axes in grid.flat for line in axes.get_lines() if line.get_label() == name)


def _plain(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as formulas."""
    return text.replace("$", r"\$")


def _unused_name(stem: str, ending: str, taken: dict[str, bytes]) -> str:
    """A file name that no other data set uses."""
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.{ending}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name.lower() not in {each.lower() for each in taken})


def _svg(figure: Any) -> bytes:
    # A quarter of the bytes of matplotlib's SVG is indentation.
    return re.sub(rb"\n +", b"\n", _saved(figure, format="svg", metadata={"Date": None}))


def _png(figure: Any) -> bytes:
    """Encode with 256 colors, lossless for gray images, and the best resolution that fits into a small file."""
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
