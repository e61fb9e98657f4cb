"""What a page is about: runs, comparisons and experiments, from their directories or as Python has them."""

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
from pdpgd.runs.records import Trace
from pdpgd.runs.result import Evaluation

if TYPE_CHECKING:
    from pdpgd.experiments.results import Results
    from pdpgd.runs.comparison import Comparison, Row
    from pdpgd.runs.result import Evaluation


# What a directory is, by the file in it.
RUN, COMPARISON, EXPERIMENT = "spec.json", "comparison.json", "results.json"


@dataclass(frozen=True)
class Series:
    """A curve in the charts: what one attack found on one model, by norm."""

    label: str
    runs: Mapping[str, Evaluation]
    own: bool = False
    """Whether only the points of the norm's own attack count, as in a comparison."""

    def distances(self, norm: str) -> NDArray[Any]:
        run = self.runs[norm]
        return run.own_distances(norm) if self.own else run.distances(norm)


@dataclass(frozen=True)
class Source:
    """A model on a data set, and what one attack or several found."""

    label: str
    series: tuple[Series, ...]
    folder: Path | None = None
    comparison: Comparison | None = None
    """None: a run of one attack."""
    preferred: tuple[str, ...] = ()
    """Attacks whose pictures are shown, if they are among them; none: those of the strongest."""

    @property
    def norms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(norm for series in self.series for norm in series.runs))

    @property
    def runs(self) -> list[Evaluation]:
        """Each once."""
        return list({id(run): run for series in self.series for run in series.runs.values()}.values())

    @property
    def evaluation(self) -> Evaluation:
        """One of them: model and data are the same in all."""
        return self.runs[0]

    @property
    def classes(self) -> Sequence[str] | None:
        return self.evaluation.spec.data.get("classes")

    def distances(self, norm: str) -> NDArray[Any]:
        """The least that any attack found."""
        least: NDArray[Any] = np.min([series.distances(norm) for series in self.of(norm)], axis=0)
        return least

    def of(self, norm: str) -> list[Series]:
        return [series for series in self.series if norm in series.runs]

    def pictured(self, norm: str) -> Series:
        """The one that leaves the least area under its curve; not fooled counts as the farthest that was."""
        every = self.of(norm)
        among = [series for series in every if series.runs[norm].spec.attack in self.preferred] or every
        everything = np.concatenate([series.distances(norm) for series in among])
        farthest = everything[np.isfinite(everything)].max(initial=0.0)
        return min(among, key=lambda series: float(np.minimum(series.distances(norm), farthest).mean()))


@dataclass(frozen=True)
class ReportInputs:
    """All that a page is about."""

    sources: tuple[Source, ...]
    experiment: Results | None = None
    folder: Path | None = None
    """Where the page belongs, if there is one place."""
    failures: tuple[str, ...] = ()
    """Runs that failed or do not read, a sentence each."""
    missing: str = ""
    """Of an experiment, which runs are not in its directory, and what that means for the page."""

    @property
    def norms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(norm for source in self.sources for norm in source.norms))

    @property
    def side_by_side(self) -> bool:
        """Whether the sources are held against each other: those of an experiment are not."""
        return len(self.sources) > 1 and self.experiment is None


def inputs_of(things: object) -> ReportInputs:
    """A directory, an Evaluation or a Comparison, or several of these."""
    several = list(things) if isinstance(things, Sequence) and not isinstance(things, str) else [things]
    if not several:
        raise InvalidInputError("sources: expected at least one directory, Evaluation or Comparison, got none")
    parts = [_part(thing) for thing in several]
    experiments = [part for part in parts if part.experiment is not None]
    if experiments and len(parts) > 1:
        raise InvalidInputError(
            f"sources: expected runs or comparisons, or one experiment alone, got {len(parts)} with "
            f"the experiment {experiments[0].folder}"
        )
    if experiments:
        return experiments[0]
    sources = _told_apart([source for part in parts for source in part.sources])
    failures = tuple(failure for part in parts for failure in part.failures)
    return ReportInputs(sources, folder=parts[0].folder if len(parts) == 1 else None, failures=failures)


def _part(thing: object) -> ReportInputs:
    from pdpgd.runs.comparison import Comparison
    from pdpgd.runs.result import Evaluation

    if isinstance(thing, Evaluation):
        return ReportInputs((source_of_run(thing),), folder=thing.folder)
    if isinstance(thing, Comparison):
        return _compared(thing)
    if isinstance(thing, str | Path):
        return _read(Path(thing).expanduser())
    raise InvalidInputError(
        f"sources: expected directories, Evaluations or Comparisons, got {type(thing).__name__} ({thing!r:.60})"
    )


def _read(folder: Path) -> ReportInputs:
    from pdpgd.runs.result import load_evaluation

    # Not folder.is_dir, which raises an error where a name is too long.
    if not os.path.isdir(folder):
        found = "a file" if os.path.exists(folder) else "nothing"
        raise InvalidInputError(
            f"{folder}: expected the directory of a run, a comparison or an experiment, got {found}"
        )
    if (folder / RUN).exists():
        return _part(load_evaluation(folder))
    if (folder / COMPARISON).exists():
        return _compared(_comparison(folder))
    if (folder / EXPERIMENT).exists():
        from pdpgd.report.experiment import read

        return read(folder)
    raise InvalidInputError(
        f"{folder}: expected the directory of a run, a comparison or an experiment, got one without "
        f"{RUN}, {COMPARISON} or {EXPERIMENT}"
    )


def source_of_run(evaluation: Evaluation) -> Source:
    label = wording.shortened(evaluation.spec.model_name)
    series = Series(label, dict.fromkeys(evaluation.norms, evaluation))
    return Source(label, (series,), evaluation.folder)


def source_of_comparison(
    comparison: Comparison, label: str | None = None, preferred: tuple[str, ...] = ()
) -> Source | None:
    """None if no attack came to an end."""
    finished = [row for row in comparison.rows if row.evaluation is not None]
    if not finished or finished[0].evaluation is None:
        return None
    by_label: dict[str, dict[str, Evaluation]] = {}
    for row in finished:
        assert row.evaluation is not None
        by_label.setdefault(row.label, {})[row.norm] = row.evaluation
    series = tuple(Series(name, runs, own=True) for name, runs in by_label.items())
    model = finished[0].evaluation.spec.model_name
    return Source(label or wording.shortened(model), series, comparison.folder, comparison, preferred)


def failures_of(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(f"{row.label} ({row.norm}) failed: {row.failure}" for row in rows if row.evaluation is None)


def _compared(comparison: Comparison) -> ReportInputs:
    source = source_of_comparison(comparison)
    if source is None:
        reasons = "; ".join(failures_of(comparison.rows)[:3]) or "it has no attacks"
        raise UnfinishedError(f"expected a comparison in which an attack came to an end, got none: {reasons}")
    return ReportInputs((source,), folder=comparison.folder, failures=failures_of(comparison.rows))


def _comparison(folder: Path) -> Comparison:
    """As `compare` gave it back."""
    from pdpgd.runs.comparison import Comparison, Row
    from pdpgd.runs.result import load_evaluation
    from pdpgd.runs.spec import AttackSpec

    path = folder / COMPARISON
    try:
        entries = unsealed(json.loads(path.read_text(encoding="utf-8")))
        radii = {norm: tuple(map(float, entry["radii"])) for norm, entry in entries.items()}
        asked = [
            (AttackSpec.parse(each["attack"]), norm, each["failure"])
            for norm, entry in entries.items()
            for each in entry["attacks"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{path}: expected the numbers of a comparison, got a file that does not read ({error}); "
            "start the command that made it again"
        ) from error
    rows = []
    for attack, norm, failure in asked:
        place = folder / norm / attack.label.replace(":", "-")
        rows.append(Row(attack, norm, None if failure else load_evaluation(place), failure))
    return Comparison(tuple(rows), radii, folder)


def _told_apart(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Labels that differ: a second one of the same name gets a number."""
    seen: dict[str, int] = {}
    named = []
    for source in sources:
        seen[source.label] = number = seen.get(source.label, 0) + 1
        label = source.label if number == 1 else f"{source.label} ({number})"
        series = source.series if source.comparison else tuple(replace(each, label=label) for each in source.series)
        named.append(replace(source, label=label, series=series))
    return tuple(named)


Rows = Mapping[str, Sequence[int]]
"""By norm, the rows whose pictures are wanted."""


@dataclass(frozen=True)
class Excerpt:
    traces: Mapping[str, Trace | None]
    """By norm; None if the attack does not tell."""
    pixels: Mapping[tuple[str, int], tuple[NDArray[Any], NDArray[Any]]]
    """Input and point, as float, by norm and row."""
    wanted: Rows
    """Their order is that in which they are shown while there is room."""
    inputs: bool
    """Whether the run kept its inputs: one that was made before they were did not."""


def kept_of(run: Evaluation, wanted: Rows) -> Excerpt:
    size = run.spec.chunk_size
    traces: dict[str, list[NDArray[Any]]] = {norm: [] for norm in run.norms}
    pixels: dict[tuple[str, int], tuple[NDArray[Any], NDArray[Any]]] = {}
    inputs = True
    for number, chunk in enumerate(run.chunks):
        found = run.store.examples(chunk)
        inputs = inputs and "input" in found
        for norm in run.norms:
            if f"{norm}_trace" in found:
                traces[norm].append(found[f"{norm}_trace"])
            for row in wanted.get(norm, ()) if inputs else ():
                if row // size == number:
                    # Copies, so that the rest of the chunk can go.
                    pixels[norm, row] = _as_float(found["input"][row % size]), found[norm][row % size].copy()
    joined = {
        norm: records.joined_traces(parts) if parts and len(parts) == len(run.chunks) else None
        for norm, parts in traces.items()
    }
    return Excerpt(joined, pixels, wanted, inputs)


class Shelf:
    """What runs have kept; runs are looked up by identity, since they are large and not hashable."""

    def __init__(self, runs: Iterable[Evaluation], wanted: Mapping[int, Rows]) -> None:
        self._kept = {id(run): kept_of(run, wanted.get(id(run), {})) for run in runs}

    def of(self, run: Evaluation) -> Excerpt:
        return self._kept[id(run)]


def _as_float(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels.astype(np.float32) / np.float32(255) if pixels.dtype == np.uint8 else pixels.copy()
