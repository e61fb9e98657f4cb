"""One step on the linearized margin, with both players at their optimum.

At a perturbation r with margin m and slope g, the next one is

    argmin_u  f(u) + 1/(2t) ||u - r||^2   subject to   m + <g, u - r> <= -overshoot,  low <= u <= high.

For a price p of the constraint it is u(p) = prox_{t f}(r - t p g) inside the box, and <g, u(p)> falls as p grows: the
dual player's answer is one root per sample, found by elementwise operations without a query of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pdpgd.attacks.config import AutoConfig, PriceSearch, TrustRule
from pdpgd.classifier import Lead
from pdpgd.criteria import Box
from pdpgd.norms import BoxProx, Norm, size_l1, size_l2, size_linf
from pdpgd.tensors import clip, flat, length, per_sample

Response = Callable[[Tensor], Tensor]
"""Maps one number per sample to a perturbation; the larger the number, the farther it goes down the slope."""


@dataclass(frozen=True)
class Linear:
    """The linearized margin around a perturbation, as a distance: the slope has length 1."""

    gap: Tensor
    """Distance to the boundary along the slope; negative beyond it."""
    slope: Tensor

    @classmethod
    def of(cls, margin: Tensor, gradient: Tensor) -> Linear:
        """Divide by the length of the gradient.

        No boundary is farther than the diagonal of the unit box; a slope of zero stays zero.
        """
        farthest = math.sqrt(flat(gradient).shape[1])
        size = length(flat(gradient), 1).squeeze(1).clamp(min=torch.finfo(gradient.dtype).tiny)
        gap = (margin / size).clamp(-farthest, farthest)
        return cls(gap, gradient / per_sample(size, gradient))

    def descent(self, move: Tensor) -> Tensor:
        """Return by how much a move reduces the gap."""
        return -(flat(self.slope) * flat(move)).sum(1)


def proximal_response(prox: BoxProx, delta: Tensor, slope: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Response:
    """u(p) = prox_{t f}(r - t p g); the number is log p."""
    t = per_sample(step, delta)

    def respond(log_price: Tensor) -> Tensor:
        return prox(delta - t * per_sample(log_price.exp(), delta) * slope, step, low, high)

    return respond


def level_response(
    delta: Tensor, slope: Tensor, step: Tensor, low: Tensor, high: Tensor, prices: PriceSearch
) -> Response:
    """The l-infinity form: argmin ||u||_inf subject to |u - r| <= t, which needs neither a sort nor a search.

    Each entry is at -level * sign(g), as far as the step and the box allow; an entry without slope is clipped to the
    level. The number is log level + prices.highest, so that the largest one covers the whole box.
    """
    t = per_sample(step, delta)
    low, high = torch.maximum(delta - t, low), torch.minimum(delta + t, high)
    down = -slope.sign()
    flatland = slope == 0
    some_flatland = bool(flatland.any())

    def respond(log_level: Tensor) -> Tensor:
        level = per_sample((log_level - prices.highest).exp(), delta)
        u = clip(level * down, low, high)
        return torch.where(flatland, clip(clip(delta, -level, level), low, high), u) if some_flatland else u

    return respond


def cross(respond: Response, linear: Linear, delta: Tensor, overshoot: Tensor, prices: PriceSearch) -> Tensor:
    """Return the smallest response that crosses the linear boundary by `overshoot`, or the farthest one."""
    need = linear.gap + overshoot
    bottom = torch.full_like(need, prices.lowest)
    top = torch.full_like(need, prices.highest)
    for _ in range(prices.halvings):
        middle = (bottom + top) / 2
        crossed = linear.descent(respond(middle) - delta) >= need
        bottom, top = torch.where(crossed, bottom, middle), torch.where(crossed, middle, top)
    return respond(top)


@dataclass(frozen=True)
class Trust:
    """How far the linearization is trusted, per sample, in units of the perturbation's present size."""

    value: Tensor

    def judged(self, promised: Tensor, actual: Tensor, rule: TrustRule) -> Trust:
        """Return the trust after a step, given the promised and the actual change of the margin."""
        error = (actual - promised).abs() / (promised.abs() + torch.finfo(actual.dtype).tiny)
        factor = torch.where(error > rule.misled, rule.less, torch.where(error < rule.confirmed, rule.more, 1.0))
        return Trust((self.value * factor).clamp(rule.lowest, rule.highest))


Propose = Callable[[Tensor, Linear, Tensor, float, Tensor, Tensor], Tensor]
"""(delta, linear, trust, overshoot, low, high) -> the next perturbation."""


def geometry_of(norm: Norm, config: AutoConfig) -> Propose:
    """Return how a norm takes its step on the linearized margin."""
    if norm.level_step:
        return partial(_by_level, config)
    return partial(_by_count if norm.counts else _by_prox, config, norm)


def _by_prox(
    config: AutoConfig,
    norm: Norm,
    delta: Tensor,
    linear: Linear,
    trust: Tensor,
    overshoot: float,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    """Step by the prox. A trust of 1 weighs ||u - r||^2 / 2, in units of the present length, against the size."""
    length = torch.maximum(size_l2(delta), linear.gap.abs()).clamp(min=config.least_length)
    size = norm.size(delta)
    step = trust * length.square() / torch.where(size > 0, size, length)
    respond = proximal_response(norm.prox_in_box, delta, linear.slope, step, low, high)
    return cross(respond, linear, delta, overshoot * length, config.prices)


def _by_count(
    config: AutoConfig,
    norm: Norm,
    delta: Tensor,
    linear: Linear,
    trust: Tensor,
    overshoot: float,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    """Step in a norm that counts.

    A trust of 1 weighs the change of a pixel, in units of the mean square of the present changes, against its count: a
    new pixel is worth it from sqrt(2) times their usual size. On MNIST they span the box; deep nets of natural images
    are fooled by small changes of few pixels, and their margins are not linear as far as the box.
    """
    taken = torch.maximum(linear.descent(delta).abs(), linear.gap.abs()).clamp(min=config.least_length)
    size = norm.size(delta)
    box = float(delta.shape[1] if delta.ndim > 2 else 1)
    step = trust * torch.where(size > 0, size_l2(delta).square() / size.clamp(min=1), box)
    respond = proximal_response(norm.prox_in_box, delta, linear.slope, step, low, high)
    return cross(respond, linear, delta, overshoot * taken, config.prices)


def _by_level(
    config: AutoConfig, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
) -> Tensor:
    """Step to a level. A trust of 1 allows each entry to move by `level_step` of the largest one."""
    length = torch.maximum(size_l2(delta), linear.gap.abs()).clamp(min=config.least_length)
    needed = linear.gap.abs() / size_l1(linear.slope).clamp(min=torch.finfo(delta.dtype).tiny)
    step = config.level_step * trust * torch.maximum(size_linf(delta), needed).clamp(min=config.least_length)
    respond = level_response(delta, linear.slope, step, low, high, config.prices)
    return cross(respond, linear, delta, overshoot * length, config.prices)


def nearness(norm: Norm, lead: Lead, inputs: Tensor, box: Box) -> Tensor:
    """Return the distance to another class on its linearized lead: the lead divided by the dual norm of its slope.

    In a norm that counts it is the fewest pixels whose changes can make up for the lead. Where the dual norm is not
    known, l2 stands in for it.
    """
    if norm.counts:
        return _fewest(lead, inputs, box)
    dual = size_l2 if norm.dual is None else norm.dual
    return lead.lead / dual(lead.slope).clamp(min=torch.finfo(inputs.dtype).tiny)


def _fewest(lead: Lead, inputs: Tensor, box: Box) -> Tensor:
    """Return the number of pixels it takes on the linearized lead, the last one in part; inf if all do not suffice."""
    gain = -lead.slope * torch.where(lead.slope > 0, box.low - inputs, box.high - inputs)
    gain = flat(gain.sum(1) if gain.ndim > 2 else gain).sort(1, descending=True).values
    covered = gain.cumsum(1)
    whole = (covered < lead.lead[:, None]).sum(1, keepdim=True)
    last = whole.clamp(max=gain.shape[1] - 1)
    missing = lead.lead[:, None] - (covered - gain).gather(1, last)
    part = missing / gain.gather(1, last).clamp(min=torch.finfo(gain.dtype).tiny)
    return (whole + part).masked_fill(whole == gain.shape[1], torch.inf).squeeze(1)
