"""How good a trained net is: its accuracy on clean images, and under PGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from pdpgd.attacks.pgd import PGDConfig, pgd
from pdpgd.classifier import Classifier
from pdpgd.errors import InvalidInputError
from pdpgd.subjects.samples import Samples

BATCH = 250


@dataclass(frozen=True)
class Accuracy:
    """The share of `samples` images that a net gets right; under attack, if a norm is given."""

    share: float
    samples: int
    norm: str | None = None
    radius: float | None = None
    steps: int | None = None
    restarts: int | None = None


Observe = Callable[[int, int], None]
"""Called with how many samples were judged, and of how many."""


def clean_accuracy(model: nn.Module, samples: Samples, *, device: str = "cpu") -> Accuracy:
    right, classifier = 0, Classifier(model)
    with torch.no_grad():
        for first in range(0, len(samples), BATCH):
            rows = torch.arange(first, min(first + BATCH, len(samples)))
            images, labels = samples.batch(rows)
            right += int((classifier.logits(images.to(device), rows).argmax(1).cpu() == labels).sum())
    return Accuracy(right / len(samples), len(samples))


def robust_accuracy(
    model: nn.Module,
    samples: Samples,
    *,
    norm: str,
    radius: float,
    steps: int = 40,
    restarts: int = 5,
    count: int = 1000,
    seed: int = 0,
    device: str = "cpu",
    observe: Observe | None = None,
) -> Accuracy:
    """The share of the first `count` images that are right and stay right under PGD with this radius."""
    if count < 1:
        raise InvalidInputError(f"count: expected at least 1, got {count}")
    count = min(count, len(samples))
    config = PGDConfig(radius=radius, steps=steps, restarts=restarts, max_batch=BATCH)
    right = 0
    for first in range(0, count, BATCH):
        rows = torch.arange(first, min(first + BATCH, count))
        images, labels = samples.batch(rows)
        attacked = pgd(model, images.to(device), labels.to(device), norm=norm, config=config, seed=seed, indices=rows)
        right += int((~attacked.found).sum())
        if observe is not None:
            observe(int(rows[-1]) + 1, count)
    return Accuracy(right / count, count, norm, radius, steps, restarts)
