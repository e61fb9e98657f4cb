"""The numbers published in the paper, for comparison with ours: its tables, running times and iteration costs.

The files are in the directory `published` beside this module; its README.md says where the paper has each number.
Accuracies and gaps are percentages in the files and shares here. All functions return None for names that the paper
does not have, and for None, which stands for a data set or model without a counterpart in the paper.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pdpgd.runs.metrics import Statistics

FOLDER = Path(__file__).parent / "published"

# Relative tolerance for radii: those of the paper are much farther apart, and its 0.00392 stands for 1/255.
TOLERANCE = 1e-3

CsvRow = dict[str, str]
Key = tuple[str | None, ...]


@dataclass(frozen=True)
class PaperCost:
    """Cost of an iteration in Table I of the paper."""

    forwards: str
    """A number, or an expression in the number of classes k; empty for none."""
    backwards: str
    extra: str
    """Cost beyond the passes, in terms of the number d of entries of an input."""


def robust_accuracy(
    dataset: str | None, norm: str, model_kind: str | None, radius: float, attack: str, restarts: int | None
) -> float | None:
    """Return the robust accuracy under the attack at the radius."""
    found = _robust_accuracies().get((dataset, norm, model_kind, attack, _starts(restarts)), {})
    return next((share for own, share in found.items() if math.isclose(own, radius, rel_tol=TOLERANCE)), None)


def mean_norm(
    dataset: str | None, norm: str, model_kind: str | None, attack: str, restarts: int | None
) -> float | None:
    """Return the mean norm of the perturbations of the attack over the correctly classified samples."""
    return _mean_norms().get((dataset, norm, model_kind, attack, _starts(restarts)))


def summary(dataset: str | None, norm: str, attack: str, restarts: int | None) -> Statistics | None:
    """Return how the attack compares with the others of the paper, over its three models and their five radii."""
    return _summaries().get((dataset, norm, attack, _starts(restarts)))


def seconds(dataset: str | None, norm: str, attack: str, restarts: int | None) -> float | None:
    """Return the time for 1000 images on an Nvidia Titan V with all restarts, averaged over the models."""
    return _seconds().get((dataset, norm, attack, _starts(restarts)))


def iteration_cost(attack: str) -> PaperCost | None:
    """Return the cost of an iteration of the attack in Table I."""
    return _iteration_costs().get(attack)


def _starts(restarts: int | str | None) -> str:
    """Return the number of restarts as the files have it: 1 for attacks that have no such setting."""
    return str(restarts or 1)


def _rows(name: str) -> list[CsvRow]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _share(percent: str) -> float:
    """Convert a percentage with at most two decimals to a share."""
    return round(float(percent) / 100, 6)


def _radius(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def _key(row: CsvRow, *names: str) -> Key:
    return (*(row[name] for name in names), row["attack"], _starts(row["restarts"]))


@cache
def _robust_accuracies() -> dict[Key, dict[float, float]]:
    table: dict[Key, dict[float, float]] = {}
    for row in _rows("robust_accuracy"):
        table.setdefault(_key(row, "dataset", "norm", "model"), {})[_radius(row["radius"])] = _share(row["percent"])
    return table


@cache
def _mean_norms() -> dict[Key, float]:
    return {_key(row, "dataset", "norm", "model"): float(row["mean_norm"]) for row in _rows("mean_norm")}


@cache
def _summaries() -> dict[Key, Statistics]:
    read: dict[str, Callable[[str], float]] = {"times_best": float}
    values: dict[Key, dict[str, float]] = {}
    for row in _rows("summary"):
        metric = row["metric"]
        values.setdefault(_key(row, "dataset", "norm"), {})[metric] = read.get(metric, _share)(row["value"])
    return {
        key: Statistics(
            mean_accuracy=each["mean_robust_accuracy"],
            times_best=int(each["times_best"]),
            mean_gap=each["mean_gap_to_best"],
            max_gap=each["max_gap_to_best"],
        )
        for key, each in values.items()
    }


@cache
def _seconds() -> dict[Key, float]:
    return {
        (row["dataset"], norm, row["attack"], _starts(row["restarts"])): float(row["seconds"])
        for row in _rows("running_time")
        for norm in row["norms"].split()
    }


@cache
def _iteration_costs() -> dict[str, PaperCost]:
    return {
        row["attack"]: PaperCost(row["forwards"], row["backwards"], row["extra_cost"])
        for row in _rows("iteration_cost")
    }
