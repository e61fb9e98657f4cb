"""The attacks and norms that every contract test runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult, Norm, PDGDConfig, PDPGDConfig, l0, pdgd, pdpgd
from pdpgd.norms import norm_of
from support.models import TinyConv


@dataclass(frozen=True)
class Case:
    """One attack with one norm; `run` runs it for a few steps."""

    attack: Callable[..., AttackResult]
    config: type[PDGDConfig] | type[PDPGDConfig]
    norm: str | Norm
    name: str

    def run(
        self, model: Any, inputs: Tensor, labels: Tensor, *, settings: dict[str, Any] | None = None, **call: Any
    ) -> AttackResult:
        config = self.config(**{"steps": 25, "finetune_steps": 10, **(settings or {})})
        return self.attack(model, inputs, labels, norm=self.norm, config=config, **call)

    def size(self, delta: Tensor) -> Tensor:
        return norm_of(self.norm).size(delta)


CASES = [
    *(Case(pdgd, PDGDConfig, norm, f"pdgd-{norm}") for norm in ("l2", "l1", "linf")),
    *(Case(pdpgd, PDPGDConfig, norm, f"pdpgd-{norm}") for norm in ("linf", "l2", "l1", "l0")),
    Case(pdpgd, PDPGDConfig, l0(unit="element"), "pdpgd-l0-element"),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture
def conv(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def images(conv: TinyConv, generator: torch.Generator) -> Tensor:
    """Twelve images with some pixels on the edges of the box."""
    images = torch.rand(12, 3, 6, 6, generator=generator)
    return (1.2 * images - 0.1).clamp(0, 1)


@pytest.fixture
def labels(conv: TinyConv, images: Tensor) -> Tensor:
    """The predicted classes, except for samples 3 and 8, which are misclassified to begin with."""
    with torch.no_grad():
        labels = conv(images).argmax(1)
    labels[[3, 8]] = (labels[[3, 8]] + 1) % 5
    return labels


@pytest.fixture
def targets(conv: TinyConv, images: Tensor) -> Tensor:
    """The class after the next; samples 3 and 8 have their target class to begin with."""
    with torch.no_grad():
        answer = conv(images).argmax(1)
    targets = (answer + 2) % 5
    targets[[3, 8]] = answer[[3, 8]]
    return targets
