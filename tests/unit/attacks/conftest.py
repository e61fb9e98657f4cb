"""A shipped net and images that it classifies correctly, for attacks that need a trained one."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return load_model("mnist-plain")


@pytest.fixture(scope="module")
def data(net: nn.Module) -> tuple[Tensor, Tensor]:
    images, labels = load_data("mnist-1000").batch(range(20))
    right = net(images).argmax(1) == labels
    return images[right][:16], labels[right][:16]
