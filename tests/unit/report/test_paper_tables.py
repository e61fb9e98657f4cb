"""The paper's tables for results that are known by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pdpgd.experiments.results import Cell, Results
from pdpgd.report.experiment import tables_section
from pdpgd.report.paper_tables import tables, write_tables
from pdpgd.report.table import Table, TableCell, to_csv, to_latex, to_markdown
from pdpgd.report.wording import DASH, attack_name, norm_name
from pdpgd.runs.summary import radius_name
from support.experiments import COSTS, SAMPLES, cell, dataset_info, failed, results_of, table_cells

LINF, L2 = norm_name("linf"), norm_name("l2")
WHY = "MemoryError: 5 % | of <it>_gone"


@pytest.fixture(scope="module")
def results() -> Results:
    """All attacks in all norms; B&B failed in l2 on one of the models, DeepFool did not fool all on another."""

    def changed(each: Cell) -> Cell:
        if (each.attack, each.norm, each.model) == ("bb", "l2", "linf-at"):
            return failed("bb", None, "l2", "linf-at", WHY)
        if (each.attack, each.norm, each.model) == ("deepfool", "linf", "plain"):
            return cell("deepfool", None, "linf", "plain", fooled=90, mean_distance=0.01, broken=3)
        return each

    return results_of(
        *map(changed, table_cells()), iteration_costs=COSTS, made_with={"device": "cpu", "threads of a run": "2"}
    )


@pytest.fixture(scope="module")
def made(results: Results) -> dict[str, Table]:
    return {table.name: table for table in tables(results)}


def row(table: Table, *labels: str) -> tuple[TableCell, ...]:
    (found,) = [each for each in table.rows if tuple(item.value for item in each[: len(labels)]) == labels]
    return found[len(labels) :]


def texts(items: tuple[TableCell, ...]) -> list[str]:
    return [item.text + (f" ({item.paper_text})" if item.paper_text else "") for item in items]


def test_the_tables_come_in_the_papers_order(made: dict[str, Table]) -> None:
    assert list(made) == [
        "table-1",
        "running-time-mnist",
        "table-2-mnist",
        "table-3-mnist",
        "complete-mnist-linf",
        "complete-mnist-l2",
        "complete-mnist-l1",
        "complete-mnist-l0",
    ]


def test_table_1_joins_norms_and_shows_fractions(made: dict[str, Table]) -> None:
    table = made["table-1"]
    assert texts(row(table, "PDPGD (ours)", f"{LINF}, {L2}", "steps"))[:2] == ["1 (1)", "1 (1)"]
    assert texts(row(table, "DeepFool"))[2:4] == ["1 (1)", "9 (k)"]
    assert texts(row(table, "CornerSearch"))[2:] == ["1 (1)", f"0 ({DASH})", DASH]
    assert texts(row(table, "B&B"))[2:] == ["1.25 (1)", "1 (1)", "solve a second-order cone program"]
    assert texts(row(table, "FMN"))[2:] == ["1", "1", DASH]


def test_running_times_are_scaled_and_say_so(made: dict[str, Table]) -> None:
    """12.5 s for 100 images are 125 s for 1000."""
    table = made["running-time-mnist"]
    assert texts(row(table, "PGD-100")) == ["125 (2135)", "125 (2135)", "125 (2583)", "125 (2583)"]
    assert texts(row(table, "FAB-100"))[3] == DASH
    assert f"measured on {SAMPLES} images and scaled (device cpu, threads of a run 2)" in table.caption
    assert "Nvidia Titan V" in table.caption
    assert len(table.notes) == 1
    assert "over 2 of 3 models" in table.notes[0]


def test_table_2_compares_what_ran_everywhere(made: dict[str, Table]) -> None:
    table = made["table-2-mnist"]
    assert texts(row(table, LINF, "B&B")) == ["37.50 (57.51)", "0 (2)", "12.50 (2.38)", "22.5 (7.6)"]
    best = row(table, LINF, "PDPGD-100 (ours)")
    assert texts(best) == ["25.00 (55.15)", "15 (14)", "0.00 (0.02)", "0.0 (0.3)"]
    assert all(item.bold for item in best)
    assert all(item.bold for item in row(table, LINF, "auto (ours)"))
    assert not any(item.bold for item in row(table, LINF, "PDPGD-10 (ours)"))
    assert not [each for each in table.rows if [item.value for item in each[:2]] == [L2, "B&B"]]
    assert table.notes == (f"B&B is left out in {L2}: it failed on linf-at ({WHY}).",)


def test_restarts_of_one_attack_are_not_each_others_rivals() -> None:
    cells = [cell("pdpgd", 10, "linf", "plain"), cell("pdpgd", 100, "linf", "plain"), cell("bb", None, "linf", "plain")]
    (table,) = [each for each in tables(results_of(*cells)) if each.name == "table-2-mnist"]
    assert [each[3].value for each in table.rows] == [5, 5, 0]


def test_table_3_has_no_attacks_within_radii_and_bars_means_over_fewer_samples(made: dict[str, Table]) -> None:
    table = made["table-3-mnist"]
    assert "PGD-100" not in {each[1].value for each in table.rows}
    few = row(table, LINF, "DeepFool")
    assert few[0].value == 0.01
    assert not few[0].bold
    best = row(table, LINF, "PDPGD-100 (ours)")
    assert texts(best) == ["0.0300 (0.063)", "0.200 (0.316)", "0.0500 (0.166)"]
    assert all(item.bold for item in best)
    assert texts(row(table, L2, "B&B"))[1] == f"{DASH} (1.4)"
    assert f"* DeepFool in {LINF} fooled 90 of 98 on plain." in table.notes


def test_a_mean_over_fewer_samples_is_marked_in_every_form(made: dict[str, Table], results: Results) -> None:
    table = made["table-3-mnist"]
    assert [item.text for item in row(table, LINF, "DeepFool")] == ["0.0100*", "0.400", "0.1000"]
    assert "*: not all were fooled" in table.caption
    assert r"| 0.0100\* (0.082) |" in to_markdown(table)
    assert "& 0.0100* (0.082) &" in to_latex(table)
    lines = list(csv.DictReader(to_csv(table).splitlines()))
    over = {(line["norm"], line["attack"]): line["plain (over)"] for line in lines}
    assert {key: text for key, text in over.items() if text} == {(LINF, "DeepFool"): "90 of 98"}
    assert "linf-at (over)" not in lines[0], "a column for those alone that have such"
    (shown,) = [each for each in tables_section(results).parts[0].tables if each.name == "paper-table-3-mnist"]
    (cells,) = [cells for cells in shown.rows if [cell.text for cell in cells[:2]] == [LINF, "DeepFool"]]
    assert (cells[2].display, cells[2].value, cells[2].bold) == ("0.0100* (0.082)", 0.01, False)
    assert f"* DeepFool in {LINF} fooled 90 of 98 on plain." in shown.explanation


def test_the_best_mean_is_one_over_all_samples_or_none() -> None:
    weak = cell("deepfool", None, "l2", "plain", fooled=3, mean_distance=0.1)
    none = cell("ddn", None, "l2", "plain", fooled=0, mean_distance=None)
    (table,) = [each for each in tables(results_of(weak, none)) if each.name == "table-3-mnist"]
    assert [(each[2].text, each[2].bold) for each in table.rows] == [("0.100*", False), (f"{DASH}*", False)]
    strong = cell("bb", None, "l2", "plain", mean_distance=0.4)
    (table,) = [each for each in tables(results_of(weak, none, strong)) if each.name == "table-3-mnist"]
    assert [each[2].bold for each in table.rows] == [False, False, True]


def test_a_table_of_means_over_all_samples_has_no_stars() -> None:
    (table,) = [each for each in tables(results_of(*table_cells())) if each.name == "table-3-mnist"]
    assert "*" not in "".join([table.caption, *table.notes, *(item.text for each in table.rows for item in each)])
    assert "(over)" not in to_csv(table)


def test_a_complete_table_has_models_and_radii_and_says_what_failed(made: dict[str, Table]) -> None:
    table = made["complete-mnist-l2"]
    assert table.spans == (("", 1), ("plain", 5), ("linf-at", 5), ("l2-at", 5))
    assert table.headings[:6] == ("attack", "0.5", "1", "1.5", "2", "2.5")
    assert texts(row(table, "PGD-100"))[:2] == ["58.5 (91.1)", "45.5 (47.6)"]
    assert texts(row(table, "B&B"))[5] == f"{DASH} (78.3)"
    assert [item.bold for item in row(table, "auto (ours)")] == [True] * 15
    assert table.notes == (f"B&B in {L2}: it failed on linf-at ({WHY}).",)
    assert "plain 98.0 %" in table.caption
    assert any("broke on 3 of 100 samples of plain" in note for note in made["complete-mnist-linf"].notes)


def test_what_the_paper_does_not_have_stands_without_brackets() -> None:
    name = "my_set|<b>"
    made = tables(results_of(*table_cells(name), datasets=(dataset_info(name, None),)))
    assert made
    assert all(item.paper is None for table in made for each in table.rows for item in each)
    assert not any("brackets" in table.caption for table in made)
    linf = next(table for table in made if table.name.endswith("-linf"))
    assert linf.headings[1:6] == ("1/255", "1.5/255", "2/255", "2.5/255", "3/255")


def test_an_attack_that_failed_everywhere_still_has_its_row() -> None:
    cells = [failed("cw", None, "l2", kind, "no memory") for kind in ("plain", "linf-at", "l2-at")]
    made = {table.name: table for table in tables(results_of(cell("ddn", None, "l2", "plain"), *cells))}
    assert row(made["complete-mnist-l2"], "C&W")[0].value is None
    assert made["complete-mnist-l2"].notes == (f"C&W in {L2}: it failed on plain, linf-at, l2-at (no memory).",)
    assert [each[1].value for each in made["table-2-mnist"].rows] == ["DDN"]


def test_what_is_shown_alike_is_bold_alike() -> None:
    left = {"pgd": 0.1201, "ddn": 0.1204, "bb": 0.1206}
    cells = [cell(name, None, "l2", "plain", robust_accuracy=(share,) * 5) for name, share in left.items()]
    (table,) = [each for each in tables(results_of(*cells)) if each.name == "complete-mnist-l2"]
    assert [(each[1].text, each[1].bold) for each in table.rows] == [("12.0", True), ("12.0", True), ("12.1", False)]


def test_no_results_give_no_tables() -> None:
    assert tables(results_of()) == []


def test_every_table_is_written_in_three_forms_and_in_the_index(results: Results, tmp_path: Path) -> None:
    files = write_tables(results, tmp_path / "new" / "tables")
    assert len(files) == 3 * 8 + 1
    assert all(path.stat().st_size > 0 for path in files)
    index = (tmp_path / "new" / "tables" / "tables.md").read_text(encoding="utf-8")
    assert index.startswith("# A try\nAll of it.\n")
    for table in tables(results):
        assert to_markdown(table) in index
        tex = to_latex(table)
        assert tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")
        with (tmp_path / "new" / "tables" / f"{table.name}.csv").open(encoding="utf-8") as file:
            lines = list(csv.reader(file))
        assert {len(line) for line in lines} == {len(table.headings) + sum(table.papers) + sum(table.parts)}


def test_data_sets_whose_names_make_the_same_file_have_files_of_their_own() -> None:
    cells = [*table_cells("a b", ("l2",)), *table_cells("a/b", ("l2",))]
    names = [table.name for table in tables(results_of(*cells, datasets=(dataset_info("a b"), dataset_info("a/b"))))]
    assert len(set(names)) == len(names)
    assert {"table-2-a-b", "table-2-a-b-2"} <= set(names)


@pytest.mark.parametrize(
    ("attack", "restarts", "name"),
    [
        ("pdpgd", 10, "PDPGD-10 (ours)"),
        ("auto", None, "auto (ours)"),
        ("bb", None, "B&B"),
        ("cw@adv-lib", None, "C&W (adv-lib)"),
        ("pgd", 100, "PGD-100"),
        ("mine", None, "mine"),
    ],
)
def test_attacks_have_the_names_of_the_paper(attack: str, restarts: int | None, name: str) -> None:
    assert attack_name(attack, restarts) == name


@pytest.mark.parametrize(
    ("radius", "name"),
    [(8 / 255, "8/255"), (0.25 / 255, "0.25/255"), (0.2, "0.2"), (0.325, "0.325"), (12.0, "12"), (2**-0.5, "0.707107")],
)
def test_radii_stand_as_they_were_meant(radius: float, name: str) -> None:
    assert radius_name(radius) == name
