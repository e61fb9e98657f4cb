"""What came of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import InvalidInputError, StorageError, UnfinishedError, UnknownNameError, need
from pdpgd.runs import metrics, records, reliability
from pdpgd.runs.disk_store import DiskStore
from pdpgd.runs.metrics import Curve
from pdpgd.runs.records import Columns, Trace
from pdpgd.runs.reliability import Reliability
from pdpgd.runs.spec import PREFLIGHT, SECOND_START, RunSpec, chunks_of, jobs_of
from pdpgd.runs.stats import ChunkStats, Passes
from pdpgd.runs.store import Store

# The shares of the curve that a summary gives the radius of.
DECILES = tuple(share / 10 for share in range(1, 10))


@dataclass(frozen=True)
class Evaluation:
    """The distances of every sample in every norm, how far they can be trusted, and what they cost."""

    spec: RunSpec
    columns: Columns
    """A row a sample and norm; `records.COLUMNS` says what each column is."""
    reliability: Reliability
    stats: tuple[ChunkStats, ...]
    """Timings and counts of each chunk."""
    check_stats: tuple[ChunkStats, ...]
    """Timings and counts of the jobs that only serve the reliability report."""
    folder: Path | None
    """Where the results lie; None if they were not to be kept."""
    notes: tuple[str, ...]
    """What happened on the way that a user should know."""
    store: Store
    chunks: tuple[str, ...]

    @property
    def norms(self) -> tuple[str, ...]:
        return self.spec.norms

    @property
    def clean_accuracy(self) -> float:
        return 1.0 - self.counts(self.norms[0])[records.INITIALLY_WRONG] / self.samples

    @property
    def samples(self) -> int:
        return int((self.columns["norm"] == self.norms[0]).sum())

    def distances(self, norm: str, *, eight_bit: bool = False) -> NDArray[Any]:
        """The smallest verified size for each sample, in their order; 0: wrong to begin with, inf: not fooled."""
        self._check_grid(eight_bit)
        return self.column("distance_8bit" if eight_bit else "distance", norm)

    def own_distances(self, norm: str) -> NDArray[Any]:
        """The same of the points that the norm's own attack found, whatever others have found for it."""
        wrong = self.column("status", norm) == records.INITIALLY_WRONG
        return np.where(wrong, 0.0, self.column("own_distance", norm))

    def column(self, name: str, norm: str) -> NDArray[Any]:
        self._check_norm(norm)
        values: NDArray[Any] = self.columns[name][self.columns["norm"] == norm]
        return values

    def robust_accuracy(
        self, eps: float | Mapping[str, float], norm: str | None = None, *, eight_bit: bool = False
    ) -> float:
        """The share of all samples that are right and that no point found within `eps` fools.

        `norm` may be left out if the run has one only. A mapping of norms to radii gives the union: the share that
        withstands all of them at once.
        """
        if isinstance(eps, Mapping):
            radii = {name: _radius(radius) for name, radius in eps.items()}
            if not radii or norm is not None:
                raise InvalidInputError("eps: expected a radius and a norm, or a mapping of norms to radii")
            return metrics.union_accuracy({name: self.distances(name, eight_bit=eight_bit) for name in radii}, radii)
        if norm is None:
            if len(self.norms) > 1:
                raise InvalidInputError(f"norm: expected one of {', '.join(self.norms)}, got none")
            norm = self.norms[0]
        return metrics.robust_accuracy(self.distances(norm, eight_bit=eight_bit), _radius(eps))

    def curve(self, norm: str, *, eight_bit: bool = False) -> Curve:
        return metrics.curve(self.distances(norm, eight_bit=eight_bit))

    def counts(self, norm: str) -> dict[str, int]:
        """How many samples were initially wrong, fooled, not fooled, and unverified."""
        status = self.column("status", norm)
        return {name: int((status == name).sum()) for name in records.STATUSES}

    def whole(self, norm: str) -> bool:
        """Tell whether the mean distance in a norm is over all correctly classified samples.

        Args:
            norm: One of the norms of the run.

        Returns:
            True if each of them was fooled. Otherwise the mean is over those that were, and rises when more are.
        """
        counts = self.counts(norm)
        return counts[records.NOT_FOOLED] + counts[records.UNVERIFIED] == 0

    def examples(self, norm: str, *, eight_bit: bool = False) -> NDArray[Any]:
        """The point of each sample: float32 in [0, 1], or uint8; the input itself where none was found."""
        self._check_norm(norm)
        self._check_grid(eight_bit)
        name = f"{norm}_8bit" if eight_bit else norm
        return np.concatenate([self.store.examples(chunk)[name] for chunk in self.chunks])

    def inputs(self) -> NDArray[Any] | None:
        """The samples as they came, float32 in [0, 1]; None for a run that was made before they were kept."""
        parts = [self.store.examples(chunk).get("input") for chunk in self.chunks]
        if any(part is None for part in parts):
            return None
        return np.concatenate([_as_float(part) for part in parts if part is not None])

    def trace(self, norm: str) -> Trace | None:
        """The best so far of the norm's own attack against its passes; None if the attack does not tell."""
        self._check_norm(norm)
        parts = [self.store.examples(chunk).get(f"{norm}_trace") for chunk in self.chunks]
        kept = [part for part in parts if part is not None]
        return records.joined_traces(kept) if len(kept) == len(parts) else None

    def to_pandas(self) -> Any:
        """A DataFrame with a row a sample and norm."""
        pandas = need("pandas", extra="evaluate", purpose="a DataFrame")
        return pandas.DataFrame(dict(self.columns))

    def as_json(self) -> dict[str, Any]:
        """The numbers of the run, for machines."""
        return {
            "model": dict(self.spec.model),
            "data": dict(self.spec.data),
            "attack": self.spec.attack,
            "budget": self.spec.budget,
            "spec": self.spec.digest(),
            "folder": None if self.folder is None else str(self.folder),
            "samples": self.samples,
            "clean_accuracy": self.clean_accuracy,
            "norms": {norm: self._norm_as_json(norm) for norm in self.norms},
            "forwards": self._passes(lambda stats: stats.forwards),
            "backwards": self._passes(lambda stats: stats.backwards),
            "seconds": sum(each.seconds for each in (*self.stats, *self.check_stats)),
            "reliability": {
                "verdict": self.reliability.word,
                "alarms": [check.name for check in self.reliability.alarms],
                "checks": [check.as_json() for check in self.reliability.checks],
            },
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """The table of the run, as text."""
        lines = [f"{self.samples} samples of {self.spec.data['name']}, {self.clean_accuracy:.1%} right"]
        form = "{:<6}{:>10}{:>12}{:>12}{:>12}{:>12}{:>14}{:>9}"
        lines.append(
            form.format("norm", "fooled", "not fooled", "unverified", "mean", "median", "median 8 bit", "fragile")
        )
        for norm, numbers in self.as_json()["norms"].items():
            counts = numbers["counts"]
            lines.append(
                form.format(
                    norm,
                    counts[records.FOOLED],
                    counts[records.NOT_FOOLED],
                    counts[records.UNVERIFIED],
                    _shown(numbers["mean"]) + ("" if self.whole(norm) else metrics.PARTIAL),
                    _shown(numbers["median"]),
                    _shown(numbers["median_8bit"]),
                    numbers["fragile"],
                )
            )
        if not all(map(self.whole, self.norms)):
            lines.append(f"{metrics.PARTIAL} the mean of the fooled samples alone: not all were fooled")
        return "\n".join([*lines, f"reliability: {self.reliability.verdict}"])

    def __str__(self) -> str:
        return self.summary()

    def _norm_as_json(self, norm: str) -> dict[str, Any]:
        distances, rough = self.distances(norm), self.column("distance_8bit", norm)
        return {
            "counts": self.counts(norm),
            "mean": _number(metrics.mean(distances)),
            "median": _number(metrics.quantile(distances, 0.5)),
            "fooled_8bit": int(metrics.fooled(rough).sum()),
            "mean_8bit": _number(metrics.mean(rough)),
            "median_8bit": _number(metrics.quantile(rough, 0.5)),
            "deciles": [_number(metrics.quantile(distances, share)) for share in DECILES],
            "fragile": int(self.column("fragile", norm).sum()),
            "found_by": _tally(self.column("source", norm)),
        }

    def _passes(self, passes: Callable[[ChunkStats], Passes]) -> dict[str, int]:
        """Count the passes of the attacks, and of everything else: referee, cheap attacks and checks."""
        attacks = sum(passes(each).attacks for each in self.stats)
        every = sum(passes(each).total for each in (*self.stats, *self.check_stats))
        return {"attacks": attacks, "checks": every - attacks}

    def _check_grid(self, eight_bit: bool) -> None:
        if eight_bit and not self.spec.checks:
            raise InvalidInputError("eight_bit: expected a run with checks, got one without: nothing was rounded in it")

    def _check_norm(self, norm: str) -> None:
        if norm not in self.norms:
            raise UnknownNameError("norm of this run", norm, self.norms)


def _radius(eps: object) -> float:
    if not isinstance(eps, int | float) or isinstance(eps, bool) or not eps >= 0:
        raise InvalidInputError(f"eps: expected a number >= 0, got {eps!r}")
    return float(eps)


def _number(value: float) -> float | None:
    """JSON has no infinity: None stands for a radius that was not found."""
    return value if np.isfinite(value) else None


def _as_float(pixels: NDArray[Any]) -> NDArray[Any]:
    if pixels.dtype != np.uint8:
        return pixels
    images: NDArray[Any] = pixels.astype(np.float32) / np.float32(255)
    return images


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _tally(sources: Sequence[str] | NDArray[Any]) -> dict[str, int]:
    names, counts = np.unique(np.asarray(sources, dtype=str), return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True) if name}


def assemble(spec: RunSpec, store: Store) -> Evaluation:
    """Put the results of a run together, all of whose jobs are done."""
    chunks = tuple(chunks_of(jobs_of(spec)))
    results = [store.result(name) for name in chunks]
    columns = records.joined([result.columns for result in results if result.columns is not None])
    stats = tuple(result.stats for result in results)
    first = store.result(PREFLIGHT).stats
    assert first.preflight is not None
    checks, check_stats = reliability.before(first.preflight), [first]
    if spec.checks:
        second = store.result(SECOND_START)
        checks = (*checks, *reliability.after(columns, second.columns, stats, classes=first.preflight.classes))
        check_stats.append(second.stats)
    halved = [memory_note(name, each) for name, each in zip(chunks, stats, strict=True) if each.halved]
    broken = [f"the attack broke on sample {where}: {why}" for each in stats for where, why in each.faults.items()]
    return Evaluation(
        spec=spec,
        columns=columns,
        reliability=Reliability(checks, checked=spec.checks),
        stats=stats,
        check_stats=tuple(check_stats),
        folder=store.folder,
        notes=(*store.notes, *halved, *broken),
        store=store,
        chunks=chunks,
    )


def load_evaluation(folder: str | Path) -> Evaluation:
    """Load the results of a finished run.

    Args:
        folder: Directory of the run.

    Returns:
        The evaluation, as `evaluate` returned it.

    Raises:
        StorageError: The directory is not that of a run.
        UnfinishedError: Some jobs of the run are missing or damaged.

    Example:
        >>> load_evaluation("runs/mnist").robust_accuracy(0.1, "linf")  # doctest: +SKIP
    """
    store = DiskStore(Path(folder).expanduser())
    spec = store.spec()
    if spec is None:
        raise StorageError(f"{store.folder}: expected the directory of a run, got one without spec.json")
    faults = [f"{name} is {fault}" for name in jobs_of(spec) if (fault := store.fault(name))]
    if faults:
        raise UnfinishedError(
            f"{store.folder}: expected a finished run, got one where {', '.join(faults[:3])}; "
            "start the command that made it again"
        )
    return assemble(spec, store)


def memory_note(job: str, stats: ChunkStats) -> str:
    """Say that the batch of a job was halved."""
    return (
        f"{job}: not enough memory for the batch; done in batches of {stats.batch_size}, which may change the last bits"
    )
