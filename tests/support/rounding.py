"""Bounds on rounding errors that follow from the arithmetic alone: dtype, operands and lengths of sums.

The bounds hold for any order of summation, with or without fused multiply-adds, so that no processor, number of threads
or size of a batch can break them. Write u = eps / 2 for the largest relative error of one rounding. A sum of n
products, taken in whatever order, is off by at most

    |fl(sum_i a_i b_i) - sum_i a_i b_i|  <=  n u / (1 - n u) * sum_i |a_i b_i|

(Higham, Accuracy and Stability of Numerical Algorithms, 3.1). The bounds here have eps = 2 u in place of u: two
computations of the same sum differ by no more than that. Only through a net of several layers is the worst case too far
from what happens to say anything: there the roundings are taken for independent, and eight deviations are allowed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def eps_of(values: Tensor) -> float:
    """The distance from 1 to the next number of the dtype: twice the largest relative error of a rounding."""
    return torch.finfo(values.dtype).eps


def ulp(values: Tensor) -> Tensor:
    """The distance from |x| to the next larger number of the dtype; rounding to it is off by half of that."""
    values = values.abs()
    return torch.nextafter(values, torch.full_like(values, torch.inf)) - values


def sum_error(magnitudes: Tensor, length: int, like: Tensor | None = None) -> Tensor:
    """n eps sum_i |t_i|: by how much two sums of the same n terms may differ.

    Args:
        magnitudes: sum_i |t_i|.
        length: n, the number of terms; one more for each rounding of the terms themselves.
        like: A tensor of the dtype that the sums are taken in, if it is not that of `magnitudes`.
    """
    return length * eps_of(magnitudes if like is None else like) * magnitudes


def logit_error(model: nn.Module, points: Tensor) -> Tensor:
    """(samples, classes), in float64: by how much the logits of two computations may differ.

    The model says it itself: its `rounding(points)` follows its own sums.
    """
    with torch.no_grad():
        error: Tensor = model.rounding(points)
    return error


def margin_error(model: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    """(samples, classes), in float64: by how much z_y - z_j of two computations may differ."""
    error = logit_error(model, points)
    return error + error.gather(1, labels[:, None])


def size_error(delta: Tensor, norm: str) -> Tensor:
    """Relative error that the size of each perturbation, computed in the dtype of the points, may have.

    A difference of two numbers is rounded once, which l-infinity takes as it is; n of them are summed in l1, and their
    squares in l2, under a root that halves the share. Counting rounds nothing. Another norm is taken for a weighted l1.
    """
    features = delta[0].numel()
    share = {"linf": 1, "l2": features / 2 + 3, "l1": features + 1, "l0": 0}.get(norm, features + 2)
    return torch.full((len(delta),), share * eps_of(delta), dtype=torch.float64)


def point_error(points: Tensor, norm: str) -> Tensor:
    """The size, in float64, of what rounding x + delta to the points has added to each delta: half an ulp per entry."""
    halves = (ulp(points) / 2).flatten(1).double()
    if norm == "l0":
        return torch.zeros(len(points), dtype=torch.float64)
    return torch.linalg.vector_norm(halves, {"linf": torch.inf, "l2": 2.0, "l1": 1.0}[norm], dim=1)


def assert_fooled(model: nn.Module, points: Tensor, labels: Tensor) -> None:
    """Assert that the model predicts none of these classes for the points, up to rounding: see `assert_answers`."""
    with torch.no_grad():
        logits = model(points).double()
    error = margin_error(model, points, labels).scatter(1, labels[:, None], -torch.inf)
    lead = logits.gather(1, labels[:, None]) - logits
    assert (lead <= error).any(1).all(), lead.tolist()


def assert_answers(model: Any, points: Tensor, labels: Tensor, *, error: Tensor | None = None) -> None:
    """Assert that the model predicts these classes for the points, up to rounding.

    An attack ends next to the boundary, and judges its points in other batches than a test does: a class is right if
    no logit leads its own by more than the rounding of the two.

    Args:
        model: One with a `rounding`, or anything callable if `error` is given.
        points: What is judged.
        labels: The class of each.
        error: What `logit_error` would give for a model that does not say it.
    """
    error = logit_error(model, points) if error is None else error
    with torch.no_grad():
        logits = model(points).double()
    behind = logits - logits.gather(1, labels[:, None])
    allowed = error + error.gather(1, labels[:, None])
    assert (behind <= allowed).all(), f"behind by {behind.amax(1).tolist()}, {allowed.amax(1).tolist()} allowed"
