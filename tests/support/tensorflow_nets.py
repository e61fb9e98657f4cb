"""The nets of the paper as TensorFlow computes them, slow and obvious in NumPy, and MATLAB files of their weights.

The weights are a few ones and minus ones for each output, the pixels and biases multiples of 1/256, so that every sum
of a net is a number that float64 holds exactly, whatever the order of summation: what computes the same net in float64
gets the same bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io

Weights = dict[str, np.ndarray]

# Kernel size, inputs, outputs and stride of each convolution.
MNIST = ((5, 1, 32, 1), (5, 32, 64, 1))
CIFAR10 = (
    *((3, 3, 96, 1), (3, 96, 96, 1), (3, 96, 192, 2), (3, 192, 192, 1)),
    *((3, 192, 192, 1), (3, 192, 192, 2), (3, 192, 192, 1), (2, 192, 384, 2)),
)
SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
# Average number of weights of an output that are 1 or -1; the others are 0.
ENTRIES = 12
GRAIN = 1 / 256


def layout(name: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the arrays in the published file of a net."""
    if name.startswith("mnist"):
        kernels = [(size, size, inputs, outputs) for size, inputs, outputs, _ in MNIST] + [(3136, 1024), (1024, 10)]
        arrays = {f"A{2 * place}": kernel for place, kernel in enumerate(kernels)}
        return {**arrays, **{f"A{2 * place + 1}": kernel[-1:] for place, kernel in enumerate(kernels)}}
    kernels = [(size, size, inputs, outputs) for size, inputs, outputs, _ in CIFAR10]
    arrays = {f"A{place}": kernel for place, kernel in enumerate(kernels)}
    if name == "cifar10-plain":
        arrays = {**arrays, "A8": (6144, 1200), "A9": (1200, 10)}
        return {**arrays, **{f"b{array}": kernel[-1:] for array, kernel in arrays.items()}}
    return {**arrays, "A8": (6144, 1200), "A9": (1200,), "A10": (1200, 10), "A11": (10,)}


def random_weights(name: str, *, seed: int = 0) -> Weights:
    random = np.random.default_rng(seed)
    weights = {}
    for array, shape in layout(name).items():
        inputs = int(np.prod(shape[:-1]))
        if len(shape) == 1:
            weights[array] = GRAIN * random.integers(-128, 129, shape)
        else:
            weights[array] = random.choice([-1.0, 1.0], shape) * (random.random(shape) < ENTRIES / inputs)
    return weights


def random_images(name: str, count: int, *, seed: int = 1) -> np.ndarray:
    """Return images of shape (count, height, width, channels), multiples of 1/256 in [0, 1]."""
    return GRAIN * np.random.default_rng(seed).integers(0, 257, (count, *SHAPES[name.partition("-")[0]]))


def write_mat(path: Path, weights: Weights) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {array: values.astype(np.float32) for array, values in weights.items()})
    return path


def logits(name: str, weights: Weights, image: np.ndarray) -> np.ndarray:
    """Compute the logits of one image as TensorFlow does, in float64."""
    if name.startswith("mnist"):
        values = image
        for place, (_, _, _, stride) in enumerate(MNIST):
            values = _convolution(values, weights[f"A{2 * place}"], stride) + weights[f"A{2 * place + 1}"]
            values = _largest_of_four(np.maximum(values, 0))
        values = np.maximum(_dense(values.reshape(-1), weights["A4"]) + weights["A5"], 0)
        return _dense(values, weights["A6"]) + weights["A7"]
    values = image - 0.5 if name == "cifar10-l2-at" else image
    for place, (_, _, _, stride) in enumerate(CIFAR10):
        # The file of the plain net holds biases that are subtracted; those of the trained ones hold none here.
        values = _convolution(values, weights[f"A{place}"], stride) - weights.get(f"bA{place}", 0)
        values = np.maximum(values, 0)
    if name == "cifar10-plain":
        values = np.maximum(_dense(values.reshape(-1), weights["A8"]) - weights["bA8"], 0)
        return _dense(values, weights["A9"]) - weights["bA9"]
    values = np.maximum(_dense(values.reshape(-1), weights["A8"]) + weights["A9"], 0)
    return _dense(values, weights["A10"]) + weights["A11"]


def _convolution(image: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """Convolve (height, width, inputs) with (height, width, inputs, outputs), padded like TensorFlow's "SAME".

    The result has ceil(side / stride) rows. The padding is split between both ends; an odd zero goes to the far end.
    """
    _expect_exact(image, kernel)
    side, size = len(image), len(kernel)
    rows = -(-side // stride)
    needed = max((rows - 1) * stride + size - side, 0)
    first = needed // 2
    padded = np.zeros((side + needed, side + needed, image.shape[2]))
    padded[first : first + side, first : first + side] = image
    result = np.zeros((rows, rows, kernel.shape[3]))
    for row in range(rows):
        for column in range(rows):
            top, left = row * stride, column * stride
            window = padded[top : top + size, left : left + size]
            result[row, column] = np.tensordot(window, kernel, 3)
    return result


def _largest_of_four(image: np.ndarray) -> np.ndarray:
    """Return the maximum of each square of two by two."""
    rows, columns, channels = image.shape
    return image.reshape(rows // 2, 2, columns // 2, 2, channels).max((1, 3))


def _dense(values: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    _expect_exact(values, kernel)
    return values @ kernel


def _expect_exact(values: np.ndarray, kernel: np.ndarray) -> None:
    """Assert that no sum of products of an output's weights with these values needs more than float64's 53 bits."""
    assert np.abs(values).max() * np.abs(kernel).reshape(-1, kernel.shape[-1]).sum(0).max() < 2**52 * GRAIN
