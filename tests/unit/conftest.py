"""A small net, images quantized to 8 bits, labels of which one is wrong, and an empty cache of data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pooch
import pytest
import torch
from torch import Tensor

from pdpgd.data.known import DATA
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache on a machine that has no data: nothing in it, no variable set, no package installed."""
    monkeypatch.delenv("PDPGD_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    for name, known in list(DATA.items()):
        monkeypatch.setitem(DATA, name, replace(known, system=None))
    return tmp_path / "cache" / "pdpgd"
