"""Is the model still the one that was loaded? An attack may leave hooks in it, or change its weights.

The fingerprint of a model is taken when it is fresh, after its first passes and before any attack runs. Every job
compares with that first one at its start and at its end. What differs is named, and the job's results are not believed.
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
"""Clean samples that a model answers twice when it is fresh, and once more each time it is loaded again."""
MOVED = 500
"""Roundings by which the logits of clean inputs may differ after an attack. It is far more than a model may show in its
two first answers (1), so that one whose sums have no fixed order is not taken for a changed one."""
SHOWN = 4
"""Changes that an error names."""

Fingerprint = dict[str, tuple[Any, Any]]
"""What may change, by name: (description, identity). Two models that were built alike have the same descriptions; the
identity is of the very objects."""


def fingerprint_of(model: Model) -> Fingerprint:
    """The weights of the model, and the type, mode, forward and hooks of each of its modules."""
    found: Fingerprint = {}
    for root, outermost in _roots(model).items():
        prefix = f"{root}." if root else ""
        for name, digest in checksums_of(outermost).items():
            found[f"weights {prefix}{name}"] = (digest, None)
        for name, module in outermost.named_modules():
            found.update(_of_module(f"{prefix}{name}".rstrip(".") or "the outermost module", module))
    return found


def _roots(model: Model) -> dict[str, nn.Module]:
    """The model if it is a module; of a function, a method or another object, the modules that it refers to."""
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
    """Hooks that torch calls for every module of the process."""
    return {
        f"global hooks ({name.removeprefix('_global_')})": _hooks(hooks)
        for name, hooks in vars(torch_module).items()
        if name.startswith("_global_") and name.endswith("hooks") and isinstance(hooks, dict)
    }


def differences(first: Fingerprint, now: Fingerprint, *, same_objects: bool = True) -> list[str]:
    """The names of what differs; by its description alone if the two are of different objects."""
    parts, nothing = 2 if same_objects else 1, (None, None)
    names = dict.fromkeys((*first, *now))
    return [name for name in names if first.get(name, nothing)[:parts] != now.get(name, nothing)[:parts]]


class Guard:
    """Holds a model to the state in which it was first loaded."""

    def __init__(self, everywhere: Fingerprint | None = None) -> None:
        """`everywhere` is shared by the guards of a process: the global hooks before the first attack."""
        self._everywhere: Fingerprint = {} if everywhere is None else everywhere
        self._first: Fingerprint | None = None
        self._now: Fingerprint | None = None
        self._probe, self._answers = torch.empty(0), torch.empty(0)
        self._own: set[str] = set()
        """What the model changes by itself."""
        self._steady = True
        self.changed = False
        """Whether the model was found to be another than was loaded: it must not be used any more."""

    def renew(self) -> None:
        """The model was loaded again; `begin` holds it against what it was the first time."""
        self._now, self.changed = None, False

    def begin(self, model: Model, inputs: Tensor) -> int:
        """At the start of a job on these inputs: take the fingerprint of a fresh model, or compare with it.

        A fresh model answers twice. What differs between the two it changes by itself, as batch normalization in train
        mode does, or answers by chance: no attack is held responsible for that.

        Returns:
            The number of forward passes that were made.
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
            if not self._everywhere:
                self._everywhere.update(global_hooks())
        self._now = now
        found = self._foreign(differences(self._first, now, same_objects=False))
        self._refuse([*found, *self._elsewhere(), *self._moved(drift(self._answers, again))])
        return 2 * len(probe)

    def end(self, model: Model, moved: float = 0.0) -> None:
        """At the end of a job. `moved`: how many roundings the logits of its clean inputs differ from its start."""
        if self._now is not None:
            self._refuse([*self._differences(model), *self._moved(moved)])

    def look(self, model: Model) -> None:
        """Note whether the model is changed, where the job failed for another reason."""
        self.changed |= self._now is not None and bool(self._differences(model))

    def _differences(self, model: Model) -> list[str]:
        assert self._now is not None
        return [*self._foreign(differences(self._now, fingerprint_of(model))), *self._elsewhere()]

    def _elsewhere(self) -> list[str]:
        return differences(self._everywhere, global_hooks())

    def _foreign(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self._own]

    def _moved(self, moved: float) -> list[str]:
        """NaN is a difference, too."""
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
            "ran on it; nothing that was found on it is kept: let the attack leave the model as it is"
        )


def _of_module(name: str, module: nn.Module) -> Fingerprint:
    kind, own = type(module), vars(module)
    forward, inherited = own.get("forward"), id(inspect.getattr_static(kind, "forward", None))
    # A class that is made for one model, as torch.fx does, goes with it; the others stay when it is loaded again.
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
    # torch numbers hooks, and uses no number twice.
    return tuple(map(_named, hooks.values())), tuple(map(str, hooks))


def _named(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _answers(model: Model, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return Classifier(model).logits(inputs, torch.arange(len(inputs), device=inputs.device))
