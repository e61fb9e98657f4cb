"""A training's state on disk: written whole or not at all, and read back only into the training it belongs to."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pdpgd.errors import SubjectError
from pdpgd.files import replace_file

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stands after `step` steps. All its randomness follows from the seed and the step."""

    step: int
    model: dict[str, Tensor]
    optimiser: dict[str, Any]
    belongs_to: str
    """The training's settings, as text."""

    def write(self, path: Path) -> None:
        content = io.BytesIO()
        torch.save({"format": FORMAT, **vars(self)}, content)
        replace_file(path, content.getvalue())

    @classmethod
    def read(cls, path: Path, *, belongs_to: str) -> Checkpoint:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise SubjectError(
                f"{path}: expected a checkpoint of this program, got a file that does not load ({error})"
            ) from error
        if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
            raise SubjectError(f"{path}: expected a checkpoint of format {FORMAT}, got something else")
        checkpoint = cls(**state)
        if checkpoint.belongs_to != belongs_to:
            raise SubjectError(
                f"{path}: expected a checkpoint of this training, {belongs_to}, got one of {checkpoint.belongs_to}; "
                "train into another folder, or delete it"
            )
        return checkpoint
