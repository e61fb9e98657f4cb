"""Models that others trained, and the images they are measured on: both stay outside this repository."""

from __future__ import annotations

import importlib
import pathlib
import sys
from types import ModuleType

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "shared" / "bench"
MODELS = ("smallcnn_ddn", "lenet5_cln")


def load(module: str) -> ModuleType:
    """A module of the shared benchmark folder: `zoo` (models and data) or `peers` (the public attacks)."""
    if not (FOLDER / f"{module}.py").exists():
        raise SystemExit(f"the benchmark needs {module}.py, its models and its data: expected them in {FOLDER}")
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(module)
