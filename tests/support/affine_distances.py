"""How far the boundaries of an affine model are, where the box does not come in between."""

from __future__ import annotations

import torch
from torch import Tensor

from support.models import Affine

DUAL = {"linf": 1.0, "l2": 2.0, "l1": float("inf")}


def to_each_class(model: Affine, inputs: Tensor, labels: Tensor, norm: str, *, spared: Tensor | None = None) -> Tensor:
    """(z_y - z_j) / ||w_y - w_j||_dual for each class j, in float64; inf for the own.

    Args:
        model: An affine one.
        inputs: From where.
        labels: y.
        norm: In which the distances are measured.
        spared: (samples, classes): by how much less than the margin is enough, as `margin_error` says for rounding.
    """
    weight, bias = model.weight.detach().double(), model.bias.detach().double()
    logits = inputs.flatten(1).double() @ weight.T + bias
    gaps = logits.gather(1, labels[:, None]) - logits
    if spared is not None:
        gaps = gaps - spared
    apart = weight[labels][:, None] - weight[None]
    distances = gaps / torch.linalg.vector_norm(apart, ord=DUAL[norm], dim=2)
    return distances.scatter(1, labels[:, None], torch.inf)
