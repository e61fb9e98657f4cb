"""A guard against attacks that change the model, by leaving hooks in it or changing its weights.

The fingerprint of a model is taken when it is fresh, after its first passes and before any attack runs. Every job
compares the model with it at its start and at its end. An error names the differences, and the results of the job are
discarded.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn

from pdpgd.classifier import Classifier, Model
from pdpgd.errors import ModelChangedError
from pdpgd.evaluation.model_handle import checksums_of
from pdpgd.evaluation.referee import drift

PROBED = 8
"""Number of clean samples that are passed twice through a model whenever it is loaded."""
MOVED = 500
"""Rounding errors by which the logits of clean inputs may differ after an attack. This is far more than the two first
passes of a model may differ by (1), so that a model whose sums have no fixed order does not count as changed."""
SHOWN = 4
"""Maximum number of changes that an error names."""

Fingerprint = dict[str, tuple[Any, Any]]
"""State of a model that may change, by name: (description, identity). Two models that were built alike have the same
descriptions; the identity is that of the objects."""


def fingerprint_of(model: Model) -> Fingerprint:
    """Return checksums of the weights, and the type, mode, forward and hooks of each module."""
    found: Fingerprint = {}
    for root, outermost in _roots(model).items():
        prefix = f"{root}." if root else ""
        for name, digest in checksums_of(outermost).items():
            found[f"weights {prefix}{name}"] = (digest, None)
        for name, module in outermost.named_modules():
            found.update(_of_module(f"{prefix}{name}".rstrip(".") or "the outermost module", module))
    return found


def _roots(model: Model) -> dict[str, nn.Module]:
    """Return the model if it is a module; otherwise the modules that a function, method or object refers to."""
    if isinstance(model, nn.Module):
        return {"": model}
    function = getattr(model, "__func__", model)
    referred = {"self": getattr(model, "__self__", None), **getattr(model, "__dict__", {})}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # a variable that has no value yet
            referred[name] = cell.cell_contents
    if isinstance(model, partial):
        referred.update({"func": model.func, **{str(place): value for place, value in enumerate(model.args)}})
        referred.update(model.keywords)
    return {name: thing for name, thing in referred.items() if isinstance(thing, nn.Module)}


def global_hooks() -> Fingerprint:
    """Return the hooks that torch calls for every module of the process."""
    return {
        f"global hooks ({name.removeprefix('_global_')})": _hooks(hooks)
        for name, hooks in vars(torch_module).items()
        if name.startswith("_global_") and name.endswith("hooks") and isinstance(hooks, dict)
    }


def differences(first: Fingerprint, now: Fingerprint, *, same_objects: bool = True) -> list[str]:
    """List the names of what differs; compare descriptions only, unless both are of the same objects."""
    parts, nothing = 2 if same_objects else 1, (None, None)
    names = dict.fromkeys((*first, *now))
    return [name for name in names if first.get(name, nothing)[:parts] != now.get(name, nothing)[:parts]]


class Guard:
    """Compares a model with the state in which it was first loaded.

    Args:
        hooks: Global hooks before the first attack, shared by the guards of a process.
    """

    def __init__(self, hooks: Fingerprint | None = None) -> None:
        self._hooks: Fingerprint = {} if hooks is None else hooks
        self._first: Fingerprint | None = None
        self._now: Fingerprint | None = None
        self._probe, self._answers = torch.empty(0), torch.empty(0)
        self._own: set[str] = set()
        """Names of what the model changes by itself."""
        self._steady = True
        self.changed = False
        """Whether the model differs from the one that was loaded and must not be used any more."""

    def renew(self) -> None:
        """Expect a model that was loaded again; `begin` compares it with the first one."""
        self._now, self.changed = None, False

    def begin(self, model: Model, inputs: Tensor) -> int:
        """Check the model at the start of a job, or take the fingerprint of a fresh one.

        A fresh model gets two passes. Whatever differs between them it changes by itself, as batch normalization in
        train mode does, or is random, and is not attributed to an attack.

        Args:
            model: The model.
            inputs: Inputs of the job.

        Returns:
            The number of forward passes that were used.

        Raises:
            ModelChangedError: The model has changed.
        """
        if self._now is not None:
            self._refuse(self._differences(model))
            return 0
        probe = inputs[:PROBED].detach().clone() if self._first is None else self._probe
        answers, before = _answers(model, probe), fingerprint_of(model)
        again, now = _answers(model, probe), fingerprint_of(model)
        if self._first is None:
            self._first, self._probe, self._answers = now, probe, answers
            self._steady = drift(answers, again) <= 1
            self._own = set(differences(before, now))
            if not self._hooks:
                self._hooks.update(global_hooks())
        self._now = now
        found = self._foreign(differences(self._first, now, same_objects=False))
        self._refuse([*found, *self._global_changes(), *self._moved(drift(self._answers, again))])
        return 2 * len(probe)

    def end(self, model: Model, moved: float = 0.0) -> None:
        """Check the model at the end of a job.

        Args:
            model: The model.
            moved: Rounding errors by which the logits of the clean inputs have moved since the start of the job.

        Raises:
            ModelChangedError: The model has changed.
        """
        if self._now is not None:
            self._refuse([*self._differences(model), *self._moved(moved)])

    def note_changes(self, model: Model) -> None:
        """Set `changed` if the model has changed, after a job that failed for another reason."""
        self.changed |= self._now is not None and bool(self._differences(model))

    def _differences(self, model: Model) -> list[str]:
        assert self._now is not None
        return [*self._foreign(differences(self._now, fingerprint_of(model))), *self._global_changes()]

    def _global_changes(self) -> list[str]:
        return differences(self._hooks, global_hooks())

    def _foreign(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self._own]

    def _moved(self, moved: float) -> list[str]:
        # The comparison is false for NaN, which counts as a change.
        if not self._steady or moved <= MOVED:
            return []
        return [f"logits of the clean inputs (by {moved:.3g} times what rounding explains)"]

    def _refuse(self, names: list[str]) -> None:
        if not names:
            return
        self.changed = True
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ModelChangedError(
            f"expected the model as it was loaded, got one with other {', '.join(names[:SHOWN])}{more} after an attack "
            "ran on it; its results on this model are discarded: change the attack so that it leaves the model as it is"
        )


def _of_module(name: str, module: nn.Module) -> Fingerprint:
    kind, own = type(module), vars(module)
    forward, inherited = own.get("forward"), id(inspect.getattr_static(kind, "forward", None))
    # A class that is created for one model, as by torch.fx, is another one when the model is loaded again.
    lasting = None if "<locals>" in kind.__qualname__ else inherited
    found: Fingerprint = {
        f"type of {name}": (kind.__qualname__, (id(module), id(kind))),
        f"mode of {name}": (bool(module.training), None),
        f"forward of {name}": ((None if forward is None else _named(forward), lasting), (id(forward), inherited)),
    }
    for attribute, hooks in own.items():
        if "hook" in attribute and isinstance(hooks, dict):
            found[f"hooks of {name} ({attribute.strip('_')})"] = _hooks(hooks)
    return found


def _hooks(hooks: dict[Any, Any]) -> tuple[Any, Any]:
    # The keys identify hooks, since torch uses no number twice.
    return tuple(map(_named, hooks.values())), tuple(map(str, hooks))


def _named(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _answers(model: Model, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return Classifier(model).logits(inputs, torch.arange(len(inputs), device=inputs.device))
