"""Models and inputs for the tests of ports and adapters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.models import Affine, TinyConv, random_affine


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 6, 6, generator=generator)


@pytest.fixture
def affine(generator: torch.Generator) -> Affine:
    return random_affine(generator, features=30, classes=4, spread=0.2)


@pytest.fixture
def inputs(generator: torch.Generator) -> Tensor:
    """Inputs of the affine model, near the middle of the box."""
    return 0.5 + 0.02 * torch.randn(5, 30, generator=generator)
