"""Proximal operators of the convex norms: argmin_z w ||z|| + 1/2 ||z - v||^2 for each sample of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.proximal.simplex import level
from pdpgd.tensors import Weight, clip, flat, length, per_sample


def prox_l1(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w ||z||_1 + 1/2 ||z - v||^2.

    z = v - clip(v, -w, w), entry by entry, so the weight may differ between entries.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_l1(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25)
        tensor([[-2.7500,  0.7500,  0.2500]])
    """
    w = per_sample(weight, v)
    return v - clip(v, -w, w)


def prox_l2(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w ||z||_2 + 1/2 ||z - v||^2, with one weight per sample.

    z = (1 - w / ||v||_2)_+ v.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_l2(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25)
        tensor([[-2.7657,  0.9219,  0.4610]])
    """
    n = per_sample(length(flat(v), 1).squeeze(1), v).clamp_(min=torch.finfo(v.dtype).tiny)
    return (1 - per_sample(weight, v) / n).clamp_(min=0) * v


def prox_linf(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w ||z||_inf + 1/2 ||z - v||^2, with one weight per sample.

    z = clip(v, -t, t) with the level t >= 0 where sum (|v| - t)_+ = w; t = 0 if ||v||_1 <= w. Nothing is divided by w.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_linf(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25)
        tensor([[-2.7500,  1.0000,  0.5000]])
    """
    t = per_sample(level(flat(v.abs()), weight).clamp_(min=0), v)
    return clip(v, -t, t)
