"""An attack of a comparison, as a user writes it: a name, or NAME:RESTARTS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pdpgd import catalogue
from pdpgd.errors import InvalidInputError, expect_setting
from pdpgd.files import digest_of
from pdpgd.norms import norm_of


@dataclass(frozen=True)
class AttackSpec:
    """An attack of the catalogue, and with how many restarts if not with its own."""

    name: str
    restarts: int | None = None

    @classmethod
    def parse(cls, text: str) -> AttackSpec:
        name, colon, restarts = text.strip().partition(":")
        catalogue.entry_of(name)
        if not colon:
            return cls(name)
        if not restarts.isdecimal() or int(restarts) < 1:
            raise InvalidInputError(f"attacks: expected NAME or NAME:RESTARTS such as pgd:10, got {text!r}")
        return cls(name, int(restarts))

    @property
    def label(self) -> str:
        return self.name if self.restarts is None else f"{self.name}:{self.restarts}"


FORMAT = 3
DIFFERENCES_SHOWN = 12
# Without these, a run cannot be read.
_NEEDED: Mapping[str, Mapping[str, type]] = {
    "model": {"source": str, "sha256": str},
    "data": {"name": str, "samples": int, "sha256": str},
}


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The identity of a run: the same spec gives the same bits on the same machine."""

    model: Mapping[str, Any]
    """Where it came from, and the checksum of its weights."""
    data: Mapping[str, Any]
    """Its name, the number and shape of its samples, and their checksum."""
    norms: tuple[str, ...]
    """In the order in which they are attacked: what one found seeds the next."""
    attack: str
    budget: int | None
    """Forward + backward passes a sample and norm; None for an attack that has settings of its own instead."""
    seed: int
    chunk_size: int
    """Samples that are attacked, judged and written together."""
    batch_size: int
    """Rows that go through the model together."""
    threads: int
    """Of the CPU, for each chunk: sums are taken in another order with another number."""
    device: str
    made_with: Mapping[str, str]
    """Versions of what computes the numbers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the attack, where they are not what the budget makes them."""
    checks: bool = True
    """Whether the cheap attacks, the grid of 8 bits and the second starts are a part of it."""
    format: int = field(default=FORMAT)

    def __post_init__(self) -> None:
        if not self.norms:
            raise InvalidInputError("norms: expected at least one, got none")
        if len(set(self.norms)) < len(self.norms):
            raise InvalidInputError(f"norms: expected each one once, got {', '.join(self.norms)}")
        for norm in self.norms:
            norm_of(norm)
        for name in ("chunk_size", "batch_size", "threads"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", type(value) is int and value >= 1)
        expect_setting(self, "seed", "an integer of at least 0", type(self.seed) is int and self.seed >= 0)

    @property
    def model_name(self) -> str:
        """Where the model came from, and what its logits are pooled over."""
        pool = self.model.get("pool")
        return f"{self.model['source']}{f' pooled over {pool}' if pool else ''}"

    def as_json(self) -> dict[str, Any]:
        entries: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return entries

    @classmethod
    def from_json(cls, entries: object) -> RunSpec:
        known = {entry.name for entry in fields(cls)}
        if isinstance(entries, dict) and entries.get("format") == 2:
            # Runs that were begun before attacks had settings of their own.
            entries = {**entries, "settings": {}, "checks": True, "format": FORMAT}
        if not isinstance(entries, dict) or set(entries) != known or entries["format"] != FORMAT:
            raise InvalidInputError(f"expected a spec of format {FORMAT} with the entries {', '.join(sorted(known))}")
        for name, kinds in _NEEDED.items():
            if not isinstance(entries[name], dict) or not all(
                isinstance(entries[name].get(each), kind) for each, kind in kinds.items()
            ):
                raise InvalidInputError(f"expected {name} with the entries {', '.join(kinds)}, got {entries[name]!r}")
        return cls(**{**entries, "norms": tuple(entries["norms"])})

    def digest(self) -> str:
        return digest_of(self.as_json())


def differences(there: RunSpec, asked: RunSpec) -> list[str]:
    """What another spec would have to change, a line each."""
    old, new = _flattened(there.as_json()), _flattened(asked.as_json())
    return [
        f"{name}: {_short(old.get(name, 'nothing'))} there, {_short(new.get(name, 'nothing'))} asked"
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or old[name] != new[name]
    ][:DIFFERENCES_SHOWN]


def _flattened(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        flat.update(_flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:12]}..."
