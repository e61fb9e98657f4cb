"""Trained nets: their cards, and the nets that this package contains."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pdpgd.errors import LoadError, UnknownNameError
from pdpgd.files import replace_file

FORMAT = 1
# Types of the entries in JSON.
KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "architecture", "data", "command", "sha256"), str),
    **dict.fromkeys(("parameters", "training_samples"), int),
    **dict.fromkeys(("shape", "classes", "accuracies"), list),
    **dict.fromkeys(("training", "made_with"), dict),
}


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a trained net is, how it was trained, and its accuracy; `pdpgd train` writes it next to the weights.

    Args:
        name: Name of the net.
        architecture: Name of its architecture, or `package.module:factory`.
        parameters: Number of its parameters.
        shape: Channels, height and width of its inputs.
        classes: Names of its classes.
        data: Name of the data set that it was trained on.
        training_samples: Number of training samples.
        training: Settings of the training, with the seed.
        initial: Name or file of the weights that the training began with; None if they were random.
        command: The command line.
        made_with: Versions, device and number of threads, which the bits of the weights also depend on.
        accuracies: Accuracies on the test set, on clean images and under PGD.
        sha256: Checksum of the weights.
        format: Version of the format.

    Example:
        >>> card = ModelCard.read(Path("trained/my-plain.json"))
        >>> print(f"{card.clean():.1%}")
    """

    name: str
    architecture: str
    parameters: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    data: str
    training_samples: int
    training: dict[str, Any]
    initial: str | None
    command: str
    made_with: dict[str, Any]
    accuracies: tuple[dict[str, Any], ...]
    sha256: str
    format: int = field(default=FORMAT)

    def write(self, path: Path) -> None:
        """Write the card as JSON, atomically.

        Args:
            path: The file.

        Raises:
            LoadError: The file cannot be written.
        """
        replace_file(path, f"{json.dumps(asdict(self), indent=2, ensure_ascii=False)}\n".encode())

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """Read a card.

        Args:
            path: The file.

        Returns:
            The card.

        Raises:
            LoadError: The file is missing, damaged, or not a card of this format.
        """
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
                    "correct the card, or give package.module:factory as the model and the weights as its weights"
                )
        for name in ("shape", "classes", "accuracies"):
            entries[name] = tuple(entries[name])
        return cls(**entries)

    def clean(self) -> float:
        """Return the accuracy on clean images."""
        return float(next(entry["share"] for entry in self.accuracies if entry["norm"] is None))

    def robust(self) -> tuple[tuple[str, float, float], ...]:
        """Return norm, radius and accuracy of each robust accuracy that was measured."""
        return tuple(
            (entry["norm"], entry["radius"], entry["share"]) for entry in self.accuracies if entry["norm"] is not None
        )


# Folder of the shipped nets.
FOLDER = Path(__file__).parent / "nets"


def names() -> tuple[str, ...]:
    """Return the names of the shipped nets."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def path(name: str) -> Path:
    """Return the file of a shipped net's weights; raise UnknownNameError if there is no such net."""
    if name not in names():
        raise UnknownNameError("shipped net", name, names())
    return FOLDER / f"{name}.safetensors"


def card(name: str) -> ModelCard:
    """Read the card of a shipped net."""
    return ModelCard.read(path(name).with_suffix(".json"))
