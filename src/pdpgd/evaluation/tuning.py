"""Settings by selection from a grid, as the paper made them: on samples apart from those that are reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdpgd import catalogue
from pdpgd.evaluation import metrics
from pdpgd.evaluation.result import Evaluation
from pdpgd.subjects import Samples

Run = Callable[[str, Samples, Mapping[str, Any], Path | None], Evaluation]
"""(what it is, samples, settings, directory) -> what came of it."""


def tuned(
    name: str, norm: str, settings: dict[str, Any], samples: Samples, place: Path | None, run: Run
) -> dict[str, Any]:
    """The settings with the best choice of the attack's grid; as they are if there is nothing to choose.

    An attack within given radii has its own choice at each of them.
    """
    choices = catalogue.entry_of(name).combinations(norm)
    folder = None if place is None else place.with_name(f"{place.name}-tuning")
    trials = [
        run(
            f"{norm} {name}, settings {number + 1} of {len(choices)}",
            samples,
            {**settings, **choice},
            None if folder is None else folder / f"{number:02d}",
        )
        for number, choice in enumerate(choices)
    ]
    return selected(norm, settings, choices, trials)


def selected(
    norm: str, settings: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], trials: Sequence[Evaluation]
) -> dict[str, Any]:
    """The settings with the choice whose trial came out best."""
    if not choices:
        return dict(settings)
    if "radii" in settings:
        best = [_strongest(trials, norm, radius) for radius in settings["radii"]]
        return {**settings, "per_radius": [choices[number] for number in best]}
    return {**settings, **choices[_smallest(trials, norm)]}


def _strongest(trials: Sequence[Evaluation], norm: str, radius: float) -> int:
    """The trial that leaves the least robust accuracy; of equals the first."""
    return int(np.argmin([metrics.robust_accuracy(trial.own_distances(norm), radius) for trial in trials]))


def _smallest(trials: Sequence[Evaluation], norm: str) -> int:
    """The trial that fools the most, and of these the one with the smallest mean."""

    def rank(number: int) -> tuple[int, float]:
        distances = trials[number].own_distances(norm)
        mean = metrics.mean(distances)
        return int(np.isinf(distances).sum()), math.inf if math.isnan(mean) else mean

    return min(range(len(trials)), key=rank)
