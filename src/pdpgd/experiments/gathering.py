"""From what came of the runs to the results of the experiment."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.experiments.plan import Ask
from pdpgd.experiments.results import Cell, DatasetInfo, IterationCost, ModelInfo, Results
from pdpgd.experiments.spec import DatasetAsk, ExperimentSpec
from pdpgd.files import replace_file, sealed, unsealed
from pdpgd.runs import metrics
from pdpgd.runs.comparison import Row
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import AttackSpec

Outcome = Evaluation | str
"""What came of a run, or why nothing did."""


def cell_of(ask: Ask, name: str, outcome: Outcome) -> Cell:
    asked: dict[str, Any] = {
        "id": name,
        "role": ask.role,
        "dataset": ask.dataset.name,
        "model": ask.model.name,
        "norm": ask.norm,
        "attack": ask.attack,
        "restarts": ask.restarts,
        "gradients": ask.gradients,
        "penalty": ask.penalty,
        "settings": dict(ask.settings),
        "budget": ask.budget,
        "radii": ask.radii,
    }
    if isinstance(outcome, str):
        return Cell(**asked, failure=outcome)
    row = Row(AttackSpec(name=ask.attack, restarts=ask.restarts), ask.norm, outcome, None)
    distances = row.distances
    right = distances > 0
    mean = metrics.mean(distances)

    right_count = max(1, int(right.sum()))
    return Cell(
        **asked,
        samples=len(right),
        right=int(right.sum()),
        fooled=int(np.isfinite(distances[right]).sum()),
        broken=row.broken,
        robust_accuracy=tuple(metrics.robust_accuracy(distances, radius) for radius in ask.radii),
        mean_distance=mean if row.searched and np.isfinite(mean) else None,
        forwards=sum(each.forwards.attacks for each in outcome.stats) / right_count,
        backwards=sum(each.backwards.attacks for each in outcome.stats) / right_count,
        seconds=row.seconds(),
    )


def results_of(
    spec: ExperimentSpec,
    cells: Sequence[Cell],
    outcomes: Mapping[str, Outcome],
    *,
    samples: Mapping[str, int],
    costs: Sequence[IterationCost],
    facts: Mapping[str, str],
) -> Results:
    """`samples`: how many each data set has; `facts`: what else a reader needs beside the versions."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for outcome in outcomes.values():
        if isinstance(outcome, Evaluation):
            versions |= outcome.spec.made_with
    return Results(
        title=spec.title,
        about=spec.about,
        norms=spec.norms,
        datasets=tuple(_info(dataset, cells, outcomes, samples[dataset.name]) for dataset in spec.datasets),
        cells=tuple(_with_common_means(cells, outcomes)),
        iteration_costs=tuple(costs),
        examples=spec.examples,
        made_with={**versions, **facts},
    )


def _with_common_means(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[Cell]:
    """The cells, those of the figure over restarts with their mean over the samples that all runs of a panel fooled."""
    panels: dict[tuple[str, str, str], dict[int, NDArray[Any]]] = {}
    for place, cell in enumerate(cells):
        outcome = outcomes.get(cell.id)
        if cell.role == "restarts" and cell.mean_distance is not None and isinstance(outcome, Evaluation):
            panel = panels.setdefault((cell.dataset, cell.model, cell.norm), {})
            panel[place] = outcome.own_distances(cell.norm)
    found = list(cells)
    for panel in panels.values():
        common = metrics.fooled_by_all(list(panel.values()))
        for place, distances in panel.items():
            mean = float(distances[common].mean()) if common.any() else None
            found[place] = replace(found[place], common=int(common.sum()), common_mean=mean)
    return found


def _info(dataset: DatasetAsk, cells: Iterable[Cell], outcomes: Mapping[str, Outcome], samples: int) -> DatasetInfo:
    accuracy: dict[str, float] = {}
    for cell in cells:
        outcome = outcomes.get(cell.id)
        if cell.dataset == dataset.name and isinstance(outcome, Evaluation):
            accuracy[cell.model] = outcome.clean_accuracy
    models = {
        model.name: ModelInfo(
            source=model.source,
            like=model.like,
            clean_accuracy=accuracy.get(model.name),
            weights=model.weights,
            pool=model.pool,
        )
        for model in dataset.models
    }
    return DatasetInfo(name=dataset.name, source=dataset.source, like=dataset.like, samples=samples, models=models)


class CostCache:
    """Iteration costs that were counted before, in a file; those counted with other versions are forgotten."""

    def __init__(self, path: Path, circumstances: Mapping[str, str]) -> None:
        self._path, self._circumstances = path, dict(circumstances)
        self._costs: dict[tuple[str, str], IterationCost] = {}
        try:
            entries = unsealed(json.loads(path.read_bytes()))
            if set(entries) == {"circumstances", "costs"} and entries["circumstances"] == self._circumstances:
                for each in entries["costs"]:
                    cost = IterationCost(**each)
                    self._costs[cost.attack, cost.norm] = cost
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._costs = {}  # counted anew

    def __contains__(self, pair: object) -> bool:
        return pair in self._costs

    def __getitem__(self, pair: tuple[str, str]) -> IterationCost:
        return self._costs[pair]

    def add(self, cost: IterationCost) -> None:
        self._costs[cost.attack, cost.norm] = cost
        entries = {"circumstances": self._circumstances, "costs": [asdict(each) for each in self._costs.values()]}
        replace_file(self._path, f"{json.dumps(sealed(entries), indent=1)}\n".encode())
