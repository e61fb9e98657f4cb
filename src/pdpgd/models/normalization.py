"""Wrappers of a model: normalization of its inputs, and pooling of its classes.

With the normalization inside the model, an attack moves and measures pixels in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pdpgd.data import known
from pdpgd.errors import InvalidInputError, ModelError, UnknownNameError


@dataclass(frozen=True)
class Normalization:
    """The normalization (x - mean) / std of pixels in [0, 1], with one mean and one deviation per channel.

    Args:
        mean: Mean of each channel.
        std: Standard deviation of each channel, above 0.

    Raises:
        InvalidInputError: Their lengths differ, or a number is not finite, or a deviation not above 0.

    Example:
        >>> normalization = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        >>> len(normalization.mean)  # one per channel
        3
        >>> model = pdpgd.load_model("timm:resnet18", normalization=normalization)  # doctest: +SKIP
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise InvalidInputError(
                f"normalization: expected one mean and one std per channel, got {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, self.mean)):
            raise InvalidInputError(f"normalization: expected finite means, got {self.mean}")
        if not all(math.isfinite(value) and value > 0 for value in self.std):
            raise InvalidInputError(f"normalization: expected finite deviations > 0, got {self.std}")


NormalizationChoice = Normalization | Literal["none"] | None
"""None is the model's own, where its library knows one; "none" is none at all."""

PRESETS = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


class Normalized(nn.Module):
    """A model with a normalization of its inputs in front of it.

    The constants are not weights: they move between devices with the model, but are not in its state dict.

    Args:
        model: The model that expects normalized inputs.
        normalization: Mean and deviation of each channel.

    Raises:
        ModelError: When called with another number of channels.

    Example:
        >>> from pdpgd.models.normalization import Normalization
        >>> net = torch.nn.Flatten()  # expects pixels in [-1, 1]
        >>> normalized = Normalized(net, Normalization(mean=(0.5,), std=(0.5,)))
        >>> normalized(images).min(), normalized(images).max()
        (tensor(-1.), tensor(1.))
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, normalization: Normalization) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(normalization.mean), persistent=False)
        self.register_buffer("std", torch.tensor(normalization.std), persistent=False)
        self.train(model.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of pixels in [0, 1]."""
        channels = len(self.mean)
        if inputs.ndim < 2 or inputs.shape[1] != channels:
            raise ModelError(
                f"expected inputs of {channels} channels, as the normalization has, got {tuple(inputs.shape)}"
            )
        shape = (channels, *[1] * (inputs.ndim - 2))
        mean, std = self.mean.to(inputs).reshape(shape), self.std.to(inputs).reshape(shape)
        logits: Tensor = self.model((inputs - mean) / std)
        return logits


def parse_normalization(mean: str | None, std: str | None) -> NormalizationChoice:
    """Parse the options --mean and --std.

    Args:
        mean: Numbers such as "0.5,0.5,0.5", or the name of a preset or "none", which sets both.
        std: The same.

    Returns:
        The normalization; None if neither option is given.

    Raises:
        InvalidInputError: The numbers are incomplete, or the options name two presets.
        UnknownNameError: There is no preset of that name.
    """
    if mean is None and std is None:
        return None
    words = {word.strip() for word in (mean, std) if word is not None and not _is_numbers(word)}
    if not words:
        if mean is None or std is None:
            given, absent = ("--mean", "--std") if std is None else ("--std", "--mean")
            raise InvalidInputError(f"{absent}: expected numbers as well as for {given}, got nothing")
        return Normalization(_numbers("--mean", mean), _numbers("--std", std))
    for word in sorted(words):
        if word not in PRESETS and word != "none":
            raise UnknownNameError("normalization", word, ["none", "numbers such as 0.5,0.5,0.5", *PRESETS])
    if len(words) > 1 or (mean is not None and std is not None and mean.strip() != std.strip()):
        raise InvalidInputError(f"--mean, --std: expected one preset for both, got {mean!r} and {std!r}")
    word = words.pop()
    return "none" if word == "none" else PRESETS[word]


def _is_numbers(text: str) -> bool:
    """Return whether numbers are meant: a name has no comma, and does not start like a number."""
    return "," in text or text.strip()[:1] in ("", *"0123456789.+-")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse numbers with commas between them."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise InvalidInputError(f"{option}: expected numbers with commas between them, got {text!r}") from None


@dataclass(frozen=True)
class Pool:
    """Groups of the outputs of a classifier; outputs in no group are left out.

    Args:
        name: Name of the pool.
        classes: Number of outputs of the classifier.
        groups: Indices of the outputs of each group.
    """

    name: str
    classes: int
    groups: tuple[range, ...]


POOLS = {pool.name: pool for pool in (Pool(known.NAME, classes=1000, groups=tuple(known.PLACES.values())),)}


def pool_by_name(name: str) -> Pool:
    """Look up a pool.

    Raises:
        UnknownNameError: There is no pool of that name.
    """
    if name not in POOLS:
        raise UnknownNameError("pool", name, POOLS)
    return POOLS[name]


class Pooled(nn.Module):
    """A model with one logit per group of classes: the largest logit in the group.

    The logits of a model that has as many outputs as there are groups are returned unchanged: it is taken for a
    classifier of the groups.

    Args:
        model: The model, with one output per class or per group.
        pool: The groups.

    Raises:
        ModelError: When called, if the model has another number of outputs.
    """

    def __init__(self, model: nn.Module, pool: Pool) -> None:
        super().__init__()
        self.model = model
        self.pool = pool
        self.train(model.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one logit per group."""
        logits: Tensor = self.model(inputs)
        outputs = logits.shape[-1]
        if outputs == len(self.pool.groups):
            return logits
        if outputs != self.pool.classes:
            raise ModelError(
                f"pool {self.pool.name}: expected a model of {self.pool.classes} outputs, ImageNet's classes in their "
                f"order, or of {len(self.pool.groups)}, the groups themselves, got one of {outputs}: use a model of "
                "ImageNet, or no pool"
            )
        return torch.stack([logits[:, group.start : group.stop].amax(1) for group in self.pool.groups], 1)
