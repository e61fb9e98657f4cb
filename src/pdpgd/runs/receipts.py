"""Receipts of jobs and the history of a run: JSON with checksums, and how damage to it is recognized."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdpgd.files import SEAL, digest_of, unsealed
from pdpgd.runs.spec import JobKind
from pdpgd.runs.stats import ChunkStats

HISTORY = "history.json"

FILES: Mapping[JobKind, frozenset[str]] = {
    "chunk": frozenset(("records", "examples")),
    "second start": frozenset(("records",)),
    "preflight": frozenset(),
}
"""Files that are written besides the receipt, by the kind of the job."""

_COMMON = frozenset(("seconds", "batch_size", "halved", "machine", "forwards", "backwards"))
_OLD_STATS: Mapping[JobKind, frozenset[str]] = {
    "chunk": _COMMON | {"seconds_of"},
    "second start": _COMMON | {"seconds_of"},
    "preflight": _COMMON
    | {"samples", "classes", "modules_in_train_mode", "repeated", "alone", "probabilities"}
    | {"no_gradient", "broken_gradient", "shaken"},
}
"""Entries that every receipt without a checksum has, by the kind of the job."""

_DIGEST = re.compile("[0-9a-f]{64}")
"""The value of a checksum, under whatever key."""


@dataclass(frozen=True)
class Receipt:
    """The files that were written for a job, with their checksums, and the stats of the job."""

    job: str | None
    """Name of the job; None in receipts that have no checksum."""
    spec: str | None
    """Digest of the run's spec; None in receipts that have no checksum."""
    files: Mapping[str, str]
    """Checksums of the files that were written, by their directory."""
    stats: ChunkStats

    def check_norms(self, norms: tuple[str, ...]) -> None:
        """Raise ValueError unless the receipt of a chunk has the seconds of each norm."""
        seconds = self.stats.seconds_by_stage
        if not set(norms) <= set(seconds):
            raise ValueError(f"expected the seconds of {', '.join(norms)}, got {dict(seconds)}")

    def as_json(self) -> dict[str, Any]:
        """Return the entries of the file, with their checksum."""
        entries = {"job": self.job, "spec": self.spec, "files": dict(self.files), "facts": self.stats.as_json()}
        content = json.loads(json.dumps(entries))
        return {"receipt": content, "sha256": digest_of(content)}


def read_receipt(content: bytes, kind: JobKind) -> Receipt:
    """Read the receipt of a job of this kind; ValueError if it is damaged."""
    entries = json.loads(content)
    if not isinstance(entries, dict):
        raise ValueError(f"expected a receipt, got {type(entries).__name__}")
    receipt = _checked(entries) if set(entries) == {"receipt", "sha256"} else _old(entries, kind)
    if set(receipt.files) != FILES[kind]:
        raise ValueError(f"expected the files {_listed(FILES[kind])}, got {_listed(receipt.files)}")
    return receipt


def _checked(entries: Mapping[str, Any]) -> Receipt:
    content = entries["receipt"]
    if digest_of(content) != entries["sha256"]:
        raise ValueError("its content does not match its checksum")
    expected = {"job", "spec", "files", "facts"}
    if not isinstance(content, dict) or set(content) != expected:
        raise ValueError(f"expected a receipt with the entries {_listed(expected)}")
    return Receipt(content["job"], content["spec"], content["files"], ChunkStats.from_json(content["facts"]))


def _old(entries: Mapping[str, Any], kind: JobKind) -> Receipt:
    """Read a receipt without a checksum, as older runs have; only its keys and types can be checked."""
    stats = dict(entries)
    files = stats.pop("files", None)
    if not isinstance(files, dict) or not all(isinstance(checksum, str) for checksum in files.values()):
        raise ValueError("expected a receipt with a checksum, or with files and stats")
    required = _OLD_STATS[kind]
    # The first version did not list the samples on which an attack failed; its receipts have no further entries.
    misnamed = kind != "preflight" and "faults" not in stats and set(stats) != required
    if not required <= set(stats) or misnamed:
        raise ValueError(f"expected the entries {_listed(required)}, got {_listed(stats)}")
    for name in ("forwards", "backwards"):
        passes = stats[name]
        if not isinstance(passes, dict) or set(passes) != {"attacks", "checks"}:
            raise ValueError(f"expected {name} of the attacks and of the checks, got {passes!r}")
    return Receipt(None, None, files, ChunkStats.from_json(stats))


def _listed(names: Mapping[str, Any] | frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def read_history(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Read the starts of a run.

    Args:
        path: The history file, which need not exist.

    Returns:
        The undamaged entries as they were written, and a description of the damage; None if there is none.
    """
    try:
        entries = json.loads(path.read_bytes())
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError) as error:
        return [], f"could not be read ({error})"
    if not isinstance(entries, list):
        return [], f"could not be read (expected a list of starts, got {type(entries).__name__})"
    undamaged = [entry for entry in entries if _is_undamaged(entry)]
    damaged = len(entries) - len(undamaged)
    return undamaged, f"has {damaged} of {len(entries)} starts damaged" if damaged else None


def _is_undamaged(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    if SEAL not in entry:
        # Older starts have no checksum. Damage may also have changed the key of a checksum, which then remains a value.
        return "at" in entry and not any(
            isinstance(value, str) and _DIGEST.fullmatch(value) for value in entry.values()
        )
    try:
        unsealed(entry)
    except ValueError:
        return False
    return True
