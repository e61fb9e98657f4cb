"""An attack of a comparison, as a user writes it: a name, or NAME:RESTARTS."""

from __future__ import annotations

from dataclasses import dataclass

from pdpgd import catalogue
from pdpgd.errors import InvalidInputError


@dataclass(frozen=True)
class Contender:
    """An attack of the catalogue, and with how many restarts if not with its own."""

    name: str
    restarts: int | None = None

    @classmethod
    def parse(cls, text: str) -> Contender:
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
