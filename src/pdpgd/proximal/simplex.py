"""Euclidean projections on the simplex and the l1 ball, and the level search behind them.

All of them cut a row at one level t with sum_i h_i (a_i - t)_+ = total; so does the l-infinity prox.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pdpgd.tensors import Weight, clip, flat, per_sample


def project_simplex(v: Tensor, radius: Weight = 1.0) -> Tensor:
    """Return argmin_z 1/2 ||z - v||^2  subject to  z >= 0 and sum z = radius, per sample.

    z = (v - t)_+ with the level t where sum (v - t)_+ = radius.

    Args:
        v: Points of shape (batch, ...).
        radius: A number or one per sample, at least 0.

    Returns:
        z, shaped as v.

    Example:
        >>> project_simplex(torch.tensor([[-3.0, 1.0, 0.5]]), 2.0)
        tensor([[0.0000, 1.2500, 0.7500]])
    """
    t = level(flat(v), radius)
    return (v - per_sample(t, v)).clamp_(min=0)


def project_l1_ball(v: Tensor, radius: Weight = 1.0) -> Tensor:
    """Return argmin_z 1/2 ||z - v||^2  subject to  ||z||_1 <= radius, per sample.

    z = sign(v) (|v| - t)_+ with the level t where sum (|v| - t)_+ = radius; inside the ball t = 0 and z is v.

    Args:
        v: Points of shape (batch, ...).
        radius: A number or one per sample, at least 0.

    Returns:
        z, shaped as v.

    Example:
        >>> project_l1_ball(torch.tensor([[-3.0, 1.0, 0.5]]), 2.0)
        tensor([[-2.,  0.,  0.]])
    """
    t = per_sample(level(flat(v.abs()), radius).clamp_(min=0), v)
    return v - clip(v, -t, t)


def level(values: Tensor, total: Weight, metric: Tensor | None = None) -> Tensor:
    """Return for each row of `values` the t with  sum_i h_i (a_i - t)_+ = total, as a tensor of shape (batch,).

    `metric` is h > 0 (None: ones); `total` >= 0 is one value per row or a single one. For total = 0 every level above
    the row solves the equation; the answer is infinity, so that cutting there changes no bit.

    The sum is convex, decreasing and piecewise linear in t, so Newton's method, started with every entry active,
    increases to the root and drops entries on the way. Gap times slope falls at least fourfold per round, so the number
    of rounds grows with the logarithm of the spread, not with the length of the row. Stepping by the residual lets each
    round correct the rounding of the previous one, and leaves an error of a few ulp of the largest entry.
    """
    h = values.new_ones(1, 1) if metric is None else metric
    total = flat(per_sample(total, values)).expand(len(values), 1)
    slope = h.expand_as(values).sum(1, keepdim=True)
    t = ((h * values).sum(1, keepdim=True) - total) / slope
    t = torch.where(total > 0, t, math.inf)
    active = torch.empty_like(values)
    while True:
        # A float mask, weighted in place, is four times faster on the CPU than a boolean one.
        torch.gt(values, t, out=active).mul_(h)
        narrowed = active.sum(1, keepdim=True)
        # A slope that no longer falls means that the dropped entries weigh less than an ulp of it: t is the root.
        # (Phrased as a negation so that a row with NaN or infinity ends as well.)
        settled = ~(narrowed < slope) | (narrowed == 0)
        if bool(settled.all()):
            return t.squeeze(1)
        slope = narrowed
        excess = active.mul_(values - t).sum(1, keepdim=True) - total
        t = torch.where(settled, t, t + (excess / slope).clamp_(min=0))
