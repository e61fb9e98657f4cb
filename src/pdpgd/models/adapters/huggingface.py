"""Hugging Face, hf:NAME: image classifiers of transformers, from the hub or a local directory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from pdpgd import errors
from pdpgd.errors import LoadError
from pdpgd.models import programs
from pdpgd.models.adapters import loading
from pdpgd.models.import_shims import make_torchvision_importable, quiet_jit
from pdpgd.models.normalization import Normalization
from pdpgd.models.weights import load_weights


class Logits(nn.Module):
    """Extracts the logits from the output record of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.model(inputs).logits
        return logits


def build(name: str, *, weights: Path | None, trust_model_code: bool) -> nn.Module:
    """Build a classifier with the weights of its checkpoint, or of a file."""
    transformers = _library("transformers")
    source = f"hf:{name}"
    if name.startswith(("/", ".")) and not Path(name).is_dir():
        raise LoadError(f"{source}: expected a directory of save_pretrained, got none there")
    with loading(source, trust_model_code=trust_model_code), _remote_code_refused(source):
        classifier = transformers.AutoModelForImageClassification
        # Never None: transformers would then ask on the terminal, and run the code if anything there answers yes.
        consent = {"trust_remote_code": trust_model_code}
        if weights is not None:
            config = transformers.AutoConfig.from_pretrained(name, **consent)
            model = classifier.from_config(config, **consent)
        else:
            model, report = classifier.from_pretrained(name, output_loading_info=True, **consent)
            _check_trained(source, report)
    if weights is not None:
        load_weights(model, weights, trust_model_code=trust_model_code)
    return Logits(model)


@contextmanager
def _remote_code_refused(source: str) -> Iterator[None]:
    """Explain how to consent when transformers has not run the code next to a checkpoint."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise LoadError(
            f"{source}: expected a model of transformers, got one with Python code of its own, which runs when it is "
            f"loaded; {programs.CONSENT}"
        ) from error


def own_normalization(name: str, model: nn.Module) -> Normalization | None:
    """Return the normalization that its image processor applies to pixels in [0, 1]."""
    source = f"hf:{name}"
    library = _library("transformers.image_processing_base")
    advice = "give the normalization (--mean, --std), or none"
    try:
        with loading(source, trust_model_code=False):
            settings, _ = library.ImageProcessingMixin.get_image_processor_dict(name)
    except LoadError as error:
        raise LoadError(
            f"{source}: expected an image processor, got none that can be read: {advice} ({error})"
        ) from error
    # Nearly every processor first scales pixels from 0 to 255 to [0, 1].
    scale = settings.get("rescale_factor", 1 / 255)
    if not settings.get("do_rescale", True) or settings.get("rescale_offset") or not math.isclose(scale, 1 / 255):
        raise LoadError(f"{source}: expected pixels scaled to [0, 1], got another scale: {advice}")
    if not settings.get("do_normalize", True):
        return None
    mean, std = settings.get("image_mean"), settings.get("image_std")
    if not isinstance(mean, list) or not isinstance(std, list):
        raise LoadError(f"{source}: expected image_mean and image_std of its image processor, got none: {advice}")
    return Normalization(tuple(mean), tuple(std))


def _library(module: str) -> ModuleType:
    """Import a module of transformers."""
    # transformers imports torchvision where it is installed.
    make_torchvision_importable()
    with quiet_jit():
        return errors.need(module, extra="huggingface", purpose="a model of Hugging Face")


def _check_trained(source: str, report: dict[str, Any]) -> None:
    """Raise LoadError if a checkpoint lacks weights, which transformers would fill with random numbers."""
    untrained = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if untrained:
        raise LoadError(f"{source}: expected a trained classifier, got no weights for {', '.join(untrained[:4])}")
