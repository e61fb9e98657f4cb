"""Norm balls, for attacks that are given a radius: the steepest direction, the projection, and a point inside.

The functions of linf and l2 know no box: clipping what they return leaves it in the ball. The balls of l1 and l0 are
spent well only by an exact projection on ball and box at once, and their directions have to look at the box too. What
the paper's authors ran in l1 does neither, and is here beside it (`exact=False`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd import proximal
from pdpgd.errors import UnknownNameError
from pdpgd.norms import Norm, count_elements, count_pixels, size_l1, size_l2, size_linf
from pdpgd.tensors import Weight, clip, flat, per_sample


@dataclass(frozen=True)
class Room:
    """Where perturbations may go: the box, seen from each input, and the radius of each sample."""

    radius: Tensor
    low: Tensor
    high: Tensor
    unit: float
    """The width of the box, in which pixels change: the radius of l0 counts them, and does not say how far."""

    def select(self, rows: Tensor) -> Room:
        return Room(self.radius[rows], self.low[rows], self.high[rows], self.unit)


@dataclass(frozen=True)
class BallOf:
    """What an attack needs to know of a norm to stay within a radius."""

    begin: Callable[[Tensor, Room], Tensor]
    """A point of the ball for each row of draws, which are uniform in [-1, 1)."""
    ahead: Callable[[Tensor, Tensor, Room, float], Tensor]
    """(perturbation, gradient, room, sparsity) -> the way up the gradient, a radius long; in l0, where the radius is a
    number of pixels, of the l1 length of one width of the box."""
    back: Callable[[Tensor, Room], Tensor]
    """Into the ball; the caller clips to the box what that leaves outside."""
    step: float
    """The length of a step, in lengths of `ahead`, that did best, or as well as any: see `PGD.step`."""
    from_input: bool = False
    """Whether the first start is best made from the input itself."""


def ball_of(norm: Norm, *, exact: bool = True) -> BallOf:
    """Return the ball of a norm, by how the norm measures, not by its name: a user's own may be called anything.

    Args:
        norm: One that measures as linf, l2, l1 or l0 does.
        exact: Whether ball and box are projected on at once. False, in l1: the box, then the ball, and the steepest
            entries are moved even if they stand at the edge of the box (SparseL1Descent of cleverhans).

    Raises:
        UnknownNameError: The norm measures otherwise.
    """
    if norm.size not in _BALLS:
        raise UnknownNameError("norm of a ball", norm.name, ("linf", "l2", "l1", "l0"))
    return _BALLS[norm.size] if exact else {**_BALLS, **_IN_TURN}[norm.size]


def steepest(gradient: Tensor, norm: str) -> Tensor:
    """argmax_u <gradient, u> over the unit ball of linf or l2; zero where the gradient is zero."""
    if norm == "linf":
        return gradient.sign()
    return gradient / _length(gradient)


def project(delta: Tensor, norm: str, radius: Weight) -> Tensor:
    """The nearest point of the ball of this radius in linf or l2."""
    radius = per_sample(radius, delta)
    if norm == "linf":
        return clip(delta, -radius, radius)
    return delta * (radius / _length(delta)).clamp(max=1.0)


def spread(draws: Tensor, norm: str, radius: Weight) -> Tensor:
    """A point of the ball for each row of draws, which are uniform in [-1, 1]: uniform for linf, by direction for l2.

    For l2 the draws give the direction and the first of them the share of the radius.
    """
    radius = per_sample(radius, draws)
    if norm == "linf":
        return radius * draws
    return radius * _share(draws) * draws / _length(draws)


def _smooth(norm: str) -> BallOf:
    return BallOf(
        begin=lambda draws, room: spread(draws, norm, room.radius),
        ahead=lambda delta, gradient, room, sparsity: per_sample(room.radius, delta) * steepest(gradient, norm),
        back=lambda delta, room: project(delta, norm, room.radius),
        step=0.1,
    )


def _begin_l1(draws: Tensor, room: Room) -> Tensor:
    """A uniform direction, as far as the first draw says."""
    return _share(draws) * _begin_on_sphere(draws, room)


def _begin_on_sphere(draws: Tensor, room: Room) -> Tensor:
    """A uniform direction (exponential magnitudes, over their sum), as far as the radius.

    Points uniform in the ball are almost all this far out: their length is u^(1/d) of it, with d in the hundreds.
    """
    sizes = -draws.abs().clamp(min=torch.finfo(draws.dtype).tiny).log()
    direction = draws.sign() * sizes / per_sample(size_l1(sizes), draws)
    return per_sample(room.radius, draws) * direction


def _ahead_l1(delta: Tensor, gradient: Tensor, room: Room, sparsity: float) -> Tensor:
    """The largest slopes of those that do not stand at the edge of the box already, and could not follow."""
    can_move = torch.where(gradient > 0, delta < room.high, delta > room.low)
    return _ahead_l1_anywhere(delta, gradient * can_move, room, sparsity)


def _ahead_l1_anywhere(delta: Tensor, gradient: Tensor, room: Room, sparsity: float) -> Tensor:
    """The signs of the largest slopes, as many as `sparsity` says, all moved alike (Tramer & Boneh 2019)."""
    slopes = flat(gradient.abs())
    count = max(1, round(sparsity * slopes.shape[1]))
    largest = slopes.topk(count, 1)
    chosen = torch.zeros_like(slopes).scatter_(1, largest.indices, (largest.values > 0).to(slopes.dtype))
    length = per_sample(room.radius / chosen.sum(1).clamp_(min=1), gradient)
    return length * gradient.sign() * chosen.reshape(gradient.shape)


def _ahead_l0(delta: Tensor, gradient: Tensor, room: Room, sparsity: float) -> Tensor:
    """The gradient over its l1 norm (Croce & Hein 2019)."""
    length = per_sample(size_l1(gradient), gradient).clamp(min=torch.finfo(gradient.dtype).tiny)
    return room.unit * (gradient / length)


def _begin_l0(draws: Tensor, room: Room) -> Tensor:
    return _pixels(draws * room.unit, room)


def _pixels(delta: Tensor, room: Room) -> Tensor:
    return proximal.project_l0_ball_box(delta, room.radius, room.low, room.high)


def _by_element(through: Callable[[Tensor, Room], Tensor]) -> Callable[[Tensor, Room], Tensor]:
    """As if every entry were a pixel of its own."""

    def flattened(delta: Tensor, room: Room) -> Tensor:
        flat_room = Room(room.radius, flat(room.low), flat(room.high), room.unit)
        return through(flat(delta), flat_room).reshape(delta.shape)

    return flattened


def _share(draws: Tensor) -> Tensor:
    return per_sample(draws.flatten(1)[:, 0].abs(), draws)


def _length(v: Tensor) -> Tensor:
    return per_sample(size_l2(v), v).clamp(min=torch.finfo(v.dtype).tiny)


_BALLS = {
    size_linf: _smooth("linf"),
    size_l2: _smooth("l2"),
    size_l1: BallOf(
        _begin_l1,
        _ahead_l1,
        lambda delta, room: proximal.project_l1_ball_box(delta, room.radius, room.low, room.high),
        step=0.2,
    ),
    count_pixels: BallOf(_begin_l0, _ahead_l0, _pixels, step=500.0, from_input=True),
    count_elements: BallOf(_by_element(_begin_l0), _ahead_l0, _by_element(_pixels), step=500.0, from_input=True),
}
_IN_TURN = {
    size_l1: BallOf(
        _begin_on_sphere,
        _ahead_l1_anywhere,
        lambda delta, room: proximal.project_l1_ball(clip(delta, room.low, room.high), room.radius),
        step=0.2,
    ),
}
