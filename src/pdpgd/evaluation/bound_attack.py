"""The attack of a run, by name or as the user's own function, called in the same way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from pdpgd import catalogue
from pdpgd.attacks.base import AttackResult, Observe
from pdpgd.classifier import Model
from pdpgd.errors import FOREIGN_ERRORS, AttackError, PdpgdError


@dataclass(frozen=True)
class BoundAttack:
    """An attack by its name in the catalogue and its budget, or a function in the shape of `Attack`."""

    name: str
    budget: int | None = None
    function: Callable[..., AttackResult] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of an attack of the catalogue, where they are not what the budget makes them."""

    @property
    def library(self) -> str | None:
        """The distribution that the attack is from, if it is neither ours nor the user's."""
        library = None if self.function is not None else catalogue.entry_of(self.name).library
        return None if library is None else library.name

    def check(self, norms: tuple[str, ...], batch_size: int) -> None:
        """Refuse, before anything runs, what the attack cannot do."""
        if self.function is None:
            for norm in norms:
                self._prepared(norm, batch_size)

    def attack(
        self,
        model: Model,
        inputs: Tensor,
        labels: Tensor,
        *,
        norm: str,
        batch_size: int,
        seed: int,
        indices: Tensor,
        starts: Tensor | None,
        observe: Observe,
    ) -> AttackResult:
        attack = self.function or self._prepared(norm, batch_size)
        known = None if starts is None else starts.clone()
        offered = {"seed": seed, "indices": indices.clone(), "starts": known, "observe": observe}
        try:
            result = attack(model, inputs.clone(), labels.clone(), norm=norm, **_accepted(attack, offered))
        except PdpgdError:
            raise
        except FOREIGN_ERRORS as error:  # the user's own function may raise anything
            raise AttackError(f"attack {self.name}: expected points, got {type(error).__name__}: {error}") from error
        for name in ("adversarials", "found"):
            if not isinstance(getattr(result, name, None), Tensor):
                raise AttackError(
                    f"attack {self.name}: expected a result with the tensors adversarials and found, "
                    f"got {type(result).__name__} with no {name}"
                )
        if result.adversarials.shape != inputs.shape or result.found.shape != labels.shape:
            raise AttackError(
                f"attack {self.name}: expected points of shape {tuple(inputs.shape)} and as many verdicts, "
                f"got {tuple(result.adversarials.shape)} and {tuple(result.found.shape)}"
            )
        _check_history(self.name, getattr(result, "history", None), len(inputs))
        _check_faults(self.name, faults_of(result), len(inputs))
        return result

    @property
    def needs_gradients(self) -> bool:
        """Whether it is known to follow gradients; of a function of the user's own it is not."""
        return self.function is None and catalogue.entry_of(self.name).needs_gradients

    def _prepared(self, norm: str, batch_size: int) -> Callable[..., AttackResult]:
        return catalogue.prepared(self.name, norm, budget=self.budget, settings=self.settings, max_batch=batch_size)


def _accepted(attack: Callable[..., AttackResult], offered: dict[str, Any]) -> dict[str, Any]:
    """What of it the function takes: an attack of the user's own need not know of starts or progress."""
    parameters = inspect.signature(attack).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def spent(result: AttackResult, name: str, samples: int) -> Tensor:
    """The passes of each sample, as far as the attack tells."""
    passes = getattr(result, name, None)
    if isinstance(passes, Tensor) and passes.shape == (samples,):
        return passes.detach().cpu().long()
    return torch.zeros(samples, dtype=torch.long)


def faults_of(result: AttackResult) -> Mapping[int, str]:
    """The samples on which the attack says it broke; none, if it does not say."""
    faults: Mapping[int, str] | None = getattr(result, "faults", None)
    return {} if faults is None else faults


def _check_faults(name: str, faults: object, samples: int) -> None:
    expected = f"attack {name}: expected faults that map places 0 to {samples - 1} of the call to what went wrong there"
    if not isinstance(faults, Mapping):
        raise AttackError(f"{expected}, got {type(faults).__name__}")
    for place, fault in faults.items():
        if not isinstance(place, Integral) or isinstance(place, bool) or not 0 <= int(place) < samples:
            raise AttackError(f"{expected}, got the place {place!r}")
        if not isinstance(fault, str):
            raise AttackError(f"{expected}, got {type(fault).__name__} for place {place}, not a string")


def _check_history(name: str, history: object, samples: int) -> None:
    if history is None:
        return
    expected = (
        f"attack {name}: expected a history (or None) with the tensors passes and distances, both of shape "
        f"({samples}, records)"
    )
    passes, distances = getattr(history, "passes", None), getattr(history, "distances", None)
    if not isinstance(passes, Tensor) or not isinstance(distances, Tensor):
        lacking = "distances" if isinstance(passes, Tensor) else "passes"
        raise AttackError(f"{expected}, got {type(history).__name__} with no {lacking}")
    if passes.ndim != 2 or passes.shape != distances.shape or len(passes) != samples or passes.shape[1] == 0:
        raise AttackError(
            f"{expected} with at least one record, got {tuple(passes.shape)} and {tuple(distances.shape)}"
        )
    if passes.is_complex() or distances.is_complex() or bool((passes.diff(dim=1) < 0).any()):
        raise AttackError(f"{expected}, the passes never fewer than in the record before, got others")
