"""An attack spends about its budget on a model that cannot be fooled, where none stops early or reports a success."""

from __future__ import annotations

import pytest
import torch

from pdpgd.attacks.catalogue import ATTACKS, prepared
from pdpgd.attacks.prepare import Budget
from pdpgd.baselines.foolbox import BrendelBethge
from support.models import Stubborn
from support.plain_numba import compile_no_classes

compile_no_classes()
BUDGET = 600
# Attacks that stop by themselves, or have no bound on their steps: the most they spend here, relative to the budget.
FREE = {"superdeepfool": 12.0, "sparsefool": 3.0, "deepfool@art": 1.5, "jsma@art": 30.0, "one-pixel@art": 15.0}
# Attacks that do nothing without an adversarial starting point or a gradient.
IDLE = {"bb"}
OURS = ("auto", "auto-shared", "pdpgd", "pdgd")
CASES = [(name, norm) for name, info in ATTACKS.items() if name not in OURS for norm in info.norms]


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
    # Eleven passes on the way to the boundary, and at least one for a start.
    for settings, spared in (({}, 12 + 50), ({"start": "noise"}, 12 + 50), ({"start": "data"}, 12)):
        chosen = BrendelBethge.within(Budget("l0", 1000, 10, settings))
        assert chosen == {"steps": (1000 - spared) // 2, "directions": 50, "blends": 50}
    assert BrendelBethge.within(Budget("l0", 10, 10, {})) == {"steps": 1, "directions": 1, "blends": 1}
