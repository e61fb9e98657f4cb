"""The paper's numbers, to be put beside ours: its tables, its running times and its Table I, under our names.

The files lie in the folder `published` beside this one; its README.md says where each number stands in the paper.
Accuracies and gaps are shares here, per cent in the files. Names that the paper does not have give None, and so does
None: what is compared with nothing has no number of the paper's.
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

# Of a radius: the paper's are far more apart, and 0.00392 is meant as 1/255.
TOLERANCE = 1e-3

Row = dict[str, str]
Key = tuple[str | None, ...]


@dataclass(frozen=True)
class PaperCost:
    """Of an iteration, as Table I of the paper has it."""

    forwards: str
    """A number, or k for that of the classes; empty: none."""
    backwards: str
    extra: str
    """What it costs beside the passes; d is the number of entries of an input."""


def robust_accuracy(
    dataset: str | None, norm: str, model_kind: str | None, radius: float, attack: str, restarts: int | None
) -> float | None:
    """What the attack left at the radius."""
    found = _robust_accuracies().get((dataset, norm, model_kind, attack, _starts(restarts)), {})
    return next((share for own, share in found.items() if math.isclose(own, radius, rel_tol=TOLERANCE)), None)


def mean_norm(
    dataset: str | None, norm: str, model_kind: str | None, attack: str, restarts: int | None
) -> float | None:
    """The mean size of the perturbations of the attack, of the samples that were right."""
    return _mean_norms().get((dataset, norm, model_kind, attack, _starts(restarts)))


def summary(dataset: str | None, norm: str, attack: str, restarts: int | None) -> Statistics | None:
    """How the attack stood among the paper's, over its three models and their five radii."""
    return _summaries().get((dataset, norm, attack, _starts(restarts)))


def seconds(dataset: str | None, norm: str, attack: str, restarts: int | None) -> float | None:
    """For 1000 images on an Nvidia Titan V, all restarts included, averaged over the models."""
    return _seconds().get((dataset, norm, attack, _starts(restarts)))


def iteration_cost(attack: str) -> PaperCost | None:
    return _iteration_costs().get(attack)


def _starts(restarts: int | str | None) -> str:
    """An attack that has no restarts to choose has one."""
    return str(restarts or 1)


def _rows(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _share(percent: str) -> float:
    """Per cent have two places after the point at the most."""
    return round(float(percent) / 100, 6)


def _radius(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def _key(row: Row, *names: str) -> Key:
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
