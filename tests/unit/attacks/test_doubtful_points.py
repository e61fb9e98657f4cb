"""`auto` returns points that stay adversarial when the logits are rounded otherwise, and others only if it must."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AutoConfig, auto

EPS = torch.finfo(torch.float32).eps
NORMS = ("linf", "l2", "l1", "l0")


class Leading(nn.Module):
    """Two classes around large logits, so that rounding moves a lead by as much as small perturbations do."""

    def __init__(self, weight: Tensor, offset: float) -> None:
        super().__init__()
        self.weight, self.offset = weight, offset

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        lead = ((inputs - 0.5).flatten(1) * self.weight).sum(1)
        return torch.stack([self.offset + lead, self.offset - lead], 1)


class LeastLead(Leading):
    """A model whose other class never leads by more than one unit in the last place."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        lead = super().forward(inputs).diff(dim=1).squeeze(1).neg()
        unit = self.offset * EPS
        return torch.stack([self.offset + 1e3 * lead.clamp(min=0.0), torch.full_like(lead, self.offset + unit)], 1)


def nearly_wrong(offset: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs whose class leads by 1 to 16 times what is in doubt, and the weights of `Leading`."""
    weight = torch.rand(36, generator=generator) + 0.5
    leads = 16 * EPS * offset * torch.linspace(1.0, 16.0, 8)
    inputs = 0.5 + (leads / weight.sum()).view(8, 1, 1, 1).expand(8, 1, 6, 6)
    return inputs.contiguous(), weight


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("budget", [60, 300])
def test_points_are_beyond_what_rounding_moves(norm: str, budget: int, generator: torch.Generator) -> None:
    inputs, weight = nearly_wrong(64.0, generator)
    model = Leading(weight, 64.0).eval()
    result = auto(model, inputs, torch.zeros(8, dtype=torch.long), norm=norm, budget=budget)
    assert result.found.all()
    lead = model(result.adversarials).diff(dim=1).squeeze(1)
    attacked = result.distances > 0
    assert attacked.sum() >= 7
    # All together they may be rounded otherwise than in the batches of the attack.
    assert (lead[attacked] >= 12 * EPS * 64.0).all()


def test_without_the_rule_points_are_nearer(generator: torch.Generator) -> None:
    inputs, weight = nearly_wrong(64.0, generator)
    model, labels = Leading(weight, 64.0).eval(), torch.zeros(8, dtype=torch.long)
    anything = auto(model, inputs, labels, norm="linf", budget=300, config=AutoConfig(rounding=0.0))
    assert model(anything.adversarials).diff(dim=1).min() < 12 * EPS * 64.0


@pytest.mark.parametrize("norm", NORMS)
def test_where_every_lead_is_within_rounding_points_count_all_the_same(norm: str, generator: torch.Generator) -> None:
    weight = torch.rand(36, generator=generator) + 0.5
    inputs = torch.full((4, 1, 6, 6), 0.52)
    result = auto(LeastLead(weight, 64.0).eval(), inputs, torch.zeros(4, dtype=torch.long), norm=norm, budget=200)
    assert result.found.all()
    assert (result.labels == 1).all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_history_ends_at_the_distance(norm: str, generator: torch.Generator) -> None:
    inputs, weight = nearly_wrong(64.0, generator)
    result = auto(Leading(weight, 64.0).eval(), inputs, torch.zeros(8, dtype=torch.long), norm=norm, budget=300)
    torch.testing.assert_close(result.history.within(300), result.distances)
