"""Samples that descents have stopped to improve head for every ranked class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pdpgd.attacks.auto_config import AutoConfig
from pdpgd.attacks.auto_plan import Descents
from pdpgd.attacks.base import pose
from pdpgd.attacks.descent import Search
from pdpgd.attacks.frame import Attempt, game_mode
from support.models import Affine

CLASSES = 8


def headed(config: AutoConfig, budget: int, generator: torch.Generator) -> list[int]:
    """Return how many ranked classes descents headed for, per sample of an affine model: its first descent is exact."""
    model = Affine(torch.randn(CLASSES, 20, generator=generator), torch.zeros(CLASSES))
    inputs = torch.rand(5, 20, generator=generator)
    call = {"norm": "l2", "targets": None, "bounds": (0.0, 1.0), "seed": 0, "indices": None, "starts": None}
    problem = pose(model, inputs, model(inputs).argmax(1), **call)
    with game_mode():
        attempt = Attempt.begin(problem, max_batch=256)
        search = Search(attempt, budget=budget, observe=None, config=config)
        descents = Descents(attempt, search, budget, share=False)
        descents.run()
    assert (search.spent <= budget).all()
    return descents.headed.tolist()


def test_idle_samples_head_for_every_ranked_class(generator: torch.Generator) -> None:
    assert headed(AutoConfig(), 1000, generator) == [AutoConfig().ranked_classes] * 5


@pytest.mark.parametrize("changes", [{"class_patience": 100}, {"ranked_classes": 2}])
def test_otherwise_they_head_for_two(changes: dict[str, int], generator: torch.Generator) -> None:
    assert headed(replace(AutoConfig(), **changes), 1000, generator) == [2] * 5  # type: ignore[arg-type]


def test_a_small_budget_has_other_uses(generator: torch.Generator) -> None:
    assert max(headed(AutoConfig(), 200, generator)) <= 2
