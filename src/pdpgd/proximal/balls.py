"""Exact Euclidean projections on the intersection of a ball and a box: for the l1 ball, and for few pixels or entries.

The box, that of perturbations, contains 0: low <= 0 <= high, both broadcasting against v. Alternating projections on
ball and box give neither the nearest point of both nor, for l0, one that spends its pixels well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.proximal.sparse import has_channels
from pdpgd.tensors import Weight, clip, flat, length, per_sample


def project_l1_ball_box(v: Tensor, radius: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z 1/2 ||z - v||^2  subject to  ||z||_1 <= radius and low <= z <= high, per sample.

    z = clip(sign(v) (|v| - t)_+) with the level t >= 0 where ||z||_1 = radius; t = 0 if clip(v) is in the ball.

    Args:
        v: Points of shape (batch, ...).
        radius: A number or one per sample, at least 0.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> project_l1_ball_box(torch.tensor([[-3.0, 1.0, 0.5]]), 2.0, low, high)
        tensor([[-2.,  0.,  0.]])
    """
    bound = torch.where(v > 0, high, -low).expand_as(v)
    total = flat(per_sample(radius, v)).expand(len(v), 1)
    t = per_sample(_level_under_bounds(flat(v.abs()), flat(bound), total), v)
    z = clip(v - clip(v, -t, t), low, high)
    # The level is accurate to a few ulp of the largest entry, which may be far larger than the radius.
    length_of_z = flat(z).abs().sum(1, keepdim=True)
    shrink = total / length_of_z * (1 - 4 * torch.finfo(v.dtype).eps)
    return z * per_sample(torch.where(length_of_z > total, shrink, 1.0).squeeze(1), v)


def project_l0_ball_box(v: Tensor, count: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z 1/2 ||z - v||^2  subject to  #{pixels: z_pixel != 0} <= count and low <= z <= high, per sample.

    Compared with 0, a pixel x = clip(v) saves sum_c (v_c^2 - (x_c - v_c)^2) = sum_c |x_c| (2 |v_c| - |x_c|). The pixels
    that save most stay; ties go to the earlier pixel. A pixel is the vector of channels along axis 1, on flat inputs an
    entry.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        count: Largest number of nonzero pixels: a number or one per sample, rounded down.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> project_l0_ball_box(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 1, low, high)
        tensor([[[-2.0000,  0.0000],
                 [ 0.7500,  0.0000]]])
    """
    x = clip(v, low, high)
    # Square roots, and a length that rescales them, so that no square leaves the range of the dtype.
    saving = x.abs().sqrt() * (2 * v.abs() - x.abs()).sqrt()
    if has_channels(v):
        saving = length(saving, 1)
    best_first = flat(saving).sort(dim=1, descending=True, stable=True).indices
    place = torch.arange(best_first.shape[1], dtype=v.dtype, device=v.device)
    stays = place < flat(per_sample(count, v)).floor().expand(len(v), 1)
    mask = torch.zeros_like(flat(saving)).scatter_(1, best_first, stays.to(v.dtype))
    return x * mask.reshape(saving.shape)


def _level_under_bounds(a: Tensor, c: Tensor, total: Tensor) -> Tensor:
    """Return for each row the least t >= 0 with  f(t) = sum_i min((a_i - t)_+, c_i) <= total, of shape (batch,).

    f decreases and is linear between the breakpoints a_i, where an entry vanishes, and a_i - c_i, where its bound
    becomes inactive. Bisection over the sorted breakpoints finds the piece. f is summed afresh each time: running sums
    of large entries that the bounds cut to small ones would cancel.
    """
    breaks = torch.cat([torch.zeros_like(total), a, (a - c).clamp_(min=0)], 1).sort(1).values
    first = torch.zeros(len(a), 1, dtype=torch.long, device=a.device)
    last = torch.full_like(first, breaks.shape[1] - 1)
    for _ in range(breaks.shape[1].bit_length()):
        middle = (first + last) // 2
        above = _cut(a, c, breaks.gather(1, middle)) > total
        first, last = torch.where(above, middle, first), torch.where(above, last, middle)
    # Now f(left) > total >= f(right), unless the whole row is in the ball, where first = last = 0.
    left, right = breaks.gather(1, first), breaks.gather(1, last)
    high, low = _cut(a, c, left), _cut(a, c, right)
    share = (total - low) / (high - low)
    return torch.where(high > total, right - share * (right - left), left).squeeze(1)


def _cut(a: Tensor, c: Tensor, t: Tensor) -> Tensor:
    """Return sum_i min((a_i - t)_+, c_i)."""
    return (a - t).clamp_(min=0).minimum(c).sum(1, keepdim=True)
