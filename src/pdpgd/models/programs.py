"""Model files that hold code: pickles, TorchScript and torch.export programs, rejected unless the user trusts them.

Pickles are inspected without loading them, and other libraries' pickles are stopped while they load.
"""

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

CONSENT = "if you trust the author of the file, give --trust-model-code (trust_model_code=True in Python)"
"""How a user consents to running code in a file; nothing in a file can consent."""

# How torch, and our hook, name the function or class that a pickle asked for.
GLOBAL = re.compile(r"GLOBAL ([\w.]+)")

# torch.save before 1.6 wrote four pickles in a row: this number, a version, the system, and the saved object.
OLD_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)[2:]
OLD_PARTS = 4

# Index of the argument "training" of the operators that behave differently in training.
TRAINING_ARGUMENT = {"aten.dropout.default": 2, "aten.batch_norm.default": 5}

_refusing: ContextVar[bool] = ContextVar("refusing", default=False)


class CodeRefused(pickle.UnpicklingError):
    """Raised when a pickle asks for a function or class without the user's consent."""


@contextmanager
def unpickling(*, trusted: bool) -> Iterator[None]:
    """Prevent pickles from finding code to run while another library loads a file, or allow it if trusted."""
    if trusted:
        with _torch_load_trusts():
            yield
        return
    _install_hook()
    token = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(token)


@cache
def _install_hook() -> None:
    """Install an audit hook that sees every name that a pickle looks up. It stays installed, and is mostly idle."""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event == "pickle.find_class" and _refusing.get():
            raise CodeRefused(f"GLOBAL {'.'.join(map(str, arguments))}")

    sys.addaudithook(refuse)


@contextmanager
def _torch_load_trusts() -> Iterator[None]:
    """Let libraries that call torch.load without weights_only get False, the default before torch 2.6."""
    name, other = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = {key: os.environ.pop(key) for key in (name, other) if key in os.environ}
    os.environ[name] = "1"
    try:
        with warnings.catch_warnings():
            # torch warns that the variable is set. We set it because the user trusts the file.
            warnings.filterwarnings("ignore", message=f"Environment variable {name}", category=UserWarning)
            yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def refusal(path: str | Path, error: BaseException) -> LoadError:
    """Return the error for a file that needs unpickling, with the name that it asks for if the error contains it."""
    name = GLOBAL.search(str(error))
    what = f" (it asks for {name[1]})" if name else ""
    return LoadError(
        f"{path}: expected plain tensors, got a pickle that runs code when it is loaded{what}; save safetensors or a "
        f"state_dict instead, or, {CONSENT}"
    )


def refused_in(error: BaseException | None) -> BaseException | None:
    """Return the cause of an error that is a refusal by our hook or by torch; None if there is none."""
    while error is not None:
        if isinstance(error, pickle.UnpicklingError) and GLOBAL.search(str(error)):
            return error
        error = error.__cause__ or error.__context__
    return None


def is_whole_pickle(path: Path) -> bool:
    """Return whether a torch.save file, zipped or old, holds a complete pickle, without running it."""
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
    """Return whether a pickle can be parsed up to its STOP opcode."""
    try:
        # A single STOP, which is the character ".", is not a pickle.
        return sum(1 for _ in pickletools.genops(file)) > 1
    except Exception:  # pickletools may raise anything on bytes that are not a pickle
        return False


class Extent(NamedTuple):
    """Allowed sizes of a dimension; `most` is None where there is no limit."""

    least: int
    most: int | None

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.least <= size and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f">= {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


class Script(nn.Module):
    """A TorchScript model in a module that supports what TorchScript does not, such as requires_grad_."""

    def __init__(self, model: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.model(inputs)
        return logits


class Exported(nn.Module):
    """An exported program, which accepts the shapes that it was exported for and raises ModelError for others."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self.model = program.module()
        self.extents = _extents(program)
        # The mode was fixed when the program was exported.
        for module in self.modules():
            module.training = False

    def train(self, mode: bool = True) -> Exported:
        """Do nothing: the mode is fixed, and the graph module of a program rejects even eval()."""
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch; raise ModelError for a shape that the program does not accept."""
        self._check(tuple(inputs.shape))
        try:
            logits: Tensor = self.model(inputs)
        except AssertionError as error:
            raise ModelError(f"the exported program refused inputs of shape {tuple(inputs.shape)}: {error}") from error
        return logits

    def _check(self, shape: tuple[int, ...]) -> None:
        """Raise ModelError unless the program was exported for this shape."""
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
    """Load a file of torch.jit.save. Its code runs whenever the model is called, and may, for example, write files."""
    if not trust_model_code:
        raise _refusal(path, "TorchScript program", "called")
    try:
        with quiet_jit():
            model = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]  # untyped in torch
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"{path}: expected a TorchScript model, got one that torch cannot load ({error})") from error
    return Script(model)


def load_export(path: Path, *, trust_model_code: bool) -> nn.Module:
    """Load a file of torch.export.save. It may hold pickles, and sympy evaluates its symbolic sizes as text."""
    if not trust_model_code:
        raise _refusal(path, "torch.export archive", "loaded")
    try:
        with unpickling(trusted=True):
            program = torch.export.load(str(path))
    except FOREIGN_ERRORS as error:  # torch does not check the graph: a damaged one may raise anything
        raise LoadError(f"{path}: expected an exported program, got one that torch cannot load ({error})") from error
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise LoadError(f"{path}: expected a program of one input, got {len(inputs)}: {', '.join(map(str, inputs))}")
    if _in_training(program):
        warn_user(
            f"{path} was exported in train mode: its logits are random or depend on the batch; "
            "call model.eval() before torch.export.export"
        )
    return Exported(program)


def _refusal(path: Path, what: str, when: str) -> LoadError:
    """Return the error for a program that the user has not consented to run."""
    return LoadError(
        f"{path}: expected weights, which run no code, got a {what}, which runs code of the file when it is {when}; "
        f"give package.module:factory as the model and its weights as safetensors, or, {CONSENT}"
    )


def _extents(program: ExportedProgram) -> tuple[Extent, ...]:
    """Return the allowed sizes of each dimension of the input."""
    (name,) = program.graph_signature.user_inputs
    (node,) = (node for node in program.graph.nodes if node.op == "placeholder" and node.name == name)
    ranges = {str(symbol): interval for symbol, interval in program.range_constraints.items()}
    return tuple(_extent(size, ranges) for size in node.meta["val"].shape)


def _extent(size: int | torch.SymInt, ranges: dict[str, object]) -> Extent:
    """Return the allowed sizes of one dimension, fixed or symbolic."""
    if isinstance(size, int):
        return Extent(size, size)
    interval = ranges.get(str(size))
    return Extent(_whole(getattr(interval, "lower", 0)) or 0, _whole(getattr(interval, "upper", None)))


def _whole(bound: object) -> int | None:
    """Convert a bound to an integer; torch's own infinities become None."""
    try:
        return int(bound)  # type: ignore[call-overload, no-any-return]  # a number of sympy, which torch leaves untyped
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def _in_training(program: ExportedProgram) -> bool:
    """Return whether the program contains an operator in train mode."""
    return any(
        len(node.args) > place and node.args[place] is True
        for node in program.graph.nodes
        if (place := TRAINING_ARGUMENT.get(str(node.target))) is not None
    )
