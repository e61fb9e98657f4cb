"""Summarizing the runs of an experiment: from evaluations to cells, and from cells to results."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.experiments.entries import DatasetSpec
from pdpgd.experiments.plan import PlannedRun
from pdpgd.experiments.results import Cell, DatasetInfo, IterationCost, ModelInfo, Results
from pdpgd.experiments.spec import ExperimentSpec
from pdpgd.files import replace_file, sealed, unsealed
from pdpgd.runs import metrics
from pdpgd.runs.comparison import Row
from pdpgd.runs.result import Evaluation

Outcome = Evaluation | str
"""The evaluation of a run, or the reason why it failed."""


def cell_of(planned: PlannedRun, name: str, outcome: Outcome) -> Cell:
    """Summarize the outcome of a planned run, whose directory is called `name`."""
    attack = planned.attack
    cell = Cell(
        id=name,
        role=planned.role,
        dataset=planned.dataset.name,
        model=planned.model.name,
        norm=planned.norm,
        attack=attack.name,
        restarts=attack.restarts,
        gradients=planned.gradients,
        penalty=planned.penalty,
        settings=dict(attack.settings),
        budget=attack.budget,
        radii=planned.radii,
        failure=outcome if isinstance(outcome, str) else None,
    )
    if isinstance(outcome, str):
        return cell
    row = Row(attack, planned.norm, outcome, None)
    distances = row.distances
    correct = distances > 0
    count = max(1, int(correct.sum()))
    mean = metrics.mean(distances)
    return replace(
        cell,
        samples=len(distances),
        right=int(correct.sum()),
        fooled=int(np.isfinite(distances[correct]).sum()),
        broken=row.broken,
        robust_accuracy=tuple(metrics.robust_accuracy(distances, radius) for radius in planned.radii),
        mean_distance=mean if row.searched and np.isfinite(mean) else None,
        forwards=sum(each.forwards.attacks for each in outcome.stats) / count,
        backwards=sum(each.backwards.attacks for each in outcome.stats) / count,
        seconds=row.seconds(),
    )


def results_of(
    spec: ExperimentSpec,
    cells: Sequence[Cell],
    outcomes: Mapping[str, Outcome],
    *,
    samples: Mapping[str, int],
    costs: Sequence[IterationCost],
    environment: Mapping[str, str],
) -> Results:
    """Assemble the results of an experiment.

    Args:
        spec: Spec of the experiment.
        cells: One cell per planned run.
        outcomes: Outcomes of the runs, by the id in the cells.
        samples: Number of samples by data set.
        costs: Measured costs of iterations.
        environment: Provenance beyond the versions: device, processor, threads and seed.
    """
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
        made_with={**versions, **environment},
    )


def _with_common_means(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[Cell]:
    """Add to the cells of the figure over restarts the mean over the samples that all runs of the same panel fooled."""
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


def _info(dataset: DatasetSpec, cells: Iterable[Cell], outcomes: Mapping[str, Outcome], samples: int) -> DatasetInfo:
    """Describe a data set and its models, with the clean accuracy that the runs found."""
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
    """A file of iteration costs that were measured earlier; those measured under other circumstances are discarded."""

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
            self._costs = {}  # measured again

    def __contains__(self, pair: object) -> bool:
        return pair in self._costs

    def __getitem__(self, pair: tuple[str, str]) -> IterationCost:
        return self._costs[pair]

    def add(self, cost: IterationCost) -> None:
        """Add a cost and write the file."""
        self._costs[cost.attack, cost.norm] = cost
        entries = {"circumstances": self._circumstances, "costs": [asdict(each) for each in self._costs.values()]}
        replace_file(self._path, f"{json.dumps(sealed(entries), indent=1)}\n".encode())
