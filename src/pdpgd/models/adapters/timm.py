"""timm, timm:NAME: image classifiers of PyTorch Image Models."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from pdpgd import errors
from pdpgd.errors import LoadError
from pdpgd.models.adapters import loading, unknown
from pdpgd.models.import_shims import make_torchvision_importable, quiet_jit
from pdpgd.models.normalization import Normalization
from pdpgd.models.weights import load_weights, read_weights


def build(name: str, *, weights: Path | None, trust_model_code: bool) -> nn.Module:
    """Build a model with pretrained weights, or with those of a file."""
    timm = _library()
    base = name.partition(".")[0]
    # timm looks up hf-hub:OWNER/NAME itself.
    if ":" not in name and not timm.is_model(base):
        raise unknown("timm model", base, timm.list_models(), listed_by="timm.list_models()")
    with loading(f"timm:{name}", trust_model_code=trust_model_code):
        model: nn.Module = timm.create_model(name, pretrained=weights is None)
    if weights is not None:
        _fit_classes(model, weights, trust_model_code=trust_model_code)
        load_weights(model, weights, trust_model_code=trust_model_code)
    return model


def untrained(name: str, *, classes: int) -> nn.Module:
    """Build a model with random weights and a given number of classes."""
    model: nn.Module = _library().create_model(name, pretrained=False, num_classes=classes)
    return model


def own_normalization(name: str, model: nn.Module) -> Normalization:
    """Return the normalization that the model was trained with."""
    config = _config(model)
    if not config.get("mean") or not config.get("std"):
        raise LoadError(
            f"timm:{name}: expected its mean and std in its pretrained_cfg, got none; give them (--mean, --std)"
        )
    return Normalization(tuple(config["mean"]), tuple(config["std"]))


def _library() -> ModuleType:
    """Import timm."""
    # timm imports torchvision for its transforms.
    make_torchvision_importable()
    with quiet_jit():
        return errors.need("timm", extra="timm", purpose="a model of timm")


def _config(model: nn.Module) -> dict[str, Any]:
    """Return the configuration of the pretrained model; empty if it has none."""
    config = getattr(model, "pretrained_cfg", None)
    return dict(config) if config else {}


def _fit_classes(model: Any, weights: Path, *, trust_model_code: bool) -> None:
    """Resize the head of a model to the number of classes of its weights, which may have been fine-tuned."""
    head = read_weights(weights, trust_model_code=trust_model_code).get(f"{_config(model).get('classifier')}.bias")
    if head is not None and head.ndim == 1 and len(head) != model.num_classes:
        model.reset_classifier(len(head))
