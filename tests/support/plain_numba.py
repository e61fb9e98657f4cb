"""Numba's compiled classes as plain Python: Foolbox compiles Brendel & Bethge's solvers for a minute a norm."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def compile_no_classes() -> None:
    """To be called before Foolbox is imported; `jitclass` then returns the class, with what Foolbox asks of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import numba.experimental

    def plain(spec: Any) -> Callable[[type], type]:
        def keep(kind: Any) -> type:
            kind.class_type, kind._ctor = SimpleNamespace(instance_type=None), SimpleNamespace(signatures=[1])
            made: type = kind
            return made

        return keep

    numba.experimental.jitclass = plain
