"""A small net, images on the grid of 8 bits, and labels of which one is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.models import TinyConv

SAMPLES, WRONG = 10, 3


@pytest.fixture
def model(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(generator: torch.Generator, model: TinyConv) -> Tensor:
    return torch.randint(0, 256, (SAMPLES, 3, 6, 6), generator=generator).float().div(255)


@pytest.fixture
def labels(model: TinyConv, images: Tensor) -> Tensor:
    """The model's own answers, but for one."""
    with torch.no_grad():
        labels: Tensor = model(images).argmax(1)
    labels[WRONG] = (labels[WRONG] + 1) % 5
    return labels
