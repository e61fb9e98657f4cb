"""Faults that show when other libraries are imported beside the torch of today, each worked around here alone."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# What torchvision describes to torch while it is imported, and does not have if its binary did not load.
UNDECLARED = ("nms", "qnms")


@contextmanager
def quiet_jit() -> Iterator[None]:
    """Without torch's notes that torch.jit is deprecated: who was given a file, or uses timm, cannot change that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning)
        yield


@cache
def make_torchvision_importable() -> None:
    """Import torchvision, whose wheel on PyPI is built for CUDA: beside a CPU build of torch its operators are missing,
    and its import stops at the first of them. Models do not call them, so that it is enough to declare them. Where
    torchvision imports as it is, or is not installed, nothing is done: who needs it then says so.
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
    """The declarations live as long as the library object, which the cache keeps."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # untyped in torch
    for name in UNDECLARED:
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]  # untyped in torch
    return library


@contextmanager
def robustbench_importable() -> Iterator[None]:
    """robustbench 1.1.1 asks pip for pyautoattack, but imports it by its older name, autoattack, which is not on PyPI.
    It lends its name for that import. The old modules that robustbench imports warn of their age; that is not ours.
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
