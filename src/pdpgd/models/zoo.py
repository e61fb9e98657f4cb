"""The card of a trained net: what it is, what it was trained on and how, and how good it is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pdpgd.errors import LoadError, UnknownNameError
from pdpgd.files import replace_file

FORMAT = 1
# Of the entries as JSON has them.
KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "architecture", "data", "command", "sha256"), str),
    **dict.fromkeys(("parameters", "training_samples"), int),
    **dict.fromkeys(("shape", "classes", "accuracies"), list),
    **dict.fromkeys(("training", "made_with"), dict),
}


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Written beside the weights of every net that `pdpgd train` trains."""

    name: str
    architecture: str
    parameters: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    data: str
    """The data set it was trained on."""
    training_samples: int
    training: dict[str, Any]
    """The settings of the training, its seed among them."""
    initial: str | None
    """The net it was trained from, if not from random weights."""
    command: str
    made_with: dict[str, Any]
    """Versions, device and number of threads: what the bits of the weights depend on besides the settings."""
    accuracies: tuple[dict[str, Any], ...]
    """On the test set: the share that is right on clean images, and under PGD."""
    sha256: str
    """The checksum of the weights."""
    format: int = field(default=FORMAT)

    def write(self, path: Path) -> None:
        replace_file(path, f"{json.dumps(asdict(self), indent=2, ensure_ascii=False)}\n".encode())

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LoadError(f"{path}: expected a model card, got a file that does not read ({error})") from error
        known = {entry.name for entry in fields(cls)}
        if not isinstance(entries, dict) or set(entries) != known or entries["format"] != FORMAT:
            raise LoadError(f"{path}: expected a model card of format {FORMAT} with the entries {sorted(known)}")
        for name, kind in KINDS.items():
            if not isinstance(entries[name], kind):
                raise LoadError(
                    f"{path}: expected {name} as a {kind.__name__}, got {type(entries[name]).__name__}; "
                    "put the card right, or give package.module:factory as the model and the weights as its weights"
                )
        for name in ("shape", "classes", "accuracies"):
            entries[name] = tuple(entries[name])
        return cls(**entries)

    def clean(self) -> float:
        """The accuracy on clean images."""
        return float(next(entry["share"] for entry in self.accuracies if entry["norm"] is None))

    def robust(self) -> tuple[tuple[str, float, float], ...]:
        """Norm, radius and accuracy of each attack it was judged under."""
        return tuple(
            (entry["norm"], entry["radius"], entry["share"]) for entry in self.accuracies if entry["norm"] is not None
        )


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
