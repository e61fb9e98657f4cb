"""What came of an experiment: a cell for every attack, norm and model. Tables and figures are made from it alone.

DIR/results.json holds it; the runs themselves, sample by sample, are in DIR/jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pdpgd.errors import StorageError
from pdpgd.files import sealed, unsealed

FORMAT = 1
FILE, SPEC, JOBS = "results.json", "spec.toml", "jobs"
"""In the directory of an experiment: the numbers, what was asked, and the runs."""

Role = Literal["table", "restarts", "queries"]

# Entries of a cell that files of this format may lack: they were added later.
LATER = {"common", "common_mean"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One attack in one norm on one model."""

    id: str
    """The content id of its run, which is in DIR/jobs/ID; empty if it was never begun."""
    role: Role
    """What it is for: the tables, the figure over restarts, or the figure over gradient queries."""
    dataset: str
    """Its name in the spec."""
    model: str
    """Its name in the spec."""
    norm: str
    attack: str
    """Its name in the catalogue."""
    restarts: int | None
    """None: the attack's own, in attacks that have none to choose."""
    gradients: int | None = None
    """What it was given, in the figure over queries."""
    penalty: float | None = None
    """C, the first lambda_1 / lambda_2, in the same figure; None for attacks without."""
    settings: Mapping[str, Any]
    budget: int | None
    radii: tuple[float, ...]
    failure: str | None = None
    """Why there are no numbers; all that follows is then empty."""
    samples: int = 0
    right: int = 0
    """Samples that were right before the attack."""
    fooled: int = 0
    """Of these."""
    broken: int = 0
    """Samples on which the attack itself raised an error."""
    robust_accuracy: tuple[float, ...] = ()
    """At the radii, as shares of all samples."""
    mean_distance: float | None = None
    """Of the fooled; None for attacks that were run within the radii, and where none was fooled."""
    common: int | None = None
    """In the figure over restarts: number of samples that every run of the same norm and model fooled, runs that fooled
    none left out. None in other roles, and in results that were written before this was counted."""
    common_mean: float | None = None
    """Mean distance over these samples; None if there are none."""
    forwards: float = 0.0
    """Passes of a sample that was right, on average."""
    backwards: float = 0.0
    seconds: float = 0.0
    """Of the attack, without the referee, for all samples."""

    @property
    def label(self) -> str:
        """As a user writes it: NAME or NAME:RESTARTS."""
        return self.attack if self.restarts is None else f"{self.attack}:{self.restarts}"

    @property
    def whole(self) -> bool:
        """Whether every correctly classified sample was fooled; otherwise the mean distance is over fewer samples."""
        return self.fooled == self.right

    @property
    def part(self) -> str:
        """The samples that the mean distance is over, for people."""
        return f"{self.fooled} of {self.right}"


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A data set of the experiment."""

    name: str
    source: str
    like: str | None
    """The paper's data set that it is compared with: mnist, cifar10 or restricted-imagenet."""
    samples: int
    models: Mapping[str, ModelInfo]
    """By their name in the spec, in its order."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    source: str
    like: str | None
    """The paper's kind: plain, linf-at or l2-at."""
    clean_accuracy: float | None
    """None if no run on it came to an end."""
    weights: str | None = None
    pool: str | None = None

    @property
    def described(self) -> str:
        """Where it and its weights came from, and what its logits are pooled over."""
        weights = f" with {self.weights}" if self.weights else ""
        return f"{self.source}{weights}{f' pooled over {self.pool}' if self.pool else ''}"


@dataclass(frozen=True, kw_only=True)
class IterationCost:
    """What an iteration of an attack costs a sample, by counting: Table I of the paper."""

    attack: str
    norm: str
    forwards: float
    backwards: float
    iteration: str
    """What counts as one: the setting that was made larger."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """All of it."""

    title: str
    about: str
    norms: tuple[str, ...]
    datasets: tuple[DatasetInfo, ...]
    cells: tuple[Cell, ...]
    iteration_costs: tuple[IterationCost, ...] = ()
    examples: str | None = None
    """The attack, as NAME or NAME:RESTARTS, whose points the figure of examples shows; None: one of ours."""
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Versions, and what else a reader needs: threads, device, processor."""
    format: int = FORMAT

    def dataset(self, name: str) -> DatasetInfo:
        return next(each for each in self.datasets if each.name == name)

    def of(
        self, role: Role, *, dataset: str | None = None, model: str | None = None, norm: str | None = None
    ) -> list[Cell]:
        """The cells of a role, and of a data set, a model and a norm where these are given; failed ones too."""
        return [
            cell
            for cell in self.cells
            if cell.role == role
            and dataset in (None, cell.dataset)
            and model in (None, cell.model)
            and norm in (None, cell.norm)
        ]

    def to_json(self) -> str:
        """With a checksum."""
        return f"{json.dumps(sealed(asdict(self)), indent=1, ensure_ascii=False)}\n"


def load_results(folder: str | Path) -> Results:
    """Those of an experiment's directory."""
    path = Path(folder).expanduser() / FILE
    try:
        return _results(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StorageError(f"{path.parent}: expected the directory of an experiment, got one without {FILE}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{path}: expected the results of an experiment, got a file that does not read ({error}); "
            "start the command that made it again"
        ) from error


def _results(entries: Any) -> Results:
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}")
    entries = unsealed(entries)  # those that were written before they had a checksum have none
    datasets = tuple(
        DatasetInfo(**{**each, "models": {name: ModelInfo(**model) for name, model in each["models"].items()}})
        for each in entries["datasets"]
    )
    known = {each.name for each in fields(Cell)}
    cells = []
    for each in entries["cells"]:
        if not known - LATER <= set(each) <= known:
            raise ValueError(f"expected cells with the entries {', '.join(sorted(known))}")
        lists = {name: tuple(each[name]) for name in ("radii", "robust_accuracy")}
        cells.append(Cell(**{**each, **lists}))
    costs = tuple(IterationCost(**each) for each in entries["iteration_costs"])
    return Results(
        **{
            **entries,
            "norms": tuple(entries["norms"]),
            "datasets": datasets,
            "cells": tuple(cells),
            "iteration_costs": costs,
        }
    )
