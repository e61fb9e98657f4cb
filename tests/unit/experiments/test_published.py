"""The published numbers in the package agree with the tables of the paper."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pdpgd.attacks.catalogue import ATTACKS
from pdpgd.experiments import published
from pdpgd.paper import PAPER_RADII
from pdpgd.runs.metrics import compared

PAPER = Path(__file__).parents[4] / "shared" / "paper"
# The paper uses up to three names for an attack.
NAMES = {
    "DF": "deepfool",
    "DeepFool": "deepfool",
    "BandB": "bb",
    "CandW": "cw",
    "CS": "corner-search",
    "CornerSearch": "corner-search",
    "Pixel": "one-pixel",
    "SparseFool": "sparsefool",
    "Sparsefool": "sparsefool",
    "Our": "pdpgd",
}
METRICS = {
    "mean_robust_accuracy": "mean_accuracy",
    "times_best": "times_best",
    "mean_gap_to_best": "mean_gap",
    "max_gap_to_best": "max_gap",
}


def rows(name: str) -> list[dict[str, str]]:
    if not PAPER.is_dir():
        pytest.skip("the paper's tables are not there")
    with (PAPER / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ours(name: str) -> tuple[str, int | None]:
    first, _, restarts = name.partition("-")
    return NAMES.get(first, first.lower()), int(restarts) if restarts else None


def fraction(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def test_every_robust_accuracy_of_the_paper_is_found_under_our_names() -> None:
    for row in rows("robust_accuracy"):
        place = row["dataset"], row["norm"], row["model"], fraction(row["epsilon"])
        share = published.robust_accuracy(*place, *ours(row["attack"]))
        assert share == pytest.approx(float(row["robust_accuracy_percent"]) / 100), row


def test_every_mean_norm_of_the_paper_is_found_under_our_names() -> None:
    for row in rows("mean_norm"):
        place = row["dataset"], row["norm"], row["model"]
        assert published.mean_norm(*place, *ours(row["attack"])) == float(row["mean_norm"]), row


def test_every_summary_of_the_paper_is_found_under_our_names() -> None:
    for row in rows("summary"):
        found = published.summary(row["dataset"], row["norm"], *ours(row["attack"]))
        scale = 1 if row["metric"] == "times_best" else 100
        assert scale * getattr(found, METRICS[row["metric"]]) == pytest.approx(float(row["value"])), row


def test_the_published_numbers_are_consistent_with_each_other() -> None:
    """Compute one row of Table II from the complete table, where the paper has no error."""
    attacks = [("deepfool", None), ("bb", None), ("fab", 100), ("pgd", 100), ("pdpgd", 10), ("pdpgd", 100)]
    attacks += [("daa", 100), ("daa", 1), ("daa", 10), ("pgd", 1), ("pgd", 10), ("fab", 1), ("fab", 10), ("pdpgd", 1)]
    cells = [(kind, radius) for kind in ("plain", "linf-at", "l2-at") for radius in PAPER_RADII["mnist", "linf", kind]]
    accuracies = {
        f"{name}:{restarts}": [published.robust_accuracy("mnist", "linf", *cell, name, restarts) for cell in cells]
        for name, restarts in attacks
    }
    statistics = compared(
        accuracies,  # type: ignore[arg-type]  # lists do
        families={label: label.partition(":")[0] for label in accuracies},
    )
    printed = published.summary("mnist", "linf", "pdpgd", 100)
    assert printed is not None
    again = statistics["pdpgd:100"]
    assert again.times_best == printed.times_best
    assert [again.mean_accuracy, again.mean_gap, again.max_gap] == pytest.approx(
        [printed.mean_accuracy, printed.mean_gap, printed.max_gap], abs=6e-4
    )


@pytest.mark.parametrize("radius", [8 / 255, 0.0314, 0.03137])
def test_a_radius_is_found_however_it_was_rounded(radius: float) -> None:
    assert published.robust_accuracy("cifar10", "linf", "l2-at", radius, "pgd", 100) == 0.139


@pytest.mark.parametrize(
    ("dataset", "kind", "radius", "attack", "restarts"),
    [
        (None, "plain", 0.03, "pgd", 100),
        ("mnist", None, 0.03, "pgd", 100),
        ("mnist", "plain", 0.04, "pgd", 100),
        ("mnist", "plain", 0.03, "fmn", None),
        ("mnist", "plain", 0.03, "pgd", 7),
        ("svhn", "plain", 0.03, "pgd", 100),
    ],
)
def test_numbers_that_the_paper_does_not_have_are_none(
    dataset: str | None, kind: str | None, radius: float, attack: str, restarts: int | None
) -> None:
    assert published.robust_accuracy(dataset, "linf", kind, radius, attack, restarts) is None


def test_an_attack_without_a_number_of_restarts_has_one() -> None:
    assert published.mean_norm("mnist", "l2", "plain", "ddn", 1) == published.mean_norm(
        "mnist", "l2", "plain", "ddn", None
    )
    assert published.seconds("restricted-imagenet", "l2", "pdpgd", None) == 5127


@pytest.mark.parametrize(
    ("dataset", "norm", "attack", "restarts", "seconds"),
    [
        ("mnist", "linf", "deepfool", None, 12),
        ("mnist", "l0", "one-pixel", None, 41126),
        ("mnist", "l1", "pgd", 100, 2583),
        ("mnist", "l2", "pgd", 100, 2135),
        ("cifar10", "l1", "pdpgd", 10, 1316),
        ("cifar10", "l0", "pdpgd", 100, 11620),
        ("restricted-imagenet", "linf", "daa", 10, 87194),
        ("restricted-imagenet", "l0", "corner-search", None, None),
    ],
)
def test_running_times_are_those_of_the_text(
    dataset: str, norm: str, attack: str, restarts: int | None, seconds: float | None
) -> None:
    assert published.seconds(dataset, norm, attack, restarts) == seconds


def test_table_1_is_that_of_the_paper() -> None:
    deepfool, search = published.iteration_cost("deepfool"), published.iteration_cost("corner-search")
    assert deepfool is not None
    assert search is not None
    assert (deepfool.forwards, deepfool.backwards) == ("1", "k")
    assert (search.forwards, search.backwards, search.extra) == ("1", "", "")
    assert published.iteration_cost("fmn") is None


@pytest.mark.parametrize("file", sorted(published.FOLDER.glob("*.csv")), ids=lambda path: path.stem)
def test_every_attack_is_in_the_catalogue_with_its_norms(file: Path) -> None:
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            norms = row.get("norms", row.get("norm", "")).split()
            assert all(ATTACKS[row["attack"]].can_do(norm) for norm in norms), row
