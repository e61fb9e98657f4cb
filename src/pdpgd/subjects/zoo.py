"""The nets that come with this package: weights and cards lie in the folder `nets` beside this file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pdpgd.errors import SubjectError, UnknownNameError
from pdpgd.subjects.architectures import architecture_by_name
from pdpgd.subjects.cards import ModelCard
from pdpgd.subjects.weights import checksum, load_weights

FOLDER = Path(__file__).parent / "nets"


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def card(name: str) -> ModelCard:
    return ModelCard.read(path(name).with_suffix(".json"))


def path(name: str) -> Path:
    """The file of its weights."""
    if name not in names():
        raise UnknownNameError("shipped net", name, names())
    return FOLDER / f"{name}.safetensors"


def load(name: str) -> nn.Module:
    """The net with its trained weights, in eval mode."""
    about, file = card(name), path(name)
    found = checksum(file)
    if found != about.sha256:
        raise SubjectError(f"{file}: expected the checksum {about.sha256} of its card, got {found}")
    model = architecture_by_name(about.architecture).untrained()
    load_weights(model, file)
    return model.eval().requires_grad_(False)
