"""How far the boundaries of an affine model are, where the box does not come in between."""

from __future__ import annotations

import torch
from torch import Tensor

from support.models import Affine

DUAL = {"linf": 1.0, "l2": 2.0, "l1": float("inf")}


def to_each_class(model: Affine, inputs: Tensor, labels: Tensor, norm: str) -> Tensor:
    """(z_y - z_j) / ||w_y - w_j||_dual for each class j; inf for the own."""
    logits = model(inputs).detach()
    gaps = logits.gather(1, labels[:, None]) - logits
    apart = (model.weight[labels][:, None] - model.weight[None]).detach()
    distances = gaps / torch.linalg.vector_norm(apart, ord=DUAL[norm], dim=2)
    return distances.scatter(1, labels[:, None], torch.inf)
