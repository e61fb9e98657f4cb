"""The one table model of reports: it renders to HTML (on the page), Markdown, LaTeX and CSV.

Texts are Unicode. Each renderer escapes the characters that its format reserves; the page's template, `parts.html`,
renders the HTML.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pdpgd.report import wording
from pdpgd.report.wording import DASH, ELL, SIGMA
from pdpgd.runs.metrics import PARTIAL

Value = float | str | None


@dataclass(frozen=True)
class TableCell:
    """One cell of a table: a value, and how it is displayed."""

    value: Value
    """A text, or a number in the unit that the heading states; None if there is none. Sorting and CSV use it."""
    digits: int = 0
    """Number of decimals to which a number is displayed."""
    shown: str | None = None
    """The displayed text where it is not the value itself, such as 84.2% for 0.842."""
    bold: bool = False
    paper: Value = None
    """The paper's value, displayed in brackets."""
    paper_digits: int | None = None
    """Decimals of the paper's value; None: as many as ours."""
    part: str = ""
    """The samples that a mean is over ("43 of 46") if some correctly classified ones were not fooled. A star then
    follows the number, and the CSV has an additional column with the count."""

    @property
    def text(self) -> str:
        """The displayed text without the paper's value."""
        shown = _rounded(self.value, self.digits) if self.shown is None else self.shown
        return shown + (PARTIAL if self.part else "")

    @property
    def paper_text(self) -> str:
        """The paper's value as text; empty if the paper has none."""
        digits = self.digits if self.paper_digits is None else self.paper_digits
        return "" if self.paper is None else _rounded(self.paper, digits)

    @property
    def display(self) -> str:
        """The displayed text, followed by the paper's value in brackets if there is one."""
        return f"{self.text} ({self.paper_text})" if self.paper_text else self.text

    @property
    def data_value(self) -> str:
        """The value with all digits, by which the page sorts and which it saves; missing values are empty."""
        if isinstance(self.value, str):
            return self.display
        return "" if self.value is None else str(self.value)


TableRow = tuple[TableCell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Column headings and rows of cells, all of the same length."""

    name: str
    """File name without its ending, and id of the table on the page."""
    title: str
    caption: str = ""
    """What the numbers are, and whether high or low is good."""
    headings: tuple[str, ...]
    rows: tuple[TableRow, ...]
    spans: tuple[tuple[str, int], ...] = ()
    """Second row of headings, above the first: texts, and the number of columns each covers. Empty if there is none."""
    grouped: bool = False
    """Whether rows with the same first cell form a group."""
    notes: tuple[str, ...] = ()
    """Remarks on some of the numbers: above all, which runs failed."""
    downloads: Mapping[str, str] = field(default_factory=dict)
    """Files that the page offers in addition to CSV, by file ending; their texts are part of the page."""

    def __post_init__(self) -> None:
        width = len(self.headings)
        assert all(len(row) == width for row in self.rows), self.name
        assert not self.spans or sum(count for _, count in self.spans) == width, self.name

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings, each preceded by the one above it."""
        above = [text for text, count in self.spans for _ in range(count)] or [""] * len(self.headings)
        return tuple(f"{first} {last}".strip() for first, last in zip(above, self.headings, strict=True))

    @property
    def explanation(self) -> str:
        """Caption and notes as one text."""
        return " ".join((self.caption, *self.notes))

    @property
    def papers(self) -> tuple[bool, ...]:
        """Which columns have values of the paper."""
        return self._columns_where(lambda cell: cell.paper is not None)

    @property
    def parts(self) -> tuple[bool, ...]:
        """Which columns have means that are not over all correctly classified samples."""
        return self._columns_where(lambda cell: bool(cell.part))

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns have numbers, and so are aligned to the right."""
        return self._columns_where(lambda cell: isinstance(cell.value, int | float))

    @property
    def groups(self) -> tuple[int, ...]:
        """Indices of the rows that begin a new group, except the first: a rule separates them from those above."""
        if not self.grouped:
            return ()
        first = [row[0].value for row in self.rows]
        return tuple(place for place in range(1, len(first)) if first[place] != first[place - 1])

    def _columns_where(self, holds: Callable[[TableCell], bool]) -> tuple[bool, ...]:
        return tuple(any(holds(row[place]) for row in self.rows) for place in range(len(self.headings)))


def table_of(
    name: str, title: str, headings: Sequence[str], rows: Sequence[Sequence[TableCell]], *, caption: str = ""
) -> Table:
    """Build a table of the page from any sequences of headings and cells."""
    cells = tuple(tuple(row) for row in rows)
    return Table(name=name, title=title, caption=caption, headings=tuple(headings), rows=cells)


def text_cell(text: object) -> TableCell:
    """A cell with a text."""
    return TableCell(str(text))


def number_cell(value: float | int, shown: str | None = None) -> TableCell:
    """A cell with a number, displayed with thousands separators unless a text is given; empty if it is not finite."""
    if not np.isfinite(value):
        return TableCell(None)
    return TableCell(value, shown=f"{value:,}" if shown is None else shown)


def share_cell(value: float) -> TableCell:
    """A cell with a share, displayed in percent."""
    return TableCell(round(float(value), 6), shown=wording.share(value))


def distance_cell(value: float, norm: str) -> TableCell:
    """A cell with a distance. If no adversarial example was found (inf), it sorts after all others; nan is empty."""
    if np.isnan(value):
        return TableCell(None)
    return TableCell(float("inf") if np.isinf(value) else float(f"{value:.7g}"), shown=wording.size(value, norm))


def mean_cell(value: float | None, norm: str, *, whole: bool) -> TableCell:
    """A cell with a mean distance, with a star unless it is over all correctly classified samples (`whole`)."""
    cell = distance_cell(np.nan if value is None else value, norm)
    return cell if whole else replace(cell, shown=f"{cell.text}{PARTIAL}")


Best = Callable[[Iterable[float]], float]


def emphasized(
    rows: Sequence[TableRow], best: Sequence[Best], *, first: int, barred: Sequence[set[int]] = ()
) -> list[TableRow]:
    """Set the best value of each column in bold, and all that round to the same digits.

    Args:
        rows: The rows of cells.
        best: `min` or `max` for each column from `first` on.
        first: Index of the first column to consider.
        barred: For each row, the columns whose values do not compete.

    Returns:
        The rows with bold cells.
    """
    bold: set[tuple[int, int]] = set()
    for place, choose in enumerate(best, first):
        shown = {}
        for number, row in enumerate(rows):
            value = row[place].value
            if isinstance(value, float) and not (barred and place in barred[number]):
                shown[number] = round(value, row[place].digits)
        bold |= {(number, place) for number, value in shown.items() if value == choose(shown.values())}
    return [
        tuple(replace(cell, bold=True) if (number, place) in bold else cell for place, cell in enumerate(row))
        for number, row in enumerate(rows)
    ]


def with_digits(rows: Sequence[TableRow], *, first: int) -> list[TableRow]:
    """Show each column with as many decimals as its smallest number needs for three significant digits."""
    digits = []
    for column in list(zip(*rows, strict=True))[first:]:
        numbers = [cell.value for cell in column if isinstance(cell.value, float) and cell.value > 0]
        digits.append(max(0, 2 - math.floor(math.log10(min(numbers)))) if numbers else 0)
    return [
        (*row[:first], *(replace(cell, digits=own) for cell, own in zip(row[first:], digits, strict=True)))
        for row in rows
    ]


def to_markdown(table: Table, *, level: int = 2) -> str:
    """Render as Markdown, with the title as a heading of the given level."""

    def rendered(cell: TableCell) -> str:
        text = markdown_text(cell.text)
        text = f"**{text}**" if cell.bold else text
        return f"{text} ({markdown_text(cell.paper_text)})" if cell.paper_text else text

    rule = ["--:" if numeric else "---" for numeric in table.numeric]
    lines = [
        [markdown_text(name) for name in table.columns],
        rule,
        *([rendered(cell) for cell in row] for row in table.rows),
    ]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"- {markdown_text(note)}\n" for note in table.notes)
    title, caption = markdown_text(table.title), markdown_text(table.caption)
    return f"{'#' * level} {title}\n{caption}\n\n{body}\n" + (f"\n{notes}" if notes else "")


def to_latex(table: Table) -> str:
    """Render as LaTeX: a float over both columns, scaled down to the text width. Needs booktabs and graphicx."""

    def rendered(cell: TableCell) -> str:
        text = latex_text(cell.text)
        text = rf"\textbf{{{text}}}" if cell.bold else text
        return f"{text} ({latex_text(cell.paper_text)})" if cell.paper_text else text

    def line(cells: Iterable[str]) -> str:
        return f"    {' & '.join(cells)} \\\\"

    align = "".join("r" if numeric else "l" for numeric in table.numeric)
    rows = [line(map(rendered, row)) for row in table.rows]
    for place in reversed(table.groups):
        rows.insert(place, r"    \midrule")
    over = [line(_multicolumn(text, count) for text, count in table.spans), _rules(table.spans)] if table.spans else []
    notes = [rf"  \par\smallskip {{\footnotesize {latex_text(note)}\par}}" for note in table.notes]
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"  \centering",
        rf"  \caption{{{latex_text(table.title)}. {latex_text(table.caption)}}}",
        rf"  \label{{tab:{re.sub('[^A-Za-z0-9-]', '-', table.name)}}}",
        r"  \resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{{align}}}",
        r"    \toprule",
        *over,
        line(latex_text(name) for name in table.headings),
        r"    \midrule",
        *rows,
        r"    \bottomrule",
        r"  \end{tabular}}",
        *notes,
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Render as CSV with all digits; the paper's values and the samples that a mean is over have their own columns."""
    extra = list(zip(table.parts, table.papers, strict=True))
    lines: list[list[str]] = [[]]
    for name, (part, paper) in zip(table.columns, extra, strict=True):
        lines[0] += [name, *([f"{name} (over)"] if part else []), *([f"{name} (paper)"] if paper else [])]
    for row in table.rows:
        line: list[str] = []
        for cell, (part, paper) in zip(row, extra, strict=True):
            line += [_exact(cell.value), *([cell.part] if part else []), *([_exact(cell.paper)] if paper else [])]
        lines.append(line)
    return "".join(map(_csv_line, lines))


FORMULA = re.compile(r"^(?:[=@\t\r]|[+-](?!\d*\.?\d+(?:[eE][+-]?\d+)?$))")
"""Beginnings of texts that a spreadsheet would run as a formula; numbers are excluded. The page's script has the same
pattern."""


def csv_text(text: str) -> str:
    """Put an apostrophe before a text that begins like a formula, so that spreadsheets take it as a text."""
    return f"'{text}" if FORMULA.search(text) else text


LINE_END = "\r\n"


def _csv_line(fields: Iterable[str]) -> str:
    file = io.StringIO()
    # With \r\n as the line terminator, the writer quotes fields that contain either character.
    csv.writer(file, lineterminator=LINE_END).writerow(map(csv_text, fields))
    return f"{file.getvalue().removesuffix(LINE_END)}\n"


FORMATS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
"""Renderers of the files, by file ending."""


def markdown_text(text: str) -> str:
    """Escape a text for one line of Markdown, and for the HTML that Markdown allows."""
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", " ".join(text.split()))
    # Only an ampersand that would begin a character reference needs escaping.
    return re.sub(r"&(?=#?\w+;)", "&amp;", escaped).replace("<", "&lt;").replace(">", "&gt;")


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",
    "]": "{]}",
    DASH: "--",
    f"{ELL}∞": r"$\ell_\infty$",
    **{f"{ELL}{order}": rf"$\ell_{order}$" for order in "012"},
    ELL: r"$\ell$",
    SIGMA: r"$\sigma$",
}
_LATEX_SIGNS = re.compile("|".join(map(re.escape, sorted(_LATEX, key=len, reverse=True))))


def latex_text(text: str) -> str:
    """Escape a text for one line of LaTeX."""
    return _LATEX_SIGNS.sub(lambda found: _LATEX[found[0]], " ".join(text.split()))


def _multicolumn(text: str, count: int) -> str:
    return rf"\multicolumn{{{count}}}{{c}}{{{latex_text(text)}}}" if text else " & ".join([""] * count)


def _rules(spans: Sequence[tuple[str, int]]) -> str:
    """Rules below the headings that span columns."""
    rules, first = [], 1
    for text, count in spans:
        if text:
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return f"    {' '.join(rules)}"


def _rounded(value: Value, digits: int) -> str:
    if value is None:
        return DASH
    return value if isinstance(value, str) else f"{value:.{digits}f}"


def _exact(value: Value) -> str:
    """Format with twelve digits: those beyond stem from rounding in the conversion to percent."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.12g}"
