"""Where a first descent ends far nearer to the input than a random start is, later descents stay near the input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pdpgd import auto
from pdpgd.attacks.auto_config import AutoConfig

SIDE = 12
# Of the passes of `auto`, those of the ranking, of the first descent and of its extensions.
FIRST_DESCENT = 60
RANDOM_LENGTH = 0.5 * SIDE / 3**0.5


class ThreePixelsMatter(nn.Module):
    """Two classes; small changes of three pixels fool it, and no fewer; keeps the points that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        self.points.append(inputs.detach().clone())
        score = 2.5 + torch.tanh(20 * (inputs - 0.5).flatten(1)[:, :3]).sum(1)
        return torch.stack([score, -score], 1)


def farthest(norm: str, config: AutoConfig) -> float:
    """Return the largest l2 distance to the input of a point that a later descent of the attack looked at."""
    model, inputs = ThreePixelsMatter().eval(), torch.full((1, 1, SIDE, SIDE), 0.5)
    auto(model, inputs, torch.zeros(1, dtype=torch.long), norm=norm, budget=300, config=config)
    return max(float((points - inputs).norm()) for points in model.points[FIRST_DESCENT:])


@pytest.mark.parametrize("norm", ["l2", "l1", "l0"])
def test_random_starts_are_given_up_where_the_first_perturbation_is_short(norm: str) -> None:
    never = AutoConfig(random_limit=0.0, counting_random_limit=0.0, far_limit=1e9)
    assert farthest(norm, never) > 0.8 * RANDOM_LENGTH
    assert farthest(norm, replace(never, random_limit=0.1, counting_random_limit=0.1)) < 0.4 * RANDOM_LENGTH


@pytest.mark.parametrize("norm", ["l2", "l0"])
def test_each_kind_of_norm_has_a_limit_of_its_own(norm: str) -> None:
    limits = {"counting_random_limit": 0.0} if norm == "l0" else {"random_limit": 0.0}
    other = {"random_limit": 0.1} if norm == "l0" else {"counting_random_limit": 0.1}
    assert farthest(norm, AutoConfig(**limits, **other, far_limit=1e9)) > 0.8 * RANDOM_LENGTH
