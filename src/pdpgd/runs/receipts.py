"""The history of a run: every start of it, each with a checksum of its own."""

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
# As the value of a checksum looks, under whatever name.
_DIGEST = re.compile("[0-9a-f]{64}")


def read_history(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The starts that are whole, as they were written, and what is wrong with the file; None if nothing is."""
    try:
        entries = json.loads(path.read_bytes())
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError) as error:
        return [], f"did not read ({error})"
    if not isinstance(entries, list):
        return [], f"did not read (expected a list of starts, got {type(entries).__name__})"
    whole = [entry for entry in entries if _is_whole(entry)]
    damaged = len(entries) - len(whole)
    return whole, f"has {damaged} of {len(entries)} starts damaged" if damaged else None


def _is_whole(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    if SEAL not in entry:
        # It was written before starts had a checksum, unless damage has changed the name of its own.
        return "at" in entry and not any(
            isinstance(value, str) and _DIGEST.fullmatch(value) for value in entry.values()
        )
    try:
        unsealed(entry)
    except ValueError:
        return False
    return True


FILES: Mapping[JobKind, frozenset[str]] = {
    "chunk": frozenset(("records", "examples")),
    "second start": frozenset(("records",)),
    "preflight": frozenset(),
}
"""What is written besides the receipt, by the kind of the job."""

# The facts of receipts that have no checksum: those that every one has.
_COMMON = frozenset(("seconds", "batch_size", "halved", "machine", "forwards", "backwards"))
_OLD_FACTS: Mapping[JobKind, frozenset[str]] = {
    "chunk": _COMMON | {"seconds_of"},
    "second start": _COMMON | {"seconds_of"},
    "preflight": _COMMON
    | {"samples", "classes", "modules_in_train_mode", "repeated", "alone", "probabilities"}
    | {"no_gradient", "broken_gradient", "shaken"},
}


@dataclass(frozen=True)
class Receipt:
    """What was written for a job, and what it cost."""

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
    """The receipt of a job of this kind; ValueError if it is damaged."""
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
        raise ValueError("it has another checksum than it says")
    expected = {"job", "spec", "files", "facts"}
    if not isinstance(content, dict) or set(content) != expected:
        raise ValueError(f"expected a receipt with the entries {_listed(expected)}")
    return Receipt(content["job"], content["spec"], content["files"], ChunkStats.from_json(content["facts"]))


def _old(entries: Mapping[str, Any], kind: JobKind) -> Receipt:
    """Read a receipt without a checksum, as older runs have; only its keys and types can be checked."""
    facts = dict(entries)
    files = facts.pop("files", None)
    if not isinstance(files, dict) or not all(isinstance(checksum, str) for checksum in files.values()):
        raise ValueError("expected a receipt with a checksum, or with files and facts")
    required = _OLD_FACTS[kind]
    # The first ones did not say on which samples an attack broke; they have no other facts either.
    nameless = kind != "preflight" and "faults" not in facts and set(facts) != required
    if not required <= set(facts) or nameless:
        raise ValueError(f"expected the facts {_listed(required)}, got {_listed(facts)}")
    for name in ("forwards", "backwards"):
        passes = facts[name]
        if not isinstance(passes, dict) or set(passes) != {"attacks", "checks"}:
            raise ValueError(f"expected {name} of the attacks and of the checks, got {passes!r}")
    return Receipt(None, None, files, ChunkStats.from_json(facts))


def _listed(names: Mapping[str, Any] | frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
