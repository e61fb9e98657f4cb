"""Loading of models by name or path: shipped nets, nets of the paper, Python factories, files, and other libraries."""

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

from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, LoadError, UnknownNameError, renamed_keyword
from pdpgd.models import programs, zoo
from pdpgd.models.adapters import Adapter
from pdpgd.models.architectures import ARCHITECTURES, architecture_by_name
from pdpgd.models.normalization import Normalization, NormalizationChoice, Normalized, Pooled, pool_by_name
from pdpgd.models.weights import checksum, file_kind, load_weights, unpickled, weights_file
from pdpgd.models.zoo import ModelCard

# Adapters by the part of a source before its first colon.
ADAPTERS = {
    "paper": "pdpgd.models.paper_nets",
    "timm": "pdpgd.models.adapters.timm",
    "robustbench": "pdpgd.models.adapters.robustbench",
    "hf": "pdpgd.models.adapters.huggingface",
}
# Adapters whose models take pixels in [0, 1] and normalize them inside.
OWN_PREPROCESSING = ("paper", "robustbench")
FORMS = ("package.module:factory", "a path to a model file", *(f"{library}:NAME" for library in ADAPTERS))
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
    """Load a model that maps pixels in [0, 1] to logits, in eval mode, on the CPU, with frozen parameters.

    Args:
        source: One of

            - the name of a shipped net, such as "mnist-plain";
            - `paper:NAME`, a net of the paper;
            - `package.module:factory`, a function that builds the model; the module may be in the current directory;
            - the path of weights that `pdpgd train` wrote, with their card next to them;
            - the path of a file written by `torch.jit.save`, `torch.export.save` or `torch.save`;
            - `timm:NAME`, `robustbench:NAME` or `robustbench:DATASET/THREAT/NAME`;
            - `hf:NAME`, a model on the Hugging Face hub or a local directory.
        weights: A file of weights to load into the model, or `hf:OWNER/REPOSITORY/FILE` on the Hugging Face hub; for
            `paper:NAME`, a MATLAB file of the same layout to read instead of the published one.
        normalization: Normalization to put inside the model. With None, models of timm and Hugging Face get the one
            that they were trained with; with "none", they get none.
        pool: Name of groups of classes to pool the logits over, by their maximum (see `Pooled`):
            "restricted-imagenet" turns an ImageNet classifier into one of Restricted ImageNet.
        trust_model_code: Consent to run the code in the file of the model or of its weights: pickles, TorchScript,
            `torch.export` archives, and Python next to a Hugging Face checkpoint.
        trust_pickle: Alias of `trust_model_code`.

    Returns:
        The model.

    Raises:
        InvalidInputError: The arguments do not go together.
        UnknownNameError: There is no model, pool or adapter of that name.
        LoadError: The file is missing, damaged or not a model, or holds code and `trust_model_code` was not given.
        MissingExtraError: An optional library is needed, such as timm.

    Example:
        >>> model = pdpgd.load_model("mnist-linf-at")
        >>> model(images).shape
        torch.Size([4, 10])
        >>> model = pdpgd.load_model("timm:resnet18", weights="tuned.safetensors")  # doctest: +SKIP
    """
    if not isinstance(source, str):
        raise InvalidInputError(f"model: expected its name or path as a string, got {type(source).__name__}")
    trust_model_code = trust_model_code or trust_pickle
    groups = None if pool is None else pool_by_name(pool)
    path = None if weights is None else weights_file(weights)
    prefix, colon, rest = source.partition(":")
    # A model is built with random weights before it gets its own: the caller's random state is restored.
    with torch.random.fork_rng(devices=[]):
        if colon and prefix in ADAPTERS:
            model, own = _from_adapter(prefix, rest, path, normalization, trust_model_code)
        else:
            model, own = _own_or_users(source, path, normalization, trust_model_code), None
    chosen = own if normalization is None else normalization
    model = model.cpu().requires_grad_(False).eval()
    model = Normalized(model, chosen) if isinstance(chosen, Normalization) else model
    return model if groups is None else Pooled(model, groups)


def _from_adapter(
    library: str, name: str, weights: Path | None, normalization: NormalizationChoice, trust_model_code: bool
) -> tuple[nn.Module, Normalization | None]:
    """Load a model of another library, with the normalization it was trained with."""
    if not name:
        raise InvalidInputError(f"model: expected {library}:NAME, got no name")
    if library in OWN_PREPROCESSING:
        _refuse(f"{library}:{name}", "normalizes its inputs itself", normalization=normalization)
    # A module is an adapter: it has the functions of the protocol.
    adapter = cast(Adapter, importlib.import_module(ADAPTERS[library]))
    model = adapter.build(name, weights=weights, trust_model_code=trust_model_code)
    return model, adapter.own_normalization(name, model) if normalization is None else None


def _own_or_users(
    source: str, weights: Path | None, normalization: NormalizationChoice, trust_model_code: bool
) -> nn.Module:
    """Load a shipped net, a file, or the model of a Python factory."""
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
    """Raise InvalidInputError for weights or a normalization that a source does not take."""
    if weights is not None:
        raise InvalidInputError(f"weights: expected none, as {source} {why}, got {str(weights)!r}")
    if isinstance(normalization, Normalization):
        raise InvalidInputError(f"normalization: expected none, as {source} {why}, got {normalization}")


def is_factory(source: str) -> bool:
    """Return whether the source names Python code that builds the model: package.module:factory."""
    prefix, colon, _ = source.partition(":")
    return bool(colon) and prefix not in ADAPTERS and source not in zoo.names() and not _is_path(source)


def _is_path(source: str) -> bool:
    """Return whether the source is the path of a file rather than a name."""
    return Path(source).suffix in SUFFIXES or Path(source).name != source or Path(source).is_file()


def _from_file(path: Path, *, trust_model_code: bool) -> nn.Module:
    """Load a file that holds a whole model."""
    kind = file_kind(path)
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
    """Load weights that `pdpgd train` wrote: the card next to them names the architecture and their checksum."""
    card = ModelCard.read(weights.with_suffix(".json"))
    if card.architecture not in ARCHITECTURES:
        # A card is data: importing a module that it names would run code without the user's consent.
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
    """Build the net of a known architecture, or of package.module:factory, with the initial weights of a seed."""
    if ":" not in architecture:
        return architecture_by_name(architecture).untrained(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _from_factory(architecture)


def _from_factory(source: str) -> nn.Module:
    """Call package.module:factory; an attribute that is a model already is returned."""
    name, _, attribute = source.partition(":")
    with _current_directory_importable():
        factory = _attribute(_module(name, source), name, attribute)
        if isinstance(factory, nn.Module):
            return factory
        if not callable(factory):
            raise LoadError(f"{source}: expected a function that builds a model, got {type(factory).__name__}")
        try:
            model = factory()
        except FOREIGN_ERRORS as error:
            raise LoadError(f"{source}: expected a model, got {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise LoadError(f"{source}: expected it to return a torch.nn.Module, got {type(model).__name__}")
    return model


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Make modules in the current directory importable, as under python -m."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _module(name: str, source: str) -> ModuleType:
    """Import a module, and say in an error what is wrong with it."""
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
    """Look up an attribute of a module."""
    if not hasattr(module, attribute):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise UnknownNameError(f"name in {name}", attribute, known)
    return getattr(module, attribute)
