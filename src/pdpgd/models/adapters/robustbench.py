"""RobustBench, robustbench:NAME or robustbench:DATASET/THREAT/NAME. Its models normalize pixels themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from pdpgd import errors
from pdpgd.errors import InvalidInputError, LoadError, UnknownNameError
from pdpgd.models.adapters import loading, unknown
from pdpgd.models.import_shims import make_torchvision_importable, robustbench_importable

# Of a model that is given by its name alone.
DATASET = "cifar10"
THREAT = "Linf"


def build(name: str, *, weights: Path | None, trust_model_code: bool) -> nn.Module:
    """Build a model; `weights` is a file that replaces the download, or a folder of such downloads."""
    library = _library("robustbench.utils")
    dataset, threat, model, downloaded = _entry(name)
    if weights is None:
        return _load(library, model, Path(torch.hub.get_dir(), "robustbench"), dataset, threat, trust_model_code)
    _check_place(weights, model, downloaded)
    if weights.is_dir():
        return _load(library, model, weights, dataset, threat, trust_model_code)
    with tempfile.TemporaryDirectory() as folder:
        # robustbench looks here before it downloads, and adapts the weights of each model itself.
        place = Path(folder, dataset, threat, f"{model}.pt")
        place.parent.mkdir(parents=True)
        place.symlink_to(weights.resolve())
        return _load(library, model, Path(folder), dataset, threat, trust_model_code)


def own_normalization(name: str, model: nn.Module) -> None:
    """Return None: the models normalize their inputs themselves."""
    return None


def _load(
    library: ModuleType, model: str, folder: Path, dataset: str, threat: str, trust_model_code: bool
) -> nn.Module:
    """Have robustbench load a model from a folder of downloads."""
    with loading(f"robustbench:{dataset}/{threat}/{model}", trust_model_code=trust_model_code):
        loaded: nn.Module = library.load_model(model, model_dir=folder, dataset=dataset, threat_model=threat)
    return loaded


def _entry(name: str) -> tuple[str, str, str, str | list[str] | None]:
    """Return data set, threat and name of a model, and what robustbench would download for it."""
    parts = name.split("/")
    if len(parts) == 1:
        parts = [DATASET, THREAT, *parts]
    if len(parts) != 3:
        raise InvalidInputError(f"robustbench: expected NAME or DATASET/THREAT/NAME, got {name!r}")
    dataset, threat, model = parts
    zoo = {entry.value: threats for entry, threats in _library("robustbench.model_zoo").model_dicts.items()}
    if dataset not in zoo:
        raise UnknownNameError("data set of robustbench", dataset, zoo)
    threats = {entry.value: models for entry, models in zoo[dataset].items()}
    if threat not in threats:
        raise UnknownNameError(f"threat of robustbench's {dataset}", threat, threats)
    models = threats[threat]
    if model not in models:
        raise unknown("robustbench model", model, models, listed_by=f"its model zoo for {dataset} and {threat}")
    return dataset, threat, model, models[model]["gdrive_id"]


def _check_place(weights: Path, model: str, downloaded: str | list[str] | None) -> None:
    """Raise LoadError for weights that robustbench would silently ignore."""
    if not weights.exists():
        raise LoadError(f"{weights}: expected a file or a folder of downloads, got none there")
    if not downloaded:
        raise LoadError(f"weights: expected none, as robustbench loads those of {model} through timm, got {weights}")
    if isinstance(downloaded, list) and not weights.is_dir():
        raise LoadError(
            f"{weights}: expected a folder, as {model} has {len(downloaded)} files of weights, got one file"
        )


def _library(module: str) -> ModuleType:
    """Import a module of robustbench."""
    # robustbench imports torchvision for its data.
    make_torchvision_importable()
    with robustbench_importable():
        return errors.need(module, extra="robustbench", purpose="a model of RobustBench")
