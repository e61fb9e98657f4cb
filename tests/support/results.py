"""What holds for the result of every attack, whichever it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pdpgd import AttackResult


def assert_left_alone(result: AttackResult, inputs: Tensor, wrong: list[int]) -> None:
    """Inputs that the model gets wrong as they are cost one forward pass, and stand as they came."""
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


def answers(model: nn.Module, inputs: Tensor) -> Tensor:
    """The classes that the model gives them."""
    with torch.no_grad():
        classes: Tensor = model(inputs).argmax(1)
    return classes
