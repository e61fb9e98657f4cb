"""Normalization inside the model, so that an attack moves, and measures, pixels."""

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
    """(x - mean) / std, one mean and one deviation a channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise InvalidInputError(
                f"normalization: expected one mean and one std a channel, got {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, self.mean)):
            raise InvalidInputError(f"normalization: expected finite means, got {self.mean}")
        if not all(math.isfinite(value) and value > 0 for value in self.std):
            raise InvalidInputError(f"normalization: expected finite deviations > 0, got {self.std}")


NormalizationChoice = Normalization | Literal["none"] | None
"""None is the model's own, where its library knows one; "none" is no normalization at all."""

PRESETS = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


class Normalized(nn.Module):
    """The model behind its normalization. The constants are no weights: they move with the model, but are not saved."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, normalization: Normalization) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(normalization.mean), persistent=False)
        self.register_buffer("std", torch.tensor(normalization.std), persistent=False)
        self.train(model.training)

    def forward(self, inputs: Tensor) -> Tensor:
        channels = len(self.mean)
        if inputs.ndim < 2 or inputs.shape[1] != channels:
            raise ModelError(f"expected inputs of {channels} channels, as normalized, got {tuple(inputs.shape)}")
        shape = (channels, *[1] * (inputs.ndim - 2))
        mean, std = self.mean.to(inputs).reshape(shape), self.std.to(inputs).reshape(shape)
        logits: Tensor = self.model((inputs - mean) / std)
        return logits


def parse_normalization(mean: str | None, std: str | None) -> NormalizationChoice:
    """What --mean and --std say: "0.5,0.5,0.5" each, or the name of a preset (or "none") in one, which sets both."""
    if mean is None and std is None:
        return None
    words = {word.strip() for word in (mean, std) if word is not None and not _is_numbers(word)}
    if not words:
        if mean is None or std is None:
            given, absent = ("--mean", "--std") if std is None else ("--std", "--mean")
            raise InvalidInputError(f"{absent}: expected numbers beside those of {given}, got nothing")
        return Normalization(_numbers("--mean", mean), _numbers("--std", std))
    for word in sorted(words):
        if word not in PRESETS and word != "none":
            raise UnknownNameError("normalization", word, ["none", "numbers such as 0.5,0.5,0.5", *PRESETS])
    if len(words) > 1 or (mean is not None and std is not None and mean.strip() != std.strip()):
        raise InvalidInputError(f"--mean, --std: expected one preset for both, got {mean!r} and {std!r}")
    word = words.pop()
    return "none" if word == "none" else PRESETS[word]


def _is_numbers(text: str) -> bool:
    """Whether numbers were meant: a name has no comma, and does not start as a number does."""
    return "," in text or text.strip()[:1] in ("", *"0123456789.+-")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise InvalidInputError(f"{option}: expected numbers with commas between them, got {text!r}") from None


@dataclass(frozen=True)
class Pool:
    """Which outputs of a classifier of `classes` classes make up each group; the others are left out."""

    name: str
    classes: int
    groups: tuple[range, ...]


POOLS = {pool.name: pool for pool in (Pool(known.NAME, classes=1000, groups=tuple(known.PLACES.values())),)}


def pool_by_name(name: str) -> Pool:
    """Look up a pool.

    Raises:
        UnknownNameError: There is none of that name.
    """
    if name not in POOLS:
        raise UnknownNameError("pool", name, POOLS)
    return POOLS[name]


class Pooled(nn.Module):
    """The model with one logit per group: the largest that it gives to a class of the group.

    A model that has as many outputs as there are groups is taken to be a classifier of the groups, and answers as it
    is.
    """

    def __init__(self, model: nn.Module, pool: Pool) -> None:
        super().__init__()
        self.model = model
        self.pool = pool
        self.train(model.training)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs)
        outputs = logits.shape[-1]
        if outputs == len(self.pool.groups):
            return logits
        if outputs != self.pool.classes:
            raise ModelError(
                f"pool {self.pool.name}: expected a model of {self.pool.classes} outputs, ImageNet's classes in their "
                f"order, or of {len(self.pool.groups)}, the groups themselves, got one of {outputs}: give a model of "
                "ImageNet, or leave the pool out"
            )
        return torch.stack([logits[:, group.start : group.stop].amax(1) for group in self.pool.groups], 1)
