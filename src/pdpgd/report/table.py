"""A table as plain data, and as Markdown, LaTeX and CSV.

Texts are Unicode; what Markdown or LaTeX would take for its own is escaped when it is written.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pdpgd.report.wording import DASH, ELL, SIGMA
from pdpgd.runs.metrics import PARTIAL

Value = float | str | None


@dataclass(frozen=True)
class Item:
    """What stands in one place of a table."""

    value: Value
    """Text as it is; a number in the unit that the heading says; None if there is none."""
    digits: int = 0
    """After the point, where a number is shown."""
    bold: bool = False
    paper: Value = None
    """The same in the paper, shown beside it."""
    paper_digits: int | None = None
    """None: as many as ours."""
    part: str = ""
    """The samples that a mean is over ("43 of 46") where they are not all; empty if they are. A star stands behind such
    a number, and a column of the CSV has the count."""

    @property
    def text(self) -> str:
        """Without the paper's."""
        return _shown(self.value, self.digits) + (PARTIAL if self.part else "")

    @property
    def paper_text(self) -> str:
        """Empty if the paper has none."""
        return (
            ""
            if self.paper is None
            else _shown(self.paper, self.digits if self.paper_digits is None else self.paper_digits)
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    """Headings and rows of items, all of the same length."""

    name: str
    """For a file."""
    title: str
    caption: str
    """What the numbers are, and which of them are good."""
    headings: tuple[str, ...]
    rows: tuple[tuple[Item, ...], ...]
    spans: tuple[tuple[str, int], ...] = ()
    """Headings above the headings, and how many columns each covers; none if empty."""
    grouped: bool = False
    """Whether rows that begin alike belong together."""
    notes: tuple[str, ...] = ()
    """What a reader must know of some of the numbers: failures above all."""

    def __post_init__(self) -> None:
        width = len(self.headings)
        assert all(len(row) == width for row in self.rows)
        assert not self.spans or sum(count for _, count in self.spans) == width

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings together with what stands above them."""
        above = [text for text, count in self.spans for _ in range(count)] or [""] * len(self.headings)
        return tuple(f"{first} {last}".strip() for first, last in zip(above, self.headings, strict=True))

    @property
    def papers(self) -> tuple[bool, ...]:
        """The columns in which the paper has numbers."""
        return tuple(any(row[place].paper is not None for row in self.rows) for place in range(len(self.headings)))

    @property
    def parts(self) -> tuple[bool, ...]:
        """The columns in which some means are not over all samples."""
        return tuple(any(row[place].part for row in self.rows) for place in range(len(self.headings)))

    @property
    def numeric(self) -> tuple[bool, ...]:
        """The columns that are numbers, and so stand to the right."""
        return tuple(
            any(isinstance(row[place].value, float) for row in self.rows) for place in range(len(self.headings))
        )

    @property
    def groups(self) -> tuple[int, ...]:
        """The rows with which a new group begins: a rule stands above them."""
        if not self.grouped:
            return ()
        first = [row[0].value for row in self.rows]
        return tuple(place for place in range(1, len(first)) if first[place] != first[place - 1])


def to_markdown(table: Table, *, level: int = 2) -> str:
    """With its title as a heading of that level."""

    def cell(item: Item) -> str:
        text = markdown_text(item.text)
        text = f"**{text}**" if item.bold else text
        return f"{text} ({markdown_text(item.paper_text)})" if item.paper_text else text

    rule = ["--:" if numeric else "---" for numeric in table.numeric]
    lines = [
        [markdown_text(name) for name in table.columns],
        rule,
        *([cell(each) for each in row] for row in table.rows),
    ]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"- {markdown_text(note)}\n" for note in table.notes)
    title, caption = markdown_text(table.title), markdown_text(table.caption)
    return f"{'#' * level} {title}\n{caption}\n\n{body}\n" + (f"\n{notes}" if notes else "")


def to_latex(table: Table) -> str:
    """For a document that uses the packages booktabs and graphicx. No wider than the text, over both columns."""

    def cell(item: Item) -> str:
        text = latex_text(item.text)
        text = rf"\textbf{{{text}}}" if item.bold else text
        return f"{text} ({latex_text(item.paper_text)})" if item.paper_text else text

    def line(cells: Iterable[str]) -> str:
        return f"    {' & '.join(cells)} \\\\"

    align = "".join("r" if numeric else "l" for numeric in table.numeric)
    rows = [line(map(cell, row)) for row in table.rows]
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
    """Every digit; the paper's numbers, and which part of the samples a mean is over, in columns of their own."""
    extra = list(zip(table.parts, table.papers, strict=True))
    lines: list[list[str]] = [[]]
    for name, (part, paper) in zip(table.columns, extra, strict=True):
        lines[0] += [name, *([f"{name} (over)"] if part else []), *([f"{name} (paper)"] if paper else [])]
    for row in table.rows:
        line: list[str] = []
        for item, (part, paper) in zip(row, extra, strict=True):
            line += [_exact(item.value), *([item.part] if part else []), *([_exact(item.paper)] if paper else [])]
        lines.append(line)
    return "".join(map(_csv_line, lines))


FORMULA = re.compile(r"^(?:[=@\t\r]|[+-](?!\d*\.?\d+(?:[eE][+-]?\d+)?$))")
"""How a text begins that a spreadsheet would run; a number is none. The page's script has the same pattern."""


def csv_text(text: str) -> str:
    """The text with an apostrophe before it, which makes it one for a spreadsheet, if it begins like a formula."""
    return f"'{text}" if FORMULA.search(text) else text


LINE_END = "\r\n"


def _csv_line(fields: Iterable[str]) -> str:
    file = io.StringIO()
    # Written with the line ending of both kinds, so that a field with either of them is quoted.
    csv.writer(file, lineterminator=LINE_END).writerow(map(csv_text, fields))
    return f"{file.getvalue().removesuffix(LINE_END)}\n"


FORMATS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
"""By the ending of the file."""


def markdown_text(text: str) -> str:
    """A line that says what the text says, in Markdown and in the HTML that may stand in it."""
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", " ".join(text.split()))
    # An ampersand is one, unless it begins the name of a character.
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
    """A line that says what the text says, in LaTeX."""
    return _LATEX_SIGNS.sub(lambda found: _LATEX[found[0]], " ".join(text.split()))


def _multicolumn(text: str, count: int) -> str:
    return rf"\multicolumn{{{count}}}{{c}}{{{latex_text(text)}}}" if text else " & ".join([""] * count)


def _rules(spans: Sequence[tuple[str, int]]) -> str:
    """A rule below each heading that covers others."""
    rules, first = [], 1
    for text, count in spans:
        if text:
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return f"    {' '.join(rules)}"


def _shown(value: Value, digits: int) -> str:
    if value is None:
        return DASH
    return value if isinstance(value, str) else f"{value:.{digits}f}"


def _exact(value: Value) -> str:
    """Twelve digits: what is beyond them is the rounding of per cent."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.12g}"
