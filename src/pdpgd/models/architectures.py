"""Architectures: those of the paper, and compact ones that two cores can train. All take pixels in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdpgd.errors import UnknownNameError
from pdpgd.models.normalization import PRESETS, Normalization, Normalized


@dataclass(frozen=True)
class Architecture:
    """An architecture that is known by its name.

    Args:
        build: Function that builds the untrained net.
        shape: Channels, height and width of its inputs.
        about: One line about it.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    about: str

    def untrained(self, seed: int = 0) -> nn.Module:
        """Build the net with the initial weights of a seed; the global random state is restored."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()


def mnist_paper() -> nn.Module:
    """Build conv 32 5x5 - pool - conv 64 5x5 - pool - dense 1024 - dense 10, padded like TensorFlow's "SAME"."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def mnist_compact() -> nn.Module:
    """Build the paper's two convolutions and two dense layers with strides instead of pooling: 166,406 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def cifar10_paper(*, convolution_bias: bool = True) -> nn.Module:
    """Build conv 96, 96, 192 (stride 2), 192, 192, 192 (stride 2), 192, all 3x3 - conv 384 2x2 (stride 2) - 1200 - 10.

    Convolutions are padded like TensorFlow's "SAME": with stride 2, a 3x3 kernel needs one more row and column than an
    image of even size has, and these are zeros at the bottom and on the right.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, size, stride in (
        (96, 3, 1),
        (96, 3, 1),
        (192, 3, 2),
        (192, 3, 1),
        (192, 3, 1),
        (192, 3, 2),
        (192, 3, 1),
        (384, 2, 2),
    ):
        if (size, stride) == (3, 2):
            layers.append(nn.ZeroPad2d((0, 1, 0, 1)))
        padding = 1 if (size, stride) == (3, 1) else 0
        layers += [nn.Conv2d(channels, width, size, stride, padding, bias=convolution_bias), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384 * 4 * 4, 1200), nn.ReLU(), nn.Linear(1200, 10))


def cifar10_paper_linf_at() -> nn.Module:
    """Build the paper's CIFAR-10 net without biases in its convolutions."""
    return cifar10_paper(convolution_bias=False)


def cifar10_paper_l2_at() -> nn.Module:
    """Build the paper's CIFAR-10 net without biases in its convolutions, on pixels minus 0.5."""
    return Normalized(cifar10_paper(convolution_bias=False), Normalization((0.5, 0.5, 0.5), (1.0, 1.0, 1.0)))


def cifar10_compact() -> nn.Module:
    """Build strided convolutions as in the paper's net, with batch normalization and residuals for a short training.

    It has 731,530 parameters and needs 27 million multiplications per image.
    """
    return nn.Sequential(
        _convolution(3, 48, size=4, stride=2),
        _Residual(_convolution(48, 48)),
        _convolution(48, 96, stride=2),
        _Residual(_convolution(96, 96), _convolution(96, 96)),
        _convolution(96, 192, stride=2),
        _Residual(_convolution(192, 192)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(192, 10),
    )


def restricted_imagenet_paper() -> nn.Module:
    """Build timm's ResNet-50 with nine outputs and ImageNet's normalization."""
    from pdpgd.models.adapters import timm

    return Normalized(timm.untrained("resnet50", classes=9), PRESETS["imagenet"])


ARCHITECTURES = {
    "mnist-paper": Architecture(mnist_paper, (1, 28, 28), "the paper's MNIST net"),
    "mnist-compact": Architecture(mnist_compact, (1, 28, 28), "its shape with strided convolutions"),
    "cifar10-paper": Architecture(cifar10_paper, (3, 32, 32), "the paper's CIFAR-10 net"),
    "cifar10-paper-linf-at": Architecture(cifar10_paper_linf_at, (3, 32, 32), "without bias in its convolutions"),
    "cifar10-paper-l2-at": Architecture(cifar10_paper_l2_at, (3, 32, 32), "the same, on pixels minus 0.5"),
    "cifar10-compact": Architecture(cifar10_compact, (3, 32, 32), "strided convolutions, batch norm, residuals"),
    "restricted-imagenet-paper": Architecture(restricted_imagenet_paper, (3, 224, 224), "ResNet-50, by timm"),
}


def architecture_by_name(name: str) -> Architecture:
    """Look up an architecture; raise UnknownNameError if there is none of that name."""
    if name not in ARCHITECTURES:
        raise UnknownNameError("architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name]


def _convolution(channels: int, width: int, *, size: int = 3, stride: int = 1) -> nn.Module:
    """Build a convolution with batch normalization and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, width, size, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


class _Residual(nn.Module):
    """Layers with a skip connection."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change
