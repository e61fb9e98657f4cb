"""A classifier of many classes as one of few groups of them, by the largest logit of each group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdpgd.errors import ModelError, UnknownNameError
from pdpgd.subjects import restricted_imagenet


@dataclass(frozen=True)
class Pool:
    """Which outputs of a classifier of `classes` classes make up each group; the others are left out."""

    name: str
    classes: int
    groups: tuple[range, ...]


POOLS = {
    pool.name: pool
    for pool in (Pool(restricted_imagenet.NAME, classes=1000, groups=tuple(restricted_imagenet.PLACES.values())),)
}


def pool_by_name(name: str) -> Pool:
    """Look up a pool.

    Raises:
        UnknownNameError: There is none of that name.
    """
    if name not in POOLS:
        raise UnknownNameError("pool", name, POOLS)
    return POOLS[name]


class Pooled(nn.Module):
    """The model with one logit per group: the largest that it gives to a class of the group.

    A model that has as many outputs as there are groups is taken to be a classifier of the groups, and answers as it
    is.
    """

    def __init__(self, model: nn.Module, pool: Pool) -> None:
        super().__init__()
        self.model = model
        self.pool = pool
        self.train(model.training)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs)
        outputs = logits.shape[-1]
        if outputs == len(self.pool.groups):
            return logits
        if outputs != self.pool.classes:
            raise ModelError(
                f"pool {self.pool.name}: expected a model of {self.pool.classes} outputs, ImageNet's classes in their "
                f"order, or of {len(self.pool.groups)}, the groups themselves, got one of {outputs}: give a model of "
                "ImageNet, or leave the pool out"
            )
        return torch.stack([logits[:, group.start : group.stop].amax(1) for group in self.pool.groups], 1)
