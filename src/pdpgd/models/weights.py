"""Files of weights: found or downloaded, read without running code, loaded strictly, and written atomically.

Also tells apart the kinds of files that hold weights or whole models.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from pdpgd import errors
from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, LoadError
from pdpgd.files import replace_file
from pdpgd.models import programs
from pdpgd.models.import_shims import PICKLE

# Keys under which training scripts save the weights among other things.
NESTS = ("state_dict", "model_state_dict", "model", "net")
# Prefixes that DataParallel and torch.compile add to every name.
PREFIXES = ("module.", "_orig_mod.")
# Prefixes of what MadryLab's robustness library saves next to the classifier, `model.`: its normalization, which the
# user gives when loading the model, and a copy of both for its attacks.
ROBUSTNESS = ("normalizer.", "attacker.")
# Prefix of a file on the Hugging Face hub: hf:OWNER/REPOSITORY/FILE.
HUB = "hf:"
# Maximum number of weights that an error message lists.
KEYS_NAMED = 4
# Bytes at the beginning of a file that show its kind.
HEAD = 16
# Bytes that are read at once for a checksum.
CHUNK = 1 << 20

Weights = dict[str, Tensor]
FileKind = Literal["safetensors", "torch.save", "torch.jit", "torch.export"]


def weights_file(weights: str | Path) -> Path:
    """Find a file of weights on this machine, or download it from the Hugging Face hub into its cache.

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
    except FOREIGN_ERRORS as error:  # offline, refused or missing: each has its own class
        raise LoadError(
            f"{source}: expected a file in the cache of Hugging Face ({constants.HF_HUB_CACHE}) or on its hub, got "
            f"{type(error).__name__}; on a machine with a network, `hf download {owner}/{repository} {file}` puts it "
            "into the cache, which can be copied to one without"
        ) from error


def read_weights(path: str | Path, *, trust_model_code: bool = False) -> Weights:
    """Read the tensors of a safetensors or torch.save file.

    Args:
        path: The file.
        trust_model_code: Consent to run the code that a pickle in it holds.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        LoadError: The file is missing, damaged, holds something else, or holds code without consent.
    """
    return _unwrapped(_read(Path(path), trust_model_code=trust_model_code))


def load_weights(model: nn.Module, path: str | Path, *, trust_model_code: bool = False) -> None:
    """Load weights into a model strictly: names and shapes must be the same.

    Args:
        model: The model that gets the weights.
        path: A safetensors or torch.save file.
        trust_model_code: Consent to run the code that a pickle in it holds.

    Raises:
        LoadError: The file cannot be read, or holds the weights of another model.
    """
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
    """Write weights as safetensors, atomically: a reader sees the old file or the new one, even if the disk is full.

    Args:
        path: The file.
        model_or_state: A model, or tensors by name.
        metadata: Text to store in the header of the file.

    Raises:
        InvalidInputError: A value is not a tensor.
        LoadError: The file cannot be written.
    """
    safetensors = errors.need("safetensors.torch", extra="models", purpose="writing weights")
    state = model_or_state.state_dict() if isinstance(model_or_state, nn.Module) else model_or_state
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise InvalidInputError(f"weights: expected tensors, got {type(tensor).__name__} for {name!r}")
    # Copies, because safetensors accepts neither strided tensors nor two that share memory.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
    replace_file(Path(path), safetensors.save(copies, metadata))


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise unreadable(Path(path), error) from error
    return digest.hexdigest()


def unpickled(path: Path, *, trust_model_code: bool) -> object:
    """Load a torch.save file: tensors in containers or, if the file is trusted, any object that its code builds."""
    try:
        with warnings.catch_warnings():
            # torch warns that it may not read newer pickle protocols without code; where it cannot, it raises.
            warnings.filterwarnings("ignore", message="Detected pickle protocol", category=UserWarning)
            pickles = PICKLE if trust_model_code else None
            return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=not trust_model_code)
    except OSError as error:
        raise unreadable(path, error) from error
    except FOREIGN_ERRORS as error:  # a damaged pickle may raise anything
        if not trust_model_code and isinstance(error, pickle.UnpicklingError) and programs.is_whole_pickle(path):
            raise programs.refusal(path, error) from error
        raise LoadError(
            f"{path}: expected a file written by torch.save, got one that cannot be read "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error


def file_kind(path: Path) -> FileKind:
    """Return the program that wrote a file; raise LoadError if it is missing, empty, a folder or a damaged archive."""
    head = _head(path)
    if head.startswith(b"PK"):
        return _kind_of_archive(path)
    # A safetensors file starts with the length of its header, eight bytes, and the header is JSON.
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return "safetensors"
    # torch.save before 1.6 wrote bare pickles.
    return "torch.save"


def unreadable(path: Path, error: OSError) -> LoadError:
    """Return the error for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return LoadError(f"{path}: expected a file, got none there")
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return LoadError(f"{path}: expected a file, got a directory")
    return LoadError(f"{path}: expected a file that can be read, got an error: {error.strerror or error}")


def _head(path: Path) -> bytes:
    """Read the first bytes of a file."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    if not head:
        raise LoadError(f"{path}: expected weights or a model, got an empty file")
    return head


def _kind_of_archive(path: Path) -> FileKind:
    """Return the kind of one of torch's archives by the files in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # An archive without its end looks like the last of the archives inside it.
            if min((entry.header_offset for entry in archive.infolist()), default=0) > 0:
                raise zipfile.BadZipFile("its directory describes only a part of it")
    except (OSError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise LoadError(f"{path}: expected a whole archive, got one that is cut short or damaged ({error})") from error
    # torch puts everything into one folder, named after the file.
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torch.jit"
    # The second is what torch.export.save wrote before 2.8.
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return "torch.export"
    if "data.pkl" in inner:
        return "torch.save"
    raise LoadError(f"{path}: expected an archive written by torch, got another zip file, with {names[:3]}")


def _read(path: Path, *, trust_model_code: bool) -> Weights:
    """Read a file of weights without unwrapping their names."""
    kind = file_kind(path)
    if kind == "safetensors":
        return _checked(path, _safetensors(path))
    if kind != "torch.save":
        raise LoadError(f"{path}: expected weights, got a whole model of {kind}: give it as the model")
    content = unpickled(path, trust_model_code=trust_model_code)
    return _checked(path, _unnested(path, content.state_dict() if isinstance(content, nn.Module) else content))


def _safetensors(path: Path) -> object:
    """Read a safetensors file."""
    library = errors.need("safetensors.torch", extra="models", purpose=f"reading {path.name}")
    try:
        # Read, not mapped into memory: overwriting the file later neither changes nor crashes a running attack.
        return library.load(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # SafetensorError, KeyError for an unknown dtype, ValueError for a shape
        raise LoadError(
            f"{path}: expected safetensors, got a file that is cut short or damaged ({_first_line(error)})"
        ) from error


def _unnested(path: Path, content: object) -> object:
    """Return the state dict inside {"state_dict": ..., "epoch": ...}, if there is exactly one."""
    if not isinstance(content, dict) or _is_state(content):
        return content
    states = [name for name, value in content.items() if _is_state(value)]
    if len(states) > 1:
        raise LoadError(f"{path}: expected one set of weights, got {len(states)}: {_few(map(str, states))}")
    return content[states[0]] if states and states[0] in NESTS else content


def _is_state(content: object) -> bool:
    """Return whether the content is a non-empty dict of tensors."""
    return isinstance(content, dict) and bool(content) and all(isinstance(value, Tensor) for value in content.values())


def _checked(path: Path, content: object) -> Weights:
    """Raise LoadError unless the content is tensors by name."""
    if not isinstance(content, dict):
        raise LoadError(f"{path}: expected tensors by name, got {type(content).__name__}")
    if not content:
        raise LoadError(f"{path}: expected tensors by name, got none")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise LoadError(f"{path}: expected tensors by name, got {type(value).__name__} for {name!r}")
    return dict(content)


def _unwrapped(weights: Weights) -> Weights:
    """Remove the prefixes and copies that wrappers add to the names of weights."""
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    beside = {name for name in weights if name.startswith(ROBUSTNESS)}
    if beside and all(name in beside or name.startswith("model.") for name in weights):
        return {name.removeprefix("model."): tensor for name, tensor in weights.items() if name not in beside}
    return weights


def _differences(expected: Mapping[str, Tensor], got: Weights) -> list[str]:
    """Describe missing, unexpected and misshapen weights, one entry each."""
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
    """List the first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - KEYS_NAMED} more" if len(listed) > KEYS_NAMED else ""
    return ", ".join(listed[:KEYS_NAMED]) + more


def _first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
