"""Handwritten digits, 8 x 8, as scikit-learn carries them, and a small net trained on them in a few seconds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

TRAINING_IMAGES = 1400
EPOCHS = 30
BATCH = 50


class Digits(NamedTuple):
    """Images of shape (n, 1, 8, 8) in [0, 1] and their labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load() -> Digits:
    """The 1797 digits: the first 1400 to train on, the others to test on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(data.target).long()
    cut = TRAINING_IMAGES
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def trained_net(digits: Digits, *, seed: int = 0) -> nn.Module:
    """The net after a plain training, the same for the same seed; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = net()
    shuffle = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(TRAINING_IMAGES, generator=shuffle).reshape(-1, BATCH):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(digits.train_images[rows]), digits.train_labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
    return model.eval().requires_grad_(False)
