"""Norm balls, for attacks within a radius: the steepest direction, the projection, and random points.

The functions of linf and l2 ignore the box: clipping their results to the box leaves them in the ball. In l1 and l0 a
radius is well spent only if the projection on ball and box is exact, and the directions must take the box into account
too. What the paper's authors ran in l1 does neither; it is available with `exact=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd import proximal
from pdpgd.errors import UnknownNameError
from pdpgd.norms import BallShape, Norm, norm_of, size_l1, size_l2
from pdpgd.tensors import Weight, clip, flat, per_sample


@dataclass(frozen=True)
class Room:
    """Where perturbations may go: the box relative to each input, and the radius per sample."""

    radius: Tensor
    low: Tensor
    high: Tensor
    unit: float
    """Width of the box: the unit of a pixel's change in l0, whose radius counts pixels and does not say how far."""

    def select(self, rows: Tensor) -> Room:
        """Return the given rows."""
        return Room(self.radius[rows], self.low[rows], self.high[rows], self.unit)


@dataclass(frozen=True)
class BallOf:
    """What PGD needs to stay within a radius of a norm."""

    begin: Callable[[Tensor, Room], Tensor]
    """(draws, room) -> a point of the ball per row of draws, which are uniform in [-1, 1)."""
    ahead: Callable[[Tensor, Tensor, Room, float], Tensor]
    """(perturbation, gradient, room, sparsity) -> the ascent direction, as long as the radius; in l0, where the radius
    is a number of pixels, its l1 length is the width of the box."""
    back: Callable[[Tensor, Room], Tensor]
    """(perturbation, room) -> its projection on the ball; the caller clips the result to the box."""
    step: float
    """Default length of a step relative to `ahead`, the best one measured: see `PGD.step`."""
    from_input: bool = False
    """Whether the first start should be the input itself."""


def ball_of(norm: Norm, *, exact: bool = True) -> BallOf:
    """Return the ball of a norm.

    Args:
        norm: A norm that knows the shape of its ball (`Norm.ball`).
        exact: Whether to project on ball and box at once. False, in l1: project on the box, then on the ball, and move
            the steepest entries even if they are at the edge of the box (SparseL1Descent of cleverhans).

    Returns:
        Its directions, projection and random points.

    Raises:
        UnknownNameError: The norm has no ball of a known shape.
    """
    if norm.ball is None:
        raise UnknownNameError("norm of a ball", norm.name, ("linf", "l2", "l1", "l0"))
    return _BALLS[norm.ball] if exact else {**_BALLS, **_IN_TURN}[norm.ball]


def steepest(gradient: Tensor, norm: str | Norm) -> Tensor:
    """Return argmax_u <gradient, u> over the unit ball of linf or l2; zero where the gradient is zero."""
    if norm_of(norm).ball is BallShape.CUBE:
        return gradient.sign()
    return gradient / _length(gradient)


def project(delta: Tensor, norm: str | Norm, radius: Weight) -> Tensor:
    """Return the nearest point of the ball of this radius in linf or l2."""
    radius = per_sample(radius, delta)
    if norm_of(norm).ball is BallShape.CUBE:
        return clip(delta, -radius, radius)
    return delta * (radius / _length(delta)).clamp(max=1.0)


def spread(draws: Tensor, norm: str | Norm, radius: Weight) -> Tensor:
    """Return a point of the ball per row of draws, which are uniform in [-1, 1].

    Uniform in the ball for linf. For l2 the draws give the direction, and the first of them the share of the radius.
    """
    radius = per_sample(radius, draws)
    if norm_of(norm).ball is BallShape.CUBE:
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
    """Return a uniform direction, with the first draw as the share of the radius."""
    return _share(draws) * _begin_on_sphere(draws, room)


def _begin_on_sphere(draws: Tensor, room: Room) -> Tensor:
    """Return a uniform direction (exponential magnitudes divided by their sum), as long as the radius.

    Almost all points uniform in the ball are this far out: their length is u^(1/d) of the radius, with d in the
    hundreds.
    """
    sizes = -draws.abs().clamp(min=torch.finfo(draws.dtype).tiny).log()
    direction = draws.sign() * sizes / per_sample(size_l1(sizes), draws)
    return per_sample(room.radius, draws) * direction


def _ahead_l1(delta: Tensor, gradient: Tensor, room: Room, sparsity: float) -> Tensor:
    """Return the direction of the largest slopes among the entries that are not at the edge of the box already."""
    can_move = torch.where(gradient > 0, delta < room.high, delta > room.low)
    return _ahead_l1_anywhere(delta, gradient * can_move, room, sparsity)


def _ahead_l1_anywhere(delta: Tensor, gradient: Tensor, room: Room, sparsity: float) -> Tensor:
    """Return the signs of the largest slopes, a share `sparsity` of all, equally long (Tramer & Boneh 2019)."""
    slopes = flat(gradient.abs())
    count = max(1, round(sparsity * slopes.shape[1]))
    largest = slopes.topk(count, 1)
    chosen = torch.zeros_like(slopes).scatter_(1, largest.indices, (largest.values > 0).to(slopes.dtype))
    length = per_sample(room.radius / chosen.sum(1).clamp_(min=1), gradient)
    return length * gradient.sign() * chosen.reshape(gradient.shape)


def _ahead_l0(delta: Tensor, gradient: Tensor, room: Room, sparsity: float) -> Tensor:
    """Return the gradient divided by its l1 norm (Croce & Hein 2019)."""
    length = per_sample(size_l1(gradient), gradient).clamp(min=torch.finfo(gradient.dtype).tiny)
    return room.unit * (gradient / length)


def _begin_l0(draws: Tensor, room: Room) -> Tensor:
    return _pixels(draws * room.unit, room)


def _pixels(delta: Tensor, room: Room) -> Tensor:
    return proximal.project_l0_ball_box(delta, room.radius, room.low, room.high)


def _by_element(through: Callable[[Tensor, Room], Tensor]) -> Callable[[Tensor, Room], Tensor]:
    """Apply a function of pixels with every entry as a pixel of its own."""

    def flattened(delta: Tensor, room: Room) -> Tensor:
        flat_room = Room(room.radius, flat(room.low), flat(room.high), room.unit)
        return through(flat(delta), flat_room).reshape(delta.shape)

    return flattened


def _share(draws: Tensor) -> Tensor:
    return per_sample(draws.flatten(1)[:, 0].abs(), draws)


def _length(v: Tensor) -> Tensor:
    return per_sample(size_l2(v), v).clamp(min=torch.finfo(v.dtype).tiny)


_BALLS = {
    BallShape.CUBE: _smooth("linf"),
    BallShape.EUCLIDEAN: _smooth("l2"),
    BallShape.CROSS_POLYTOPE: BallOf(
        _begin_l1,
        _ahead_l1,
        lambda delta, room: proximal.project_l1_ball_box(delta, room.radius, room.low, room.high),
        step=0.2,
    ),
    BallShape.FEW_PIXELS: BallOf(_begin_l0, _ahead_l0, _pixels, step=500.0, from_input=True),
    BallShape.FEW_ELEMENTS: BallOf(
        _by_element(_begin_l0), _ahead_l0, _by_element(_pixels), step=500.0, from_input=True
    ),
}
_IN_TURN = {
    BallShape.CROSS_POLYTOPE: BallOf(
        _begin_on_sphere,
        _ahead_l1_anywhere,
        lambda delta, room: proximal.project_l1_ball(clip(delta, room.low, room.high), room.radius),
        step=0.2,
    ),
}
