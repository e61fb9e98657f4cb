"""Cubic interpolation against the formula, pixel by pixel, and against torch's, which has the same kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pdpgd.data.folders import BITS, resized

SIZES = [((9, 12), (6, 8)), ((7, 5), (3, 11)), ((4, 6), (9, 4)), ((1, 3), (2, 5))]
# The four weights of a place add up to at most 1.375 in size, at its middle, and each is off by half a 2048th at most.
WEIGHTS, OFF = 1.375, 4 * 0.5 / (1 << BITS)
TOLERANCE = 255 * ((WEIGHTS + OFF) ** 2 - WEIGHTS**2) + 0.5


def image(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def weight(distance: float) -> float:
    """Keys' kernel with a = -3/4."""
    a, t = -0.75, abs(distance)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def by_hand(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float64]:
    rows, columns, channels = pixels.shape
    result = np.zeros((height, width, channels))
    for y in range(height):
        for x in range(width):
            row, column = (y + 0.5) * rows / height - 0.5, (x + 0.5) * columns / width - 0.5
            for i in range(math.floor(row) - 1, math.floor(row) + 3):
                for j in range(math.floor(column) - 1, math.floor(column) + 3):
                    pixel = pixels[min(max(i, 0), rows - 1), min(max(j, 0), columns - 1)]
                    result[y, x] += weight(row - i) * weight(column - j) * pixel
    return result.clip(0, 255)


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_each_pixel_is_the_weighted_sum_of_its_sixteen_neighbors(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = image(*old)
    found = resized(pixels, *new)
    assert found.dtype == np.uint8
    assert found.shape == (*new, 3)
    assert np.abs(found - by_hand(pixels, *new)).max() <= TOLERANCE


@pytest.mark.parametrize(("old", "new"), [*SIZES, ((375, 500), (256, 341))])
def test_it_is_torchs_bicubic_without_antialiasing(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = image(*old)
    planes = torch.from_numpy(pixels).double().permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(planes, new, mode="bicubic", align_corners=False)[0].clamp(0, 255)
    assert np.abs(resized(pixels, *new) - theirs.permute(1, 2, 0).numpy()).max() <= TOLERANCE


def test_an_image_of_that_size_stays_as_it_is_and_a_flat_one_flat() -> None:
    pixels = image(6, 7)
    assert np.array_equal(resized(pixels, 6, 7), pixels)
    for level in (0, 1, 128, 255):
        flat = np.full((9, 12, 3), level, dtype=np.uint8)
        assert np.array_equal(resized(flat, 5, 7), np.full((5, 7, 3), level))
