"""The lines of the paper's two kinds of figures, norm by norm and model by model; drawn on paper and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdpgd.experiments.results import Cell, Results
from pdpgd.report.names import attack_name, cell_name


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
