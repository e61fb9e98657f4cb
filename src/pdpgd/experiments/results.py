"""The results of an experiment: one cell per attack, norm and model, the source of all tables and figures.

They are stored in DIR/results.json; the runs themselves, with a record per sample, are in DIR/jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pdpgd.errors import StorageError
from pdpgd.files import sealed, unsealed
from pdpgd.runs.spec import AttackSpec

FORMAT = 1
FILE, SPEC, JOBS = "results.json", "spec.toml", "jobs"
"""Names in the directory of an experiment: the results, the spec, and the directory of the runs."""

Role = Literal["table", "restarts", "queries"]
"""What a cell is for: the tables, the figure over restarts, or the figure over gradient queries."""

# Entries that were added to the cells later, so that files of this format may lack them.
LATER = {"common", "common_mean"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The outcome of one attack in one norm on one model.

    Args:
        id: Name of the directory of the run in DIR/jobs; empty if the run could not be started.
        role: What the cell is for: the tables, the figure over restarts, or the figure over gradient queries.
        dataset: Name of the data set in the spec.
        model: Name of the model in the spec.
        norm: Name of the norm.
        attack: Name of the attack in the catalogue.
        restarts: Number of restarts; None for the default of the attack.
        gradients: Number of gradient queries that the attack was given, in the figure over queries.
        penalty: Initial penalty C = lambda_1 / lambda_2, in the same figure; None for attacks without one.
        settings: Settings of the attack, without the number of restarts.
        budget: Maximum number of forward plus backward passes per sample; None for an attack that has settings instead.
        radii: Radii at which robust accuracy is reported.
        failure: Why the run failed; the fields that follow then have their default values. None if it succeeded.
        samples: Number of samples.
        right: Number of samples that the model classifies correctly before the attack.
        fooled: Number of correctly classified samples for which an adversarial example was found.
        broken: Number of samples on which the attack raised an error.
        robust_accuracy: Robust accuracy at each of the radii, as a share of all samples.
        mean_distance: Mean distance of the fooled samples; None if there are none, and for attacks that were run
            within the radii.
        common: In the figure over restarts, the number of samples that were fooled by every run of the same norm and
            model, not counting runs that fooled none. None in other roles, and in files that were written before this
            was counted.
        common_mean: Mean distance over these samples; None if there are none.
        forwards: Mean number of forward passes per correctly classified sample.
        backwards: Mean number of backward passes per correctly classified sample.
        seconds: Time of the attack for all samples, without the referee.

    Example:
        >>> from pdpgd.experiments.results import load_results
        >>> cells = load_results("runs/experiment").of("table", norm="l2")
        >>> {cell.label: f"{cell.fooled} of {cell.samples}" for cell in cells}
        {'auto': '4 of 4', 'pdpgd': '4 of 4'}
    """

    id: str
    role: Role
    dataset: str
    model: str
    norm: str
    attack: str
    restarts: int | None
    gradients: int | None = None
    penalty: float | None = None
    settings: Mapping[str, Any]
    budget: int | None
    radii: tuple[float, ...]
    failure: str | None = None
    samples: int = 0
    right: int = 0
    fooled: int = 0
    broken: int = 0
    robust_accuracy: tuple[float, ...] = ()
    mean_distance: float | None = None
    common: int | None = None
    common_mean: float | None = None
    forwards: float = 0.0
    backwards: float = 0.0
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """The attack as users write it: NAME or NAME:RESTARTS."""
        return AttackSpec(name=self.attack, restarts=self.restarts).label

    @property
    def whole(self) -> bool:
        """Whether every correctly classified sample was fooled, so that the mean distance is over all of them."""
        return self.fooled == self.right

    @property
    def part(self) -> str:
        """The samples over which the mean distance is taken, in words."""
        return f"{self.fooled} of {self.right}"


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A data set of the experiment, with its models."""

    name: str
    source: str
    like: str | None
    """Data set of the paper that it is compared with: mnist, cifar10 or restricted-imagenet."""
    samples: int
    models: Mapping[str, ModelInfo]
    """Models by their name in the spec, in the order of the spec."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model of the experiment."""

    source: str
    like: str | None
    """Kind of model in the paper: plain, linf-at or l2-at."""
    clean_accuracy: float | None
    """None if no run on the model succeeded."""
    weights: str | None = None
    pool: str | None = None

    @property
    def described(self) -> str:
        """Source of the model and of its weights, and the groups that its logits are pooled over."""
        weights = f" with {self.weights}" if self.weights else ""
        return f"{self.source}{weights}{f' pooled over {self.pool}' if self.pool else ''}"


@dataclass(frozen=True, kw_only=True)
class IterationCost:
    """Number of passes per sample and iteration of an attack, as counted: Table I of the paper."""

    attack: str
    norm: str
    forwards: float
    backwards: float
    iteration: str
    """What counts as one iteration, such as one of the attack's steps."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of an experiment, which `load_results` reads.

    Args:
        title: Title of the experiment.
        about: Paragraph about the experiment.
        norms: Norms in which the attacks were run.
        datasets: Data sets and models.
        cells: One cell per run, failed ones included.
        iteration_costs: Measured costs of an iteration of the attacks.
        examples: Attack, as NAME or NAME:RESTARTS, whose adversarial examples are shown in a figure; None for one of
            ours.
        made_with: Provenance: versions, device, processor, threads and seed.
        format: Version of the file format.

    Example:
        >>> from pdpgd.experiments.results import load_results
        >>> results = load_results("runs/experiment")
        >>> [cell.label for cell in results.of("table", model="plain", norm="l2")]
        ['auto', 'pdpgd']
    """

    title: str
    about: str
    norms: tuple[str, ...]
    datasets: tuple[DatasetInfo, ...]
    cells: tuple[Cell, ...]
    iteration_costs: tuple[IterationCost, ...] = ()
    examples: str | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def dataset(self, name: str) -> DatasetInfo:
        """Return the data set of this name."""
        return next(each for each in self.datasets if each.name == name)

    def of(
        self, role: Role, *, dataset: str | None = None, model: str | None = None, norm: str | None = None
    ) -> list[Cell]:
        """Select cells, failed ones included.

        Args:
            role: What the cells are for: "table", "restarts" or "queries".
            dataset: Name of a data set in the spec; None for all.
            model: Name of a model in the spec; None for all.
            norm: Name of a norm; None for all.

        Returns:
            The cells, in the order of the spec.
        """
        return [
            cell
            for cell in self.cells
            if cell.role == role
            and dataset in (None, cell.dataset)
            and model in (None, cell.model)
            and norm in (None, cell.norm)
        ]

    def to_json(self) -> str:
        """Return the content of results.json, with a checksum."""
        return f"{json.dumps(sealed(asdict(self)), indent=1, ensure_ascii=False)}\n"


def load_results(folder: str | Path) -> Results:
    """Read the results of an experiment.

    Args:
        folder: Directory of the experiment.

    Returns:
        The results.

    Raises:
        StorageError: The directory has no results, or their file is damaged.

    Example:
        >>> load_results("runs/experiment").title
        'Two attacks on MNIST'
    """
    path = Path(folder).expanduser() / FILE
    try:
        return _results(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StorageError(f"{path.parent}: expected the directory of an experiment, got one without {FILE}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{path}: expected the results of an experiment, got a file that cannot be read ({error}); "
            "start the command that wrote it again"
        ) from error


def _results(entries: Any) -> Results:
    """Build results from the entries of the file.

    Raises:
        ValueError: The format or the entries of a cell are not the expected ones.
    """
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}")
    entries = unsealed(entries)  # old files have no checksum
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
