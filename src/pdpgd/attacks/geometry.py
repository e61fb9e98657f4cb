"""The linearised problem in each norm: how far a step may go, and what answers it. Lengths are in units of the box."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pdpgd.classifier import Lead
from pdpgd.criteria import Box
from pdpgd.game.linearised import Linear, cross, level_response, proximal_response
from pdpgd.norms import L1, LINF, Norm, size_l1, size_l2, size_linf
from pdpgd.tensors import flat

Propose = Callable[[Tensor, Linear, Tensor, float, Tensor, Tensor], Tensor]
"""(delta, linear, trust, overshoot, low, high) -> the next perturbation."""

# Where a start is on the boundary itself there is no length to go by: this one, in units of the box.
LEAST_LENGTH = 1e-4
# What a trust of 1 is in l-infinity, where a step may move every entry, as a share of the largest one.
LEVEL_STEP = 0.2


def geometry_of(norm: Norm) -> Propose:
    if norm is LINF:
        return _by_level
    if norm.relaxed is not None:
        return lambda *given: _by_count(norm, *given)
    return lambda *given: _by_prox(norm, *given)


def _by_prox(
    norm: Norm, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
) -> Tensor:
    """A trust of 1 weighs ||u - r||^2 / 2 in units of the present perturbation's length against its size."""
    length = torch.maximum(size_l2(delta), linear.gap.abs()).clamp(min=LEAST_LENGTH)
    size = norm.size(delta)
    step = trust * length.square() / torch.where(size > 0, size, length)
    respond = proximal_response(norm.prox_in_box, delta, linear.slope, step, low, high)
    return cross(respond, linear, delta, overshoot * length)


def _by_count(
    norm: Norm, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
) -> Tensor:
    """A trust of 1: moving a pixel through the whole box costs half of what it costs to change another one."""
    taken = torch.maximum(linear.descent(delta).abs(), linear.gap.abs()).clamp(min=LEAST_LENGTH)
    channels = delta.shape[1] if delta.ndim > 2 else 1
    respond = proximal_response(norm.prox_in_box, delta, linear.slope, trust * channels, low, high)
    return cross(respond, linear, delta, overshoot * taken)


def _by_level(delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor) -> Tensor:
    length = torch.maximum(size_l2(delta), linear.gap.abs()).clamp(min=LEAST_LENGTH)
    needed = linear.gap.abs() / size_l1(linear.slope).clamp(min=torch.finfo(delta.dtype).tiny)
    step = LEVEL_STEP * trust * torch.maximum(size_linf(delta), needed).clamp(min=LEAST_LENGTH)
    respond = level_response(delta, linear.slope, step, low, high)
    return cross(respond, linear, delta, overshoot * length)


def nearness(norm: Norm, lead: Lead, inputs: Tensor, box: Box) -> Tensor:
    """How far another class is on its linearised lead: the lead over the dual norm of its slope.

    A norm that counts: by the fewest pixels whose reach covers the lead. A norm whose dual is not known: as in l2.
    """
    if norm.relaxed is not None:
        return _fewest(lead, inputs, box)
    dual = {LINF.name: size_l1, L1.name: size_linf}.get(norm.name, size_l2)
    return lead.lead / dual(lead.slope).clamp(min=torch.finfo(inputs.dtype).tiny)


def _fewest(lead: Lead, inputs: Tensor, box: Box) -> Tensor:
    """The pixels it takes on the linearised lead, the last one in part; inf where all together do not do."""
    gain = -lead.slope * torch.where(lead.slope > 0, box.low - inputs, box.high - inputs)
    gain = flat(gain.sum(1) if gain.ndim > 2 else gain).sort(1, descending=True).values
    covered = gain.cumsum(1)
    whole = (covered < lead.lead[:, None]).sum(1, keepdim=True)
    last = whole.clamp(max=gain.shape[1] - 1)
    missing = lead.lead[:, None] - (covered - gain).gather(1, last)
    part = missing / gain.gather(1, last).clamp(min=torch.finfo(gain.dtype).tiny)
    return (whole + part).masked_fill(whole == gain.shape[1], torch.inf).squeeze(1)
