"""Settings of a training, each with one default and its source."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pdpgd.errors import InvalidInputError, UnknownNameError, expect_setting

INNER_ATTACKS = ("none", "pgd", "fast", "pdpgd")
OPTIMIZERS = ("adam", "sgd")
AUGMENTATIONS = ("none", "crop-flip")
# Norms of the balls in which "pgd" and "fast" ascend, and in which a trained net is evaluated.
BALLS = ("linf", "l2")
# Norms whose perturbations "pdpgd" can bring to a radius: a distant point is scaled back, which does not reduce the
# number of changed pixels, so that l0 is not one of them.
MEASURED = ("linf", "l2", "l1")
# Settings whose key on disk (model cards, checkpoints) is spelled as in the first version.
KEYS_ON_DISK = {"optimizer": "optimiser"}


@dataclass(frozen=True)
class Threat:
    """A threat model: perturbations up to a radius in a norm.

    Args:
        norm: Name of the norm.
        radius: Maximum norm of a perturbation, above 0.

    Raises:
        InvalidInputError: The radius is not finite or not above 0.
    """

    norm: str
    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise InvalidInputError(f"radius: expected above 0, got {self.radius!r}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training. The same config, data, machine and number of threads give the same weights.

    Args:
        inner: Inner attack. "none" is plain training; "pgd" is Madry et al. 2018; "fast" is one step from a random
            start (Wong et al. 2020); "pdpgd" finds the smallest adversarial perturbation of each sample and pushes
            the decision boundary there past the radius.
        threats: Threat models of adversarial training. With several, the samples of a batch take turns, so that the
            cost is that of one.
        inner_steps: Steps of "pgd" and "pdpgd". Madry et al.: 40 on MNIST, 7 on CIFAR-10.
        inner_rate: Length of a PGD step times the number of steps, relative to the radius. Madry et al.
        fast_rate: Length of the single step of "fast" relative to the radius. Wong et al.
        clean_share: Weight of the loss on clean images; the loss on adversarial examples has the rest.
        radius_warmup: Fraction of the training during which the radius grows linearly from 0.
        epochs: Number of passes over the data.
        batch: Samples per step.
        optimizer: "adam" (AdamW) or "sgd" (Nesterov momentum 0.9).
        rate: Maximum learning rate; the rate rises to it during `rate_warmup` and then falls to 0, both linearly.
        rate_warmup: Fraction of the training during which the learning rate rises.
        weight_decay: Weight decay of the optimizer.
        augment: Data augmentation. "crop-flip" shifts an image by up to 4 pixels and mirrors half of the images.
        seed: Random seed of the initial weights, the order of the samples, the augmentation and the inner attack.

    Raises:
        InvalidInputError: A setting is out of its range, or threats are missing with an inner attack.
        UnknownNameError: An inner attack, optimizer, augmentation or norm is unknown.

    Example:
        >>> TrainingConfig(inner="pgd", threats=(Threat("linf", 0.3),), inner_steps=40, epochs=5)
    """

    inner: str = "none"
    threats: tuple[Threat, ...] = ()
    inner_steps: int = 7
    inner_rate: float = 2.5
    fast_rate: float = 1.25
    clean_share: float = 0.0
    radius_warmup: float = 0.0
    epochs: int = 10
    batch: int = 128
    optimizer: str = "adam"
    rate: float = 2e-3
    rate_warmup: float = 0.2
    weight_decay: float = 0.0
    augment: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("inner attack", self.inner, INNER_ATTACKS),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("augmentation", self.augment, AUGMENTATIONS),
        ):
            if value not in known:
                raise UnknownNameError(name, value, known)
        norms = MEASURED if self.inner == "pdpgd" else BALLS
        for threat in self.threats:
            if threat.norm not in norms:
                raise UnknownNameError(f"norm of {self.inner} training", threat.norm, norms)
        expect_setting(
            self,
            "threats",
            "one or more with an inner attack, none without",
            (self.inner != "none") == bool(self.threats),
        )
        for name in ("epochs", "batch", "inner_steps"):
            expect_setting(
                self,
                name,
                "an integer of at least 1",
                isinstance(getattr(self, name), int) and getattr(self, name) >= 1,
            )
        for name in ("rate", "inner_rate", "fast_rate"):
            expect_setting(self, name, "above 0", getattr(self, name) > 0)
        for name in ("clean_share", "radius_warmup", "rate_warmup"):
            expect_setting(self, name, "in [0, 1]", 0 <= getattr(self, name) <= 1)
        expect_setting(self, "weight_decay", "at least 0", self.weight_decay >= 0)
        expect_setting(self, "seed", "an integer of at least 0", isinstance(self.seed, int) and self.seed >= 0)

    def as_json(self) -> dict[str, Any]:
        """Return the settings under the keys that model cards and checkpoints have for them."""
        return {KEYS_ON_DISK.get(name, name): value for name, value in asdict(self).items()}
