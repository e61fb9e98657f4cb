"""The history of a run: every start of it, each with a checksum of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pdpgd.files import SEAL, unsealed

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
