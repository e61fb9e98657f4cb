"""The inputs of a report: runs, comparisons and experiments, read from their directories or passed as objects."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import InvalidInputError, StorageError, UnfinishedError
from pdpgd.files import unsealed
from pdpgd.report import wording
from pdpgd.runs import records
from pdpgd.runs.comparison import Comparison, Row
from pdpgd.runs.records import Trace
from pdpgd.runs.result import Evaluation, load_evaluation
from pdpgd.runs.spec import AttackSpec

if TYPE_CHECKING:
    from pdpgd.experiments.results import Results

# The file that identifies the kind of a directory.
RUN, COMPARISON, EXPERIMENT = "spec.json", "comparison.json", "results.json"


@dataclass(frozen=True)
class Series:
    """One curve of the charts: the results of one attack on one model, by norm."""

    label: str
    runs: Mapping[str, Evaluation]
    own: bool = False
    """Whether only points found by the attack of the respective norm count, as in a comparison."""

    def distances(self, norm: str) -> NDArray[Any]:
        """The distance per sample."""
        run = self.runs[norm]
        return run.own_distances(norm) if self.own else run.distances(norm)


@dataclass(frozen=True)
class ReportedModel:
    """A model on a data set, with the results of one attack or of several."""

    label: str
    series: tuple[Series, ...]
    folder: Path | None = None
    comparison: Comparison | None = None
    """None for a run of a single attack."""
    preferred: tuple[str, ...] = ()
    """Attacks whose adversarial examples the gallery shows if they were run; otherwise those of the strongest."""

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms in the order of the runs."""
        return tuple(dict.fromkeys(norm for series in self.series for norm in series.runs))

    @property
    def runs(self) -> list[Evaluation]:
        """All runs, each once."""
        return list({id(run): run for series in self.series for run in series.runs.values()}.values())

    @property
    def evaluation(self) -> Evaluation:
        """The first run, for what all share: the model and the data."""
        return self.runs[0]

    @property
    def classes(self) -> Sequence[str] | None:
        """Class names, if the data set has any."""
        return self.evaluation.spec.data.get("classes")

    @property
    def attacks(self) -> str:
        """Names of the attacks: all of a comparison, or that of the run."""
        if self.comparison is None:
            return str(self.evaluation.spec.attack)
        return ", ".join(series.label for series in self.series)

    @property
    def budgets(self) -> set[int | None]:
        """Budgets of the runs; None stands for the attack's own settings."""
        return {run.spec.budget for run in self.runs}

    def distances(self, norm: str) -> NDArray[Any]:
        """The smallest distance per sample that any attack found."""
        least: NDArray[Any] = np.min([series.distances(norm) for series in self.of(norm)], axis=0)
        return least

    def of(self, norm: str) -> list[Series]:
        """The series that have results in a norm."""
        return [series for series in self.series if norm in series.runs]

    def pictured(self, norm: str) -> Series:
        """The series with the smallest area under its curve; unfooled samples count as the largest finite distance."""
        every = self.of(norm)
        among = [series for series in every if series.runs[norm].spec.attack in self.preferred] or every
        everything = np.concatenate([series.distances(norm) for series in among])
        farthest = everything[np.isfinite(everything)].max(initial=0.0)
        return min(among, key=lambda series: float(np.minimum(series.distances(norm), farthest).mean()))


@dataclass(frozen=True)
class ReportInputs:
    """Everything that a page reports on."""

    models: tuple[ReportedModel, ...]
    experiment: Results | None = None
    folder: Path | None = None
    """Default directory of the page, if the inputs have one in common."""
    failures: tuple[str, ...] = ()
    """One sentence per run that failed or cannot be read."""
    missing: str = ""
    """Which runs of an experiment are not in its directory, and what the page lacks without them."""

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms in the order of the runs."""
        return tuple(dict.fromkeys(norm for model in self.models for norm in model.norms))

    @property
    def only_radii(self) -> bool:
        """Whether a run asked about radii only, so that its distances are not the smallest."""
        return any(run.spec.only_radii for model in self.models for run in model.runs)

    @property
    def side_by_side(self) -> bool:
        """Whether the models are compared with the first one. Those of an experiment are not."""
        return len(self.models) > 1 and self.experiment is None


def inputs_of(sources: object) -> ReportInputs:
    """Read the inputs of a report.

    Args:
        sources: A directory, an `Evaluation` or a `Comparison`, or a sequence of them.

    Returns:
        The models with their results, under distinct labels.

    Raises:
        InvalidInputError: There is no source, or one is of another type or not a directory of results.
        StorageError: A file of results is damaged.
        UnfinishedError: A run is not finished, or no attack of a comparison is.
    """
    several = list(sources) if isinstance(sources, Sequence) and not isinstance(sources, str) else [sources]
    if not several:
        raise InvalidInputError("sources: expected at least one directory, Evaluation or Comparison, got none")
    parts = [_inputs_of_one(source) for source in several]
    experiments = [part for part in parts if part.experiment is not None]
    if experiments and len(parts) > 1:
        raise InvalidInputError(
            f"sources: expected runs or comparisons, or one experiment alone, got {len(parts)} with "
            f"the experiment {experiments[0].folder}"
        )
    if experiments:
        return experiments[0]
    models = _with_distinct_labels([model for part in parts for model in part.models])
    failures = tuple(failure for part in parts for failure in part.failures)
    return ReportInputs(models, folder=parts[0].folder if len(parts) == 1 else None, failures=failures)


def _inputs_of_one(source: object) -> ReportInputs:
    if isinstance(source, Evaluation):
        return ReportInputs((model_of_run(source),), folder=source.folder)
    if isinstance(source, Comparison):
        return _inputs_of_comparison(source)
    if isinstance(source, str | Path):
        return _read(Path(source).expanduser())
    raise InvalidInputError(
        f"sources: expected directories, Evaluations or Comparisons, got {type(source).__name__} ({source!r:.60})"
    )


def _read(folder: Path) -> ReportInputs:
    # Path.is_dir raises an error if the name is too long.
    if not os.path.isdir(folder):
        found = "a file" if os.path.exists(folder) else "nothing"
        raise InvalidInputError(
            f"{folder}: expected the directory of a run, a comparison or an experiment, got {found}"
        )
    if (folder / RUN).exists():
        return _inputs_of_one(load_evaluation(folder))
    if (folder / COMPARISON).exists():
        return _inputs_of_comparison(_read_comparison(folder))
    if (folder / EXPERIMENT).exists():
        from pdpgd.report.experiment import read_experiment

        return read_experiment(folder)
    raise InvalidInputError(
        f"{folder}: expected the directory of a run, a comparison or an experiment, got one without "
        f"{RUN}, {COMPARISON} or {EXPERIMENT}"
    )


def model_of_run(evaluation: Evaluation) -> ReportedModel:
    """The model of a run."""
    label = wording.shortened(evaluation.spec.model_name)
    series = Series(label, dict.fromkeys(evaluation.norms, evaluation))
    return ReportedModel(label, (series,), evaluation.folder)


def model_of_comparison(
    comparison: Comparison, label: str | None = None, preferred: tuple[str, ...] = ()
) -> ReportedModel | None:
    """The model of a comparison; None if no attack finished."""
    finished = [row for row in comparison.rows if row.evaluation is not None]
    if not finished or finished[0].evaluation is None:
        return None
    by_label: dict[str, dict[str, Evaluation]] = {}
    for row in finished:
        assert row.evaluation is not None
        by_label.setdefault(row.label, {})[row.norm] = row.evaluation
    series = tuple(Series(name, runs, own=True) for name, runs in by_label.items())
    model = finished[0].evaluation.spec.model_name
    return ReportedModel(label or wording.shortened(model), series, comparison.folder, comparison, preferred)


def failures_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """One sentence per attack that failed."""
    return tuple(f"{row.label} ({row.norm}) failed: {row.failure}" for row in rows if row.evaluation is None)


def _inputs_of_comparison(comparison: Comparison) -> ReportInputs:
    model = model_of_comparison(comparison)
    if model is None:
        reasons = "; ".join(failures_of(comparison.rows)[:3]) or "it has no attacks"
        raise UnfinishedError(f"expected a comparison in which at least one attack finished, got none: {reasons}")
    return ReportInputs((model,), folder=comparison.folder, failures=failures_of(comparison.rows))


def _read_comparison(folder: Path) -> Comparison:
    """Read the directory of a comparison into what `compare` returned."""
    path = folder / COMPARISON
    try:
        entries = unsealed(json.loads(path.read_text(encoding="utf-8")))
        radii = {norm: tuple(map(float, entry["radii"])) for norm, entry in entries.items()}
        attacks = [
            (AttackSpec.parse(each["attack"]), norm, each["failure"])
            for norm, entry in entries.items()
            for each in entry["attacks"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{path}: expected the numbers of a comparison, got a file that cannot be read ({error}); "
            "start the command that wrote it again"
        ) from error
    rows = []
    for attack, norm, failure in attacks:
        place = folder / norm / attack.label.replace(":", "-")
        rows.append(Row(attack, norm, None if failure else load_evaluation(place), failure))
    return Comparison(tuple(rows), radii, folder)


def _with_distinct_labels(models: Sequence[ReportedModel]) -> tuple[ReportedModel, ...]:
    """Append a number to labels that occurred before."""
    seen: dict[str, int] = {}
    labeled = []
    for model in models:
        seen[model.label] = number = seen.get(model.label, 0) + 1
        label = model.label if number == 1 else f"{model.label} ({number})"
        series = model.series if model.comparison else tuple(replace(each, label=label) for each in model.series)
        labeled.append(replace(model, label=label, series=series))
    return tuple(labeled)


Rows = Mapping[str, Sequence[int]]
"""By norm, the rows (samples) whose pictures the gallery may show, in order of preference."""


@dataclass(frozen=True)
class RunExamples:
    """What a report needs from the example files of a run: traces, and the pixels of some samples."""

    traces: Mapping[str, Trace | None]
    """By norm; None if the attack does not record its progress."""
    pixels: Mapping[tuple[str, int], tuple[NDArray[Any], NDArray[Any]]]
    """Input and adversarial example as floats, by norm and row."""
    rows: Rows
    has_inputs: bool
    """Whether the run stored its inputs. Runs of early versions did not."""


def read_examples(run: Evaluation, rows: Rows) -> RunExamples:
    """Read the traces of a run and the pixels of some rows; each chunk is read once."""
    size = run.spec.chunk_size
    traces: dict[str, list[NDArray[Any]]] = {norm: [] for norm in run.norms}
    pixels: dict[tuple[str, int], tuple[NDArray[Any], NDArray[Any]]] = {}
    has_inputs = True
    for number, chunk in enumerate(run.chunks):
        found = run.store.examples(chunk)
        has_inputs = has_inputs and "input" in found
        for norm in run.norms:
            if f"{norm}_trace" in found:
                traces[norm].append(found[f"{norm}_trace"])
            for row in rows.get(norm, ()) if has_inputs else ():
                if row // size == number:
                    # Copies, so that the memory of the chunk can be freed.
                    pixels[norm, row] = _as_float(found["input"][row % size]), found[norm][row % size].copy()
    joined = {
        norm: records.joined_traces(parts) if parts and len(parts) == len(run.chunks) else None
        for norm, parts in traces.items()
    }
    return RunExamples(joined, pixels, rows, has_inputs)


class ExamplesByRun:
    """The examples of several runs. Runs are looked up by identity, since they are large and not hashable."""

    def __init__(self, runs: Iterable[Evaluation], rows: Mapping[int, Rows]) -> None:
        self._by_id = {id(run): read_examples(run, rows.get(id(run), {})) for run in runs}

    def of(self, run: Evaluation) -> RunExamples:
        """Return the examples of one run."""
        return self._by_id[id(run)]


def _as_float(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels.astype(np.float32) / np.float32(255) if pixels.dtype == np.uint8 else pixels.copy()
