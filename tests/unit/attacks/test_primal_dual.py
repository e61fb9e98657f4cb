"""Edge cases of the game: its last point, finished rows, and vanishing or undefined gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pdpgd as pdpgd_package
from pdpgd import Observation, PDGDConfig, PDPGDConfig, pdgd, pdpgd
from support.models import Affine, Cliff, Counting, RootAtHalf, Stubborn, ramp_affine
from support.patience import PATIENCE
from support.rounding import assert_answers

CENTER = 0.5


def shifted(model: Affine, *leads: float) -> Tensor:
    """Points whose class 0 leads by these margins: the center, moved along the weights."""
    weight = (model.weight[0] - model.weight[1]).detach()
    return CENTER + torch.tensor(leads)[:, None] * weight / weight.square().sum()


def test_pdpgd_judges_the_point_that_the_only_step_leads_to() -> None:
    model = ramp_affine(4)
    result = pdpgd(
        model,
        shifted(model, 0.2),
        torch.tensor([0]),
        norm="linf",
        config=PDPGDConfig(steps=1, finetune_steps=0, start_radius=0.0),
    )
    assert result.found.tolist() == [True]
    assert result.labels.tolist() == [1]
    assert result.forwards.tolist() == [3]


def test_pdgd_judges_the_point_that_the_only_step_leads_to() -> None:
    model = ramp_affine(4)
    config = PDGDConfig(steps=1, finetune_steps=0, start_radius=0.0)
    result = pdgd(model, shifted(model, 0.2), torch.tensor([0]), config=config)
    assert result.found.tolist() == [True]


def test_one_step_of_search_and_one_of_fine_tuning_divide_nothing_by_zero() -> None:
    model = ramp_affine(4)
    for norm in ("linf", "l2", "l1", "l0"):
        config = PDPGDConfig(steps=1, finetune_steps=1)
        result = pdpgd(model, shifted(model, 0.2, 0.3), torch.tensor([0, 0]), norm=norm, config=config)
        assert not result.adversarials.isnan().any()
        assert not result.distances.isnan().any()


def l0_mixture() -> tuple[Affine, Tensor, Tensor]:
    """Six samples, of which the even ones need one feature and the odd ones four."""
    model = ramp_affine(12)
    inputs = shifted(model, 0.1, 1.7, 0.15, 1.75, 0.2, 1.8)
    return model, inputs, torch.zeros(6, dtype=torch.long)


def test_samples_changed_in_a_single_pixel_leave_the_batch_and_keep_their_result() -> None:
    affine, inputs, labels = l0_mixture()
    model = Counting(affine)
    seen: list[list[int]] = []
    config = PDPGDConfig(steps=150, finetune_steps=0, project_first=True)
    result = pdpgd(
        model, inputs, labels, norm="l0", config=config, observe=lambda moment: seen.append(moment.samples.tolist())
    )
    easy, hard = [0, 2, 4], [1, 3, 5]
    assert result.distances[easy].tolist() == [1.0, 1.0, 1.0]
    assert (result.distances[hard] >= 4).all()
    assert result.found.all()
    assert_answers(affine, result.adversarials, result.labels)
    assert torch.equal((result.adversarials != inputs).sum(1).float(), result.distances)
    # The easy ones are gone before the end, the hard ones stay to the last pass.
    assert model.forwards[1] == 6
    assert model.forwards[-1] == 3
    assert seen[-1] == hard
    assert result.forwards[hard].tolist() == [152, 152, 152]
    assert (result.forwards[easy] < 150).all()
    assert sum(model.forwards) == result.forwards.sum()


def test_finished_samples_do_not_change_what_the_others_reach() -> None:
    affine, inputs, labels = l0_mixture()
    config = PDPGDConfig(steps=100, finetune_steps=20, project_first=True)
    together = pdpgd(affine, inputs, labels, norm="l0", config=config)
    hard = torch.tensor([1, 3, 5])
    alone = pdpgd(affine, inputs[hard], labels[hard], norm="l0", config=config, indices=hard)
    torch.testing.assert_close(alone.distances, together.distances[hard])
    torch.testing.assert_close(alone.adversarials, together.adversarials[hard])


def test_a_batch_in_which_all_are_finished_plays_no_further() -> None:
    model = Counting(ramp_affine(12))
    inputs = shifted(model.model, 0.1, 0.15)
    config = PDPGDConfig(steps=150, restarts=4, max_batch=2, project_first=True)
    result = pdpgd(model, inputs, torch.tensor([0, 0]), norm="l0", config=config)
    assert result.distances.tolist() == [1.0, 1.0]
    # One restart at the most, no fine-tuning: what cannot get smaller has nothing to gain.
    assert (result.forwards <= 151).all()


def test_norms_without_a_smallest_size_play_every_step() -> None:
    model = ramp_affine(6)
    result = pdpgd(
        model, shifted(model, 0.1), torch.tensor([0]), norm="l1", config=PDPGDConfig(steps=40, finetune_steps=10)
    )
    assert result.forwards.tolist() == [1 + 41 + 11]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_pdpgd_leaves_a_plateau_without_slope(norm: str) -> None:
    inputs = torch.full((4, 6), 0.3)
    config = PDPGDConfig(steps=100, finetune_steps=0, start_radius=0.0)
    result = pdpgd(Cliff(0.6), inputs, torch.zeros(4, dtype=torch.long), norm=norm, config=config)
    assert result.found.all()
    assert (result.adversarials.amax(1) > 0.6).all()


def test_pdgd_leaves_a_plateau_without_slope() -> None:
    inputs = torch.full((4, 6), 0.3)
    config = PDGDConfig(steps=100, finetune_steps=0, start_radius=0.0)
    result = pdgd(Cliff(0.6), inputs, torch.zeros(4, dtype=torch.long), config=config)
    assert result.found.all()


def test_each_sample_leaves_the_plateau_in_a_direction_of_its_own() -> None:
    inputs = torch.full((3, 6), 0.3)
    config = PDPGDConfig(steps=1, finetune_steps=0, start_radius=0.0, primal_rate=0.6)
    result = pdpgd(Cliff(0.6), inputs, torch.zeros(3, dtype=torch.long), norm="linf", config=config)
    assert result.found.all()
    assert len({tuple(row.tolist()) for row in result.adversarials}) == 3


def test_the_slope_of_the_root_is_undefined_at_the_start() -> None:
    leaf = torch.full((1, 5), 0.5, requires_grad=True)
    (slope,) = torch.autograd.grad(RootAtHalf()(leaf)[:, 1].sum(), leaf)
    assert slope[0, 0].isnan()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_an_undefined_slope_does_not_poison_the_result(norm: str) -> None:
    inputs = torch.full((3, 5), 0.5)
    margins: list[Tensor] = []

    def watch(moment: Observation) -> None:
        margins.append(moment.margin)

    config = PDPGDConfig(steps=60, finetune_steps=20, start_radius=0.0)
    result = pdpgd(RootAtHalf(), inputs, torch.zeros(3, dtype=torch.long), norm=norm, config=config, observe=watch)
    assert result.found.all()
    assert result.adversarials.isfinite().all()
    assert result.distances.isfinite().all()
    assert all(margin.isfinite().all() for margin in margins)


def test_an_undefined_slope_does_not_poison_pdgd() -> None:
    inputs = torch.full((3, 5), 0.5)
    config = PDGDConfig(steps=60, finetune_steps=20, start_radius=0.0)
    result = pdgd(RootAtHalf(), inputs, torch.zeros(3, dtype=torch.long), config=config)
    assert result.found.all()
    assert result.adversarials.isfinite().all()


def test_fine_tuning_begins_at_the_best_point_and_takes_smaller_steps() -> None:
    """Adam's first step has the length of the rate in every coordinate: a hundredth of the search's rate."""
    affine = ramp_affine(6)
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return affine(x)

    inputs, labels = shifted(affine, 0.2, 0.3), torch.tensor([0, 0])
    settings = {"steps": 20, "primal_rate": 0.5, "finetune_primal": 0.02}
    searched = pdgd(model, inputs, labels, config=PDGDConfig(finetune_steps=0, **settings))
    seen.clear()
    pdgd(model, inputs, labels, config=PDGDConfig(finetune_steps=1, **settings))
    before, after = seen[-2:]
    torch.testing.assert_close(before, searched.adversarials)
    assert (after - before).abs().max().item() == pytest.approx(0.01, rel=1e-3)


def test_fine_tuning_begins_at_the_penalty_of_the_best_point_and_moves_it_less() -> None:
    model = ramp_affine(6)
    inputs, labels = shifted(model, 0.2, 0.3), torch.tensor([0, 0])
    settings = {"steps": 20, "dual_rate": 0.3, "finetune_dual": 0.05, "dual_average": 0.0}
    searched = pdpgd(model, inputs, labels, norm="l2", config=PDPGDConfig(finetune_steps=0, **settings))
    seen: list[Observation] = []
    config = PDPGDConfig(finetune_steps=1, **settings)
    pdpgd(model, inputs, labels, norm="l2", config=config, observe=seen.append)
    assert seen[-1].phase == "finetune"
    # The best point is adversarial, so the norm gains weight: by e^(0.3 * 0.05).
    torch.testing.assert_close(seen[-1].penalty, searched.penalty * torch.tensor(0.015).exp())


def test_rates_fall_from_the_first_to_the_last_step_of_the_search() -> None:
    """From the input itself the first step of Adam is as long as the rate in every coordinate."""
    affine = Stubborn()
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return affine(x)

    config = PDGDConfig(steps=50, finetune_steps=0, start_radius=0.0, primal_rate=0.1, primal_decay=0.01)
    pdgd(model, torch.full((1, 4), 0.5), torch.tensor([0]), config=config)
    lengths = [float((later - earlier).abs().max()) for earlier, later in pairwise(seen[1:])]
    assert lengths[0] == pytest.approx(0.1, rel=1e-3)
    assert lengths[-1] < 0.01


def steep(x: Tensor) -> Tensor:
    """Finite logits whose squared slope overflows float32."""
    return (x - 0.5) @ torch.tensor([[1e20, -1e20], [2e20, 5e19]])


@pytest.mark.parametrize("norm", ["l2", "l1", "l0"])
def test_a_slope_too_steep_to_square_makes_no_nan(norm: str) -> None:
    config = PDPGDConfig(steps=20, finetune_steps=5)
    result = pdpgd(steep, torch.full((2, 2), 0.6), torch.zeros(2, dtype=torch.long), norm=norm, config=config)
    assert result.adversarials.isfinite().all()
    assert not result.distances.isnan().any()


def test_the_level_of_linf_ends_on_a_metric_that_is_not_finite() -> None:
    """In a process of its own: if it does not end, only this test fails."""
    program = (
        "import torch; from pdpgd.proximal import prox_linf_metric as prox; h = torch.ones(1, 3);"
        "h[0, 1] = torch.inf; prox(torch.rand(1, 3), torch.tensor([0.1]), h);"
        "h[0, 1] = torch.nan; prox(torch.rand(1, 3), torch.tensor([0.1]), h)"
    )
    home = str(Path(pdpgd_package.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=PATIENCE)
