"""The paper's summary follows from its robust accuracies, by our metrics."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from pdpgd.runs.metrics import Statistics, compared

PAPER = Path(__file__).parents[4] / "shared" / "paper"
# The two tables call one attack by two names.
NAMES = {"DeepFool": "DF"}
COLUMNS = {
    "mean_robust_accuracy": "mean_accuracy",
    "times_best": "times_best",
    "mean_gap_to_best": "mean_gap",
    "max_gap_to_best": "max_gap",
}
# What the summary says and the table does not: the paper's own slips.
SLIPS = {
    ("mnist", "l0", "SparseFool", "mean_gap_to_best"),
    ("mnist", "l0", "SparseFool", "max_gap_to_best"),
    ("cifar10", "linf", "Our-10", "times_best"),
}
TOLERANCE = 0.06


def rows(name: str) -> list[dict[str, str]]:
    with (PAPER / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def statistics() -> dict[tuple[str, str, str], Statistics]:
    """By data set, norm and attack, from the robust accuracy of each model at each threshold."""
    if not PAPER.is_dir():
        pytest.skip("the paper's tables are not there")
    cells: dict[tuple[str, str], dict[str, dict[tuple[str, str], float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows("robust_accuracy.csv"):
        table = cells[row["dataset"], row["norm"]][row["attack"]]
        table[row["model"], row["epsilon"]] = float(row["robust_accuracy_percent"])
    found = {}
    for (dataset, norm), attacks in cells.items():
        order = sorted(next(iter(attacks.values())))
        accuracies = {name: np.array([values[cell] for cell in order]) for name, values in attacks.items()}
        # PGD-1, PGD-10 and PGD-100 are one attack.
        families = {name: name.partition("-")[0] for name in attacks}
        for name, row in compared(accuracies, families=families).items():
            found[dataset, norm, name] = row
    return found


def test_the_papers_summary_follows_from_its_table_but_for_three_slips(
    statistics: dict[tuple[str, str, str], Statistics],
) -> None:
    wrong, count = set(), 0
    for row in rows("summary.csv"):
        key = row["dataset"], row["norm"], NAMES.get(row["attack"], row["attack"])
        ours = getattr(statistics[key], COLUMNS[row["metric"]])
        count += 1
        if abs(ours - float(row["value"])) > TOLERANCE:
            wrong.add((*key, row["metric"]))
    assert count == 352
    assert wrong == SLIPS


def test_without_families_a_variant_is_beaten_by_its_stronger_sibling() -> None:
    table = {"ours-1": np.array([0.5, 0.4]), "ours-9": np.array([0.4, 0.4]), "rival": np.array([0.6, 0.4])}
    alone = compared(table)
    assert [alone[name].times_best for name in table] == [1, 2, 1]
    together = compared(table, families={"ours-1": "ours", "ours-9": "ours"})
    assert [together[name].times_best for name in table] == [2, 2, 1]
    assert together["ours-1"].mean_gap == pytest.approx(0.05)
    assert together["rival"].max_gap == pytest.approx(0.2)
    assert together["rival"].mean_accuracy == pytest.approx(0.5)


def test_a_single_attack_is_the_best_of_itself() -> None:
    assert compared({"only": np.array([0.3, 0.1])})["only"] == Statistics(pytest.approx(0.2), 2, 0.0, 0.0)  # type: ignore[arg-type]  # approx compares as a number
