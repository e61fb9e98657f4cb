"""Models that others trained, and the images they are measured on: both stay outside this repository."""

from __future__ import annotations

import importlib
import pathlib
import sys
from types import ModuleType

import torch
from torch import Tensor, nn

from pdpgd.models.loading import load_model

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "shared" / "bench"
MODELS = ("smallcnn_ddn", "lenet5_cln")


def load(module: str) -> ModuleType:
    """A module of the shared benchmark folder: `zoo` (models and data) or `peers` (the public attacks)."""
    if not (FOLDER / f"{module}.py").exists():
        raise SystemExit(f"the benchmark needs {module}.py, its models and its data: expected them in {FOLDER}")
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(module)


def net_and_images(name: str, data: str, first: int, last: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a net and those of its images that it classifies correctly; shipped nets have a hyphen in their names."""
    zoo = load("zoo")
    model: nn.Module = load_model(name).requires_grad_(False) if "-" in name else zoo.load(name)
    inputs, labels = zoo.images(data, first, last)
    with torch.no_grad():
        correct = model(inputs).argmax(1) == labels
    return model, inputs[correct], labels[correct]
