"""A run's directory: what was asked, what is done, and nothing half written.

    spec.json                 what was asked
    history.json              every start of the run: when, with which versions, on which machine
    records/NAME.parquet      the results of a chunk, a row a sample and norm
    examples/NAME.npz         its adversarial points, as floats and at 8 bits
    receipts/NAME.json        written last: the checksums of the two, timings and counts
    checks/                   the same of the look at the model and of the second starts
    set-aside/                what was found broken, kept for the curious
    summary.json              the numbers of the whole run

A chunk is done when its receipt is there and its files have the checksums it gives.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pdpgd.errors import InvalidInputError, PdpgdError, StorageError
from pdpgd.evaluation import records
from pdpgd.evaluation.jobs import Outcome
from pdpgd.evaluation.spec import Spec, differences
from pdpgd.files import replace_file


class Store(Protocol):
    """Where outcomes are kept."""

    @property
    def notes(self) -> list[str]:
        """What the user is to be told."""
        ...

    def spec(self) -> Spec | None: ...

    def open(self, spec: Spec) -> None:
        """Open for this spec, or refuse."""
        ...

    def begin(self, start: dict[str, Any]) -> None:
        """Write to the history that work begins."""
        ...

    def has(self, name: str) -> bool:
        """Whether the outcome of this job is there, whole."""
        ...

    def keep(self, name: str, outcome: Outcome) -> None: ...

    def outcome(self, name: str) -> Outcome:
        """Without the examples, which may be large."""
        ...

    def examples(self, name: str) -> dict[str, Any]: ...

    def sum_up(self, summary: dict[str, Any]) -> None: ...


class MemoryStore:
    """For a run that is not to leave anything behind."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}
        self.notes: list[str] = []
        self._spec: Spec | None = None

    def spec(self) -> Spec | None:
        return self._spec

    def open(self, spec: Spec) -> None:
        self._spec = spec

    def begin(self, start: dict[str, Any]) -> None:
        """Nobody will look it up."""

    def has(self, name: str) -> bool:
        return name in self._outcomes

    def keep(self, name: str, outcome: Outcome) -> None:
        self._outcomes[name] = outcome

    def outcome(self, name: str) -> Outcome:
        return self._outcomes[name]

    def examples(self, name: str) -> dict[str, Any]:
        return self._outcomes[name].examples

    def sum_up(self, summary: dict[str, Any]) -> None:
        """It is in the evaluation that the caller gets."""


class DiskStore:
    """A directory; every file in it is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def spec(self) -> Spec | None:
        path = self.folder / "spec.json"
        if not path.exists():
            return None
        try:
            return Spec.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(
                f"{path}: expected the spec of a run, got a file that does not read ({error}); "
                "put it right, or take another directory"
            ) from error

    def open(self, spec: Spec) -> None:
        there = self.spec()
        if there is None:
            self._refuse_strangers()
            self._write("spec.json", _json(spec.as_json()))
        elif there != spec and (changed := differences(there, spec)):
            lines = "".join(f"\n  {line}" for line in changed)
            raise InvalidInputError(
                f"{self.folder}: expected the spec that this run was begun with, got another:{lines}\n"
                "take another directory for it (--out), or ask for the same again"
            )

    def begin(self, start: dict[str, Any]) -> None:
        self._write("history.json", _json([*self._history(), start]))

    def has(self, name: str) -> bool:
        fault = self.fault(name)
        if fault not in (None, MISSING):
            self._set_aside(name, str(fault))
        return fault is None

    def fault(self, name: str) -> str | None:
        """Why the outcome of this job cannot be used: it is missing, or broken; None if it can."""
        if not self._path("receipts", name).exists():
            return MISSING
        try:
            receipt = json.loads(self._path("receipts", name).read_bytes())
            for folder, checksum in receipt["files"].items():
                self._checked(folder, name, checksum)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"broken ({error})"
        return None

    def keep(self, name: str, outcome: Outcome) -> None:
        files: dict[str, str] = {}
        if outcome.columns is not None:
            spec = self.spec()
            assert spec is not None
            facts = {"pdpgd.job": name, "pdpgd.spec": spec.digest()}
            files["records"] = self._put("records", name, records.to_parquet(outcome.columns, facts))
        if outcome.examples:
            files["examples"] = self._put("examples", name, records.to_npz(outcome.examples))
        self._put("receipts", name, _json({"files": files, **outcome.facts}))

    def outcome(self, name: str) -> Outcome:
        facts = json.loads(self._path("receipts", name).read_bytes())
        files = facts.pop("files")
        columns = records.from_parquet(self._path("records", name).read_bytes()) if "records" in files else None
        return Outcome(facts, columns)

    def examples(self, name: str) -> dict[str, Any]:
        return records.from_npz(self._path("examples", name).read_bytes())

    def sum_up(self, summary: dict[str, Any]) -> None:
        content = _json(summary)
        path = self.folder / "summary.json"
        if not path.exists() or path.read_bytes() != content:
            self._write("summary.json", content)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second run out of the directory."""
        if not (self.folder / "spec.json").exists():
            self._refuse_strangers()  # before a lock is left among their things
        with locked(self.folder):
            yield

    def _refuse_strangers(self) -> None:
        """A directory that holds other things is not a run's."""
        try:
            there = list(self.folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise _no_place(self.folder, error) from error
        strangers = sorted(path.name for path in there if not path.name.startswith("."))
        if strangers:
            raise InvalidInputError(
                f"{self.folder}: expected a new directory or that of a run, got one with {', '.join(strangers[:3])} "
                "and no spec.json"
            )

    def _history(self) -> list[Any]:
        try:
            history = json.loads((self.folder / "history.json").read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            self.notes.append(f"{self.folder / 'history.json'} did not read: begun anew")
            return []
        return history if isinstance(history, list) else []

    def _checked(self, folder: str, name: str, checksum: str) -> None:
        found = hashlib.sha256(self._path(folder, name).read_bytes()).hexdigest()
        if found != checksum:
            raise ValueError(f"{self._path(folder, name).name} has another checksum than its receipt says")

    def _set_aside(self, name: str, fault: str) -> None:
        aside = self.folder / "set-aside"
        try:
            aside.mkdir(exist_ok=True)
            for folder in SUFFIXES:
                path = self._path(folder, name)
                if path.exists():
                    number = sum(1 for _ in aside.glob(f"{name}.*{path.suffix}"))
                    os.replace(path, aside / f"{name}.{number}{path.suffix}")
        except OSError as error:
            raise StorageError(
                f"{aside}: expected room and leave to set {name} aside, got an error: {error}"
            ) from error
        self.notes.append(f"{name} is {fault}: set aside in {aside}, and done again")

    def _put(self, folder: str, name: str, content: bytes) -> str:
        self._write(self._path(folder, name).relative_to(self.folder), content)
        return hashlib.sha256(content).hexdigest()

    def _write(self, name: str | Path, content: bytes) -> None:
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        except (OSError, PdpgdError) as error:
            done = len(list(self.folder.glob("receipts/chunk-*.json"))) if self.folder.is_dir() else 0
            reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise StorageError(
                f"{path}: expected room and leave to write {len(content):,} bytes, got an error: {reason}; "
                f"nothing that was done is lost ({done} chunks): make room, and start the same command again"
            ) from error

    def _path(self, folder: str, name: str) -> Path:
        # What is no chunk is a check: its records are not those of the run.
        place = folder if name.startswith("chunk-") else "checks"
        return self.folder / place / f"{name}{SUFFIXES[folder]}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others out of the directory, which is made if need be; a process that dies lets go."""
    try:
        import fcntl
    except ImportError:  # Windows has none: there, two runs at once are the user's to avoid
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise _no_place(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"{folder}: another run is at work in this directory; wait for it") from error
        yield


def _no_place(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{folder}: expected a directory to write the results to, got an error: "
        f"{error.strerror or error}; take another one (--out)"
    )


MISSING = "missing"
SUFFIXES = {"records": ".parquet", "examples": ".npz", "receipts": ".json"}


def _json(content: object) -> bytes:
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
