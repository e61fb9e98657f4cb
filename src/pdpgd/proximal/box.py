"""Exact proximal operators inside a box: argmin_z w f(z) + 1/2 ||z - v||^2 subject to low <= z <= high.

The box contains 0: low <= 0 <= high, both broadcasting against v. Clipping the unconstrained minimizer is exact for l1
only: under l0, l1/2 and l2/3 a clipped entry may no longer be worth its cost, and under l2 and l-infinity it changes
the optimum of the other entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.proximal.convex import prox_l1
from pdpgd.proximal.sparse import has_channels, shrinkage
from pdpgd.tensors import Weight, clip, flat, length, per_sample


def prox_l1_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w ||z||_1 + 1/2 ||z - v||^2  subject to  low <= z <= high.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_l1_box(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25, low, high)
        tensor([[-2.0000,  0.7500,  0.2500]])
    """
    return clip(prox_l1(v, weight), low, high)


def prox_l0_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w #{i: z_i != 0} + 1/2 ||z - v||^2  subject to  low <= z <= high.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_l0_box(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25, low, high)
        tensor([[-2.0000,  0.7500,  0.0000]])
    """
    return _prox_power_box(v, weight, low, high, k=1)


def prox_l12_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w sum |z_i|^(1/2) + 1/2 ||z - v||^2  subject to  low <= z <= high.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_l12_box(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25, low, high)
        tensor([[-2.0000,  0.7500,  0.0000]])
    """
    return _prox_power_box(v, weight, low, high, k=2)


def prox_l23_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w sum |z_i|^(2/3) + 1/2 ||z - v||^2  subject to  low <= z <= high.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_l23_box(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25, low, high)
        tensor([[-2.0000,  0.7500,  0.0000]])
    """
    return _prox_power_box(v, weight, low, high, k=3)


def prox_pixel_l0_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w #{pixels: z_pixel != 0} + 1/2 ||z - v||^2  subject to  low <= z <= high.

    A pixel is x = clip(v) where that saves more than it costs, 1/2 sum_c (v_c^2 - (x_c - v_c)^2) > w, and 0 otherwise.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per pixel.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_pixel_l0_box(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25, low, high)
        tensor([[[-2.0000,  0.0000],
                 [ 0.7500,  0.0000]]])
    """
    if not has_channels(v):
        return prox_l0_box(v, weight, low, high)
    x = clip(v, low, high)
    return x * shrinkage(length(_root_saving(v, x), 1), per_sample(weight, v), k=1)


def prox_l2_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w ||z||_2 + 1/2 ||z - v||^2  subject to  low <= z <= high, with one weight per sample.

    z = clip(v n / (n + w)) with n = ||z||_2 solving  psi(n) = sum min(a_i / (n + w), c_i / n)^2 = 1, where a = |v| and
    c is the bound on the side of v. psi decreases strictly and is solved by Newton's method on psi^(-1/2), with a
    bisection where a step would leave the bracket.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_l2_box(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25, low, high)
        tensor([[-2.0000,  0.7500,  0.4486]])
    """
    tiny, rounding = torch.finfo(v.dtype).tiny, 4 * torch.finfo(v.dtype).eps
    a, c = flat(v.abs()), flat(_bound(v, low, high))
    # z scales with (v, w, low, high), and in units of the largest entry no square leaves the range of the dtype.
    unit = a.amax(1, keepdim=True).clamp_(min=tiny)
    a, c, w = a / unit, c / unit, flat(per_sample(weight, v)) / unit
    bottom = torch.zeros_like(unit)
    top = length(a * (c > 0), 1).sub_(w).minimum(length(a.minimum(c), 1)).clamp_(min=0)
    n = top
    for _ in range(100):
        free, held = a / (n + w).clamp_(min=tiny), c / n.clamp(min=tiny)
        terms = free.minimum(held).square_()
        psi = terms.sum(1, keepdim=True)
        slope = (terms / torch.where(free < held, n + w, n).clamp_(min=tiny)).sum(1, keepdim=True)
        bottom, top = torch.where(psi > 1, n, bottom), torch.where(psi > 1, top, n)
        newton = n + (psi.sqrt() - 1) * psi / slope
        # Strictly inside: where a bound becomes active, Newton can jump from one end to the other forever.
        better = torch.where((newton > bottom) & (newton < top), newton, (bottom + top) / 2)
        moving = ((better - n).abs() > rounding * n) & ((psi - 1).abs() > rounding)
        if not bool(moving.any()):
            break
        n = torch.where(moving, better, n)
    factor = per_sample((n / (n + w).clamp_(min=tiny)).squeeze(1), v)
    return clip(v * factor, low, high)


def prox_linf_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin_z  w ||z||_inf + 1/2 ||z - v||^2  subject to  low <= z <= high, with one weight per sample.

    z = clip(v, max(-t, low), min(t, high)). With a = |v|, c the bound on the side of v and b = min(a, c), an entry is
    at the level while b_i > t: the best t is the last one where sum_{b_i > t} (a_i - t) > w. While the j largest b are
    above it, that sum is A_j - j t, so  t = max_j min(b_j, (A_j - w)/j), or 0 if that is negative.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        low: Lower bounds <= 0 that broadcast against v.
        high: Upper bounds >= 0 that broadcast against v.

    Returns:
        z, shaped as v.

    Example:
        >>> low, high = torch.tensor(-2.0), torch.tensor(0.75)
        >>> prox_linf_box(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25, low, high)
        tensor([[-2.0000,  0.7500,  0.5000]])
    """
    a, c = flat(v.abs()), flat(_bound(v, low, high))
    b, order = a.minimum(c).sort(1, descending=True)
    count = torch.arange(1, a.shape[1] + 1, dtype=v.dtype, device=v.device)
    means = (a.gather(1, order).cumsum(1) - flat(per_sample(weight, v))) / count
    t = per_sample(b.minimum(means).amax(1).clamp_(min=0), v)
    return clip(v, low.maximum(-t), high.minimum(t))


def _prox_power_box(v: Tensor, weight: Weight, low: Tensor, high: Tensor, *, k: int) -> Tensor:
    """Return argmin_z  w sum |z_i|^p + 1/2 ||z - v||^2  subject to  low <= z <= high,  p = (k - 1)/k.

    Where the unconstrained minimizer is 0, it is in the box. Where the box cuts it off, the cost between 0 and the
    bound rises and then falls, so the minimizer is one of the two ends: the bound x, if
    w x^p + 1/2 (x - a)^2 < 1/2 a^2,  that is  2a - x > 2w / x^(1/k).
    """
    w = per_sample(weight, v)
    free = v * shrinkage(v.abs(), w, k=k)
    x = clip(free, low, high)
    reach = x.abs()
    saving = (2 * v.abs()).sub_(reach)
    return x * torch.gt(saving, 2 * w / (reach.pow(1 / k) if k > 1 else reach), out=saving)


def _root_saving(v: Tensor, x: Tensor) -> Tensor:
    """Return sqrt(v^2 - (x - v)^2) = sqrt(|x| (2|v| - |x|)) for x between 0 and v, without squaring."""
    return x.abs().sqrt() * (2 * v.abs() - x.abs()).sqrt()


def _bound(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.where(v > 0, high, -low).expand_as(v)
