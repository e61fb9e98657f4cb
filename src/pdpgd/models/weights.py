"""Weights: read without running code, loaded strictly, written whole or not at all."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from pdpgd import errors
from pdpgd.data import download
from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, LoadError
from pdpgd.files import replace_file
from pdpgd.models import programs
from pdpgd.models.import_shims import PICKLE

# Where training scripts put the weights among other things.
NESTS = ("state_dict", "model_state_dict", "model", "net")
# What DataParallel and torch.compile put before every name.
PREFIXES = ("module.", "_orig_mod.")
# What the robustness library of MadryLab saves beside the classifier, `model.`: its normalization, which the loader of
# the model puts in front of it, and a copy of both for its attacks.
ROBUSTNESS = ("normalizer.", "attacker.")
# What a file on the Hugging Face hub begins with: hf:OWNER/REPOSITORY/FILE.
HUB = "hf:"
# Errors name at most so many weights.
KEYS_NAMED = 4
CHUNK = 1 << 20

Weights = dict[str, Tensor]


def weights_file(weights: str | Path) -> Path:
    """Find a file of weights on this machine; one on the Hugging Face hub is downloaded unless the cache has it.

    Args:
        weights: A path, or `hf:OWNER/REPOSITORY/FILE`.

    Returns:
        The path of the file.

    Raises:
        LoadError: The file is not in the cache and cannot be downloaded; the message says how to get it.
    """
    source = str(weights)
    if not source.startswith(HUB):
        return Path(weights)
    owner, _, rest = source.removeprefix(HUB).partition("/")
    repository, _, file = rest.partition("/")
    if not owner or not repository or not file:
        raise InvalidInputError(f"weights: expected hf:OWNER/REPOSITORY/FILE, got {source!r}")
    purpose = f"weights from the Hugging Face hub ({source})"
    hub = errors.need("huggingface_hub", extra="timm", purpose=purpose)
    constants = errors.need("huggingface_hub.constants", extra="timm", purpose=purpose)
    try:
        return Path(hub.hf_hub_download(f"{owner}/{repository}", file))
    except FOREIGN_ERRORS as error:  # offline, refused, or not there: each in a class of its own
        raise LoadError(
            f"{source}: expected a file in the cache of Hugging Face ({constants.HF_HUB_CACHE}) or on its hub, got "
            f"{type(error).__name__}; where there is a network, `hf download {owner}/{repository} {file}` puts it into "
            "the cache, which can be copied to a machine that has none"
        ) from error


def read_weights(path: str | Path, *, trust_model_code: bool = False) -> Weights:
    """The tensors of a safetensors or torch.save file by name, on the CPU; `trust_model_code` runs the code in it."""
    return _unwrapped(_read(Path(path), trust_model_code=trust_model_code))


def load_weights(model: nn.Module, path: str | Path, *, trust_model_code: bool = False) -> None:
    """Put the weights of the file into the model: every one of them, into its place, of the same shape."""
    expected = model.state_dict()
    got = _read(Path(path), trust_model_code=trust_model_code)
    if got.keys() != expected.keys():
        got = _unwrapped(got)
    faults = _differences(expected, got)
    if faults:
        raise LoadError(f"{path}: expected the weights of {type(model).__name__}, got others: {'; '.join(faults)}")
    model.load_state_dict(got)


def write_weights(
    path: str | Path, model_or_state: nn.Module | Mapping[str, Tensor], *, metadata: dict[str, str] | None = None
) -> None:
    """Write safetensors. A reader sees the old file or the new one, never half of it, even if the disk is full."""
    safetensors = errors.need("safetensors.torch", extra="models", purpose="writing weights")
    state = model_or_state.state_dict() if isinstance(model_or_state, nn.Module) else model_or_state
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise InvalidInputError(f"weights: expected tensors, got {type(tensor).__name__} for {name!r}")
    # Copies, since safetensors takes neither strided tensors nor two that share memory.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
    replace_file(Path(path), safetensors.save(copies, metadata))


def checksum(path: str | Path) -> str:
    """The SHA-256 of the file, in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise download.unreadable(Path(path), error) from error
    return digest.hexdigest()


def unpickled(path: Path, *, trust_model_code: bool) -> object:
    """What torch.save wrote: tensors in containers, or, if the file is trusted, whatever its code makes."""
    try:
        with warnings.catch_warnings():
            # torch doubts that it can read newer pickle protocols without code; where it cannot, it fails, loudly.
            warnings.filterwarnings("ignore", message="Detected pickle protocol", category=UserWarning)
            pickles = PICKLE if trust_model_code else None
            return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=not trust_model_code)
    except OSError as error:
        raise download.unreadable(path, error) from error
    except FOREIGN_ERRORS as error:  # a damaged pickle fails in any way it likes
        if not trust_model_code and isinstance(error, pickle.UnpicklingError) and programs.is_whole_pickle(path):
            raise programs.refusal(path, error) from error
        raise LoadError(
            f"{path}: expected a file written by torch.save, got one that cannot be read "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error


def _read(path: Path, *, trust_model_code: bool) -> Weights:
    kind = download.kind_of(path)
    if kind == "safetensors":
        return _checked(path, _safetensors(path))
    if kind != "torch.save":
        raise LoadError(f"{path}: expected weights, got a whole model of {kind}: give it as the model")
    content = unpickled(path, trust_model_code=trust_model_code)
    return _checked(path, _unnested(path, content.state_dict() if isinstance(content, nn.Module) else content))


def _safetensors(path: Path) -> object:
    library = errors.need("safetensors.torch", extra="models", purpose=f"reading {path.name}")
    try:
        # Read, not mapped into memory: who overwrites the file later does not change, or crash, a running attack.
        return library.load(path.read_bytes())
    except OSError as error:
        raise download.unreadable(path, error) from error
    except Exception as error:  # SafetensorError, KeyError for a new dtype, ValueError for a shape
        raise LoadError(
            f"{path}: expected safetensors, got a file that is cut short or damaged ({_first_line(error)})"
        ) from error


def _unnested(path: Path, content: object) -> object:
    """The state dict of {"state_dict": ..., "epoch": ...}, if there is just one that can be meant."""
    if not isinstance(content, dict) or _is_state(content):
        return content
    states = [name for name, value in content.items() if _is_state(value)]
    if len(states) > 1:
        raise LoadError(f"{path}: expected one set of weights, got {len(states)}: {_few(map(str, states))}")
    return content[states[0]] if states and states[0] in NESTS else content


def _is_state(content: object) -> bool:
    return isinstance(content, dict) and bool(content) and all(isinstance(value, Tensor) for value in content.values())


def _checked(path: Path, content: object) -> Weights:
    if not isinstance(content, dict):
        raise LoadError(f"{path}: expected tensors by name, got {type(content).__name__}")
    if not content:
        raise LoadError(f"{path}: expected tensors by name, got none")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise LoadError(f"{path}: expected tensors by name, got {type(value).__name__} for {name!r}")
    return dict(content)


def _unwrapped(weights: Weights) -> Weights:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    beside = {name for name in weights if name.startswith(ROBUSTNESS)}
    if beside and all(name in beside or name.startswith("model.") for name in weights):
        return {name.removeprefix("model."): tensor for name, tensor in weights.items() if name not in beside}
    return weights


def _differences(expected: Mapping[str, Tensor], got: Weights) -> list[str]:
    missing = [name for name in expected if name not in got]
    unexpected = sorted(name for name in got if name not in expected)
    shapes = [
        f"{name} expected {tuple(expected[name].shape)}, got {tuple(got[name].shape)}"
        for name in expected
        if name in got and expected[name].shape != got[name].shape
    ]
    faults = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    return [f"{len(names)} {fault} ({_few(names)})" for fault, names in faults.items() if names]


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - KEYS_NAMED} more" if len(listed) > KEYS_NAMED else ""
    return ", ".join(listed[:KEYS_NAMED]) + more


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
