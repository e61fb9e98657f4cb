"""PDGD, Algorithm 1 of the paper: both players move by gradients."""

from __future__ import annotations

from torch import Tensor

from pdpgd.attacks import restarts
from pdpgd.attacks.config import PDGDConfig, config_or_default
from pdpgd.attacks.contract import AttackResult, Bounds, Observe
from pdpgd.attacks.loop import Inside, Move
from pdpgd.attacks.problem import pose
from pdpgd.classifier import Model
from pdpgd.errors import InvalidInputError
from pdpgd.game.dual import Dual
from pdpgd.game.primal import Adam
from pdpgd.norms import Norm
from pdpgd.tensors import per_sample


def pdgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm = "l2",
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    seed: int = 0,
    config: PDGDConfig | None = None,
    indices: Tensor | None = None,
    starts: Tensor | None = None,
    observe: Observe | None = None,
) -> AttackResult:
    """Find the smallest perturbation of each input that changes the model's answer, by primal-dual gradient descent.

    The norm must have a (sub)gradient: l2 is what the paper uses it for; l1, linf and a smooth norm of your own work.
    `indices` are the places of the inputs in the whole data set, if the call has only a part of it: the random starts
    belong to them. `starts` are points known before, shaped as the inputs and inside the box, one a sample: where one
    is adversarial it competes with what the attack finds, and the fine-tuning begins at the best.
    See `AttackResult` for what comes back and `PDGDConfig` for the settings.
    """
    problem = pose(
        model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=seed, indices=indices, starts=starts
    )
    config = config_or_default(config, PDGDConfig)
    move = gradient_move(problem.norm, problem.box.width)
    return restarts.attack(problem, move=move, config=config, observe=observe)


def gradient_move(norm: Norm, unit: float) -> Move:
    """r <- r - rate * Adam(lambda_1 grad ||r|| + lambda_2 grad L), with r measured in units of the box's width."""
    if not norm.differentiable:
        raise InvalidInputError(
            f"pdgd follows the gradient of the norm: expected a norm that has one, got {norm.name!r}; use pdpgd"
        )

    def move(delta: Tensor, gradient: Tensor, *, adam: Adam, dual: Dual, rate: float, inside: Inside) -> Tensor:
        norm_weight = per_sample(dual.norm_weight, delta) * unit ** (1.0 - norm.degree)
        constraint_weight = per_sample(dual.constraint_weight, delta) * unit
        step, _ = adam.direction(norm.subgradient(delta).mul(norm_weight).addcmul(gradient, constraint_weight))
        return delta.add(step, alpha=rate * unit)

    return move
