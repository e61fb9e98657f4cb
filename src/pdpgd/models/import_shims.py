"""The one place of import shims: faults of other libraries' imports, and former names of our own classes."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import IO, Any

import torch

# Operators that torchvision describes to torch on import, and that are missing if its binary did not load.
UNDECLARED = ("nms", "qnms")

# Former names of the classes that a saved model may consist of: specs of runs write them, and pickles name them.
FORMER_NAMES = {
    f"pdpgd.models.{today}": f"pdpgd.subjects.{former}"
    for today, former in (
        ("architectures._Residual", "architectures._Residual"),
        ("normalization.Normalized", "normalise.Normalised"),
        ("normalization.Pool", "pooling.Pool"),
        ("normalization.Pooled", "pooling.Pooled"),
        ("programs.Script", "programs.Script"),
        ("programs.Exported", "programs.Exported"),
        ("programs.Extent", "programs.Extent"),
        ("adapters.huggingface.Logits", "adapters.huggingface.Logits"),
    )
}
_TODAY = {former: today for today, former in FORMER_NAMES.items()}


def name_on_disk(kind: Any) -> str:
    """Return the full name of a class or function as run specs write it: its former name if it has moved.

    A run that an older version began is resumed only if its spec is the same.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    return FORMER_NAMES.get(name, name)


class _FormerNames(pickle.Unpickler):
    """Finds classes that have moved within this package by their former names."""

    def find_class(self, module: str, name: str) -> Any:
        if (today := _TODAY.get(f"{module}.{name}")) is not None:
            module, _, name = today.rpartition(".")
        return super().find_class(module, name)


def _load(file: IO[bytes], **settings: Any) -> Any:
    return _FormerNames(file, **settings).load()


PICKLE = SimpleNamespace(__name__="pickle", Unpickler=_FormerNames, load=_load)
"""Stands in for the module `pickle` in torch.load, to load whole models that an older version saved."""


@contextmanager
def quiet_jit() -> Iterator[None]:
    """Suppress torch's warnings that torch.jit is deprecated: users of timm or of a given file cannot change that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning)
        yield


@cache
def make_torchvision_importable() -> None:
    """Import torchvision, and work around its missing operators with a CPU build of torch.

    The wheel of torchvision on PyPI is built for CUDA: with a CPU build of torch, its operators are missing, and its
    import stops at the first of them. Models do not call them, so that it is enough to declare them. Where torchvision
    imports without help or is not installed, nothing is done: a library that needs it reports the error itself.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        _declare_operators()
        importlib.import_module("torchvision")


@cache
def _declare_operators() -> torch.library.Library:
    """Declare the missing operators; the declarations live as long as the library object, which the cache holds."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # untyped in torch
    for name in UNDECLARED:
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]  # untyped in torch
    return library


@contextmanager
def robustbench_importable() -> Iterator[None]:
    """Provide the module `autoattack` to robustbench, and suppress warnings about its age.

    robustbench 1.1.1 requires the package pyautoattack, but imports it by its older name, autoattack, which is not on
    PyPI. The new module stands in for the old one during the import. The old modules of timm and setuptools that
    robustbench imports warn that they are deprecated, which is not for our users to fix.
    """
    lent = importlib.util.find_spec("autoattack") is None and importlib.util.find_spec("pyautoattack") is not None
    if lent:
        sys.modules["autoattack"] = importlib.import_module("pyautoattack")
    try:
        with quiet_jit():
            for message in (r"Importing from timm\.", "pkg_resources is deprecated"):
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        if lent:
            for name in [name for name in sys.modules if name.partition(".")[0] == "autoattack"]:
                del sys.modules[name]
