"""The result of a run: `Evaluation`, assembled from the results of its jobs or loaded from a directory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import InvalidInputError, StorageError, UnfinishedError, UnknownNameError, need
from pdpgd.runs import metrics, records, reliability, summary
from pdpgd.runs.disk_store import DiskStore
from pdpgd.runs.metrics import Curve
from pdpgd.runs.records import Columns, Trace
from pdpgd.runs.reliability import Reliability
from pdpgd.runs.result_checks import result_checks
from pdpgd.runs.spec import PREFLIGHT, SECOND_START, RunSpec, chunks_of, jobs_of
from pdpgd.runs.stats import ChunkStats
from pdpgd.runs.store import Store


@dataclass(frozen=True)
class Evaluation:
    """Verified adversarial distances of every sample in every norm, with their reliability and cost.

    Attributes:
        spec: The spec of the run.
        columns: The records, one row per sample and norm; `pdpgd.runs.records.COLUMNS` describes the columns.
        reliability: Checks of the model and of the results.
        stats: Timings and counts of each chunk.
        check_stats: Timings and counts of the jobs that serve the reliability report only.
        folder: Directory of the results; None if they are in memory only.
        notes: Messages for the user about damaged files, memory, and samples on which the attack failed.
        store: Holds the adversarial examples.
        chunks: Names of the chunks.

    Example:
        >>> evaluation = pdpgd.evaluate("mnist-plain", "mnist-1000", norms=["linf", "l2"], limit=20, budget=50)
        >>> evaluation.robust_accuracy(0.06, "linf")
        0.65
        >>> evaluation.robust_accuracy({"linf": 0.06, "l2": 0.7})  # against both at once
        0.65
    """

    spec: RunSpec
    columns: Columns
    reliability: Reliability
    stats: tuple[ChunkStats, ...]
    check_stats: tuple[ChunkStats, ...]
    folder: Path | None
    notes: tuple[str, ...]
    store: Store
    chunks: tuple[str, ...]

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms of the run, in the order in which they were attacked."""
        return self.spec.norms

    @property
    def clean_accuracy(self) -> float:
        """Share of the samples that the model classifies correctly before the attack."""
        return 1.0 - self.counts(self.norms[0])[records.INITIALLY_WRONG] / self.samples

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int((self.columns["norm"] == self.norms[0]).sum())

    def distances(self, norm: str, *, eight_bit: bool = False) -> NDArray[Any]:
        """Return the smallest verified distance of each sample, whichever attack of the run found it.

        Args:
            norm: One of the norms of the run.
            eight_bit: Take the adversarial examples that are quantized to 8 bits.

        Returns:
            The distances in the order of the samples: 0 if a sample was misclassified before the attack, inf if it was
            not fooled. They are upper bounds only, and not the smallest, if the run asked about radii only.

        Raises:
            UnknownNameError: The run does not have this norm.
            InvalidInputError: 8 bits are asked of a run without checks.
        """
        self._check_eight_bit(eight_bit)
        return self.column("distance_8bit" if eight_bit else "distance", norm)

    def own_distances(self, norm: str) -> NDArray[Any]:
        """Return the distances of the adversarial examples that the norm's own attack found.

        Args:
            norm: One of the norms of the run.

        Returns:
            The distances as `distances` returns them, but without the help of other norms and of cheap attacks.

        Raises:
            UnknownNameError: The run does not have this norm.
        """
        wrong = self.column("status", norm) == records.INITIALLY_WRONG
        return np.where(wrong, 0.0, self.column("own_distance", norm))

    def column(self, name: str, norm: str) -> NDArray[Any]:
        """Return a column of the records.

        Args:
            name: Name of the column; `pdpgd.runs.records.COLUMNS` describes all.
            norm: One of the norms of the run.

        Returns:
            The values in the order of the samples.

        Raises:
            UnknownNameError: The run does not have this norm.
        """
        self._check_norm(norm)
        values: NDArray[Any] = self.columns[name][self.columns["norm"] == norm]
        return values

    def robust_accuracy(
        self, eps: float | Mapping[str, float], norm: str | None = None, *, eight_bit: bool = False
    ) -> float:
        """Compute the robust accuracy at a radius.

        Args:
            eps: The radius; or radii by norm, for the robust accuracy against all of these norms at once.
            norm: One of the norms of the run; may be omitted if it has only one.
            eight_bit: Take the adversarial examples that are quantized to 8 bits.

        Returns:
            Share of all samples that are correctly classified and not fooled within the radius.

        Raises:
            InvalidInputError: The radius is no number of at least 0, it is unclear which norm is meant, or the run
                asked about other radii only.
            UnknownNameError: The run does not have this norm.

        Example:
            >>> evaluation.robust_accuracy(0.1, "linf")  # doctest: +SKIP
        """
        if isinstance(eps, Mapping):
            radii = {name: _radius(radius) for name, radius in eps.items()}
            if not radii or norm is not None:
                raise InvalidInputError("eps: expected a radius and a norm, or a mapping of norms to radii")
            distances = {name: self.distances(name, eight_bit=eight_bit) for name in radii}
            for name, radius in radii.items():
                self._check_asked(name, radius)
            return metrics.union_accuracy(distances, radii)
        if norm is None:
            if len(self.norms) > 1:
                raise InvalidInputError(f"norm: expected one of {', '.join(self.norms)}, got none")
            norm = self.norms[0]
        distances_in_norm, radius = self.distances(norm, eight_bit=eight_bit), _radius(eps)
        self._check_asked(norm, radius)
        return metrics.robust_accuracy(distances_in_norm, radius)

    def curve(self, norm: str, *, eight_bit: bool = False) -> Curve:
        """Compute robust accuracy as a function of the radius.

        Args:
            norm: One of the norms of the run.
            eight_bit: Take the adversarial examples that are quantized to 8 bits.

        Returns:
            The curve.
        """
        return metrics.curve(self.distances(norm, eight_bit=eight_bit))

    def counts(self, norm: str) -> dict[str, int]:
        """Count the samples by their status.

        Args:
            norm: One of the norms of the run.

        Returns:
            Number of samples that are "initially wrong", "fooled", "not fooled" and "unverified".
        """
        status = self.column("status", norm)
        return {name: int((status == name).sum()) for name in records.STATUSES}

    def fooled_all(self, norm: str) -> bool:
        """Tell whether every correctly classified sample was fooled, so that the mean distance includes all of them.

        Otherwise the mean is over the fooled samples only, and rises when more are fooled.

        Args:
            norm: One of the norms of the run.

        Returns:
            Whether there is a verified adversarial example for each of them.
        """
        counts = self.counts(norm)
        return counts[records.NOT_FOOLED] + counts[records.UNVERIFIED] == 0

    def examples(self, norm: str, *, eight_bit: bool = False) -> NDArray[Any]:
        """Return the adversarial example of each sample; the input itself where none was found.

        Args:
            norm: One of the norms of the run.
            eight_bit: Take the adversarial examples that are quantized to 8 bits.

        Returns:
            Images of float32 in [0, 1], or of uint8.

        Raises:
            UnknownNameError: The run does not have this norm.
            InvalidInputError: 8 bits are asked of a run without checks.
        """
        self._check_norm(norm)
        self._check_eight_bit(eight_bit)
        name = f"{norm}_8bit" if eight_bit else norm
        return np.concatenate([self.store.examples(chunk)[name] for chunk in self.chunks])

    def inputs(self) -> NDArray[Any] | None:
        """Return the clean samples.

        Returns:
            Images of float32 in [0, 1]; None for an older run that did not store them.
        """
        parts = [self.store.examples(chunk).get("input") for chunk in self.chunks]
        if any(part is None for part in parts):
            return None
        return np.concatenate([_as_float(part) for part in parts if part is not None])

    def trace(self, norm: str) -> Trace | None:
        """Return the best distance so far of the norm's own attack, against the passes it has spent.

        Args:
            norm: One of the norms of the run.

        Returns:
            The trace; None if the attack does not report its progress.
        """
        self._check_norm(norm)
        parts = [self.store.examples(chunk).get(f"{norm}_trace") for chunk in self.chunks]
        stored = [part for part in parts if part is not None]
        return records.joined_traces(stored) if len(stored) == len(parts) else None

    def to_pandas(self) -> Any:
        """Return the records as a DataFrame.

        Returns:
            A pandas DataFrame with one row per sample and norm.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = need("pandas", extra="evaluate", purpose="a DataFrame")
        return pandas.DataFrame(dict(self.columns))

    def as_json(self) -> dict[str, Any]:
        """Return the numbers of the run.

        Returns:
            The entries of summary.json.
        """
        return summary.as_json(self)

    def summary(self) -> str:
        """Return the numbers of the run as a table.

        Returns:
            Text of several lines, one of them per norm.
        """
        return summary.as_text(self)

    def __str__(self) -> str:
        return self.summary()

    def whole(self, norm: str) -> bool:
        """Deprecated: use `fooled_all`."""
        warnings.warn("Evaluation.whole is deprecated: use Evaluation.fooled_all", DeprecationWarning, stacklevel=2)
        return self.fooled_all(norm)

    @property
    def facts(self) -> tuple[dict[str, Any], ...]:
        """Deprecated: use `stats`."""
        warnings.warn("Evaluation.facts is deprecated: use Evaluation.stats", DeprecationWarning, stacklevel=2)
        return tuple(each.as_json() for each in self.stats)

    @property
    def checks(self) -> tuple[dict[str, Any], ...]:
        """Deprecated: use `check_stats`."""
        warnings.warn("Evaluation.checks is deprecated: use Evaluation.check_stats", DeprecationWarning, stacklevel=2)
        return tuple(each.as_json() for each in self.check_stats)

    def _check_eight_bit(self, eight_bit: bool) -> None:
        if eight_bit and not self.spec.checks:
            raise InvalidInputError(
                "eight_bit: expected a run with checks, got one without, in which nothing was quantized to 8 bits"
            )

    def _check_asked(self, norm: str, radius: float) -> None:
        """Refuse a radius that the run did not ask about: a sample may have been left alone farther out."""
        asked = self.spec.only_radii.get(norm)
        if asked is not None and not metrics.is_among(radius, asked):
            names = ", ".join(map(summary.radius_name, asked))
            raise InvalidInputError(
                f"eps: expected a radius that the run asked about in {norm}, {names}, "
                f"got {radius:.6g}; run it again with this radius, or without only_radii (--only-radius)"
            )

    def _check_norm(self, norm: str) -> None:
        if norm not in self.norms:
            raise UnknownNameError("norm of this run", norm, self.norms)


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
        >>> evaluation = pdpgd.load_evaluation("runs/mnist")
        >>> evaluation.robust_accuracy(0.06, "linf")
        0.65
    """
    store = DiskStore(Path(folder).expanduser())
    spec = store.spec()
    if spec is None:
        raise StorageError(f"{store.folder}: expected the directory of a run, got one without spec.json")
    faults = [f"{name} is {fault}" for name in jobs_of(spec) if (fault := store.fault(name))]
    if faults:
        raise UnfinishedError(
            f"{store.folder}: expected a finished run, got one where {', '.join(faults[:3])}; "
            "start the command that created it again"
        )
    return assemble(spec, store)


def assemble(spec: RunSpec, store: Store) -> Evaluation:
    """Assemble the results of a run all of whose jobs are done."""
    chunks = tuple(chunks_of(jobs_of(spec)))
    results = [store.result(name) for name in chunks]
    columns = records.joined([result.columns for result in results if result.columns is not None])
    stats = tuple(result.stats for result in results)
    first = store.result(PREFLIGHT).stats
    assert first.preflight is not None
    checks, check_stats = reliability.model_checks(first.preflight, draws=spec.draws), [first]
    if spec.checks:
        second = store.result(SECOND_START)
        classes = first.preflight.classes
        checks = (
            *checks,
            *result_checks(columns, second.columns, stats, classes=classes, only_radii=spec.only_radii),
        )
        check_stats.append(second.stats)
    halved = [memory_note(name, each) for name, each in zip(chunks, stats, strict=True) if each.halved]
    broken = [f"the attack failed on sample {where}: {why}" for each in stats for where, why in each.faults.items()]
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


def memory_note(job: str, stats: ChunkStats) -> str:
    """Say that a job used smaller batches than asked for."""
    return (
        f"{job}: not enough memory for the batch; batches of {stats.batch_size} were used instead, which may change "
        "the last bits"
    )


def _radius(eps: object) -> float:
    if not isinstance(eps, int | float) or isinstance(eps, bool) or not eps >= 0:
        raise InvalidInputError(f"eps: expected a number >= 0, got {eps!r}")
    return float(eps)


def _as_float(pixels: NDArray[Any]) -> NDArray[Any]:
    if pixels.dtype != np.uint8:
        return pixels
    images: NDArray[Any] = pixels.astype(np.float32) / np.float32(255)
    return images
