"""Inner attacks stay in the ball and the box, increase the loss, and ignore batch statistics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, nn

from pdpgd.training.config import Threat, TrainingConfig
from pdpgd.training.inner_attack import training_points
from pdpgd.training.loop import crop_flip
from support.models import TinyConv
from support.results import within_radius
from support.rounding import eps_of

BOTH = (Threat("linf", 0.05), Threat("l2", 0.3))


@pytest.fixture
def model() -> nn.Module:
    return TinyConv(Generator().manual_seed(0))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(12, 3, 6, 6, generator=Generator().manual_seed(1))


def points_of(model: nn.Module, images: torch.Tensor, config: TrainingConfig, progress: float = 0.5) -> torch.Tensor:
    with torch.no_grad():
        labels = model(images).argmax(1)
    return training_points(
        model, images, labels, config=config, progress=progress, generator=Generator().manual_seed(2)
    )


@pytest.mark.parametrize(
    ("inner", "threat"),
    [*((inner, threat) for inner in ("pgd", "fast", "pdpgd") for threat in BOTH), ("pdpgd", Threat("l1", 2.0))],
)
def test_points_stay_inside_the_ball_and_the_box_and_raise_the_loss(
    model: nn.Module, images: torch.Tensor, inner: str, threat: Threat
) -> None:
    points = points_of(model, images, TrainingConfig(inner=inner, threats=(threat,)))
    assert within_radius(points, images, threat.norm, threat.radius).all()
    assert bool((points != images).any())
    assert float(points.min()) >= 0
    assert float(points.max()) <= 1
    labels = model(images).argmax(1)
    assert F.cross_entropy(model(points), labels) > F.cross_entropy(model(images), labels)


@pytest.mark.parametrize("inner", ["pgd", "fast", "pdpgd"])
def test_several_threats_take_turns_over_the_batch(model: nn.Module, images: torch.Tensor, inner: str) -> None:
    threats = (Threat("linf", 0.02), Threat("l2", 1.0))
    points = points_of(model, images, TrainingConfig(inner=inner, threats=threats))
    within_linf, within_l2 = (within_radius(points, images, threat.norm, threat.radius) for threat in threats)
    assert bool((within_linf | within_l2).all())
    turns = [bool(first) for first in (within_linf[::2].all(), within_linf[1::2].all())]
    assert sorted(turns) == [False, True], "every second sample is attacked in linf, the others are not"


def test_the_radius_grows_over_the_warmup(model: nn.Module, images: torch.Tensor) -> None:
    config = TrainingConfig(inner="pgd", threats=(Threat("linf", 0.1),), radius_warmup=0.5)
    sizes = [float((points_of(model, images, config, progress) - images).abs().max()) for progress in (0, 0.25, 0.5, 1)]
    # A point in the box is rounded by at most half an ulp of 1, and the radius by less.
    assert sizes == pytest.approx([0, 0.05, 0.1, 0.1], abs=eps_of(images))


@pytest.mark.parametrize("inner", ["pgd", "fast", "pdpgd"])
def test_the_attack_neither_sees_nor_moves_batch_statistics(images: torch.Tensor, inner: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    labels = torch.zeros(12, dtype=torch.long)
    training_points(
        model,
        images,
        labels,
        config=TrainingConfig(inner=inner, threats=BOTH),
        progress=1.0,
        generator=Generator().manual_seed(0),
    )
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_is_wrong_already_is_trained_on_as_it_is(model: nn.Module, images: torch.Tensor) -> None:
    labels = (model(images).argmax(1) + 1) % 5
    config = TrainingConfig(inner="pdpgd", threats=BOTH)
    points = training_points(model, images, labels, config=config, progress=1.0, generator=Generator().manual_seed(0))
    assert torch.equal(points, images)


def test_crop_and_flip_only_move_and_mirror() -> None:
    image = torch.arange(1, 65, dtype=torch.float32).reshape(1, 1, 8, 8)
    moved = crop_flip(image.expand(200, 1, 8, 8), Generator().manual_seed(0))
    padded = F.pad(image, (4, 4, 4, 4))
    windows = [padded[0, 0, top : top + 8, left : left + 8] for top in range(9) for left in range(9)]
    allowed = torch.stack([window for plain in windows for window in (plain, plain.flip(1))])
    seen = {int((allowed == picture).all(-1).all(-1).nonzero()[0]) for picture in moved[:, 0]}
    assert len(seen) > 100
    assert {place % 2 for place in seen} == {0, 1}
