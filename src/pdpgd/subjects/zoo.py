"""The nets that come with this package: weights and cards lie in the folder `nets` beside this file."""

from __future__ import annotations

from pathlib import Path

from pdpgd.errors import UnknownNameError
from pdpgd.subjects.cards import ModelCard

FOLDER = Path(__file__).parent / "nets"


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def path(name: str) -> Path:
    """The file of its weights."""
    if name not in names():
        raise UnknownNameError("shipped net", name, names())
    return FOLDER / f"{name}.safetensors"


def card(name: str) -> ModelCard:
    return ModelCard.read(path(name).with_suffix(".json"))
