"""Files that would run code when they are loaded: seen without loading them, and refused unless trusted."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from pdpgd.errors import FOREIGN_ERRORS, LoadError, ModelError, warn_user
from pdpgd.models.import_shims import quiet_jit

CONSENT = "if you trust whoever made the file, give --trust-model-code (trust_model_code=True in Python)"
"""How a user says that code in a file may run; nothing that lies in a file says it."""

# How torch names what a pickle asked for, and so do we.
GLOBAL = re.compile(r"GLOBAL ([\w.]+)")

# torch.save before 1.6 wrote four pickles in a row: this number, a version, the system, and what was saved.
OLD_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)[2:]
OLD_PARTS = 4

_refusing: ContextVar[bool] = ContextVar("refusing", default=False)


class CodeRefused(pickle.UnpicklingError):
    """A pickle asked for a function or a class to call."""


@contextmanager
def unpickling(*, trusted: bool) -> Iterator[None]:
    """While another library loads a file: no pickle finds code to run, or, if trusted, each may."""
    if trusted:
        with _torch_load_trusts():
            yield
        return
    _watch()
    token = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(token)


@cache
def _watch() -> None:
    """Have the interpreter ask before any pickle looks up a name. Such a hook stays for good: set once, idle mostly."""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event == "pickle.find_class" and _refusing.get():
            raise CodeRefused(f"GLOBAL {'.'.join(map(str, arguments))}")

    sys.addaudithook(refuse)


@contextmanager
def _torch_load_trusts() -> Iterator[None]:
    """A library that calls torch.load without weights_only gets False, the default before torch 2.6."""
    name, other = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = {key: os.environ.pop(key) for key in (name, other) if key in os.environ}
    os.environ[name] = "1"
    try:
        with warnings.catch_warnings():
            # torch reports that the variable is set. We set it, since the user said that the file is trusted.
            warnings.filterwarnings("ignore", message=f"Environment variable {name}", category=UserWarning)
            yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def refusal(path: str | Path, error: BaseException) -> LoadError:
    """The error for a file that needs unpickling, with the name it asks for where torch or our hook tells it."""
    name = GLOBAL.search(str(error))
    what = f" (it asks for {name[1]})" if name else ""
    return LoadError(
        f"{path}: expected plain tensors, got a pickle that runs code when it is loaded{what}; save safetensors or a "
        f"state_dict instead, or, {CONSENT}"
    )


def refused_in(error: BaseException | None) -> BaseException | None:
    """The refusal among the causes of an error, by our hook or by torch, if there is one."""
    while error is not None:
        if isinstance(error, pickle.UnpicklingError) and GLOBAL.search(str(error)):
            return error
        error = error.__cause__ or error.__context__
    return None


def is_whole_pickle(path: Path) -> bool:
    """Whether a torch.save file, zipped or old, holds a pickle that can be read to its end. Nothing is run."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                parts = OLD_PARTS if OLD_MAGIC in file.read(len(OLD_MAGIC) * 2) else 1
                file.seek(0)
                return all(_reads_to_its_end(file) for _ in range(parts))
        with zipfile.ZipFile(path) as archive:
            (entry,) = (name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl")
            with archive.open(entry) as file:
                return _reads_to_its_end(file)
    except (OSError, zipfile.BadZipFile, EOFError, ValueError):
        return False


def _reads_to_its_end(file: IO[bytes]) -> bool:
    try:
        # A lone STOP, which is a full stop in a text, is no pickle.
        return sum(1 for _ in pickletools.genops(file)) > 1
    except Exception:  # pickletools fails in any way it likes on bytes that are no pickle
        return False


# The place of the argument that says "training", among those of the operators that behave otherwise in it.
TRAINING_ARGUMENT = {"aten.dropout.default": 2, "aten.batch_norm.default": 5}


class Extent(NamedTuple):
    """How long a dimension may be; `most` is None where there is no limit."""

    least: int
    most: int | None

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.least <= size and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f">= {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


class Script(nn.Module):
    """A TorchScript model inside a module that does what TorchScript refuses, such as requires_grad_."""

    def __init__(self, model: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs)
        return logits


class Exported(nn.Module):
    """An exported program, which takes the shapes it was exported for and says so if it gets others."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self.model = program.module()
        self.extents = _extents(program)
        # The mode was settled when the program was exported.
        for module in self.modules():
            module.training = False

    def train(self, mode: bool = True) -> Exported:
        """Nothing to switch: the graph module of a program refuses even eval()."""
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        self._check(tuple(inputs.shape))
        try:
            logits: Tensor = self.model(inputs)
        except AssertionError as error:
            raise ModelError(f"the exported program refused inputs of shape {tuple(inputs.shape)}: {error}") from error
        return logits

    def _check(self, shape: tuple[int, ...]) -> None:
        batch, *rest = self.extents
        if len(shape) != len(self.extents) or not all(map(Extent.__contains__, rest, shape[1:])):
            wanted = ", ".join(map(str, ["batch", *rest]))
            raise ModelError(f"the program was exported for inputs of shape ({wanted}), got {shape}")
        if shape[0] not in batch:
            raise ModelError(
                f"the program was exported for a batch of {batch}, got {shape[0]}: export it with a dynamic batch "
                'dimension, torch.export.export(model, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},))'
            )


def load_script(path: Path, *, trust_model_code: bool) -> nn.Module:
    """A file of torch.jit.save. Its code may write files, for one, whenever the model is called."""
    if not trust_model_code:
        raise _refusal(path, "TorchScript program", "called")
    try:
        with quiet_jit():
            model = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]  # untyped in torch
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"{path}: expected a TorchScript model, got one that torch cannot load ({error})") from error
    return Script(model)


def load_export(path: Path, *, trust_model_code: bool) -> nn.Module:
    """A file of torch.export.save. It may hold pickles, and its symbolic sizes are text that sympy evaluates."""
    if not trust_model_code:
        raise _refusal(path, "torch.export archive", "loaded")
    try:
        with unpickling(trusted=True):
            program = torch.export.load(str(path))
    except FOREIGN_ERRORS as error:  # torch unpacks the graph without checks: a damaged one may raise anything
        raise LoadError(f"{path}: expected an exported program, got one that torch cannot load ({error})") from error
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise LoadError(f"{path}: expected a program of one input, got {len(inputs)}: {', '.join(map(str, inputs))}")
    if _in_training(program):
        warn_user(
            f"{path} was exported in train mode: its answers depend on chance or on the batch; "
            "call model.eval() before torch.export.export"
        )
    return Exported(program)


def _refusal(path: Path, what: str, when: str) -> LoadError:
    return LoadError(
        f"{path}: expected weights, which run no code, got a {what}, which runs code of the file when it is {when}; "
        f"give package.module:factory as the model and its weights as safetensors, or, {CONSENT}"
    )


def _extents(program: ExportedProgram) -> tuple[Extent, ...]:
    """How long each dimension of the input may be."""
    (name,) = program.graph_signature.user_inputs
    (node,) = (node for node in program.graph.nodes if node.op == "placeholder" and node.name == name)
    ranges = {str(symbol): interval for symbol, interval in program.range_constraints.items()}
    return tuple(_extent(size, ranges) for size in node.meta["val"].shape)


def _extent(size: int | torch.SymInt, ranges: dict[str, object]) -> Extent:
    if isinstance(size, int):
        return Extent(size, size)
    interval = ranges.get(str(size))
    return Extent(_whole(getattr(interval, "lower", 0)) or 0, _whole(getattr(interval, "upper", None)))


def _whole(bound: object) -> int | None:
    """A bound as a number; torch has infinities of its own."""
    try:
        return int(bound)  # type: ignore[call-overload, no-any-return]  # a number of sympy, which torch leaves untyped
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def _in_training(program: ExportedProgram) -> bool:
    return any(
        len(node.args) > place and node.args[place] is True
        for node in program.graph.nodes
        if (place := TRAINING_ARGUMENT.get(str(node.target))) is not None
    )
