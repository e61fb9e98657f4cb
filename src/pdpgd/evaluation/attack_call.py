"""Calling the attack of a run, from the catalogue or the user's own function, and checking what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from pdpgd.attacks import catalogue
from pdpgd.attacks.base import AttackResult, History, Observe, calls_within
from pdpgd.attacks.prepare import checked_radii
from pdpgd.classifier import MeanOfDraws, Model
from pdpgd.errors import FOREIGN_ERRORS, AttackError, InvalidInputError, PdpgdError
from pdpgd.runs.spec import AttackSpec

DEFAULT_BUDGET = 1000
"""Forward plus backward passes per sample and norm."""


def attack_spec(
    attack: str | Callable[..., AttackResult], budget: int | None, settings: Mapping[str, Any]
) -> AttackSpec:
    """Describe the attack that a user asks for, by name or as a function.

    Args:
        attack: Name of an attack of the catalogue, or a function in the shape of `pdpgd.Attack`.
        budget: Maximum number of forward plus backward passes per sample and norm; 1000 if neither this nor `settings`
            are given.
        settings: Settings of an attack of the catalogue.

    Returns:
        The attack, under the name that the records will have.

    Raises:
        InvalidInputError: It is neither, or a function is given a budget or settings.
    """
    if isinstance(attack, str):
        return AttackSpec(
            name=attack, budget=DEFAULT_BUDGET if budget is None and not settings else budget, settings=settings
        )
    if not callable(attack):
        raise InvalidInputError(f"attack: expected a name or a function, got {type(attack).__name__}")
    if budget is not None or settings:
        raise InvalidInputError("budget, settings: expected none with a function as the attack, which has its own")
    function = getattr(attack, "func", attack)
    return AttackSpec(name=getattr(function, "__qualname__", type(attack).__qualname__), function=attack)


def at_radii(spec: AttackSpec, only_radii: Mapping[str, float | Sequence[float]], norms: Sequence[str]) -> AttackSpec:
    """Ask an attack about radii only.

    Args:
        spec: The attack.
        only_radii: One or several radii for each norm.
        norms: Norms of the run.

    Returns:
        The attack, with the radii by norm as its setting `radii`.

    Raises:
        InvalidInputError: The attack cannot be asked about radii only, a norm has no radii, or a radius has no norm.
    """
    _check_can_ask(spec)
    if not isinstance(only_radii, Mapping) or not only_radii:
        raise InvalidInputError(f"only_radii: expected radii by norm such as {{'linf': [8/255]}}, got {only_radii!r}")
    lacking = [norm for norm in norms if norm not in only_radii]
    if lacking:
        raise InvalidInputError(
            f"only_radii: expected radii for each norm of the run, got none for {', '.join(lacking)}; "
            f"give them (--radius {lacking[0]}:RADIUS), or leave the norm out"
        )
    unused = [norm for norm in only_radii if norm not in norms]
    if unused:
        raise InvalidInputError(
            f"only_radii: expected norms of the run, {', '.join(norms)}, got {', '.join(unused)}; "
            f"add the norm (--norm {unused[0]}), or leave its radii out"
        )
    given = {norm: [radii] if isinstance(radii, int | float) else radii for norm, radii in only_radii.items()}
    return replace(
        spec, settings={**spec.settings, "radii": {norm: list(checked_radii(norm, given[norm])) for norm in norms}}
    )


def _check_can_ask(spec: AttackSpec) -> None:
    info = None if spec.function is not None else catalogue.info_of(spec.name)
    if info is None or not info.load().only_radii:
        advice = (
            "an attack within a radius takes settings={'radii': [RADIUS]} instead, or pdpgd compare --radius"
            if info is not None and info.is_ball
            else "leave out only_radii (--only-radius) and read the robust accuracy off its distances"
        )
        able = " or ".join(name for name, each in catalogue.ATTACKS.items() if each.load().only_radii)
        raise InvalidInputError(f"only_radii: expected the attack {able}, got {spec.name}; {advice}")


def library_of(spec: AttackSpec) -> str | None:
    """Return the distribution that the attack comes from; None if it is ours or the user's."""
    library = None if spec.function is not None else catalogue.info_of(spec.name).library
    return None if library is None else library.name


def needs_gradients(spec: AttackSpec) -> bool:
    """Tell whether the attack is known to follow gradients; of a user's own function that is not known."""
    return spec.function is None and catalogue.info_of(spec.name).needs_gradients


def check_attack(spec: AttackSpec, norms: tuple[str, ...], batch_size: int, draws: int = 1) -> None:
    """Raise InvalidInputError, before anything runs, for what the attack cannot do."""
    if spec.function is None:
        for norm in norms:
            _callable(spec, norm, batch_size, draws)


def run_attack(
    spec: AttackSpec,
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
    draws: int = 1,
) -> AttackResult:
    """Call the attack and check the form of its result.

    Args:
        spec: The attack.
        model: The model, as the attack may see it.
        inputs: Correctly classified inputs.
        labels: Their labels.
        norm: Norm to minimize.
        batch_size: Maximum number of rows per forward pass.
        seed: Random seed for attack initialization.
        indices: Positions of the inputs in the data set.
        starts: Warm starts, one per input.
        observe: Hook that is called with the progress of the attack.
        draws: Number of draws of the model whose mean the attack sees; its budget pays for each.

    Returns:
        The attack's result, with adversarial examples of the right shape. The passes that it reports are calls of the
        mean, see `passes_of` and `history_of`.

    Raises:
        AttackError: The attack failed or returned something else.
    """
    attack = _callable(spec, norm, batch_size, draws)
    model = model if draws == 1 else MeanOfDraws(model, draws)
    warm_starts = None if starts is None else starts.clone()
    offered = {"seed": seed, "indices": indices.clone(), "starts": warm_starts, "observe": observe}
    try:
        result = attack(model, inputs.clone(), labels.clone(), norm=norm, **_accepted(attack, offered))
    except PdpgdError:
        raise
    except FOREIGN_ERRORS as error:  # the user's own function may raise anything
        raise AttackError(
            f"attack {spec.name}: expected adversarial examples, got {type(error).__name__}: {error}"
        ) from error
    for name in ("adversarials", "found"):
        if not isinstance(getattr(result, name, None), Tensor):
            raise AttackError(
                f"attack {spec.name}: expected a result with the tensors adversarials and found, "
                f"got {type(result).__name__} with no {name}"
            )
    if result.adversarials.shape != inputs.shape or result.found.shape != labels.shape:
        raise AttackError(
            f"attack {spec.name}: expected adversarial examples of shape {tuple(inputs.shape)} and as many verdicts, "
            f"got {tuple(result.adversarials.shape)} and {tuple(result.found.shape)}"
        )
    _check_history(spec.name, getattr(result, "history", None), len(inputs))
    _check_faults(spec.name, faults_of(result), len(inputs))
    return result


def _callable(spec: AttackSpec, norm: str, batch_size: int, draws: int) -> Callable[..., AttackResult]:
    if spec.function is not None:
        return spec.function
    budget = spec.budget if spec.budget is None or draws == 1 else calls_within(spec.budget, draws)
    return catalogue.prepared(spec.name, norm, budget=budget, settings=spec.all_settings, max_batch=batch_size)


def _accepted(attack: Callable[..., AttackResult], offered: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the function accepts: a user's attack need not take warm starts or report progress."""
    parameters = inspect.signature(attack).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def passes_of(result: AttackResult, name: str, samples: int, draws: int = 1) -> Tensor:
    """Return the passes of each sample that the attack reports, one per draw; zeros if it reports none."""
    passes = getattr(result, name, None)
    if isinstance(passes, Tensor) and passes.shape == (samples,):
        return passes.detach().cpu().long() * draws
    return torch.zeros(samples, dtype=torch.long)


def history_of(result: AttackResult, draws: int = 1) -> History | None:
    """Return the distances against the passes, one per draw; None if the attack does not report them."""
    history: History | None = getattr(result, "history", None)
    return history if history is None or draws == 1 else History(history.passes * draws, history.distances)


def faults_of(result: AttackResult) -> Mapping[int, str]:
    """Return the samples on which the attack failed, with the errors; none if it does not report them."""
    faults: Mapping[int, str] | None = getattr(result, "faults", None)
    return {} if faults is None else faults


def _check_faults(name: str, faults: object, samples: int) -> None:
    expected = f"attack {name}: expected faults that map positions 0 to {samples - 1} of the call to error messages"
    if not isinstance(faults, Mapping):
        raise AttackError(f"{expected}, got {type(faults).__name__}")
    for place, fault in faults.items():
        if not isinstance(place, Integral) or isinstance(place, bool) or not 0 <= int(place) < samples:
            raise AttackError(f"{expected}, got the position {place!r}")
        if not isinstance(fault, str):
            raise AttackError(f"{expected}, got {type(fault).__name__} for position {place}, not a string")


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
        raise AttackError(f"{expected}, with passes that never decrease from record to record, got others")
