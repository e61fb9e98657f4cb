"""What the tables have in common: an attack's cells, numbers in their form, and words on what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pdpgd.evaluation.metrics import PARTIAL
from pdpgd.experiments.results import Cell, DatasetInfo, Results
from pdpgd.report.names import cell_name, norm_name
from pdpgd.report.table import Item

LONGEST_REASON = 300

Row = tuple[Item, ...]
Best = Callable[[Iterable[float]], float]


@dataclass(frozen=True)
class Runs:
    """What one attack, with so many restarts, did in one norm."""

    norm: str
    cells: Mapping[str, Cell]
    """By model."""

    @property
    def first(self) -> Cell:
        return next(iter(self.cells.values()))

    @property
    def name(self) -> str:
        return cell_name(self.first)

    @property
    def done(self) -> dict[str, Cell]:
        return {model: cell for model, cell in self.cells.items() if cell.failure is None and cell.samples > 0}

    def accuracies(self) -> dict[tuple[str, float], float]:
        """By model and radius; nothing of what failed."""
        return {
            (model, radius): accuracy
            for model, cell in self.done.items()
            for radius, accuracy in zip(cell.radii, cell.robust_accuracy, strict=True)
        }

    def unfooled(self) -> set[str]:
        """The models on which it did not fool every sample that was right: their mean is over others than that of one
        that did."""
        return {model for model, cell in self.done.items() if not cell.whole}

    def failures(self) -> list[str]:
        """At most one sentence."""
        told = self.why()
        return [f"{self._told}: {told}."] if told else []

    def misses(self) -> list[str]:
        """At most one sentence."""
        parts = [f"{cell.part} on {model}" for model, cell in self.done.items() if not cell.whole]
        return [f"{PARTIAL} {self._told} fooled {', '.join(parts)}."] if parts else []

    def breaks(self) -> list[str]:
        return [
            f"{self._told} broke on {cell.broken} of {cell.samples} samples of {model}, which count as not fooled."
            for model, cell in self.done.items()
            if cell.broken
        ]

    def why(self) -> str:
        """Where it failed, and of what; empty if it did not."""
        models: dict[str, list[str]] = {}
        for model, cell in self.cells.items():
            if cell.failure is not None:
                models.setdefault(_cut(cell.failure), []).append(model)
        return "; ".join(f"it failed on {', '.join(own)} ({reason})" for reason, own in models.items())

    @property
    def _told(self) -> str:
        return f"{self.name} in {norm_name(self.norm)}"


def runs_of(results: Results, dataset: DatasetInfo, norm: str) -> dict[str, Runs]:
    """The attacks of the tables by label, in the order of the spec."""
    found: dict[str, dict[str, Cell]] = {}
    for cell in results.of("table", dataset=dataset.name, norm=norm):
        found.setdefault(cell.label, {})[cell.model] = cell
    return {label: Runs(norm, cells) for label, cells in found.items()}


def percent(value: float | None, paper: float | None, digits: int) -> Item:
    """Of shares."""
    return Item(None if value is None else 100 * value, digits, paper=None if paper is None else 100 * paper)


def emphasised(rows: Sequence[Row], best: Sequence[Best], *, first: int, barred: Sequence[set[int]] = ()) -> list[Row]:
    """The best of each column from the first on in bold, and all that is shown like it; none of the barred places."""
    bold: set[tuple[int, int]] = set()
    for place, choose in enumerate(best, first):
        shown = {}
        for number, row in enumerate(rows):
            value = row[place].value
            if isinstance(value, float) and not (barred and place in barred[number]):
                shown[number] = round(value, row[place].digits)
        bold |= {(number, place) for number, value in shown.items() if value == choose(shown.values())}
    return [
        tuple(replace(item, bold=True) if (number, place) in bold else item for place, item in enumerate(row))
        for number, row in enumerate(rows)
    ]


def with_digits(rows: Sequence[Row], *, first: int) -> list[Row]:
    """Three significant digits of the smallest number of each column."""
    digits = []
    for column in list(zip(*rows, strict=True))[first:]:
        numbers = [item.value for item in column if isinstance(item.value, float) and item.value > 0]
        digits.append(max(0, 2 - math.floor(math.log10(min(numbers)))) if numbers else 0)
    return [
        (*row[:first], *(replace(item, digits=own) for item, own in zip(row[first:], digits, strict=True)))
        for row in rows
    ]


def images(dataset: DatasetInfo) -> str:
    return f"{dataset.samples} images"


def bracketed(rows: Iterable[Row], whose: str) -> str:
    """What the brackets are, if there are any."""
    return f" In brackets: {whose}." if any(item.paper is not None for row in rows for item in row) else ""


def _cut(reason: str) -> str:
    reason = " ".join(reason.split()).rstrip(".")
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} ..."
