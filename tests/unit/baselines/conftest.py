"""What the ports are tried on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.models import TinyConv


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(8, 3, 6, 6, generator=generator)
