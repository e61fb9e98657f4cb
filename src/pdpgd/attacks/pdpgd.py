"""PDPGD, Algorithm 2 of the paper: the norm enters by its proximal operator, in Adam's metric."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from pdpgd import proximal
from pdpgd.attacks import restarts
from pdpgd.attacks.config import PDPGDConfig, config_or_default
from pdpgd.attacks.contract import AttackResult, Bounds, Observe
from pdpgd.attacks.loop import Inside, Move
from pdpgd.attacks.problem import pose
from pdpgd.classifier import Model
from pdpgd.game.dual import Dual
from pdpgd.game.primal import Adam
from pdpgd.norms import Norm


def pdpgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm,
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    seed: int = 0,
    config: PDPGDConfig | None = None,
    indices: Tensor | None = None,
    starts: Tensor | None = None,
    observe: Observe | None = None,
) -> AttackResult:
    """Find the smallest perturbation of each input that changes the model's answer, by primal-dual proximal descent.

    The norm is "linf", "l2", "l1", "l0" or a `Norm` of your own: any size with a proximal operator.
    `indices` are the places of the inputs in the whole data set, if the call has only a part of it: the random starts
    belong to them. `starts` are points known before, shaped as the inputs and inside the box, one a sample: where one
    is adversarial it competes with what the attack finds, and the fine-tuning begins at the best.
    See `AttackResult` for what comes back and `PDPGDConfig` for the settings.
    """
    problem = pose(
        model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=seed, indices=indices, starts=starts
    )
    config = config_or_default(config, PDPGDConfig)
    move = proximal_move(problem.norm, problem.box.width, config)
    return restarts.attack(problem, move=move, config=config, observe=observe)


def proximal_move(norm: Norm, unit: float, config: PDPGDConfig) -> Move:
    """r <- prox_{penalty ||.||}(r - rate * Adam(grad L)) in Adam's metric, with r in units of the box's width."""
    prox = partial(proximal.prox_by_inner_loop, norm.prox) if config.prox == "loop" else norm.prox_in_metric

    def move(delta: Tensor, gradient: Tensor, *, adam: Adam, dual: Dual, rate: float, inside: Inside) -> Tensor:
        step, metric = adam.direction(gradient if unit == 1.0 else gradient * unit)
        weight = dual.penalty * (rate * unit ** (2.0 - norm.degree))
        target = delta.add(step, alpha=rate * unit)
        return prox(inside(target) if config.project_first else target, weight, metric)

    return move
