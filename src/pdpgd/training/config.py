"""The numbers a training is run with, each with its one default and its source."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pdpgd.errors import InvalidInputError, UnknownNameError, expect_setting

INNER_ATTACKS = ("none", "pgd", "fast", "pdpgd")
OPTIMISERS = ("adam", "sgd")
AUGMENTATIONS = ("none", "crop-flip")
# What "pgd" and "fast" climb in, and what a trained net is judged under.
BALLS = ("linf", "l2")
# What "pdpgd" can push past a radius: a point too far away is scaled back, which makes no pixel count smaller.
MEASURED = ("linf", "l2", "l1")


@dataclass(frozen=True)
class Threat:
    """What the net shall withstand: perturbations of up to `radius` in `norm`."""

    norm: str
    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise InvalidInputError(f"radius: expected above 0, got {self.radius!r}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a net is trained. The same config, data, machine and number of threads give the same weights."""

    inner: str = "none"
    """"none" is plain training; "pgd" is Madry et al. 2018; "fast" is one step from a random start (Wong et al. 2020);
    "pdpgd" looks for each sample's smallest adversarial point and pushes it past the radius."""
    threats: tuple[Threat, ...] = ()
    """With several, the samples of a batch take turns, so that the cost is that of one."""
    inner_steps: int = 7
    """Steps of "pgd" and "pdpgd". Madry et al.: 40 on MNIST, 7 on CIFAR-10."""
    inner_rate: float = 2.5
    """The length of a PGD step times the number of steps, over the radius. Madry et al."""
    fast_rate: float = 1.25
    """The length of the single step over the radius. Wong et al."""
    clean_share: float = 0.0
    """Weight of the loss at the clean images beside that at the adversarial ones."""
    radius_warmup: float = 0.0
    """The share of the training over which the radius grows from 0."""
    epochs: int = 10
    batch: int = 128
    optimiser: str = "adam"
    rate: float = 2e-3
    """The highest learning rate: it rises to it over `rate_warmup` of the training and falls to 0, both linearly."""
    rate_warmup: float = 0.2
    weight_decay: float = 0.0
    augment: str = "none"
    """"crop-flip" moves an image by up to 4 pixels and mirrors every second one."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("inner attack", self.inner, INNER_ATTACKS),
            ("optimiser", self.optimiser, OPTIMISERS),
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
        return asdict(self)
