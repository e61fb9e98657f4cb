"""Exact proximal operators in a diagonal metric h > 0: argmin_z w f(z) + 1/2 sum_i h_i (z_i - v_i)^2.

Adam takes its step in such a metric, so the proximal step has to be taken in it as well. For a size that is a sum over
entries, the metric turns the weight into w/h_i; l-infinity needs a level, l2 a scalar equation, the l0 of pixels one
comparison. The pixel forms of l1/2 and l2/3 have no closed form where the metric differs between the channels of a
pixel, and are not here; `prox_by_inner_loop` approximates any operator that is only known in the Euclidean metric.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pdpgd.proximal.convex import prox_l1
from pdpgd.proximal.simplex import level
from pdpgd.proximal.sparse import (
    has_channels,
    prox_l0,
    prox_l12,
    prox_l23,
    prox_pixel_l0_largest_channel,
    prox_pixel_l1_largest_channel,
    prox_pixel_l12_largest_channel,
    prox_pixel_l23_largest_channel,
    shrinkage,
)
from pdpgd.tensors import Weight, clip, flat, length, per_sample


def prox_l1_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w ||z||_1 + 1/2 sum h_i (z_i - v_i)^2.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[-3.0, 1.0, 0.5]]), torch.tensor([[1.0, 2.0, 4.0]])
        >>> prox_l1_metric(v, 0.25, metric)
        tensor([[-2.7500,  0.8750,  0.4375]])
    """
    return prox_l1(v, per_sample(weight, v) / metric)


def prox_l0_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w #{i: z_i != 0} + 1/2 sum h_i (z_i - v_i)^2.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[-3.0, 1.0, 0.5]]), torch.tensor([[1.0, 2.0, 4.0]])
        >>> prox_l0_metric(v, 0.25, metric)
        tensor([[-3.0000,  1.0000,  0.5000]])
    """
    return prox_l0(v, per_sample(weight, v) / metric)


def prox_l12_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w sum |z_i|^(1/2) + 1/2 sum h_i (z_i - v_i)^2.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[-3.0, 1.0, 0.5]]), torch.tensor([[1.0, 2.0, 4.0]])
        >>> prox_l12_metric(v, 0.25, metric)
        tensor([[-2.9269,  0.9354,  0.4536]])
    """
    return prox_l12(v, per_sample(weight, v) / metric)


def prox_l23_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w sum |z_i|^(2/3) + 1/2 sum h_i (z_i - v_i)^2.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[-3.0, 1.0, 0.5]]), torch.tensor([[1.0, 2.0, 4.0]])
        >>> prox_l23_metric(v, 0.25, metric)
        tensor([[-2.8829,  0.9141,  0.4454]])
    """
    return prox_l23(v, per_sample(weight, v) / metric)


def prox_pixel_l0_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w #{pixels: z_pixel != 0} + 1/2 sum h_i (z_i - v_i)^2.

    A pixel is unchanged where 1/2 sum_c h_c v_c^2 > w, and 0 otherwise.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), torch.tensor([[[1.0, 2.0], [1.0, 2.0]]])
        >>> prox_pixel_l0_metric(v, 0.25, metric)
        tensor([[[-3.0000,  0.5000],
                 [ 1.0000,  0.2500]]])
    """
    if not has_channels(v):
        return prox_l0_metric(v, weight, metric)
    return v * shrinkage(length(v * metric.sqrt(), 1), per_sample(weight, v), k=1)


def prox_pixel_l0_largest_channel_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Apply the paper's pixel rule for l0, with the metric at the largest channel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), torch.tensor([[[1.0, 2.0], [1.0, 2.0]]])
        >>> prox_pixel_l0_largest_channel_metric(v, 0.25, metric)
        tensor([[[-3.,  0.],
                 [ 1.,  0.]]])
    """
    return prox_pixel_l0_largest_channel(v, per_sample(weight, v) / metric)


def prox_pixel_l1_largest_channel_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Apply the paper's pixel rule for l1, with the metric at the largest channel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), torch.tensor([[[1.0, 2.0], [1.0, 2.0]]])
        >>> prox_pixel_l1_largest_channel_metric(v, 0.25, metric)
        tensor([[[-2.7500,  0.3750],
                 [ 1.0000,  0.2500]]])
    """
    return prox_pixel_l1_largest_channel(v, per_sample(weight, v) / metric)


def prox_pixel_l12_largest_channel_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Apply the paper's pixel rule for l1/2, with the metric at the largest channel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), torch.tensor([[[1.0, 2.0], [1.0, 2.0]]])
        >>> prox_pixel_l12_largest_channel_metric(v, 0.25, metric)
        tensor([[[-2.9269,  0.4013],
                 [ 1.0000,  0.2500]]])
    """
    return prox_pixel_l12_largest_channel(v, per_sample(weight, v) / metric)


def prox_pixel_l23_largest_channel_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Apply the paper's pixel rule for l2/3, with the metric at the largest channel.

    Args:
        v: Points of shape (batch, channels, ...); on (batch, features), each feature is a pixel.
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[[-3.0, 0.5], [1.0, 0.25]]]), torch.tensor([[[1.0, 2.0], [1.0, 2.0]]])
        >>> prox_pixel_l23_largest_channel_metric(v, 0.25, metric)
        tensor([[[-2.8829,  0.3855],
                 [ 1.0000,  0.2500]]])
    """
    return prox_pixel_l23_largest_channel(v, per_sample(weight, v) / metric)


def prox_linf_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w ||z||_inf + 1/2 sum h_i (z_i - v_i)^2, with one weight per sample.

    z = clip(v, -t, t) with the level t >= 0 where sum h_i (|v_i| - t)_+ = w; t = 0 if sum h_i |v_i| <= w.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[-3.0, 1.0, 0.5]]), torch.tensor([[1.0, 2.0, 4.0]])
        >>> prox_linf_metric(v, 0.25, metric)
        tensor([[-2.7500,  1.0000,  0.5000]])
    """
    t = per_sample(level(flat(v.abs()), weight, flat(metric)).clamp_(min=0), v)
    return clip(v, -t, t)


def prox_l2_metric(v: Tensor, weight: Weight, metric: Tensor) -> Tensor:
    """Return argmin_z  w ||z||_2 + 1/2 sum h_i (z_i - v_i)^2, with one weight per sample.

    z_i = v_i n / (n + w/h_i) with n = ||z||_2 solving  psi(n) = sum (v_i / (n + w/h_i))^2 = 1; n = 0 if psi(0) <= 1.
    psi^(-1/2) is concave and nearly a line, so Newton's method on it increases from any lower bound and never
    overshoots.

    Args:
        v: Points of shape (batch, ...).
        weight: w >= 0: a number or one per sample.
        metric: h > 0, shaped as v.

    Returns:
        z, shaped as v.

    Example:
        >>> v, metric = torch.tensor([[-3.0, 1.0, 0.5]]), torch.tensor([[1.0, 2.0, 4.0]])
        >>> prox_l2_metric(v, 0.25, metric)
        tensor([[-2.7670,  0.9596,  0.4897]])
    """
    tiny, rounding = torch.finfo(v.dtype).tiny, 4 * torch.finfo(v.dtype).eps
    h = flat(metric)
    # z scales with (v, w), and in units of the largest entry no square leaves the range of the dtype.
    unit = flat(v).abs().amax(1, keepdim=True).clamp_(min=tiny)
    u, w = flat(v) / unit, flat(per_sample(weight, v)) / unit
    shift = w / h
    # Lower bounds on n: the answers for h equal to its maximum, and to its minimum, everywhere.
    n = (length(h * u, 1) - w) / h.amax(1, keepdim=True)
    n = n.maximum(length(u, 1) - shift.amax(1, keepdim=True)).clamp_(min=0)
    for _ in range(100):
        reach = (n + shift).clamp_(min=tiny)
        terms = (u / reach).square_()
        psi = terms.sum(1, keepdim=True)
        step = (psi.sqrt() - 1) * psi / (terms / reach).sum(1, keepdim=True)
        climbing = step > rounding * n
        if not bool(climbing.any()):
            break
        n = torch.where(climbing, n + step, n)
    return v * (n / (n + shift).clamp_(min=tiny)).reshape(v.shape)


def prox_by_inner_loop(
    prox: Callable[[Tensor, Tensor], Tensor],
    v: Tensor,
    weight: Weight,
    metric: Tensor,
    *,
    steps: int = 5,
    tolerance: float = 1e-2,
    inside: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Approximate argmin_z w f(z) + 1/2 sum h_i (z_i - v_i)^2 by proximal gradient steps with the Euclidean prox of f.

    z <- prox(z - (h/h_max)(z - v), w/h_max) from z = v (Melchior et al. 2019); a sample stops when its relative change
    falls below `tolerance`. The paper's 5 steps end far from the minimum where h is far from its maximum: after them
    an entry with h_i = h_max/100 has been shrunk by 4.9 w/h_max under l1, instead of by 100 w/h_max.

    Args:
        prox: The Euclidean prox of f, as (v, weight) -> z.
        v: Points of shape (batch, ...).
        weight: w >= 0, a number or one per sample.
        metric: h > 0, shaped as v.
        steps: Maximum number of steps per sample.
        tolerance: Change of z, relative to the length of the new z, below which a sample stops.
        inside: Projection that ends every step, such as that on the box; None for none.

    Returns:
        z, shaped as v.

    Example:
        >>> from pdpgd.proximal import prox_l1
        >>> prox_by_inner_loop(prox_l1, torch.tensor([[-3.0, 1.0]]), 0.5, torch.tensor([[1.0, 2.0]]), tolerance=0)
        tensor([[-2.5156,  0.7500]])
    """
    largest = per_sample(flat(metric).amax(1), v)
    rate, step_weight = metric / largest, per_sample(weight, v) / largest
    if step_weight.numel() == len(v):
        step_weight = step_weight.flatten()
    z, moving = v, None
    for _ in range(steps):
        moved = prox(torch.addcmul(z, rate, z - v, value=-1), step_weight)
        if inside is not None:
            moved = inside(moved)
        if moving is not None:
            moved = torch.where(moving, moved, z)
        change, size = (torch.linalg.vector_norm(flat(x), dim=1) for x in (moved - z, moved))
        still = change > tolerance * size
        z = moved
        if bool(still.all()):
            continue
        if not bool(still.any()):
            break
        still = per_sample(still, v) > 0
        moving = still if moving is None else moving & still
    return z
