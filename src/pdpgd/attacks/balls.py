"""Norm balls, for attacks that are given a radius: the steepest direction, the projection, and a point inside."""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.errors import UnknownNameError
from pdpgd.norms import size_l2
from pdpgd.tensors import per_sample

BALLS = ("linf", "l2")


def check_ball(norm: object) -> None:
    if norm not in BALLS:
        raise UnknownNameError("norm of a ball", norm, BALLS)


def steepest(gradient: Tensor, norm: str) -> Tensor:
    """argmax_u <gradient, u> over the unit ball; zero where the gradient is zero."""
    if norm == "linf":
        return gradient.sign()
    return gradient / _length(gradient)


def project(delta: Tensor, norm: str, radius: float) -> Tensor:
    """The nearest point of the ball of this radius."""
    if norm == "linf":
        return delta.clamp(-radius, radius)
    return delta * (radius / _length(delta)).clamp(max=1.0)


def spread(draws: Tensor, norm: str, radius: float) -> Tensor:
    """A point of the ball for each row of draws, which are uniform in [-1, 1]: uniform for linf, by direction for l2.

    For l2 the draws give the direction and the first of them the share of the radius.
    """
    if norm == "linf":
        return radius * draws
    share = draws.flatten(1)[:, 0].abs()
    return radius * per_sample(share, draws) * draws / _length(draws)


def _length(v: Tensor) -> Tensor:
    return per_sample(size_l2(v), v).clamp(min=torch.finfo(v.dtype).tiny)
