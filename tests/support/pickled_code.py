"""Pickles that run code when they are loaded: the code leaves a file behind, so that a test sees whether it ran."""

from __future__ import annotations

from pathlib import Path


class LeavesMarker:
    """Unpickled, it makes an empty file at `marker`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.marker,))
