"""Assertions that hold for the result of every attack."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pdpgd import AttackResult, Norm
from pdpgd.norms import norm_of
from support.rounding import point_error, size_error


def assert_left_alone(result: AttackResult, inputs: Tensor, wrong: list[int]) -> None:
    """Assert that misclassified inputs cost one forward pass and are returned unchanged."""
    assert result.found[wrong].all()
    assert result.distances[wrong].tolist() == [0] * len(wrong)
    assert torch.equal(result.adversarials[wrong], inputs[wrong])
    assert result.forwards[wrong].tolist() == [1] * len(wrong)
    assert result.backwards[wrong].tolist() == [0] * len(wrong)


def assert_shapes_and_dtypes(result: AttackResult, inputs: Tensor) -> None:
    assert result.adversarials.shape == inputs.shape
    assert result.adversarials.dtype == result.distances.dtype == result.penalty.dtype == inputs.dtype
    assert result.found.dtype == torch.bool
    assert result.labels.dtype == result.forwards.dtype == result.backwards.dtype == torch.long
    for field in (result.distances, result.found, result.labels, result.forwards, result.backwards, result.penalty):
        assert field.shape == (len(inputs),)
    assert not result.adversarials.requires_grad


def assert_sizes(result: AttackResult, inputs: Tensor, norm: str | Norm, *, at: Tensor | None = None) -> None:
    """Assert that the distances are the sizes of the perturbations, for the samples in `at` or for all.

    The attack computed each as a sum in its own batch and order, so they agree up to `size_error`.
    """
    rows = torch.ones_like(result.found) if at is None else at
    delta = (result.adversarials - inputs)[rows]
    sizes = norm_of(norm).size(delta)
    off = (result.distances[rows] - sizes).abs().double()
    assert (off <= size_error(delta, norm_of(norm).name) * sizes).all(), off.tolist()


def within_radius(points: Tensor, inputs: Tensor, norm: str, radius: float) -> Tensor:
    """Which points are in the ball, up to rounding of the projection, of the point and of its size."""
    size = norm_of(norm).size(points - inputs).double()
    return size <= radius * (1 + 2 * size_error(points, norm)) + point_error(points, norm)


def answers(model: nn.Module, inputs: Tensor) -> Tensor:
    """The classes that the model predicts."""
    with torch.no_grad():
        classes: Tensor = model(inputs).argmax(1)
    return classes
