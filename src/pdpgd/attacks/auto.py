"""The attack `auto`: within a budget, many short exact descents from different starts, nothing to tune."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from torch import Tensor

from pdpgd.attacks.auto_config import AutoConfig
from pdpgd.attacks.auto_plan import Descents
from pdpgd.attacks.base import AttackResult, Bounds, History, Observe, StopAttack, calls_within, pose
from pdpgd.attacks.config import config_or_default
from pdpgd.attacks.descent import Search
from pdpgd.attacks.frame import Attempt, framed_attack
from pdpgd.classifier import Model
from pdpgd.errors import InvalidInputError
from pdpgd.norms import Norm


def auto(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm,
    budget: int = 1000,
    share: bool = False,
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    seed: int = 0,
    indices: Tensor | None = None,
    starts: Tensor | None = None,
    observe: Observe | None = None,
    max_batch: int = 256,
    draws: int = 1,
    radius: float | Sequence[float] | None = None,
    config: AutoConfig | None = None,
) -> AttackResult:
    """Find a minimum-norm adversarial example for each input within a query budget.

    With a radius, only the question is answered whether there is an adversarial example within it: a sample that is
    fooled within the smallest radius is done, and the others are also searched for inside the ball.

    Args:
        model: Maps a batch of inputs to logits, or to an output with `.logits`; call `model.eval()` first.
        inputs: Batch of shape (batch, ...), float32 or float64, inside the bounds.
        labels: True class per sample.
        norm: "linf", "l2", "l1", "l0", another registered name, or a `Norm`.
        budget: Maximum number of forward plus backward passes per sample.
        share: Let samples that have not converged use the passes that the others left over. The budget then bounds
            the mean over the samples, and results depend on which samples are attacked together.
        targets: Class to reach per sample; None attacks untargeted.
        bounds: Lower and upper bound of valid inputs, each a number, one value per channel, or a tensor.
        seed: Seed of the random starts.
        indices: Position of each input in the whole data set, if this call attacks a part of it: the random starts
            depend on it, so results do not depend on how the data are split.
        starts: One known point per sample, shaped as the inputs and inside the bounds. An adversarial start competes
            with what the attack finds.
        observe: Called with an `Observation` after each query; it may raise `StopAttack` to end the search, and the
            result is then the best found so far.
        max_batch: Number of samples attacked together: bounds the memory.
        draws: Number of draws of a randomized model: logits and gradients are means over this many calls, each of which
            counts as a pass (expectation over transformation). 1 for a model that is not randomized.
        radius: One or several radii to ask about, in the unit of the distances; None asks for the smallest distance.
        config: Tunables, for ablations; None takes the defaults of `AutoConfig`.

    Returns:
        One adversarial example per input, with its distance, the passes spent on it, and the history of the best
        distance against the passes. With radii, `fooled` says for each of them which samples are fooled within it.

    Raises:
        InvalidInputError: An argument is malformed.
        UnknownNameError: There is no norm of that name.
        ModelError: The model failed, or returned something other than finite logits.

    Example:
        >>> result = pdpgd.auto(model, images, labels, norm="l2", budget=50)
        >>> robust_accuracy = (result.distances > 1.0).float().mean()
        >>> robust_accuracy.item()
        0.5
        >>> pdpgd.auto(model, images, labels, norm="linf", budget=50, radius=[0.05, 0.1]).fooled.float().mean(0)
        tensor([0.2500, 0.5000])
    """
    budget, max_batch = calls_within(_count("budget", budget), _count("draws", draws)), _count("max_batch", max_batch)
    config, radii = config_or_default(config, AutoConfig), _radii(radius)
    problem = pose(
        *(model, inputs, labels),
        norm=norm,
        targets=targets,
        bounds=bounds,
        seed=seed,
        indices=indices,
        starts=starts,
        draws=draws,
    )

    def algorithm(attempt: Attempt) -> History:
        search = Search(attempt, budget=budget, observe=observe, config=config, radii=radii)
        descents = Descents(attempt, search, budget, share=share)
        try:
            descents.run()
            if share:
                descents.spend_leftover()
        except StopAttack:
            pass
        return search.history()

    return replace(framed_attack(problem, algorithm, max_batch=max_batch), radii=radii)


def _radii(radius: float | Sequence[float] | None) -> tuple[float, ...]:
    """Return the radii, ascending and without repetitions."""
    several: Iterable[Any] = () if radius is None else radius if isinstance(radius, Iterable) else (radius,)
    try:
        radii = tuple(sorted({float(r) for r in several}))
    except (TypeError, ValueError):
        radii = (-1.0,)
    if (radius is not None and not radii) or not all(0 < r < math.inf for r in radii):
        raise InvalidInputError(f"radius: expected one or several numbers above 0, got {radius!r}")
    return radii


def _count(name: str, value: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name}: expected an integer >= 1, got {value!r}")
    return int(value)
