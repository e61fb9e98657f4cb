"""A budget is about what an attack spends: on a model that nothing fools, where none of them stops early.

Nor does any of them report a success there.
"""

from __future__ import annotations

import pytest
import torch

from pdpgd.baselines import budgets
from pdpgd.baselines.budgets import Budget
from pdpgd.catalogue import ATTACKS, prepared
from support.models import Stubborn
from support.plain_numba import compile_no_classes

compile_no_classes()
BUDGET = 600
# Those that end by themselves, or cannot be told when to: the most they spend here, over the budget.
FREE = {"superdeepfool": 12.0, "sparsefool": 3.0, "deepfool@art": 1.5, "jsma@art": 30.0, "one-pixel@art": 15.0}
# Those that do nothing where there is nothing to start from, or no slope to follow.
IDLE = {"bb"}
CASES = [(name, norm) for name, entry in ATTACKS.items() if entry.rival for norm in entry.norms]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_what_is_spent_on_a_hopeless_sample_is_about_the_budget(name: str, norm: str) -> None:
    images = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(2, dtype=torch.long)
    attack = prepared(name, norm, budget=BUDGET, max_batch=64)
    result = attack(Stubborn(5), images, labels, norm=norm)
    spent = float((result.forwards + result.backwards).double().mean())
    assert spent <= BUDGET * FREE.get(name, 1.15)
    assert spent >= 0.3 * BUDGET or name in IDLE | set(FREE)
    assert not result.found.any()
    assert result.distances.isinf().all()
    assert torch.equal(result.adversarials, images)
    assert result.labels.eq(0).all()


def test_a_start_from_noise_is_taken_off_the_steps_of_brendel_and_bethge() -> None:
    # Eleven looks on the way to the boundary, and one at least at a start.
    for settings, spared in (({}, 12 + 50), ({"start": "noise"}, 12 + 50), ({"start": "data"}, 12)):
        chosen = budgets.brendel_bethge(Budget("l0", 1000, 10, settings))
        assert chosen == {"steps": (1000 - spared) // 2, "directions": 50, "blends": 50}
    assert budgets.brendel_bethge(Budget("l0", 10, 10, {})) == {"steps": 1, "directions": 1, "blends": 1}
