"""PDPGD as the paper's authors released it, step by step, against a slow transcription in NumPy.

What is transcribed: Keras' Adam (epsilon 1e-7, added before sqrt(v) is corrected for its zero start), up to five inner
iterations of the prox in Adam's metric, each of which ends in the box, the dual player on the sign of the margin in the
log domain with its floor and its moving average, and both decays. The operators are the right ones: the released
projection on the l1 ball loses signs, and its l2/3 operator its threshold (docs/attacks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pdpgd import paper_config
from pdpgd.attacks.config import PDPGDConfig
from pdpgd.attacks.primal_dual import pdpgd
from pdpgd.norms import Norm, l0

Array = NDArray[np.float64]
Operator = Callable[[Array, float], Array]

STEPS = 50
SAMPLES, CHANNELS, SIDE, HIDDEN, CLASSES = 3, 3, 4, 8, 4
# A step sums at most 48 products and divides by Adam's scale; its last bits, 2e-16 of entries of size 1, grow as the
# iterates follow each other. What is left of the sixteen digits after 50 steps is far more than this.
TOLERANCE = 1e-9


class Recording(nn.Module):
    """A net with one hidden layer of tanh that records every point it is queried at."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        features = CHANNELS * SIDE * SIDE
        self.first = torch.randn(HIDDEN, features, generator=generator, dtype=torch.float64) / features**0.5 * 4
        self.second = torch.randn(CLASSES, HIDDEN, generator=generator, dtype=torch.float64)
        self.seen: list[Array] = []

    def forward(self, points: Tensor) -> Tensor:
        self.seen.append(points.detach().numpy().copy())
        return torch.tanh((points.flatten(1) - 0.5) @ self.first.T) @ self.second.T


def soft_threshold(v: Array, weight: float) -> Array:
    return np.sign(v) * np.maximum(np.abs(v) - weight, 0.0)


def prox_linf(v: Array, weight: float) -> Array:
    """By Moreau's decomposition, with the projection on the l1 ball of radius `weight` by a sort."""
    flat = np.abs(v).ravel()
    if flat.sum() <= weight:
        return np.zeros_like(v)
    falling = np.sort(flat)[::-1]
    levels = (np.cumsum(falling) - weight) / np.arange(1, len(flat) + 1)
    level = levels[np.nonzero(falling > levels)[0][-1]]
    return v - soft_threshold(v, level)


def power_by_roots(a: float, weight: float) -> float:
    """argmin_z weight |z|^(2/3) + 1/2 (z - a)^2: zero, or a stationary point s^3 with s^4 - |a| s + 2/3 weight = 0."""
    roots = np.roots([1.0, 0.0, 0.0, -abs(a), 2 / 3 * weight])
    real = [float(root.real) ** 3 for root in roots if abs(root.imag) < 1e-9 and root.real > 0]
    cost = {z: weight * z ** (2 / 3) + 0.5 * (z - abs(a)) ** 2 for z in [0.0, *real]}
    return float(np.sign(a)) * min(cost, key=lambda z: cost[z])


def prox_l0_pixels(v: Array, weight: float) -> Array:
    """The l2/3 operator on the largest channel of each pixel; the others stay, or become 0 with it."""
    found = v.copy()
    for row in range(SIDE):
        for column in range(SIDE):
            leader = int(np.abs(v[:, row, column]).argmax())
            shrunk = power_by_roots(float(v[leader, row, column]), weight)
            if shrunk == 0:
                found[:, row, column] = 0.0
            else:
                found[leader, row, column] = shrunk
    return found


def margin_and_gradient(net: Recording, point: Array, label: int) -> tuple[float, Array]:
    """Gradient of softplus(margin) / ln 2, derived by hand."""
    first, second = net.first.numpy(), net.second.numpy()
    hidden = np.tanh(first @ (point.ravel() - 0.5))
    logits = second @ hidden
    other = max((k for k in range(CLASSES) if k != label), key=lambda k: logits[k])
    margin = float(logits[label] - logits[other])
    slope = ((second[label] - second[other]) * (1 - hidden**2)) @ first
    return margin, (slope / (1 + np.exp(-margin)) / np.log(2)).reshape(point.shape)


def transcribed(net: Recording, x: Array, label: int, start: Array, operator: Operator) -> list[Array]:
    """The points of one sample, the start first."""

    def inside(r: Array) -> Array:
        return np.clip(x + r, 0.0, 1.0) - x

    r = inside(start - x)
    mean, square = np.zeros_like(r), np.zeros_like(r)
    # log lambda_1 and log lambda_2 from the initial ratio C = 0.1, and the averages that the primal player sees.
    state = np.log([0.1 / 1.1, 1 / 1.1])
    seen = np.exp(state)
    points = [x + r]
    for step in range(STEPS):
        rate = 1.0 * 0.01 ** (step / STEPS)
        dual_rate = 0.01 + (0.1 - 0.01) * (1 - step / STEPS)
        margin, gradient = margin_and_gradient(net, x + r, label)
        ratio = seen[0] / seen[1]

        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        correction = 1 - 0.999 ** (step + 1)
        corrected_rate = rate * np.sqrt(correction) / (1 - 0.9 ** (step + 1))
        target = r - corrected_rate * mean / (np.sqrt(square) + 1e-7)
        psi = np.sqrt(square / correction) + 1e-7
        weight = ratio * rate / psi.max()
        z, change = target, 1.0
        for _ in range(5):
            before = z
            if change > 1e-2:
                z = inside(operator(z - psi / psi.max() * (z - target), weight))
            length = np.linalg.norm(z)
            change = np.linalg.norm(z - before) / length if length > 0 else (0.0 if np.array_equal(z, before) else 1e9)
        r = z
        points.append(x + r)

        state = state + np.array([0.0, dual_rate * np.sign(margin)])
        state = np.maximum(np.log(1e-6), state - np.log(np.exp(state).sum()))
        seen = 0.9 * seen + 0.1 * np.exp(state)
    return points


# A sample that is down to the smallest size leaves the batch: where no size is the smallest, all stay.
PIXELS = replace(l0(), smallest=0.0)
CASES = [("linf", prox_linf, "linf"), ("l1", soft_threshold, "l1"), (PIXELS, prox_l0_pixels, "l0")]


@pytest.mark.parametrize(("norm", "operator", "name"), CASES, ids=[name for *_, name in CASES])
def test_the_released_attack_takes_the_steps_of_its_transcription(
    norm: str | Norm, operator: Operator, name: str, generator: torch.Generator
) -> None:
    net = Recording(generator).eval()
    inputs = torch.rand(SAMPLES, CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64)
    labels = net(inputs).argmax(1)
    net.seen.clear()
    config = paper_config("mnist", name, "plain")
    assert isinstance(config, PDPGDConfig)
    changed = {**vars(config), "steps": STEPS, "finetune_steps": 0}
    pdpgd(net, inputs, labels, norm=norm, config=PDPGDConfig(**changed))
    # The first pass judges the inputs.
    path = net.seen[1:]
    assert [len(points) for points in path] == [SAMPLES] * (STEPS + 1)
    expected = [
        transcribed(net, x, label, start, operator)
        for x, label, start in zip(inputs.numpy(), labels.tolist(), path[0], strict=True)
    ]
    largest = max(
        float(np.abs(path[step][sample] - expected[sample][step]).max())
        for step in range(STEPS + 1)
        for sample in range(SAMPLES)
    )
    moved = max(float(np.abs(after - before).max()) for before, after in pairwise(path))
    print(f"\n{name}: iterates differ by at most {largest:.1e} over {STEPS} steps, the longest of which is {moved:.2f}")
    assert moved > 0.1
    assert largest <= TOLERANCE
