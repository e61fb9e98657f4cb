"""From a row of the catalogue to an attack that is ready to run.

`Preparable` is the base class of every attack that the catalogue lists. The rows of our own attacks point at the
classes at the end of this module, those of the baselines at classes in `pdpgd.baselines`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

from pdpgd.attacks.auto import auto
from pdpgd.attacks.base import Attack
from pdpgd.attacks.config import Config, GameConfig, PDGDConfig, PDPGDConfig, paper_config
from pdpgd.attacks.frame import Framed, Method
from pdpgd.attacks.info import AttackInfo, PaperSetup, Settings
from pdpgd.attacks.primal_dual import pdgd, pdpgd
from pdpgd.attacks.radius_search import AtRadii, BySearch
from pdpgd.errors import InvalidInputError

# Steps of one restart, and of the fine-tuning, as the paper's authors ran them.
PAPER_STEPS = 500
# The authors selected Adam's initial rate from these.
PRIMAL_RATES = (1.0, 0.1, 0.01)


@dataclass(frozen=True)
class Budget:
    """The passes that an attack may spend on a sample, and what their number of iterations depends on.

    The few passes that judge inputs and single points come on top; what an attack really spends is counted.

    Attributes:
        norm: Name of the norm.
        passes: Maximum number of forward plus backward passes per sample.
        classes: Number of classes of the model.
        settings: Settings given by the user, which take precedence. Restarts and radii share the passes.

    Example:
        >>> Budget("l2", 1000, classes=10, settings={"restarts": 5}).steps(2)
        100
    """

    norm: str
    passes: int
    classes: int
    settings: Settings

    @property
    def restarts(self) -> int:
        """Number of restarts that share the passes."""
        return int(self.settings.get("restarts", 1))

    @property
    def evaluations(self) -> int:
        """Number of radii at which a sample is attacked."""
        radii = self.settings.get("radii")
        return len(radii) if radii is not None else int(self.settings.get("evaluations", BySearch.evaluations))

    def steps(self, passes: float) -> int:
        """Return the number of steps that every restart can afford, at least 1.

        Args:
            passes: Forward plus backward passes per step.

        Returns:
            The number of steps.
        """
        return max(1, int(self.passes / (passes * self.restarts)))


class Preparable:
    """Base class of the attacks that rows of the catalogue point at.

    A subclass is a frozen dataclass whose fields are the settings of the attack. An instance is called with a task (see
    `pdpgd.attacks.frame.Method`), or, if its row says `kind="ball"`, with a task, a radius per sample and the number of
    the restart (see `pdpgd.attacks.radius_search.Ball`).
    """

    only_radii: ClassVar[bool] = False
    """Whether it can be asked about radii only, by a setting `radii` that maps norms to them."""

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Return the settings with which the attack spends about a budget."""
        raise NotImplementedError(f"{cls.__name__}.within")

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the settings of the paper, without those that it selected from a grid."""
        raise NotImplementedError(f"{cls.__name__}.paper")

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the values of each setting that the paper selected from; empty if it selected nothing."""
        return {}

    @classmethod
    def prepared(cls, info: AttackInfo, norm: str, *, budget: int | None, settings: Settings, max_batch: int) -> Attack:
        """Put the attack into the frame that all baselines share.

        Args:
            info: The row of the attack in the catalogue.
            norm: Name of a norm that the attack supports.
            budget: Maximum number of passes per sample; None leaves the settings at their defaults.
            settings: Settings that take precedence over those that follow from the budget.
            max_batch: Maximum number of samples attacked together.

        Returns:
            The attack, ready to be called.

        Raises:
            InvalidInputError: If the attack does not have one of the settings, or refuses its value.
        """

        def method_for(classes: int) -> Method:
            from_budget = {} if budget is None else cls.within(Budget(norm, budget, classes, settings))
            return cls._method(info, {**from_budget, **settings})

        method_for(2)  # rejects invalid settings before anything runs
        return Framed(info.name, info.norms, method_for, info.targeted, max_batch)

    @classmethod
    def _method(cls, info: AttackInfo, settings: dict[str, Any]) -> Method:
        """Create the method; an attack within a radius is run at the given radii, or searches over the radius."""
        if not info.is_ball:
            method: Method = cls._checked(info, settings)
            return method
        around = {name: settings.pop(name) for name in ("evaluations", "restarts") if name in settings}
        radii, per_radius = settings.pop("radii", None), settings.pop("per_radius", None)
        if radii is None:
            return BySearch(ball=cls._checked(info, settings), **around)
        around.pop("evaluations", None)  # a search needs it, given radii do not
        balls = [cls._checked(info, {**settings, **own}) for own in per_radius or [{}] * len(radii)]
        return AtRadii(balls=tuple(zip(map(float, radii), balls, strict=True)), **around)

    @classmethod
    def _checked(cls, info: AttackInfo, settings: dict[str, Any]) -> Any:
        """Create an instance; settings that the class does not have are an error that lists those it has."""
        expect_known(info.name, settings, cls)
        return cls(**settings)


def expect_known(attack: str, settings: Settings, kind: Any) -> None:
    """Refuse settings that are not fields of the dataclass `kind`."""
    known = [field.name for field in fields(kind)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InvalidInputError(
            f"attack {attack}: expected settings among {', '.join(known)}, got {', '.join(unknown)}"
        )


def checked_radii(norm: str, radii: object) -> tuple[float, ...]:
    """Return radii in ascending order, each once; refuse what is not a sequence of at least one number above 0."""
    numbers = list(radii) if isinstance(radii, Sequence) and not isinstance(radii, str) else []
    if not numbers or not all(
        isinstance(radius, int | float) and not isinstance(radius, bool) and 0 < radius < math.inf for radius in numbers
    ):
        raise InvalidInputError(f"radii: expected one or several numbers above 0 for {norm}, got {radii!r}")
    return tuple(sorted({float(radius) for radius in numbers}))


class OwnAuto(Preparable):
    """`auto`, which takes a budget, and radii by norm if it is asked about these only."""

    only_radii: ClassVar[bool] = True
    share: ClassVar[bool] = False

    @classmethod
    def prepared(cls, info: AttackInfo, norm: str, *, budget: int | None, settings: Settings, max_batch: int) -> Attack:
        """Bind the budget, 1000 passes unless one is given, and the radii of the norm."""
        others = sorted(set(settings) - {"radii"})
        if others:
            raise InvalidInputError(
                f"attack {info.name}: expected a budget and no settings except radii, got {', '.join(others)}"
            )
        return partial(
            auto,
            budget=1000 if budget is None else budget,
            share=cls.share,
            max_batch=max_batch,
            radius=cls._radius(info, norm, settings["radii"]) if "radii" in settings else None,
        )

    @classmethod
    def _radius(cls, info: AttackInfo, norm: str, radii: object) -> tuple[float, ...]:
        """Return the radii of the norm."""
        if not isinstance(radii, Mapping) or norm not in radii:
            raise InvalidInputError(
                f"attack {info.name}: expected radii by norm such as {{{norm!r}: [0.1]}} with those of {norm}, "
                f"got {radii!r}"
            )
        return checked_radii(norm, radii[norm])


class OwnAutoShared(OwnAuto):
    """`auto` whose samples share the passes that some of them leave over."""

    share: ClassVar[bool] = True


class OwnPDGD(Preparable):
    """PDGD, Algorithm 1 of the paper."""

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend half of the passes as gradients: on restarts of the authors' length, or on one shorter game.

        The forward passes that judge single points come on top.
        """
        gradients = max(1, budget.passes // 2)
        if gradients >= 2 * PAPER_STEPS:
            restarts = gradients // PAPER_STEPS - 1
            return {"steps": PAPER_STEPS, "finetune_steps": PAPER_STEPS, "restarts": restarts}
        steps = math.ceil(gradients / 2)
        short = {"steps": steps, "finetune_steps": gradients - steps, "restarts": 1}
        return {**short, **livelier_finetuning()}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the settings of the paper's authors, which have PDGD in l2 only."""
        return _as_settings(paper_config(setup.dataset, "l2", setup.model_kind, restarts=setup.restarts))

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the initial rates of Adam that the authors tried."""
        return {"primal_rate": PRIMAL_RATES}

    @classmethod
    def prepared(cls, info: AttackInfo, norm: str, *, budget: int | None, settings: Settings, max_batch: int) -> Attack:
        """Bind the config that follows from the budget and the settings."""
        return partial(pdgd, config=cls._config(PDGDConfig(), info, norm, budget, settings, max_batch))

    @classmethod
    def _config(
        cls, config: Config, info: AttackInfo, norm: str, budget: int | None, settings: Settings, max_batch: int
    ) -> Config:
        """Replace the fields of a config by what follows from the budget, and these by the given settings."""
        expect_known(info.name, settings, config)
        # The cost of a step does not depend on the number of classes.
        from_budget = {} if budget is None else cls.within(Budget(norm, budget, 2, settings))
        return replace(config, **{"max_batch": max_batch, **from_budget, **settings})


class OwnPDPGD(OwnPDGD):
    """The paper's choice per norm: PDGD in l2, PDPGD in the others."""

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the settings of the paper's authors."""
        return _as_settings(paper_config(setup.dataset, setup.norm, setup.model_kind, restarts=setup.restarts))

    @classmethod
    def prepared(cls, info: AttackInfo, norm: str, *, budget: int | None, settings: Settings, max_batch: int) -> Attack:
        """Bind the config that follows from the budget and the settings to PDGD or PDPGD."""
        if norm == "l2":
            return super().prepared(info, norm, budget=budget, settings=settings, max_batch=max_batch)
        return partial(pdpgd, config=cls._config(PDPGDConfig(), info, norm, budget, settings, max_batch))


def livelier_finetuning() -> dict[str, float]:
    """Return fine-tuning rates ten times those of the authors, for a short search that ends far from the minimum.

    Mean distance with these rates over the mean distance with the authors', attack pdpgd on images 500-549 of
    mnist-1000, seed 0, with all samples fooled in every run; mnist-plain / mnist-linf-at:

        gradients  linf         l2           l1           l0
        100        0.40 / 0.60  0.10 / 0.40  0.86 / 0.73  0.73 / 0.74
        200        0.96 / 0.41  0.83 / 0.97  0.99 / 0.97  0.97 / 0.91
        500        1.00 / 0.98  1.00 / 0.99  1.00 / 0.99  0.99 / 0.99

    Tried on the same images at 100 and 200 gradients, and worse in some norm on one or both nets: the dual rate times
    500 / steps (l0 at 100: 1.50 / 3.29) or its root, a start radius of 0.1 or 0, a primal rate of 0.3 (l0 at 100:
    13.5 / 7.1), an initial penalty of 1, and combinations of these. No fine-tuning at all, with the dual rate times the
    root of 500 / steps, had smaller means than this in 14 of the 16 cells (linf at 100: 0.32 / 0.48), but would leave a
    given starting point unimproved. PDGD was measured in l2 only.
    """
    return {"finetune_primal": 0.1, "finetune_dual": 1.0}


def _as_settings(config: GameConfig) -> dict[str, Any]:
    """Return the fields of a config that describe the attack; the batch size belongs to the machine."""
    return {name: value for name, value in vars(config).items() if name != "max_batch"}
