"""Proximal operators of the sparse, nonconvex sizes: l0, sum |z|^(1/2), sum |z|^(2/3), by element and by pixel.

With p = (k - 1)/k (k = 1: l0, k = 2: 1/2, k = 3: 2/3) they all have one jump: the minimizer of w z^p + 1/2 (z - a)^2
over z >= 0 is 0 up to a = (k + 1)/2 (2w/k)^(k/(k+1)), and the larger stationary point beyond.

A pixel is the vector of channels along axis 1; each feature of a (batch, features) tensor is a pixel. The exact pixel
forms shrink a pixel along its own direction. The `_largest_channel` forms follow the paper's rule, which is not a prox
of the pixel size: they shrink the largest channel and keep or drop the others with it. There is such a form for the l1
relaxation of l0 as well.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pdpgd.proximal.convex import prox_l1
from pdpgd.tensors import Weight, length, per_sample


def prox_l0(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w #{i: z_i != 0} + 1/2 ||z - v||^2:  v_i where v_i^2 / 2 > w, else 0.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_l0(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25)
        tensor([[-3.,  1.,  0.]])
    """
    return v * shrinkage(v.abs(), per_sample(weight, v), k=1)


def prox_l12(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w sum |z_i|^(1/2) + 1/2 ||z - v||^2.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_l12(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25)
        tensor([[-2.9269,  0.8656,  0.0000]])
    """
    return v * shrinkage(v.abs(), per_sample(weight, v), k=2)


def prox_l23(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w sum |z_i|^(2/3) + 1/2 ||z - v||^2.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number, one per sample, or one per entry.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_l23(torch.tensor([[-3.0, 1.0, 0.5]]), 0.25)
        tensor([[-2.8829,  0.8221,  0.0000]])
    """
    return v * shrinkage(v.abs(), per_sample(weight, v), k=3)


def prox_pixel_l0(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w #{pixels: z_pixel != 0} + 1/2 ||z - v||^2, with one weight per sample or per pixel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per pixel.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l0(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-3.,  0.],
                 [ 1.,  0.]]])
    """
    return v * shrinkage(_pixel_lengths(v), per_sample(weight, v), k=1)


def prox_pixel_l12(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w sum ||z_pixel||_2^(1/2) + 1/2 ||z - v||^2, with one weight per sample or per pixel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per pixel.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l12(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-2.9326,  0.0000],
                 [ 0.9775,  0.0000]]])
    """
    return v * shrinkage(_pixel_lengths(v), per_sample(weight, v), k=2)


def prox_pixel_l23(v: Tensor, weight: Weight) -> Tensor:
    """Return argmin_z  w sum ||z_pixel||_2^(2/3) + 1/2 ||z - v||^2, with one weight per sample or per pixel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per pixel.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l23(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-2.8909,  0.2806],
                 [ 0.9636,  0.1403]]])
    """
    return v * shrinkage(_pixel_lengths(v), per_sample(weight, v), k=3)


def prox_pixel_l0_largest_channel(v: Tensor, weight: Weight) -> Tensor:
    """Apply the paper's pixel rule for l0: a pixel is unchanged if prox_l0 keeps its largest channel, and 0 otherwise.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per entry; that of the largest channel is used.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l0_largest_channel(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-3.,  0.],
                 [ 1.,  0.]]])
    """
    return _led_by_largest_channel(prox_l0, v, per_sample(weight, v))


def prox_pixel_l1_largest_channel(v: Tensor, weight: Weight) -> Tensor:
    """Apply the paper's pixel rule for l1: prox_l1 on the largest channel; the others stay, or become 0 with it.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per entry; that of the largest channel is used.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l1_largest_channel(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-2.7500,  0.2500],
                 [ 1.0000,  0.2500]]])
    """
    return _led_by_largest_channel(prox_l1, v, per_sample(weight, v))


def prox_pixel_l12_largest_channel(v: Tensor, weight: Weight) -> Tensor:
    """Apply the paper's pixel rule for l1/2: prox_l12 on the largest channel; the others stay, or become 0 with it.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per entry; that of the largest channel is used.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l12_largest_channel(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-2.9269,  0.0000],
                 [ 1.0000,  0.0000]]])
    """
    return _led_by_largest_channel(prox_l12, v, per_sample(weight, v))


def prox_pixel_l23_largest_channel(v: Tensor, weight: Weight) -> Tensor:
    """Apply the paper's pixel rule for l2/3: prox_l23 on the largest channel; the others stay, or become 0 with it.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number, one per sample, or one per entry; that of the largest channel is used.

    Returns:
        z, shaped as v.

    Example:
        >>> prox_pixel_l23_largest_channel(torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), 0.25)
        tensor([[[-2.8829,  0.0000],
                 [ 1.0000,  0.0000]]])
    """
    return _led_by_largest_channel(prox_l23, v, per_sample(weight, v))


def shrinkage(magnitude: Tensor, weight: Tensor, *, k: int) -> Tensor:
    """Return z/a for  z = argmin_{z >= 0} w z^p + 1/2 (z - a)^2,  p = (k - 1)/k, at each a of `magnitude`.

    For k >= 2, s = (z/a)^(1/k) is the largest root of s^(k+1) - s + c = 0 with c = w p a^(-(k+1)/k). The ratio of the
    threshold to a gives c without leaving the range of the dtype; at the jump it is 1 and c is largest. Newton starts
    on the parabola that matches the root's value and slope at c = 0 and its value at the jump, within 0.02 of the root.
    Weight 0 gives c = 0 and s = 1 without rounding.
    """
    threshold = (k + 1) / 2 * (2 / k * weight).pow(k / (k + 1))
    if k == 1:
        return torch.gt(magnitude, threshold, out=torch.empty_like(magnitude))

    c_at_jump = (k - 1) / 2 * (2 / (k + 1)) ** ((k + 1) / k)
    s_at_jump = (2 / (k + 1)) ** (1 / k)
    curvature = (1 - c_at_jump / k - s_at_jump) / c_at_jump**2
    # In place from here on: on the CPU, allocating a tensor costs more than the arithmetic on it.
    ratio = magnitude.clamp(min=torch.finfo(magnitude.dtype).tiny)
    torch.div(threshold, ratio, out=ratio).clamp_(max=1)
    # On [0, 1] as accurate as pow, in a third of the time.
    c = ratio.log2_().mul_((k + 1) / k).exp2_().mul_(c_at_jump)
    s = (c * -curvature).sub_(1 / k).mul_(c).add_(1)
    power = torch.empty_like(s)
    # The parabola is off by 0.004 (k = 2) or 0.011 (k = 3); these rounds reduce that below 1e-8, or below 1e-15.
    for _ in range(k if torch.finfo(s.dtype).eps > 1e-8 else k + 1):
        _power(s, k, out=power)
        s.mul_(power).mul_(k).sub_(c).div_(power.mul_(k + 1).sub_(1))
    _power(s, k, out=power)
    return torch.gt(magnitude, threshold, out=s).mul_(power)


def _power(s: Tensor, k: int, *, out: Tensor) -> None:
    torch.mul(s, s, out=out)
    if k == 3:
        out.mul_(s)


def has_channels(v: Tensor) -> bool:
    """Return whether a pixel of v has more than one channel."""
    return v.ndim >= 3 and v.shape[1] > 1


def _pixel_lengths(v: Tensor) -> Tensor:
    return length(v, 1) if has_channels(v) else v.abs()


def _led_by_largest_channel(prox: Callable[[Tensor, Weight], Tensor], v: Tensor, weight: Tensor) -> Tensor:
    if not has_channels(v):
        return prox(v, weight)
    leader = v.abs().argmax(1, keepdim=True)
    shrunk = prox(v.gather(1, leader), weight.expand_as(v).gather(1, leader))
    return v.scatter(1, leader, shrunk) * (shrunk != 0)
