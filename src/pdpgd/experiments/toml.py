"""Reading and writing TOML: every entry is checked for its type, and unknown entries are refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from pdpgd.errors import InvalidInputError, UnknownNameError, need

_KINDS = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "a table"}


def read_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        InvalidInputError: The text is not TOML.
    """
    try:
        document: dict[str, Any] = _reader().loads(text)
    except ValueError as error:
        raise InvalidInputError(f"expected TOML, got a file that cannot be parsed ({error})") from error
    return document


def write_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML."""
    text: str = need("tomli_w", extra="cli", purpose="changing the spec of an experiment").dumps(document)
    return text


def _reader() -> Any:
    if sys.version_info >= (3, 11):
        return importlib.import_module("tomllib")
    return need("tomli", extra="cli", purpose="reading an experiment")


class TomlTable:
    """A table of a TOML file from which known entries are taken one by one; `end` refuses the remaining ones.

    Args:
        where: Place of the table in the file, for messages.
        entries: The table.
        name: Key of the table, if it is one of several by name; it may contain dots.

    Raises:
        InvalidInputError: The entries are not a table.
    """

    def __init__(self, where: str, entries: object, name: str = "") -> None:
        if not isinstance(entries, dict):
            raise InvalidInputError(f"{where}: expected a table, got {entries!r}")
        self.where, self.entries, self.name = where, dict(entries), name
        self.known: list[str] = []

    def optional(self, name: str, kind: type) -> Any:
        """Take an entry of the given type; None if there is none."""
        self.known.append(name)
        value = self.entries.pop(name, None)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise InvalidInputError(f"{self.place(name)}: expected {_KINDS[kind]}, got {value!r}")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        """Take a string, which is required unless there is a default."""
        value = self.optional(name, str)
        if value is None and default is None:
            raise InvalidInputError(f"{self.place(name)}: expected a string, got nothing")
        return default if value is None else value  # type: ignore[return-value]

    def integer(self, name: str, default: int) -> int:
        """Take an integer."""
        value = self.optional(name, int)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        """Take a truth value."""
        value = self.optional(name, bool)
        return default if value is None else value

    def list_of(self, name: str, kind: type | tuple[type, ...]) -> list[Any] | None:
        """Take a list that is not empty, with elements of the given type; None if there is none."""
        values = self.optional(name, list)
        if values is not None and not (values and all(isinstance(value, kind) for value in values)):
            what = "strings" if kind is str else "numbers"
            raise InvalidInputError(f"{self.place(name)}: expected a list of {what}, got {values!r}")
        found: list[Any] | None = values
        return found

    def strings(self, name: str) -> list[str]:
        """Take a list of strings, which is required."""
        found = self.list_of(name, str)
        if found is None:
            raise InvalidInputError(f"{self.place(name)}: expected a list of strings, got nothing")
        return found

    def table(self, name: str) -> TomlTable:
        """Take a table; an empty one if there is none."""
        return TomlTable(self.place(name), self.optional(name, dict) or {})

    def tables(self, name: str) -> list[TomlTable]:
        """Take a list of tables."""
        found = self.optional(name, list) or []
        return [TomlTable(f"{self.place(name)}[{place}]", each) for place, each in enumerate(found)]

    def tables_by_name(self, name: str) -> list[TomlTable]:
        """Take a table whose values are tables."""
        found = self.optional(name, dict) or {}
        return [TomlTable(f"{self.place(name)}.{each}", table, each) for each, table in found.items()]

    def place(self, name: str) -> str:
        """Return the place of an entry in the file, for messages."""
        return f"{self.where}.{name}" if self.where else name

    def end(self) -> None:
        """Raise UnknownNameError if entries are left that were not taken."""
        if self.entries:
            raise UnknownNameError(f"entry of {self.where or 'the spec'}", next(iter(self.entries)), self.known)
