"""The attack of a run, by name or as the user's own function, called in the same way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd import catalogue
from pdpgd.attacks.contract import AttackResult, Observe
from pdpgd.classifier import Model
from pdpgd.errors import AttackError, PdpgdError


class Counted(nn.Module):
    """The model as an attack gets it: every row that goes forward or backward is counted, whatever the attack says."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        # Not as a child: the model's mode, parameters and hooks are its owner's.
        self._counted: Callable[[], Model] = lambda: model
        self.training = bool(getattr(model, "training", False))
        self.forwards = self.backwards = 0

    def forward(self, inputs: Tensor) -> Any:
        self.forwards += len(inputs)
        output = self._counted()(inputs)
        logits = getattr(output, "logits", output)
        if isinstance(logits, Tensor) and logits.requires_grad:
            logits.register_hook(self._backward)  # type: ignore[no-untyped-call]  # torch does not type it
        return output

    def _backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@dataclass(frozen=True)
class Contestant:
    """An attack by its name in the catalogue and its budget, or a function in the shape of `Attack`."""

    name: str
    budget: int | None = None
    function: Callable[..., AttackResult] | None = None

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
        except Exception as error:  # the user's own function may raise anything
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
        return result

    def _prepared(self, norm: str, batch_size: int) -> Callable[..., AttackResult]:
        assert self.budget is not None
        return catalogue.prepared(self.name, norm, budget=self.budget, max_batch=batch_size)


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
