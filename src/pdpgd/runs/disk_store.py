"""A run's directory: what was asked, what is done, and nothing half written.

    spec.json                 what was asked
    history.json              every start of the run: when, with which versions, on which machine
    records/NAME.parquet      the results of a chunk, a row a sample and norm
    examples/NAME.npz         its adversarial points, as floats and at 8 bits
    receipts/NAME.json        written last: job and spec, the checksums of the two, timings and counts, and a checksum
                              over all of that
    checks/                   the same of the look at the model and of the second starts
    set-aside/                what was found broken, kept for the curious
    summary.json              the numbers of the whole run

A chunk is done when its receipt is there and whole, its files have the checksums it gives, and all of them say that
they are of this chunk and of this run's spec. What is not as it was written is never believed: it is set aside and done
again, or named in an error.
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


class DiskStore:
    """A directory; every file in it is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._spec: RunSpec | None = None
        self._digests: tuple[str, ...] = ()
        """Digests of spec.json as written and as parsed; they differ for specs of an older format."""
        self._jobs: dict[str, range] = {}

    def spec(self) -> RunSpec | None:
        """The spec of the run; StorageError if it does not read, or is not that of the results beside it."""
        path = self.folder / SPEC
        if self._spec is None and exists(path):
            try:
                entries = json.loads(path.read_text(encoding="utf-8"))
                spec = RunSpec.from_json(entries)
            except (OSError, ValueError, TypeError) as error:
                raise StorageError(
                    f"{path}: expected the spec of a run, got a file that does not read ({error}); "
                    "put it right, or take another directory"
                ) from error
            digests = (digest_of(entries), spec.digest())
            self._check_vouched(path, digests)
            self._settle(spec, digests)
        return self._spec

    def open(self, spec: RunSpec) -> None:
        self._refuse_directories()
        there = self.spec()
        if there is None:
            self._refuse_strangers()
            self._write(SPEC, _json(spec.as_json()))
            self._settle(spec, (spec.digest(),))
        elif there != spec and (changed := differences(there, spec)):
            lines = "".join(f"\n  {line}" for line in changed)
            raise InvalidInputError(
                f"{self.folder / SPEC}: expected the spec that this run was begun with, got another:{lines}\n"
                "take another directory for it (--out), or ask for the same again; if the same was asked, the file is "
                "damaged: put it right"
            )
        else:
            self._tidy_spec()
        self._check_history()

    def log_start(self, start: dict[str, Any]) -> None:
        entries, _ = read_history(self.folder / HISTORY)
        self._write(HISTORY, _json([*entries, sealed(start)]))

    def has(self, name: str) -> bool:
        fault = self.fault(name)
        if fault not in (None, MISSING):
            self._set_aside(name, str(fault))
        return fault is None

    def fault(self, name: str) -> str | None:
        """Why the outcome of this job cannot be used: it is missing, or broken; None if it can."""
        if self.spec() is None or not self._path("receipts", name).exists():
            return MISSING
        try:
            self._check(name)
        except (OSError, ValueError) as error:
            return f"broken ({error})"
        return None

    def save(self, name: str, result: JobResult) -> None:
        assert self.spec() is not None
        files: dict[str, str] = {}
        if result.columns is not None:
            refuse_contradictions(result.columns)
            facts = {"pdpgd.job": name, "pdpgd.spec": self._digests[0]}
            files["records"] = self._put("records", name, records.to_parquet(result.columns, facts))
        if result.examples:
            files["examples"] = self._put("examples", name, records.to_npz(result.examples))
        self._put("receipts", name, _json(Receipt(name, self._digests[0], files, result.stats).as_json()))

    def result(self, name: str) -> JobResult:
        with self._reading(name):
            receipt = self._receipt(name)
            columns = None
            if "records" in receipt.files:
                columns = records.from_parquet(self._content(receipt, "records", name))
        return JobResult(receipt.stats, columns)

    def examples(self, name: str) -> Mapping[str, Any]:
        with self._reading(name):
            return records.from_npz(self._content(self._receipt(name), "examples", name))

    def write_summary(self, summary: dict[str, Any]) -> None:
        content = _json(summary)
        path = self.folder / SUMMARY
        try:
            same = path.read_bytes() == content
        except OSError:
            same = False
        if not same:
            self._write(SUMMARY, content)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep a second run out of the directory."""
        if not exists(self.folder / SPEC):
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
            raise no_place(self.folder, error) from error
        strangers = sorted(path.name for path in there if not path.name.startswith("."))
        if strangers:
            raise InvalidInputError(
                f"{self.folder}: expected a new directory or that of a run, got one with {', '.join(strangers[:3])} "
                "and no spec.json"
            )

    def _refuse_directories(self) -> None:
        """Before any work, where a file is to be written at the end of it."""
        for name in (SPEC, HISTORY, SUMMARY):
            try:
                check_file(self.folder / name)
            except (OSError, PdpgdError) as error:
                raise StorageError(str(error)) from error

    def _check_vouched(self, path: Path, digests: tuple[str, ...]) -> None:
        """The results say which spec they were made with: if it is this one for none of them, it was changed."""
        said: list[str] = []
        for name in self._names():
            try:
                said += self._said(name, self._receipt(name))["pdpgd.spec"]
            except (OSError, ValueError):
                continue  # damaged, and done again
            if set(said) & set(digests):
                return
        if said:
            raise StorageError(
                f"{path}: expected the spec that the results beside it were made with ({said[0][:12]}...), got another "
                f"({digests[0][:12]}...): it was changed or is damaged; put it right, or take another directory"
            )

    def _tidy_spec(self) -> None:
        """Write it as it was written, if it says the same in other bytes."""
        path = self.folder / SPEC
        try:
            content = path.read_bytes()
            tidy = _json(json.loads(content))
        except (OSError, ValueError) as error:
            raise StorageError(f"{path}: expected the spec of a run, got an error: {error}") from error
        if content != tidy:
            self._write(SPEC, tidy)

    def _check_history(self) -> None:
        """A history that is damaged is set aside; what of it can be believed is kept."""
        entries, fault = read_history(self.folder / HISTORY)
        if fault is None:
            return
        path, aside = self.folder / HISTORY, self.folder / ASIDE
        with _setting_aside(aside, HISTORY):
            number = sum(1 for _ in aside.glob("history.*.json"))
            os.replace(path, aside / f"history.{number}.json")
        self._write(HISTORY, _json(entries))
        self.notes.append(f"{path} {fault}: set aside in {aside}, and begun anew")

    def _names(self) -> list[str]:
        """The jobs that have a receipt, whatever it says."""
        try:
            found = [path for drawer in ("checks", "receipts") for path in (self.folder / drawer).glob("*.json")]
        except OSError:
            return []
        return sorted(path.stem for path in found if not path.name.startswith("."))

    def _settle(self, spec: RunSpec, digests: tuple[str, ...]) -> None:
        self._spec, self._digests, self._jobs = spec, digests, jobs_of(spec)

    def _check(self, name: str) -> None:
        """OSError or ValueError if what was kept of this job is damaged, or is another job's or another run's."""
        receipt = self._receipt(name)
        contents = {drawer: self._content(receipt, drawer, name) for drawer in receipt.files}
        said = self._said(name, receipt)
        for job in said["pdpgd.job"]:
            if job != name:
                raise ValueError(f"expected what was kept of {name}, got that of {job}")
        for spec in said["pdpgd.spec"]:
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
    def _naming(self, drawer: str, name: str) -> Iterator[None]:
        """Put the name of the file before what is wrong with it."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self._shown(drawer, name)}: {error}") from error

    def _said(self, name: str, receipt: Receipt) -> dict[str, list[str]]:
        """Which job and which spec the receipt and the records say they are of, as far as they say."""
        said: dict[str, str | None] = {}
        if "records" in receipt.files:
            said = dict(records.facts_of(self._content(receipt, "records", name)))
        claims = {
            "pdpgd.job": (receipt.job, said.get("pdpgd.job")),
            "pdpgd.spec": (receipt.spec, said.get("pdpgd.spec")),
        }
        return {what: [claim for claim in made if claim is not None] for what, made in claims.items()}

    def _content(self, receipt: Receipt, drawer: str, name: str) -> bytes:
        content = self._path(drawer, name).read_bytes()
        if hashlib.sha256(content).hexdigest() != receipt.files[drawer]:
            raise ValueError(f"{self._shown(drawer, name)} has another checksum than its receipt says")
        return content

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self.folder}: expected {name} whole, got it broken ({error}); start the command that made it again"
            ) from error

    def _set_aside(self, name: str, fault: str) -> None:
        aside = self.folder / ASIDE
        with _setting_aside(aside, name):
            for drawer in SUFFIXES:
                path = self._path(drawer, name)
                if path.exists():
                    number = sum(1 for _ in aside.glob(f"{name}.*{path.suffix}"))
                    os.replace(path, aside / f"{name}.{number}{path.suffix}")
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

    def _shown(self, drawer: str, name: str) -> str:
        return str(self._path(drawer, name).relative_to(self.folder))

    def _path(self, folder: str, name: str) -> Path:
        # What is no chunk is a check: its records are not those of the run.
        place = folder if name.startswith("chunk-") else "checks"
        return self.folder / place / f"{name}{SUFFIXES[folder]}"


@contextmanager
def _setting_aside(aside: Path, what: str) -> Iterator[None]:
    try:
        aside.mkdir(exist_ok=True)
        yield
    except OSError as error:
        raise StorageError(f"{aside}: expected room and leave to set {what} aside, got an error: {error}") from error


MISSING = "missing"
SUFFIXES = {"records": ".parquet", "examples": ".npz", "receipts": ".json"}


def _json(content: object) -> bytes:
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
