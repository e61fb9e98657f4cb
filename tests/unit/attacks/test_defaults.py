"""The defaults of PDPGD, which are the best known settings, and Algorithm 2 of the paper as printed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pdpgd import Norm, PDPGDConfig, l0, pdpgd
from pdpgd.attacks.primal_dual import fitting_prox
from pdpgd.norms import L1, L2, LINF
from support.models import TinyConv


def points(config: PDPGDConfig, generator: torch.Generator) -> Tensor:
    model = TinyConv(generator)
    inputs = torch.rand(4, 3, 6, 6, generator=generator)
    return pdpgd(model, inputs, model(inputs).argmax(1), norm="l1", config=config).adversarials


@pytest.mark.parametrize(
    ("norm", "steps", "prox"),
    [
        *((LINF, 500, "exact"), (L2, 500, "exact"), (Norm("own", L1.size, L1.prox), 500, "exact")),
        *((L1, 74, "exact"), (L1, 75, "released"), (L1, 500, "released")),
        *((l0(), 74, "exact"), (l0(unit="element"), 75, "released"), (l0(operator="l1"), 500, "released")),
    ],
)
def test_the_inner_loop_of_the_released_code_is_taken_where_it_is_known_to_be_better(
    norm: Norm, steps: int, prox: str
) -> None:
    assert fitting_prox(norm, steps) == prox


@pytest.mark.parametrize(("steps", "prox"), [(20, "exact"), (80, "released")])
def test_without_a_choice_the_attack_takes_the_fitting_prox(steps: int, prox: Any) -> None:
    def found(**settings: Any) -> Tensor:
        config = PDPGDConfig(steps=steps, finetune_steps=0, **settings)
        return points(config, torch.Generator().manual_seed(0))

    assert torch.equal(found(), found(prox=prox))
    other = "exact" if prox == "released" else "released"
    assert not torch.equal(found(), found(prox=other))


def test_the_letter_of_algorithm_2_is_the_exact_prox_and_then_the_box() -> None:
    config = PDPGDConfig.algorithm2(restarts=3)
    assert (config.prox, config.project_first, config.restarts) == ("exact", False, 3)
    assert (PDPGDConfig().prox, PDPGDConfig().project_first) == (None, True)
