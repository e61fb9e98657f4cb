"""Helpers for batched tensors, whose samples are along dimension 0."""

from __future__ import annotations

import torch
from torch import Tensor

# Just below the largest block by which glibc adapts, 32 MiB.
_LARGEST_BLOCK = 2**25 - 2**13

Weight = float | Tensor
"""A number, one value per sample (shape (batch,)), or a tensor with as many dimensions as the one it weighs."""


def per_sample(values: Weight, like: Tensor) -> Tensor:
    """Return values that broadcast against `like`: (batch,) becomes (batch, 1, ..., 1), other shapes stay.

    The result has the dtype and device of `like`; a number becomes a tensor without dimensions.
    """
    values = torch.as_tensor(values, dtype=like.dtype, device=like.device)
    return values.reshape(-1, *[1] * (like.ndim - 1)) if values.ndim == 1 else values


def per_row(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask of rows that broadcasts against `like`."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))


def flat(v: Tensor) -> Tensor:
    """Return v with shape (batch, features); a tensor with fewer than two dimensions stays as it is."""
    return v.flatten(1) if v.ndim > 1 else v


def clip(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return v clipped to [low, high]; on the CPU it takes a third of the time of clamp with tensor bounds."""
    return torch.minimum(torch.maximum(v, low), high)


def length(v: Tensor, dim: int) -> Tensor:
    """Return sqrt(sum v^2) along dim, which stays with size 1.

    Dividing by the largest entry first keeps the squares of 1e-30 and 1e30 inside the range of float32.
    """
    largest = v.abs().amax(dim, keepdim=True).clamp_(min=torch.finfo(v.dtype).tiny)
    scaled: Tensor = torch.linalg.vector_norm(v / largest, dim=dim, keepdim=True)
    return largest * scaled
