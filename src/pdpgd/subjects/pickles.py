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
from typing import IO

from pdpgd.errors import SubjectError

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


def refusal(path: str | Path, error: BaseException) -> SubjectError:
    """The error for a file that needs unpickling, with the name it asks for where torch or our hook tells it."""
    name = GLOBAL.search(str(error))
    what = f" (it asks for {name[1]})" if name else ""
    return SubjectError(
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
