"""Tables of a page: cells that are read by people, sorted by the page and saved as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pdpgd.report import wording
from pdpgd.runs.metrics import PARTIAL


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | int | str | None
    """What it is sorted by, and saved as; None comes last, and is saved as nothing."""
    strong: bool = False

    @property
    def numeric(self) -> bool:
        return not isinstance(self.value, str)

    @property
    def saved(self) -> str:
        return "" if self.value is None else str(self.value)


@dataclass(frozen=True)
class Sheet:
    id: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    about: str = ""
    """What a reader must know of the numbers, in small print under the caption."""
    downloads: Mapping[str, str] = field(default_factory=dict)
    """Other forms of it, by the ending of the file: md, tex."""

    @property
    def numeric(self) -> list[bool]:
        """Which columns are numbers throughout."""
        return [all(row[place].numeric for row in self.rows) for place in range(len(self.headings))]


def words(text: object) -> Cell:
    return Cell(str(text), str(text))


def number(value: float | int, text: str | None = None) -> Cell:
    if not np.isfinite(value):
        return Cell(wording.NOTHING, None)
    return Cell(f"{value:,}" if text is None else text, value)


def share(value: float) -> Cell:
    return Cell(wording.share(value), round(float(value), 6))


def distance(value: float, norm: str) -> Cell:
    """One that was not found is farther than all others."""
    if np.isnan(value):
        return Cell(wording.NOTHING, None)
    return Cell(wording.size(value, norm), float("inf") if np.isinf(value) else float(f"{value:.7g}"))


def mean(value: float | None, norm: str, *, whole: bool) -> Cell:
    """A mean distance, with a star if it is not `whole`: over all correctly classified samples."""
    cell = distance(np.nan if value is None else value, norm)
    return cell if whole else replace(cell, text=f"{cell.text}{PARTIAL}")


def sheet(id: str, caption: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Sheet:
    for row in rows:
        assert len(row) == len(headings), (id, len(row), len(headings))
    return Sheet(id, caption, tuple(headings), tuple(tuple(row) for row in rows))
