"""The store of a run on disk: a directory in which every file is written atomically and checked when it is read.

    spec.json                 the spec of the run
    history.json              every start of the run: when, with which versions, on which machine
    records/NAME.parquet      the records of a chunk, one row per sample and norm
    examples/NAME.npz         its adversarial examples, as floats and quantized to 8 bits
    receipts/NAME.json        written last: job, spec, checksums of the two files, timings and counts, and a checksum of
                              all of these
    checks/                   the same files of the preflight and of the second starts
    set-aside/                files that were found damaged, for inspection
    summary.json              the numbers of the whole run

A chunk is done when its receipt exists and is undamaged, its files have the checksums in the receipt, and all of them
name this chunk and the spec of this run. Damaged results are never used: they are set aside and computed again, or
named in an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pdpgd.errors import InvalidInputError, PdpgdError, StorageError
from pdpgd.files import check_file, digest_of, exists, locked, no_place, replace_file, sealed
from pdpgd.runs import records
from pdpgd.runs.receipts import HISTORY, Receipt, read_history, read_receipt
from pdpgd.runs.spec import RunSpec, differences, jobs_of, kind_of
from pdpgd.runs.stats import JobResult
from pdpgd.runs.store import refuse_contradictions

SPEC, SUMMARY, ASIDE = "spec.json", "summary.json", "set-aside"
MISSING = "missing"
SUFFIXES = {"records": ".parquet", "examples": ".npz", "receipts": ".json"}
"""Suffixes of the files of a job, by their kind."""


class DiskStore:
    """Stores the results of the jobs of one run in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._spec: RunSpec | None = None
        self._digests: tuple[str, ...] = ()
        """Digests of spec.json as written and as parsed; they differ for specs of an older format."""
        self._jobs: dict[str, range] = {}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from working on the same run."""
        if not exists(self.folder / SPEC):
            self._refuse_foreign_files()  # before a lock file is created among them
        with locked(self.folder):
            yield

    def spec(self) -> RunSpec | None:
        """Return the spec of the run; None if it was never started.

        Raises:
            StorageError: The file cannot be read, or is not the spec of the results in the directory.
        """
        path = self.folder / SPEC
        if self._spec is None and exists(path):
            try:
                entries = json.loads(path.read_text(encoding="utf-8"))
                spec = RunSpec.from_json(entries)
            except (OSError, ValueError, TypeError) as error:
                raise StorageError(
                    f"{path}: expected the spec of a run, got a file that cannot be read ({error}); "
                    "restore it, or use another directory"
                ) from error
            digests = (digest_of(entries), spec.digest())
            self._check_spec_of_results(path, digests)
            self._use(spec, digests)
        return self._spec

    def open(self, spec: RunSpec) -> None:
        """Open the store for this spec.

        Raises:
            InvalidInputError: The directory belongs to a run with another spec, or to something else.
            StorageError: The directory cannot be used.
        """
        self._refuse_directories()
        stored = self.spec()
        if stored is None:
            self._refuse_foreign_files()
            self._write(SPEC, _json(spec.as_json()))
            self._use(spec, (spec.digest(),))
        elif stored != spec and (changed := differences(stored, spec)):
            lines = "".join(f"\n  {line}" for line in changed)
            raise InvalidInputError(
                f"{self.folder / SPEC}: expected the spec that this run was started with, got another:{lines}\n"
                "use another directory (--out), or the same options as before; if the options are the same, the file "
                "is damaged: restore it"
            )
        else:
            self._normalize_spec()
        self._repair_history()

    def log_start(self, start: dict[str, Any]) -> None:
        """Append the provenance of a start to the history."""
        entries, _ = read_history(self.folder / HISTORY)
        self._write(HISTORY, _json([*entries, sealed(start)]))

    def has(self, name: str) -> bool:
        """Tell whether the result of this job is stored and undamaged; set it aside if it is damaged."""
        fault = self.fault(name)
        if fault not in (None, MISSING):
            self._set_aside(name, str(fault))
        return fault is None

    def fault(self, name: str) -> str | None:
        """Say why the result of this job cannot be used, missing or broken; None if it can."""
        if self.spec() is None or not self._path("receipts", name).exists():
            return MISSING
        try:
            self._check(name)
        except (OSError, ValueError) as error:
            return f"broken ({error})"
        return None

    def save(self, name: str, result: JobResult) -> None:
        """Store the result of a job; raise AttackError if it contradicts itself."""
        assert self.spec() is not None
        files: dict[str, str] = {}
        if result.columns is not None:
            refuse_contradictions(result.columns)
            metadata = {"pdpgd.job": name, "pdpgd.spec": self._digests[0]}
            files["records"] = self._put("records", name, records.to_parquet(result.columns, metadata))
        if result.examples:
            files["examples"] = self._put("examples", name, records.to_npz(result.examples))
        self._put("receipts", name, _json(Receipt(name, self._digests[0], files, result.stats).as_json()))

    def result(self, name: str) -> JobResult:
        """Return the result of a job, without its examples; raise StorageError if it is damaged."""
        with self._reading(name):
            receipt = self._receipt(name)
            columns = None
            if "records" in receipt.files:
                columns = records.from_parquet(self._content(receipt, "records", name))
        return JobResult(receipt.stats, columns)

    def examples(self, name: str) -> Mapping[str, Any]:
        """Return the adversarial examples of a job; raise StorageError if they are damaged."""
        with self._reading(name):
            return records.from_npz(self._content(self._receipt(name), "examples", name))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Store the numbers of the whole run, unless the file has them already."""
        content = _json(summary)
        path = self.folder / SUMMARY
        try:
            same = path.read_bytes() == content
        except OSError:
            same = False
        if not same:
            self._write(SUMMARY, content)

    def _refuse_foreign_files(self) -> None:
        """Raise InvalidInputError for a directory that holds files and no run."""
        try:
            found = list(self.folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise no_place(self.folder, error) from error
        foreign = sorted(path.name for path in found if not path.name.startswith("."))
        if foreign:
            raise InvalidInputError(
                f"{self.folder}: expected a new directory or that of a run, got one with {', '.join(foreign[:3])} "
                "and no spec.json"
            )

    def _refuse_directories(self) -> None:
        """Raise StorageError, before any work, where a directory has the name of a file to be written."""
        for name in (SPEC, HISTORY, SUMMARY):
            try:
                check_file(self.folder / name)
            except (OSError, PdpgdError) as error:
                raise StorageError(str(error)) from error

    def _check_spec_of_results(self, path: Path, digests: tuple[str, ...]) -> None:
        """Raise StorageError if results name the spec they belong to, and none of them names this one."""
        named: list[str] = []
        for name in self._names():
            try:
                named += self._claims(name, self._receipt(name))["pdpgd.spec"]
            except (OSError, ValueError):
                continue  # damaged, and computed again
            if set(named) & set(digests):
                return
        if named:
            raise StorageError(
                f"{path}: expected the spec of the results in the directory ({named[0][:12]}...), got another "
                f"({digests[0][:12]}...): it was changed or damaged; restore it, or use another directory"
            )

    def _normalize_spec(self) -> None:
        """Rewrite spec.json in our formatting if it has the same entries in other bytes."""
        path = self.folder / SPEC
        try:
            content = path.read_bytes()
            normalized = _json(json.loads(content))
        except (OSError, ValueError) as error:
            raise StorageError(f"{path}: expected the spec of a run, got an error: {error}") from error
        if content != normalized:
            self._write(SPEC, normalized)

    def _repair_history(self) -> None:
        """Set a damaged history aside and continue with its undamaged entries."""
        entries, fault = read_history(self.folder / HISTORY)
        if fault is None:
            return
        path, aside = self.folder / HISTORY, self.folder / ASIDE
        with _setting_aside(aside, HISTORY):
            number = sum(1 for _ in aside.glob("history.*.json"))
            os.replace(path, aside / f"history.{number}.json")
        self._write(HISTORY, _json(entries))
        self.notes.append(f"{path} {fault}: set aside in {aside}, and replaced by a new one")

    def _names(self) -> list[str]:
        """List the jobs that have a receipt, damaged or not."""
        try:
            found = [path for part in ("checks", "receipts") for path in (self.folder / part).glob("*.json")]
        except OSError:
            return []
        return sorted(path.stem for path in found if not path.name.startswith("."))

    def _use(self, spec: RunSpec, digests: tuple[str, ...]) -> None:
        self._spec, self._digests, self._jobs = spec, digests, jobs_of(spec)

    def _check(self, name: str) -> None:
        """Raise OSError or ValueError if the files of this job are damaged, or belong to another job or run."""
        receipt = self._receipt(name)
        contents = {kind: self._content(receipt, kind, name) for kind in receipt.files}
        claims = self._claims(name, receipt)
        for job in claims["pdpgd.job"]:
            if job != name:
                raise ValueError(f"expected the result of {name}, got that of {job}")
        for spec in claims["pdpgd.spec"]:
            if spec not in self._digests:
                raise ValueError(f"expected a result of this run, got one of another, with the spec {spec[:12]}...")
        if "records" in contents:
            assert self._spec is not None
            with self._naming("records", name):
                columns = records.from_parquet(contents["records"])
                records.check_rows(columns, self._jobs.get(name, range(0)), self._spec.norms)
                records.check_columns(columns)
            with self._naming("receipts", name):
                receipt.check_norms(self._spec.norms)

    def _receipt(self, name: str) -> Receipt:
        with self._naming("receipts", name):
            return read_receipt(self._path("receipts", name).read_bytes(), kind_of(name))

    @contextmanager
    def _naming(self, kind: str, name: str) -> Iterator[None]:
        """Add the name of the file to a ValueError."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self._shown(kind, name)}: {error}") from error

    def _claims(self, name: str, receipt: Receipt) -> dict[str, list[str]]:
        """Return the jobs and specs that receipt and records name; older files name none."""
        metadata: dict[str, str] = {}
        if "records" in receipt.files:
            metadata = records.metadata_of(self._content(receipt, "records", name))
        claims = {
            "pdpgd.job": (receipt.job, metadata.get("pdpgd.job")),
            "pdpgd.spec": (receipt.spec, metadata.get("pdpgd.spec")),
        }
        return {key: [claim for claim in both if claim is not None] for key, both in claims.items()}

    def _content(self, receipt: Receipt, kind: str, name: str) -> bytes:
        content = self._path(kind, name).read_bytes()
        if hashlib.sha256(content).hexdigest() != receipt.files[kind]:
            raise ValueError(f"{self._shown(kind, name)} does not match the checksum in its receipt")
        return content

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self.folder}: expected an undamaged {name}, got a broken one ({error}); "
                "start the command that created it again"
            ) from error

    def _set_aside(self, name: str, fault: str) -> None:
        aside = self.folder / ASIDE
        with _setting_aside(aside, name):
            for kind in SUFFIXES:
                path = self._path(kind, name)
                if path.exists():
                    number = sum(1 for _ in aside.glob(f"{name}.*{path.suffix}"))
                    os.replace(path, aside / f"{name}.{number}{path.suffix}")
        self.notes.append(f"{name} is {fault}: set aside in {aside}, and computed again")

    def _put(self, kind: str, name: str, content: bytes) -> str:
        self._write(self._path(kind, name).relative_to(self.folder), content)
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
                f"{path}: expected space and permission to write {len(content):,} bytes, got an error: {reason}; "
                f"no finished work is lost ({done} chunks): free some space, and start the same command again"
            ) from error

    def _shown(self, kind: str, name: str) -> str:
        return str(self._path(kind, name).relative_to(self.folder))

    def _path(self, kind: str, name: str) -> Path:
        # Records of preflight and second starts are not those of the run, and have a directory of their own.
        directory = kind if name.startswith("chunk-") else "checks"
        return self.folder / directory / f"{name}{SUFFIXES[kind]}"


@contextmanager
def _setting_aside(aside: Path, what: str) -> Iterator[None]:
    try:
        aside.mkdir(exist_ok=True)
        yield
    except OSError as error:
        raise StorageError(
            f"{aside}: expected space and permission to set {what} aside, got an error: {error}"
        ) from error


def _json(content: object) -> bytes:
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
