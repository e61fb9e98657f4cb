"""Cubic interpolation as OpenCV does it: without antialiasing, in whole numbers, so the same on every processor."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

# Keys' parameter; Pillow has -1/2, and widens the kernel where an image is made smaller.
SLOPE = -0.75
# Weights are multiples of 1/2048.
BITS = 11


def resized(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize an image of shape (rows, columns, channels), as OpenCV's `INTER_CUBIC` does to within a gray level.

    Each new pixel is the sum of 4 x 4 old ones, weighted by Keys' kernel with a = -3/4. Beyond the border the
    outermost pixel is repeated.
    """
    wide = _added(pixels[:, place] * weight[:, None] for place, weight in _neighbors(pixels.shape[1], width))
    sums = _added(wide[place] * weight[:, None, None] for place, weight in _neighbors(pixels.shape[0], height))
    half = 1 << (2 * BITS - 1)
    result: NDArray[np.uint8] = np.clip((sums + half) >> (2 * BITS), 0, 255).astype(np.uint8)
    return result


def _added(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return reduce(np.add, parts)


def _neighbors(old: int, new: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The four old neighbors of each of `new` places on a side of `old` pixels, and their weights in 2048ths.

    The center of pixel i lies at i + 1/2 in both images: place i is the old place ((2i + 1) old / new - 1) / 2.
    """
    whole, part = np.divmod((2 * np.arange(new) + 1) * old - new, 2 * new)
    return [
        (
            np.clip(whole + step, 0, old - 1),
            np.rint(_kernel(np.abs(part / (2 * new) - step)) * (1 << BITS)).astype(np.int64),
        )
        for step in (-1, 0, 1, 2)
    ]


def _kernel(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys (1981), for distances below 2."""
    near = ((SLOPE + 2) * distance - (SLOPE + 3)) * distance * distance + 1
    far = ((SLOPE * distance - 5 * SLOPE) * distance + 8 * SLOPE) * distance - 4 * SLOPE
    return np.where(distance <= 1, near, far)
