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

import torch
from torch import Tensor

from pdpgd.attacks.auto_config import AutoConfig, PriceSearch, TrustRule
from pdpgd.attacks.responses import Guess, Level, Response, Scratch, Step, least_price, response_of
from pdpgd.classifier import Lead
from pdpgd.criteria import Box
from pdpgd.norms import Norm, size_l1, size_l2, size_linf
from pdpgd.tensors import flat, per_sample


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
        tiny = torch.finfo(gradient.dtype).tiny
        # In units of the largest entry no square leaves the range of the dtype, and the length is at least 1.
        largest = size_linf(gradient).clamp_(min=tiny)
        slope = gradient / per_sample(largest, gradient)
        length = size_l2(slope)
        gap = (margin / (largest * length).clamp_(min=tiny)).clamp_(-farthest, farthest)
        return cls(gap, slope.div_(per_sample(length.clamp_(min=0.5), slope)))

    def descent(self, move: Tensor) -> Tensor:
        """Return by how much a move reduces the gap."""
        return (flat(self.slope) * flat(move)).sum(1).neg_()


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


class Geometry:
    """How a norm takes its steps on the linearized margin, for one descent.

    It keeps the price of the last step, from which the search for the next one begins, and the memory. So the rows must
    stay the same from call to call; with another number of rows it begins anew.
    """

    def __init__(self, norm: Norm, config: AutoConfig) -> None:
        self._norm, self._config = norm, config
        self._scratch = Scratch()
        self._guess: Guess | None = None

    def __call__(
        self, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
    ) -> Tensor:
        """Return the smallest response that crosses the linear boundary, or the farthest one."""
        if self._norm.level_step:
            return self._by_level(delta, linear, trust, overshoot, low, high)
        if self._norm.counts:
            return self._by_count(delta, linear, trust, overshoot, low, high)
        return self._by_prox(delta, linear, trust, overshoot, low, high)

    def _by_prox(
        self, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
    ) -> Tensor:
        """Step by the prox.

        A trust of 1 weighs ||u - r||^2 / 2, in units of the present length, against the size.
        """
        own = size_l2(delta)
        length = torch.maximum(own, linear.gap.abs()).clamp_(min=self._config.least_length)
        size = own if self._norm.size is size_l2 else self._norm.size(delta)
        step = Step(delta, linear.slope, trust * length.square() / torch.where(size > 0, size, length), low, high)
        return self._crossed(response_of(self._norm, step, self._scratch), linear, step, overshoot * length)

    def _by_count(
        self, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
    ) -> Tensor:
        """Step in a norm that counts.

        A trust of 1 weighs the change of a pixel, in units of the mean square of the present changes, against its
        count. On MNIST they span the box; deep nets of natural images are fooled by small changes of few pixels, and
        their margins are not linear as far as the box reaches.
        """
        taken = torch.maximum(linear.descent(delta).abs(), linear.gap.abs()).clamp_(min=self._config.least_length)
        count = self._norm.size(delta)
        box = float(delta.shape[1] if delta.ndim > 2 else 1)
        scale = torch.where(count > 0, size_l2(delta).square() / count.clamp(min=1), box)
        step = Step(delta, linear.slope, trust * scale, low, high)
        return self._crossed(response_of(self._norm, step, self._scratch), linear, step, overshoot * taken)

    def _by_level(
        self, delta: Tensor, linear: Linear, trust: Tensor, overshoot: float, low: Tensor, high: Tensor
    ) -> Tensor:
        """Step to a level. A trust of 1 allows each entry to move by `level_step` of the largest one."""
        config = self._config
        length = torch.maximum(size_l2(delta), linear.gap.abs()).clamp_(min=config.least_length)
        needed = linear.gap.abs() / size_l1(linear.slope).clamp_(min=torch.finfo(delta.dtype).tiny)
        size = config.level_step * trust * torch.maximum(size_linf(delta), needed).clamp_(min=config.least_length)
        step = Step(delta, linear.slope, size, low, high)
        return self._crossed(Level(step, self._scratch), linear, step, overshoot * length)

    def _crossed(self, response: Response, linear: Linear, step: Step, overshoot: Tensor) -> Tensor:
        prices = self._config.prices
        guess, rounds = self._guess, prices.warm_counting_rounds if self._norm.counts else prices.warm_rounds
        if guess is None or len(guess.price) != len(step.delta):
            guess, rounds = self._first_guess(linear, step, overshoot), prices.rounds
        u, self._guess = cross(
            *(response, linear, step.delta, overshoot, prices),
            guess=guess,
            rounds=rounds,
            levels=self._norm.level_step,
            jumps=self._norm.counts,
        )
        return u

    def _first_guess(self, linear: Linear, step: Step, overshoot: Tensor) -> Guess:
        """Guess the price of a step from 0 that neither the box nor the step size limits."""
        tiny = torch.finfo(step.delta.dtype).tiny
        if self._norm.level_step:
            slope = size_l1(linear.slope).clamp_(min=tiny)
            return Guess((linear.gap + overshoot).abs() / slope, slope)
        dual = size_linf if self._norm.counts or self._norm.dual is None else self._norm.dual
        # The price from which on anything is worth changing.
        return Guess(1 / dual(linear.slope).clamp_(min=tiny), step.size)


def cross(
    response: Response,
    linear: Linear,
    delta: Tensor,
    overshoot: Tensor,
    prices: PriceSearch,
    *,
    guess: Guess,
    rounds: int,
    levels: bool = False,
    jumps: bool = False,
) -> tuple[Tensor, Guess]:
    """Return the smallest response that crosses the linear boundary by `overshoot`, or the farthest one.

    Prices that are levels end at 1, the width of the box. Also returns the guess for the next step.
    """
    unit = math.exp(-prices.highest) if levels else 1.0
    lowest, highest = unit * math.exp(prices.lowest), unit * math.exp(prices.highest)
    need = linear.gap + overshoot + linear.descent(delta)
    price, guess = least_price(
        response.reach, need, lowest=lowest, highest=highest, rounds=rounds, guess=guess, jumps=jumps
    )
    return response.at(price), guess


def geometry_of(norm: Norm, config: AutoConfig) -> Propose:
    """Return how a norm takes its steps on the linearized margin in one descent."""
    return Geometry(norm, config)


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
