"""Pickles that run code when they are loaded; the code leaves a file behind, which shows that it ran."""

from __future__ import annotations

from pathlib import Path


class LeavesMarker:
    """Creates an empty file at `marker` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.marker,))
