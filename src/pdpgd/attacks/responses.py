"""How the perturbation answers a price of the linearized constraint, and the search for the price that crosses it.

A response u(p) has one price per sample, and <g, u(p)> falls as p grows. The search asks only how far a response
reaches down the slope, so the responses here compute that in a few passes over the data, in memory that is kept for a
whole descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pdpgd import proximal
from pdpgd.norms import BoxProx, Norm
from pdpgd.tensors import flat, per_sample

# What counts as no slope beside a perturbation of the unit box, for slopes of length 1.
_NO_SLOPE = 1e-20
# The search aims this far beyond the boundary, relative to the way to it, so that its last rounds cross.
_BEYOND = 1e-4
# First steps from a price that does not bracket the root yet: the least factor, the one for a reach that jumps, and the
# largest.
_STEPS = ((1.0, 1.3, 4.0), (1.05, 2.0, 8.0), (8.0, 8.0, 8.0))
# Prices of this ratio bracket too much for false position: their geometric mean is tried.
_WIDE = 8.5
# from this round on, every other one halves the bracket.
_PATIENCE = 6


class Scratch:
    """Memory for intermediate results shaped as the perturbations, kept from step to step."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def like(self, delta: Tensor, count: int) -> list[Tensor]:
        """Return that many tensors of the shape and dtype of `delta`, with anything in them."""
        kept = self._kept
        if kept and (kept[0].shape != delta.shape or kept[0].dtype != delta.dtype or kept[0].device != delta.device):
            kept.clear()
        while len(kept) < count:
            kept.append(torch.empty_like(delta, memory_format=torch.contiguous_format))
        return kept[:count]


@dataclass(frozen=True)
class Step:
    """One step on a linearized margin: where it begins, the slope, how far it may go, and the box."""

    delta: Tensor
    slope: Tensor
    size: Tensor
    """The step size t per sample."""
    low: Tensor
    high: Tensor


class Response(Protocol):
    """The perturbation as a function of one price per sample."""

    def reach(self, price: Tensor) -> Tensor:
        """Return how far the perturbation is down the slope, -<g, u(p)> per sample."""
        ...

    def at(self, price: Tensor) -> Tensor:
        """Return the perturbation u(p)."""
        ...


class AnyResponse:
    """u(p) = prox_{t f}(r - t p g) by the prox of any norm."""

    def __init__(self, prox: BoxProx, step: Step) -> None:
        self._prox, self._step = prox, step

    def reach(self, price: Tensor) -> Tensor:
        """Return -<g, u(p)>."""
        return -(flat(self._step.slope) * flat(self.at(price))).sum(1)

    def at(self, price: Tensor) -> Tensor:
        """Return the prox."""
        step = self._step
        v = torch.addcmul(step.delta, per_sample(step.size * price, step.delta), step.slope, value=-1)
        return self._prox(v, step.size, step.low, step.high)


class _InPlace:
    """A response that is written into given memory."""

    def __init__(self, step: Step, scratch: Scratch, *, memory: int = 2) -> None:
        self._step = step
        self._u, self._spare, *self._more = scratch.like(step.delta, memory)

    def reach(self, price: Tensor) -> Tensor:
        """Return -<g, u(p)>."""
        return self._write(price, self._u).mul_(self._step.slope).flatten(1).sum(1).neg_()

    def at(self, price: Tensor) -> Tensor:
        """Return u(p) in memory of its own."""
        return self._write(price, torch.empty_like(self._u))

    def _write(self, price: Tensor, out: Tensor) -> Tensor:
        raise NotImplementedError

    def _moved(self, price: Tensor, out: Tensor) -> Tensor:
        """Return r - t p g."""
        step = self._step
        return torch.addcmul(step.delta, per_sample(step.size * price, out), step.slope, value=-1, out=out)

    def _boxed(self, out: Tensor) -> Tensor:
        torch.maximum(out, self._step.low, out=out)
        return torch.minimum(out, self._step.high, out=out)


class _Soft(_InPlace):
    """The prox of l1, clipped to the box."""

    def __init__(self, step: Step, scratch: Scratch) -> None:
        super().__init__(step, scratch)
        self._threshold = per_sample(step.size, step.delta)

    def _write(self, price: Tensor, out: Tensor) -> Tensor:
        v = self._moved(price, out)
        torch.maximum(v, -self._threshold, out=self._spare)
        v.sub_(torch.minimum(self._spare, self._threshold, out=self._spare))
        return self._boxed(v)


class _Shrunk(_InPlace):
    """The prox of l2, clipped to the box."""

    def _write(self, price: Tensor, out: Tensor) -> Tensor:
        v = self._moved(price, out)
        size = torch.linalg.vector_norm(flat(v), dim=1).clamp_(min=torch.finfo(v.dtype).tiny)
        factor = torch.div(self._step.size, size).neg_().add_(1).clamp_(min=0)
        return self._boxed(v.mul_(per_sample(factor, v)))


class _Kept:
    """The prox of l0 in the box: a pixel is x = clip(v) where sum_c x_c (v_c - x_c / 2) > t, and 0 otherwise.

    Sums over channels are formed one channel after the other: a sum along a dimension takes longer.
    """

    def __init__(self, step: Step, scratch: Scratch, *, pixels: bool) -> None:
        tensors = (step.delta, step.slope, step.low, step.high)
        # Without channels, each entry is a pixel.
        pixels = pixels and step.delta.ndim > 2
        self._step, self._pixels = step, pixels
        self._channels = list(zip(*(v.unbind(1) for v in tensors), strict=True)) if pixels else [tensors]
        self._v, self._x, self._saving, self._gain = scratch.like(self._channels[0][0], 4)
        self._cost = per_sample(step.size, self._v)

    def reach(self, price: Tensor) -> Tensor:
        """Return -<g, u(p)>, without the perturbation itself."""
        gain = self._gain.zero_()
        kept = self._kept(price, lambda x, slope: gain.addcmul_(x, slope, value=-1))
        return gain.mul_(kept).flatten(1).sum(1)

    def at(self, price: Tensor) -> Tensor:
        """Return u(p) in memory of its own."""
        clipped: list[Tensor] = []
        kept = self._kept(price, lambda x, _: clipped.append(x.clone()))
        return torch.stack(clipped, 1).mul_(kept.unsqueeze(1)) if self._pixels else clipped[0].mul_(kept)

    def _kept(self, price: Tensor, take: Callable[[Tensor, Tensor], object]) -> Tensor:
        """Return 1 for the pixels that are worth their cost and 0 for the others.

        `take` gets each channel of the clipped v, in memory that is used again, and of the slope.
        """
        way, saving = per_sample(self._step.size * price, self._v), self._saving.zero_()
        for delta, slope, low, high in self._channels:
            v = torch.addcmul(delta, way, slope, value=-1, out=self._v)
            x = torch.maximum(v, low, out=self._x)
            torch.minimum(x, high, out=x)
            saving.addcmul_(v.sub_(x, alpha=0.5), x)
            take(x, slope)
        return torch.gt(saving, self._cost, out=saving)


class Level(_InPlace):
    """The l-infinity form: argmin ||u||_inf subject to |u - r| <= t, which needs neither a sort nor a search.

    The price is the level. Each entry is at -level * sign(g), as far as the step and the box allow; an entry without
    slope is clipped to the level. With y_i = s_i u_i, where s is the way down the slope, or away from 0 where there is
    none, every entry is y = clip(level, bottom, top), and what an entry reaches down the slope is |g| y.
    """

    def __init__(self, step: Step, scratch: Scratch) -> None:
        super().__init__(step, scratch, memory=6)
        delta, slope, t = step.delta, step.slope, per_sample(step.size, step.delta)
        u, spare = self._u, self._spare
        self._sign, self._steepness, self._bottom, self._top = sign, steepness, bottom, top = self._more
        torch.sub(slope, delta, alpha=_NO_SLOPE, out=sign).neg_().sign_()
        torch.abs(slope, out=steepness)
        low = torch.maximum(torch.sub(delta, t, out=u), step.low, out=u).mul_(sign)
        high = torch.minimum(torch.add(delta, t, out=spare), step.high, out=spare).mul_(sign)
        torch.minimum(low, high, out=bottom)
        torch.maximum(low, high, out=top)
        # Without slope an entry goes no farther from 0 than it is; with one, this is no bound.
        own = torch.abs(delta, out=u).add_(steepness, alpha=1 / _NO_SLOPE)
        torch.minimum(top, own, out=top)

    def reach(self, price: Tensor) -> Tensor:
        """Return -<g, u(p)>."""
        return self._down(price, self._u).mul_(self._steepness).flatten(1).sum(1)

    def _write(self, price: Tensor, out: Tensor) -> Tensor:
        return self._down(price, out).mul_(self._sign)

    def _down(self, price: Tensor, out: Tensor) -> Tensor:
        torch.maximum(self._bottom, per_sample(price, out), out=out)
        return torch.minimum(out, self._top, out=out)


def response_of(norm: Norm, step: Step, scratch: Scratch) -> Response:
    """Return u(p) = prox_{t f}(r - t p g) inside the box, in place for the norms whose prox is known here."""
    boxed, free = norm.box_prox, norm.prox
    if boxed is proximal.prox_pixel_l0_box or boxed is proximal.prox_l0_box:
        return _Kept(step, scratch, pixels=boxed is proximal.prox_pixel_l0_box)
    if boxed is None and free is proximal.prox_l1:
        return _Soft(step, scratch)
    if boxed is None and free is proximal.prox_l2:
        return _Shrunk(step, scratch)
    return AnyResponse(norm.prox_in_box, step)


@dataclass(frozen=True)
class Guess:
    """What the last step knows about the price of the next one."""

    price: Tensor
    slope: Tensor
    """How fast the reach grows with the price; 0 if that is not known."""


def least_price(
    reach: Callable[[Tensor], Tensor],
    need: Tensor,
    *,
    lowest: float,
    highest: float,
    rounds: int,
    guess: Guess,
    jumps: bool = False,
) -> tuple[Tensor, Guess]:
    """Return the least price in [lowest, highest] whose response reaches `need`, or the highest if none was found.

    A fixed number of rounds per sample: from the guess towards the root, by bisection of the logarithm while the
    bracket is wide, and then by false position, where an end that stays twice counts half (the Illinois rule). The
    price that is returned reached `need` in one of the rounds, unless it is the highest. Where the reach `jumps`, its
    slope says nothing.
    """
    price = guess.price.clamp(lowest, highest)
    aim, tiny = need.abs() * _BEYOND, torch.finfo(need.dtype).tiny
    # An end that was not tried yet is so far that the bracket is wide.
    low, high = torch.full_like(need, lowest / (2 * _WIDE)), torch.full_like(need, highest * (2 * _WIDE))
    short, over = torch.full_like(need, -math.inf), torch.full_like(need, math.inf)
    before = stayed = torch.zeros_like(need, dtype=torch.bool)
    first = gained = price
    for number in range(rounds):
        excess = reach(price).sub_(need)
        reached = excess >= 0
        stays = reached == before
        if number > 0:
            half = 1.0 - 0.5 * stays.to(need.dtype)
            short, over = short * half, over * half
        low, high = torch.where(reached, low, price), torch.where(reached, price, high)
        short, over = torch.where(reached, short, excess), torch.where(reached, excess, over)
        if number + 1 == rounds:
            break
        if number == 0:
            pace = 1.1 / guess.slope.clamp(min=tiny)
            outside = _onward(price, reached, None if jumps else (aim - excess) * pace, _STEPS[0])
        elif number == 1:
            pace = 2.0 * (price - first).abs_() / (excess - gained).abs_().add_(_NO_SLOPE)
            outside = _onward(price, reached, None if jumps else (aim - excess) * pace, _STEPS[1])
        elif number == 2:
            outside = _onward(price, reached, None, _STEPS[2])
        else:
            outside = (low * high).sqrt_()
        first, gained = price, excess
        if number == 0 or (number >= _PATIENCE and number % 2 == 0):
            price = outside
        else:
            inside = torch.lerp(low, high, (aim - short).div_(over - short).clamp_(0.02, 0.98))
            # A reach that hardly moves and then jumps wears out false position; the middle always halves the bracket.
            narrow = high <= low * _WIDE
            price = torch.where(narrow.logical_and_(~(stays & stayed)) if number > 2 else narrow, inside, outside)
        price = price.clamp_(lowest, highest)
        before, stayed = reached, stays
    known = (over - short).isfinite()
    slope = torch.where(known, (over - short) / (high - low), guess.slope)
    return high.clamp(max=highest), Guess(torch.where(known, high, guess.price), slope)


def _onward(price: Tensor, reached: Tensor, way: Tensor | None, factors: tuple[float, float, float]) -> Tensor:
    """Move the price down where it reached, and up elsewhere: by the way within limits, or by a fixed factor."""
    least, fixed, most = factors
    if way is None:
        return torch.where(reached, price / fixed, price * fixed)
    factor = way.div_(price).add_(1)
    return torch.where(reached, factor.clamp(1 / most, 1 / least), factor.clamp(least, most)).mul_(price)
