"""Adversarial examples at 8 bits are still adversarial, and little larger than the original ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pdpgd.evaluation.referee import Referee, as_pixels, from_pixels, pixel_sizes, quantized
from support.models import Affine, Stubborn, TinyConv

NORMS = ("linf", "l2", "l1", "l0")
FEATURES = 12


def wall(at: float) -> Affine:
    """Class 0 where the weighted mean of the levels is above `at`; distinct weights."""
    weight = 1.0 + 0.01 * torch.arange(FEATURES)
    return Affine(torch.stack([weight, 0 * weight]), torch.tensor([-float(weight.sum()) * at / 255, 0.0]))


def before(model: Affine, *levels: float) -> tuple[Referee, Tensor]:
    """A referee over even images of class 0, and the images."""
    inputs = torch.tensor(levels).div(255).reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2).clone()
    return Referee(model, inputs, torch.zeros(len(levels), dtype=torch.long), batch_size=3), inputs


def everything(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def read_back(pixels: Tensor) -> Tensor:
    return torch.from_numpy(pixels.numpy().astype(np.float32) / np.float32(255))


def test_every_gray_level_survives_a_file() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(as_pixels(from_pixels(levels)), levels)
    assert torch.equal(from_pixels(levels), read_back(levels))


def test_a_value_is_rounded_to_the_nearest_gray_level() -> None:
    values = torch.tensor([0.0, 0.4, 0.6, 127.4, 127.6, 254.6, 255.0]) / 255
    assert as_pixels(values).tolist() == [0, 0, 1, 127, 128, 255, 255]


@pytest.mark.parametrize("norm", NORMS)
def test_every_point_is_adversarial_when_read_back(
    model: TinyConv, images: Tensor, labels: Tensor, generator: torch.Generator, norm: str
) -> None:
    referee = Referee(model, images, labels, batch_size=4)
    points = (images + 0.3 * torch.randn(images.shape, generator=generator)).clamp(0, 1)
    found = referee.judge(points, everything(len(images))).valid
    pixels, verdicts = quantized(referee, points, found, norm)
    with torch.no_grad():
        prediction = model(read_back(pixels)).argmax(1)
    assert found.sum() >= 3
    assert torch.equal(verdicts.valid, found)
    assert (prediction != labels)[verdicts.valid].all()
    assert torch.equal(verdicts.prediction[verdicts.valid], prediction[verdicts.valid])
    assert torch.equal(pixels[~found], as_pixels(images)[~found])


@pytest.mark.parametrize("norm", NORMS)
def test_a_pixel_that_was_not_changed_stays_as_it_was(
    model: TinyConv, images: Tensor, labels: Tensor, generator: torch.Generator, norm: str
) -> None:
    referee = Referee(model, images, labels, batch_size=4)
    few = torch.rand(len(images), 1, 6, 6, generator=generator) < 0.25
    points = torch.where(few, (images + 0.7 * torch.randn(images.shape, generator=generator)).clamp(0, 1), images)
    found = referee.judge(points, everything(len(images))).valid
    pixels, verdicts = quantized(referee, points, found, norm)
    assert verdicts.valid.sum() >= 3
    assert torch.equal(pixels[points == images], as_pixels(images)[points == images])
    assert (pixel_sizes(pixels, as_pixels(images), "l0") <= referee.sizes(points, "l0")).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("inputs", [(140.0, 150.0, 131.0), (140.3, 149.6, 131.4)], ids=["on the grid", "off the grid"])
def test_what_rounding_breaks_is_repaired_by_little(norm: str, inputs: tuple[float, ...]) -> None:
    model = wall(128.8)
    referee, images = before(model, *inputs)
    points = torch.full_like(images, 128.7 / 255)
    assert referee.judge(points, everything(3)).valid.all()
    assert not referee.judge(from_pixels(as_pixels(points)), everything(3)).valid.any()

    pixels, verdicts = quantized(referee, points, everything(3), norm)
    assert verdicts.valid.all()
    assert (model.labels(read_back(pixels)) == 1).all()
    steps = 255 * (referee.sizes(points, "linf"))
    assert (255 * pixel_sizes(pixels, as_pixels(images), "linf") <= steps + 2).all()


def test_what_rounding_does_not_break_is_only_rounded() -> None:
    referee, images = before(wall(128.8), 140.0)
    points = torch.full_like(images, 128.3 / 255)
    pixels, verdicts = quantized(referee, points, everything(1), "l2")
    assert (pixels == 128).all()
    assert verdicts.valid.all()


def test_a_point_that_stopped_half_way_is_taken_further() -> None:
    """No attack should hand one over; the repair does not depend on it."""
    referee, images = before(wall(100.0), 140.0, 200.0)
    pixels, verdicts = quantized(
        referee, images - torch.tensor([22.0, 60.0]).reshape(2, 1, 1, 1) / 255, everything(2), "l2"
    )
    assert verdicts.valid.all()
    assert ((pixels < 100) & (pixels >= 80)).all()


def test_a_repair_takes_one_gray_level_where_one_is_enough() -> None:
    referee, images = before(wall(128.8), 130.0)
    points = images - 1.25 / 255
    pixels, _ = quantized(referee, points, everything(1), "linf")
    assert pixel_sizes(pixels, as_pixels(images), "linf").tolist() == [2 / 255]


def test_a_repair_does_not_stretch_what_was_large_for_the_sake_of_what_was_small() -> None:
    """Rounding loses all but the first feature's change; outward rounding is enough, stretching would double it."""
    referee, images = before(wall(128.8), 129.0)
    points = images - 0.3 / 255
    points[0, 0, 0, 0] = 128 / 255
    assert referee.judge(points, everything(1)).valid.all()
    pixels, verdicts = quantized(referee, points, everything(1), "linf")
    assert verdicts.valid.all()
    assert (pixels == 128).all()


def test_where_nothing_fools_there_is_no_point() -> None:
    inputs = torch.full((2, 3, 2, 2), 0.4)
    referee = Referee(Stubborn(), inputs, torch.zeros(2, dtype=torch.long), batch_size=2)
    pixels, verdicts = quantized(referee, 1 - inputs, everything(2), "l2")
    assert torch.equal(pixels, as_pixels(inputs))
    assert verdicts.word.tolist() == ["none", "none"]


def test_the_distance_at_8_bits_is_from_the_quantized_input(generator: torch.Generator) -> None:
    model = wall(110.0)
    images = torch.rand(4, 3, 2, 2, generator=generator) * 0.1 + 0.5
    referee = Referee(model, images, torch.zeros(4, dtype=torch.long), batch_size=4)
    pixels, verdicts = quantized(referee, images - 0.2, everything(4), "l2")
    rounded = np.rint(images.numpy().astype(np.float64) * 255)
    delta = (pixels.numpy().astype(np.float64) - rounded) / 255
    assert verdicts.valid.all()
    assert np.abs(delta * 255).max() < 60
    sizes = pixel_sizes(pixels, as_pixels(images), "l2")
    assert sizes.tolist() == pytest.approx(np.sqrt((delta**2).sum((1, 2, 3))), rel=1e-14)


@pytest.mark.parametrize("steps", [1, 3, 8, 77, 255])
def test_gray_levels_are_exact(steps: int) -> None:
    base = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    pixels = base.clone()
    pixels[0, 1, 0, 1] = steps
    sizes = {norm: pixel_sizes(pixels, base, norm).item() for norm in NORMS}
    assert sizes == {"linf": steps / 255, "l1": steps / 255, "l2": pytest.approx(steps / 255, rel=1e-15), "l0": 1.0}
    assert pixel_sizes(base, pixels, "linf").item() == steps / 255


def test_the_repair_leaves_its_inputs_alone(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    points, inputs, found = 1 - images, images.clone(), everything(len(images))
    given = points.clone()
    quantized(Referee(model, images, labels, batch_size=4), points, found, "l2")
    assert torch.equal(points, given)
    assert torch.equal(images, inputs)
    assert found.all()
