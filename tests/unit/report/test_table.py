"""Tables as Markdown, LaTeX and CSV, with arbitrary texts."""

from __future__ import annotations

import csv
import io
import re

import pytest

from pdpgd.report.page import TEMPLATES
from pdpgd.report.table import (
    FORMULA,
    Table,
    TableCell,
    distance_cell,
    latex_text,
    markdown_text,
    mean_cell,
    number_cell,
    share_cell,
    table_of,
    text_cell,
    to_csv,
    to_latex,
    to_markdown,
)

NASTY = 'a|b <script> 100% & _x_ #1 {y} \\z ~ ^ $5 *w* `q` [l](u) &lt; "n"'


@pytest.fixture
def table() -> Table:
    return Table(
        name="table-2-my_data",
        title="Attacks on my_data",
        caption="Per cent & less.",
        headings=("norm", "attack", "mean", "times"),
        spans=(("", 2), ("plain", 2)),
        rows=(
            (TableCell("linf"), TableCell("B&B"), TableCell(100 * 0.936, 1, paper=57.51), TableCell(2.0)),
            (TableCell("linf"), TableCell("PGD"), TableCell(12.04, 1, bold=True), TableCell(None)),
            (TableCell("l2"), TableCell("PGD"), TableCell(None, 1, paper=1.0), TableCell(0.0, bold=True)),
        ),
        grouped=True,
        notes=("C&W failed on plain_net (MemoryError).",),
    )


def test_markdown_has_the_papers_in_brackets_and_the_best_in_bold(table: Table) -> None:
    assert to_markdown(table) == (
        "## Attacks on my\\_data\n"
        "Per cent & less.\n"
        "\n"
        "| norm | attack | plain mean | plain times |\n"
        "| --- | --- | --: | --: |\n"
        "| linf | B&B | 93.6 (57.5) | 2 |\n"
        "| linf | PGD | **12.0** | \N{EN DASH} |\n"
        "| l2 | PGD | \N{EN DASH} (1.0) | **0** |\n"
        "\n"
        "- C&W failed on plain\\_net (MemoryError).\n"
    )


def test_latex_has_two_levels_of_headings_and_rules_between_groups(table: Table) -> None:
    text = to_latex(table)
    assert r"\begin{tabular}{llrr}" in text
    assert r" &  & \multicolumn{2}{c}{plain} \\" in text
    assert r"\cmidrule(lr){3-4}" in text
    assert r"linf & B\&B & 93.6 (57.5) & 2 \\" in text
    assert r"linf & PGD & \textbf{12.0} & -- \\" in text
    assert text.index(r"linf & PGD") < text.index(r"\midrule", text.index("B\\&B")) < text.index("l2 & PGD")
    assert r"\label{tab:table-2-my-data}" in text
    assert r"C\&W failed on plain\_net (MemoryError)." in text


def test_csv_has_every_digit_and_the_paper_in_columns_of_its_own(table: Table) -> None:
    lines = list(csv.reader(io.StringIO(to_csv(table))))
    assert lines == [
        ["norm", "attack", "plain mean", "plain mean (paper)", "plain times"],
        ["linf", "B&B", "93.6", "57.51", "2"],
        ["linf", "PGD", "12.04", "", ""],
        ["l2", "PGD", "", "1", "0"],
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("=HYPERLINK(0)", "'=HYPERLINK(0)"),
        ("+cmd", "'+cmd"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-2.5", "-2.5"),
        ("+1e-05", "+1e-05"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_what_a_spreadsheet_would_run_is_a_text_in_csv(text: str, field: str) -> None:
    """In headings, which have no space before them, and in rows."""
    heading = text if text == field else f"'{text.strip()}"
    table = Table(name="t", title="", caption="", headings=(text, "x"), rows=((TableCell(text), TableCell(-0.5)),))
    lines = list(csv.reader(io.StringIO(to_csv(table), newline="")))
    assert lines == [[heading, "x"], [field, "-0.5"]]


def test_the_page_and_the_files_have_one_rule_for_what_a_spreadsheet_would_run() -> None:
    script = (TEMPLATES / "tables.js").read_text(encoding="utf-8")
    assert f"/{FORMULA.pattern}/.test(text)" in script


def test_texts_of_any_kind_come_through(table: Table) -> None:
    nasty = Table(name="t", title=NASTY, caption=NASTY, headings=(NASTY,), rows=((TableCell(NASTY),),), notes=(NASTY,))
    tex = to_latex(nasty)
    bare = re.sub(r"\\[\\%&#_{}$]", "", tex)
    assert bare.count("{") == bare.count("}")
    for line in (line for line in bare.splitlines()[1:] if "a\\textbar" in line):
        assert not re.search(r"[&#$^~]", line.replace(r"\\", ""))
        assert "<script>" not in line
    markdown = to_markdown(nasty)
    assert "<script>" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in rows] == [2, 2, 2]
    assert list(csv.reader(io.StringIO(to_csv(nasty)))) == [[NASTY], [NASTY]]


@pytest.mark.parametrize(
    ("text", "latex", "markdown"),
    [
        ("B&B", r"B\&B", "B&B"),
        ("&amp;", r"\&amp;", "&amp;amp;"),
        ("a\nb", "a b", "a b"),
        ("\N{SCRIPT SMALL L}∞", r"$\ell_\infty$", "\N{SCRIPT SMALL L}∞"),
        ("\N{SCRIPT SMALL L}2 x", r"$\ell_2$ x", "\N{SCRIPT SMALL L}2 x"),
        ("50 %", r"50 \%", "50 %"),
        ("x\\y", r"x\textbackslash{}y", "x\\\\y"),
        ("<a>", r"\textless{}a\textgreater{}", "&lt;a&gt;"),
    ],
)
def test_a_text_says_the_same_in_either(text: str, latex: str, markdown: str) -> None:
    assert latex_text(text) == latex
    assert markdown_text(text) == markdown


@pytest.mark.parametrize(
    ("cell", "display", "data_value"),
    [
        (text_cell("B&B"), "B&B", "B&B"),
        (number_cell(1234567), "1,234,567", "1234567"),
        (number_cell(float("nan")), "\N{EN DASH}", ""),
        (share_cell(0.84219874), "84.2%", "0.842199"),
        (distance_cell(0.123456789, "l2"), "0.123", "0.1234568"),
        (distance_cell(float("inf"), "l2"), "not fooled", "inf"),
        (distance_cell(float("nan"), "l2"), "\N{EN DASH}", ""),
        (mean_cell(12.0, "l0", whole=False), "12*", "12.0"),
        (mean_cell(None, "l0", whole=True), "\N{EN DASH}", ""),
        (TableCell(93.64, 1, paper=57.5, part="43 of 46"), "93.6* (57.5)", "93.64"),
    ],
)
def test_a_cell_of_the_page_is_displayed_briefly_and_saved_with_all_digits(
    cell: TableCell, display: str, data_value: str
) -> None:
    assert (cell.display, cell.data_value) == (display, data_value)


def test_columns_with_numbers_are_numeric_even_if_some_are_missing() -> None:
    rows = [[text_cell("a"), number_cell(3), TableCell(None)], [text_cell("b"), TableCell(None), TableCell(None)]]
    assert table_of("t", "", ("x", "y", "z"), rows).numeric == (False, True, False)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(AssertionError):
        Table(name="t", title="", caption="", headings=("a", "b"), rows=((TableCell("x"),),))
