"""Both players at once, exactly, on the linearised margin.

At a perturbation r with margin m and slope g, the next one is

    argmin_u  f(u) + 1/(2t) ||u - r||^2   subject to   m + <g, u - r> <= -overshoot,  low <= u <= high.

For a price p of the constraint it is u(p) = prox_{t f}(r - t p g) inside the box, and <g, u(p)> falls as p grows: the
dual player's answer is one root a sample, found by elementwise work without a query of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.classifier import Lead
from pdpgd.criteria import Box
from pdpgd.norms import L1, LINF, Norm, size_l1, size_l2, size_linf
from pdpgd.tensors import clip, flat, length, per_sample

BoxProx = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(v, weight, low, high) -> argmin_z weight f(z) + 1/2 ||z - v||^2 inside the box."""
Response = Callable[[Tensor], Tensor]
"""From one number a sample to its perturbation; the larger the number, the farther it goes down the slope."""

# Logarithms of the prices between which the root is looked for, in units of the box and with slopes of length 1, and
# how often the interval is halved: to 2^-14 of a price.
LEAST_PRICE, HIGHEST_PRICE = -8.0, 14.0
HALVINGS = 18

# The linear model is off by this share of the change it promised: above the first the trust falls, below the second it
# grows.
MISLED, CONFIRMED = 0.6, 0.25
LESS_TRUST, MORE_TRUST = 0.6, 1.3
LEAST_TRUST, HIGHEST_TRUST = 0.02, 30.0


@dataclass(frozen=True)
class Linear:
    """The margin around a perturbation, as a distance: the slope has length 1."""

    gap: Tensor
    """What is left to the boundary, along the slope; negative beyond it."""
    slope: Tensor

    @classmethod
    def of(cls, margin: Tensor, gradient: Tensor) -> Linear:
        """No boundary is farther than the unit box is wide; a slope of zero stays zero."""
        farthest = math.sqrt(flat(gradient).shape[1])
        size = length(flat(gradient), 1).squeeze(1).clamp(min=torch.finfo(gradient.dtype).tiny)
        gap = (margin / size).clamp(-farthest, farthest)
        return cls(gap, gradient / per_sample(size, gradient))

    def descent(self, move: Tensor) -> Tensor:
        """By how much a move takes the gap down."""
        return -(flat(self.slope) * flat(move)).sum(1)


def proximal_response(prox: BoxProx, delta: Tensor, slope: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Response:
    """u(p) = prox_{t f}(r - t p g); the number is log p."""
    t = per_sample(step, delta)

    def respond(log_price: Tensor) -> Tensor:
        return prox(delta - t * per_sample(log_price.exp(), delta) * slope, step, low, high)

    return respond


def level_response(delta: Tensor, slope: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Response:
    """The l-infinity form: argmin ||u||_inf subject to |u - r| <= t, whose answer needs neither sort nor search.

    Each entry stands at -level * sign(g), as far as the step and the box allow; without slope it comes inside the
    level. The number is log level + HIGHEST_PRICE, so that the largest one is the whole box.
    """
    t = per_sample(step, delta)
    low, high = torch.maximum(delta - t, low), torch.minimum(delta + t, high)
    down = -slope.sign()
    flatland = slope == 0
    some_flatland = bool(flatland.any())

    def respond(log_level: Tensor) -> Tensor:
        level = per_sample((log_level - HIGHEST_PRICE).exp(), delta)
        u = clip(level * down, low, high)
        return torch.where(flatland, clip(clip(delta, -level, level), low, high), u) if some_flatland else u

    return respond


def cross(respond: Response, linear: Linear, delta: Tensor, overshoot: Tensor) -> Tensor:
    """The least perturbation of a response that crosses the linear boundary by `overshoot`, or its farthest one."""
    need = linear.gap + overshoot
    bottom = torch.full_like(need, LEAST_PRICE)
    top = torch.full_like(need, HIGHEST_PRICE)
    for _ in range(HALVINGS):
        middle = (bottom + top) / 2
        crossed = linear.descent(respond(middle) - delta) >= need
        bottom, top = torch.where(crossed, bottom, middle), torch.where(crossed, middle, top)
    return respond(top)


@dataclass(frozen=True)
class Trust:
    """How far the linear model is believed, sample by sample, in units of the perturbation's present size."""

    value: Tensor

    def judged(self, promised: Tensor, came: Tensor) -> Trust:
        """After a step that promised one change of the margin, and came out at another."""
        error = (came - promised).abs() / (promised.abs() + torch.finfo(came.dtype).tiny)
        factor = torch.where(error > MISLED, LESS_TRUST, torch.where(error < CONFIRMED, MORE_TRUST, 1.0))
        return Trust((self.value * factor).clamp(LEAST_TRUST, HIGHEST_TRUST))


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
