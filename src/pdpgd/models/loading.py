"""Models by name or path: shipped nets, the paper's, Python factories, files that hold a model, and others' zoos."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

import torch
from torch import nn

from pdpgd.data import download
from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, LoadError, UnknownNameError, renamed_keyword
from pdpgd.models import programs, zoo
from pdpgd.models.adapters import Adapter
from pdpgd.models.architectures import ARCHITECTURES, architecture_by_name
from pdpgd.models.normalization import Normalization, NormalizationChoice, Normalized, Pooled, pool_by_name
from pdpgd.models.weights import checksum, load_weights, unpickled, weights_file
from pdpgd.models.zoo import ModelCard

# Where the part of a source before its first colon leads.
ADAPTERS = {
    "paper": "pdpgd.models.paper_nets",
    "timm": "pdpgd.models.adapters.timm",
    "robustbench": "pdpgd.models.adapters.robustbench",
    "hf": "pdpgd.models.adapters.huggingface",
}
# Their models take pixels in [0, 1], whatever they make of them inside.
OWN_PREPROCESSING = ("paper", "robustbench")
FORMS = ("package.module:factory", "a path to a model file", *(f"{zoo}:NAME" for zoo in ADAPTERS))
SUFFIXES = (".pt", ".pth", ".ts", ".pt2", ".safetensors", ".bin", ".ckpt", ".pkl")


@renamed_keyword("normalisation", "normalization")
def load_model(
    source: str,
    *,
    weights: str | Path | None = None,
    normalization: NormalizationChoice = None,
    pool: str | None = None,
    trust_model_code: bool = False,
    trust_pickle: bool = False,
) -> nn.Module:
    """Load a model that maps pixels in [0, 1] to logits, in eval mode, on the CPU, with its parameters frozen.

    Args:
        source: The name of a shipped net; `paper:NAME`, one of the nets of the paper; `package.module:factory`, which
            may lie in the current directory; the path of weights that `pdpgd train` wrote, with their card beside
            them; the path of a file written by `torch.jit.save`, `torch.export.save` or `torch.save`; `timm:NAME`;
            `robustbench:NAME` or `robustbench:DATASET/THREAT/NAME`; or `hf:NAME`, from the Hugging Face hub or a
            local directory.
        weights: A file of weights to load into the model, or `hf:OWNER/REPOSITORY/FILE`, from the Hugging Face hub; for
            `paper:NAME`, a MATLAB file of the same layout to read instead of the published one.
        normalization: The normalization to put inside the model. If None, models of timm and Hugging Face get the
            one they were trained with; "none" leaves it out.
        pool: The name of groups of classes that the logits are pooled over, the largest of each (see `pooling`):
            "restricted-imagenet" makes any classifier of ImageNet one of Restricted ImageNet.
        trust_model_code: Consent to run the code that the file of the model or of its weights holds: pickles,
            TorchScript, `torch.export` archives, and Python beside a Hugging Face checkpoint.
        trust_pickle: Alias of `trust_model_code`.

    Returns:
        The model.

    Raises:
        LoadError: The file is missing, damaged or not a model, or holds code and `trust_model_code` was not given.
    """
    if not isinstance(source, str):
        raise InvalidInputError(f"model: expected its name or path as a string, got {type(source).__name__}")
    trust_model_code = trust_model_code or trust_pickle
    groups = None if pool is None else pool_by_name(pool)
    path = None if weights is None else weights_file(weights)
    prefix, colon, rest = source.partition(":")
    # A model is built with random weights before it gets its own: the caller's random state is left as it was.
    with torch.random.fork_rng(devices=[]):
        if colon and prefix in ADAPTERS:
            model, own = _from_zoo_of_others(prefix, rest, path, normalization, trust_model_code)
        else:
            model, own = _own_or_users(source, path, normalization, trust_model_code), None
    chosen = own if normalization is None else normalization
    model = model.cpu().requires_grad_(False).eval()
    model = Normalized(model, chosen) if isinstance(chosen, Normalization) else model
    return model if groups is None else Pooled(model, groups)


def _from_zoo_of_others(
    zoo: str, name: str, weights: Path | None, normalization: NormalizationChoice, trust_model_code: bool
) -> tuple[nn.Module, Normalization | None]:
    if not name:
        raise InvalidInputError(f"model: expected {zoo}:NAME, got no name")
    if zoo in OWN_PREPROCESSING:
        _refuse(f"{zoo}:{name}", "normalizes its inputs itself", normalization=normalization)
    # A module is its own adapter: it has the functions of one.
    adapter = cast(Adapter, importlib.import_module(ADAPTERS[zoo]))
    model = adapter.build(name, weights=weights, trust_model_code=trust_model_code)
    return model, adapter.own_normalization(name, model) if normalization is None else None


def _own_or_users(
    source: str, weights: Path | None, normalization: NormalizationChoice, trust_model_code: bool
) -> nn.Module:
    if source in zoo.names():
        _refuse(source, "is shipped whole", weights=weights, normalization=normalization)
        return _from_card(zoo.path(source))
    if _is_path(source):
        _refuse(source, "holds its own weights", weights=weights)
        return _from_file(Path(source), trust_model_code=trust_model_code)
    if ":" not in source:
        raise UnknownNameError("model", source, [*zoo.names(), *FORMS])
    model = _from_factory(source)
    if weights is not None:
        load_weights(model, weights, trust_model_code=trust_model_code)
    return model


def _refuse(source: str, why: str, *, weights: Path | None = None, normalization: NormalizationChoice = None) -> None:
    if weights is not None:
        raise InvalidInputError(f"weights: expected none, as {source} {why}, got {str(weights)!r}")
    if isinstance(normalization, Normalization):
        raise InvalidInputError(f"normalization: expected none, as {source} {why}, got {normalization}")


def is_factory(source: str) -> bool:
    """Whether the source names Python code that builds the model: package.module:factory."""
    prefix, colon, _ = source.partition(":")
    return bool(colon) and prefix not in ADAPTERS and source not in zoo.names() and not _is_path(source)


def _is_path(source: str) -> bool:
    return Path(source).suffix in SUFFIXES or Path(source).name != source or Path(source).is_file()


def _from_file(path: Path, *, trust_model_code: bool) -> nn.Module:
    kind = download.kind_of(path)
    if kind == "safetensors" and path.with_suffix(".json").exists():
        return _from_card(path)
    if kind == "torch.jit":
        return programs.load_script(path, trust_model_code=trust_model_code)
    if kind == "torch.export":
        return programs.load_export(path, trust_model_code=trust_model_code)
    if kind == "torch.save":
        with _current_directory_importable():
            content = unpickled(path, trust_model_code=trust_model_code)
        if isinstance(content, nn.Module):
            return content
    raise LoadError(
        f"{path}: expected a model, got a file of {kind} with weights alone: "
        "give the model as package.module:factory, and this file as its weights"
    )


def _from_card(weights: Path) -> nn.Module:
    """What `pdpgd train` wrote: the card beside the weights names the architecture and their checksum."""
    card = ModelCard.read(weights.with_suffix(".json"))
    if card.architecture not in ARCHITECTURES:
        # A card is data: to import what it names would be to run code that nobody asked for.
        raise LoadError(
            f"{weights}: expected a card with one of our architectures ({', '.join(ARCHITECTURES)}), "
            f"got {card.architecture!r}; give package.module:factory as the model and this file as its weights "
            f"(--weights {weights})"
        )
    found = checksum(weights)
    if found != card.sha256:
        raise LoadError(f"{weights}: expected the checksum {card.sha256} of its card, got {found}")
    model = ARCHITECTURES[card.architecture].untrained()
    load_weights(model, weights)
    return model


def untrained(architecture: str, *, seed: int = 0) -> nn.Module:
    """The net of a known architecture, or of package.module:factory, with the initial weights of this seed."""
    if ":" not in architecture:
        return architecture_by_name(architecture).untrained(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _from_factory(architecture)


def _from_factory(source: str) -> nn.Module:
    name, _, attribute = source.partition(":")
    with _current_directory_importable():
        factory = _attribute(_module(name, source), name, attribute)
        if isinstance(factory, nn.Module):
            return factory
        if not callable(factory):
            raise LoadError(f"{source}: expected a function that makes a model, got {type(factory).__name__}")
        try:
            model = factory()
        except FOREIGN_ERRORS as error:
            raise LoadError(f"{source}: expected a model, got {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise LoadError(f"{source}: expected it to return a torch.nn.Module, got {type(model).__name__}")
    return model


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """As under python -m, whatever the console script that started us put on the path."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _module(name: str, source: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise LoadError(f"{source}: expected package.module:factory, got no module name before the colon")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise LoadError(f"{source}: {name} was found, but imports {error.name}, which was not") from error
        near = difflib.get_close_matches(name, ADAPTERS, n=1)
        suggestion = f"; did you mean {near[0]}:{source.partition(':')[2]}?" if near else ""
        raise LoadError(
            f"{source}: expected a module that can be imported, got no module {error.name!r}{suggestion}"
        ) from error
    except FOREIGN_ERRORS as error:
        raise LoadError(f"{source}: importing {name} failed with {type(error).__name__}: {error}") from error


def _attribute(module: ModuleType, name: str, attribute: str) -> object:
    if not hasattr(module, attribute):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise UnknownNameError(f"name in {name}", attribute, known)
    return getattr(module, attribute)
