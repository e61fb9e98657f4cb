"""Where the results of jobs are stored: the interface, and a store in memory. `disk_store` has the one on disk."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from pdpgd.errors import AttackError
from pdpgd.runs import records
from pdpgd.runs.spec import RunSpec
from pdpgd.runs.stats import JobResult


class Store(Protocol):
    """Stores the results of the jobs of one run."""

    @property
    def folder(self) -> Path | None:
        """Directory of the run; None if it has none."""
        ...

    @property
    def notes(self) -> list[str]:
        """Messages for the user, about files that were damaged."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other processes from working on the same run."""
        ...

    def spec(self) -> RunSpec | None:
        """Return the spec of the run; None if it was never started."""
        ...

    def open(self, spec: RunSpec) -> None:
        """Open the store for this spec; raise if it belongs to another run."""
        ...

    def log_start(self, start: dict[str, Any]) -> None:
        """Append the provenance of a start to the history."""
        ...

    def has(self, name: str) -> bool:
        """Tell whether the result of this job is stored and undamaged."""
        ...

    def save(self, name: str, result: JobResult) -> None:
        """Store the result of a job; raise AttackError if it contradicts itself."""
        ...

    def result(self, name: str) -> JobResult:
        """Return the result of a job, without its examples, which may be large."""
        ...

    def examples(self, name: str) -> Mapping[str, Any]:
        """Return the adversarial examples of a job."""
        ...

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Store the numbers of the whole run."""
        ...


class MemoryStore:
    """A store for a run that leaves nothing on disk."""

    folder = None

    def __init__(self) -> None:
        self._results: dict[str, JobResult] = {}
        self.notes: list[str] = []
        self._spec: RunSpec | None = None

    def exclusive(self) -> AbstractContextManager[None]:
        """Do nothing: no other process sees this store."""
        return nullcontext()

    def spec(self) -> RunSpec | None:
        """Return the spec of the run; None if it was never started."""
        return self._spec

    def open(self, spec: RunSpec) -> None:
        """Open the store for this spec."""
        self._spec = spec

    def log_start(self, start: dict[str, Any]) -> None:
        """Do nothing: the history of a run in memory is not read."""

    def has(self, name: str) -> bool:
        """Tell whether the result of this job is stored."""
        return name in self._results

    def save(self, name: str, result: JobResult) -> None:
        """Store the result of a job; raise AttackError if it contradicts itself."""
        if result.columns is not None:
            refuse_contradictions(result.columns)
        self._results[name] = result

    def result(self, name: str) -> JobResult:
        """Return the result of a job."""
        return self._results[name]

    def examples(self, name: str) -> Mapping[str, Any]:
        """Return the adversarial examples of a job."""
        return self._results[name].examples

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Do nothing: the caller has the evaluation."""


def refuse_contradictions(columns: records.Columns) -> None:
    """Raise AttackError for records that contradict themselves."""
    try:
        records.check_columns(columns)
    except ValueError as error:
        raise AttackError(f"{error}; this is a fault of the attack or of pdpgd, and is not stored") from error
