"""Public names that have moved: importing them from their old place works, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

MODULES: Mapping[str, tuple[str, ...]] = {
    "pdpgd.attacks.contract": ("pdpgd.attacks.base",),
    "pdpgd.attacks.pdgd": ("pdpgd.attacks.primal_dual",),
    "pdpgd.attacks.pdpgd": ("pdpgd.attacks.primal_dual",),
    "pdpgd.catalogue": ("pdpgd.attacks.catalogue",),
    "pdpgd.evaluation.comparison": ("pdpgd.runs.comparison",),
    "pdpgd.evaluation.contest": ("pdpgd.evaluation.compare",),
    "pdpgd.evaluation.metrics": ("pdpgd.runs.metrics",),
    "pdpgd.evaluation.records": ("pdpgd.runs.records",),
    "pdpgd.evaluation.reliability": ("pdpgd.runs.reliability",),
    "pdpgd.evaluation.result": ("pdpgd.runs.result",),
    "pdpgd.evaluation.run": ("pdpgd.evaluation.scheduler",),
    "pdpgd.evaluation.runner": ("pdpgd.evaluation.evaluate", "pdpgd.runs.result"),
    "pdpgd.evaluation.spec": ("pdpgd.runs.spec",),
    "pdpgd.evaluation.trace": ("pdpgd.runs.records",),
    "pdpgd.game": ("pdpgd.attacks.game",),
    "pdpgd.game.dual": ("pdpgd.attacks.game",),
    "pdpgd.game.incumbent": ("pdpgd.attacks.best",),
    "pdpgd.game.linearised": ("pdpgd.attacks.linearized",),
    "pdpgd.game.primal": ("pdpgd.attacks.game",),
    "pdpgd.game.schedules": ("pdpgd.attacks.game",),
    "pdpgd.presets": ("pdpgd.attacks.config", "pdpgd.paper"),
    "pdpgd.report.tables": ("pdpgd.report.paper_tables",),
    "pdpgd.subjects": ("pdpgd.models", "pdpgd.data"),
    "pdpgd.subjects.architectures": ("pdpgd.models.architectures",),
    "pdpgd.subjects.arrays": ("pdpgd.data.readers",),
    "pdpgd.subjects.data": ("pdpgd.data.loading",),
    "pdpgd.subjects.folders": ("pdpgd.data.folders",),
    "pdpgd.subjects.models": ("pdpgd.models.loading",),
    "pdpgd.subjects.normalise": ("pdpgd.models.normalization",),
    "pdpgd.subjects.samples": ("pdpgd.data.dataset",),
    "pdpgd.subjects.wrapped": ("pdpgd.data.dataset",),
}
"""The modules that the public names of an old module are defined in now."""

NAMES: Mapping[str, str] = {
    "pdpgd.errors.SubjectError": "pdpgd.errors.LoadError",
    "pdpgd.evaluation.run.Watcher": "pdpgd.progress.ProgressListener",
    "pdpgd.evaluation.spec.Spec": "pdpgd.runs.spec.RunSpec",
    "pdpgd.experiments.runner.Observer": "pdpgd.progress.ProgressListener",
    "pdpgd.game.incumbent.Incumbent": "pdpgd.attacks.best.Best",
    "pdpgd.norms.register": "pdpgd.norms.register_norm",
    "pdpgd.subjects.Normalisation": "pdpgd.models.normalization.Normalization",
    "pdpgd.subjects.Normalised": "pdpgd.models.normalization.Normalized",
    "pdpgd.subjects.normalise.Normalisation": "pdpgd.models.normalization.Normalization",
    "pdpgd.subjects.normalise.Normalised": "pdpgd.models.normalization.Normalized",
}
"""Names that have changed as well."""


def attribute(module: str, name: str) -> Any:
    """Look up a name that has moved, with a DeprecationWarning that says what to write.

    Args:
        module: The old module.
        name: A name that it defined.

    Raises:
        AttributeError: It did not define the name, or the name is gone.
    """
    for new in (NAMES.get(f"{module}.{name}"), *(f"{home}.{name}" for home in MODULES.get(module, ()))):
        if new is None:
            continue
        home, _, new_name = new.rpartition(".")
        try:
            value = getattr(importlib.import_module(home), new_name)
        except AttributeError:
            continue
        public = importlib.import_module("pdpgd")._PUBLIC
        origin = "pdpgd" if f"pdpgd.{public.get(new_name)}" == getattr(value, "__module__", home) else home
        warnings.warn(
            f"{module}.{name} is deprecated: write `from {origin} import {new_name}`", DeprecationWarning, stacklevel=3
        )
        return value
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class _Moved(ModuleType):
    """An old module: looks every name up where it is defined now."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return attribute(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the old modules, which have no files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MODULES:
            return None
        package = any(module.startswith(f"{fullname}.") for module in MODULES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: an old module defines no names."""


def install() -> None:
    """Let the import system find the old modules; existing modules come first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
