"""The rival attacks by name: what each can do, where it is from, what it costs, and the paper's settings for it.

Sources of the settings: [P] the paper, "Attack parameters"; [O] ours, where it says nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import product
from typing import Any, Literal

from pdpgd.attacks.frame import Framed, Method
from pdpgd.attacks.radius_search import AtRadii, Ball, BySearch
from pdpgd.baselines import budgets, paper
from pdpgd.baselines.budgets import Budget
from pdpgd.errors import InvalidInputError, MissingExtraError

Settings = Mapping[str, Any]
"""Of an attack: by the names of its fields, in what JSON can say."""


@dataclass(frozen=True)
class Library:
    """Where an attack is from, if not from here."""

    name: str
    """As its distribution is called."""
    module: str
    install: str
    """The command that brings it."""
    short: str
    """As people call it."""

    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def version(self) -> str | None:
        """None if it is not installed."""
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return None


ADV_LIB = Library("adv-lib", "adv_lib", "pip install --no-deps adv-lib", "adv-lib")
FOOLBOX = Library("foolbox", "foolbox", "pip install 'pdpgd[foolbox]'", "Foolbox")
ART = Library("adversarial-robustness-toolbox", "art", "pip install 'pdpgd[art]'", "ART")


@dataclass(frozen=True, kw_only=True)
class Rival:
    """An attack that ours is compared with."""

    name: str
    norms: tuple[str, ...]
    about: str
    """One line."""
    citation: str
    cost: str
    """Of an iteration, in forward (f) and backward (b) passes; k is the number of classes."""
    factory: str
    """module:class, in this package."""
    within: Callable[[Budget], dict[str, Any]]
    """The settings that make it cost about a budget."""
    paper: Callable[[str, str, str], dict[str, Any]] | None = None
    """(data set, norm, kind of model) -> the paper's settings; None: the paper does not have it."""
    grid: Callable[[str], Mapping[str, tuple[Any, ...]]] = lambda norm: {}
    """norm -> the values from which the paper selected."""
    kind: Literal["minimum", "ball"] = "minimum"
    """Whether it looks for the smallest perturbation, or for one within a radius."""
    library: Library | None = None
    targeted: bool = True
    needs_gradients: bool = True
    """Whether it follows the gradient of the model, and not its answers alone."""

    def prepare(self, norm: str, budget: int | None, settings: Settings, max_batch: int) -> Framed:
        """The attack for a norm, with what a budget makes of its settings, and these instead of that."""
        if self.library is not None and not self.library.installed():
            raise MissingExtraError(f"attack {self.name} needs {self.library.name}: {self.library.install}")

        def method_for(classes: int) -> Method:
            return self._method(self._chosen(norm, budget, settings, classes))

        method_for(2)  # refuses settings that make no sense before anything runs
        return Framed(self.name, self.norms, method_for, self.targeted, max_batch)

    def combinations(self, norm: str) -> list[dict[str, Any]]:
        """Every choice of the grid; none if there is nothing to choose."""
        grid = self.grid(norm)
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []

    def _chosen(self, norm: str, budget: int | None, settings: Settings, classes: int) -> dict[str, Any]:
        chosen = {} if budget is None else self.within(Budget(norm, budget, classes, settings))
        return {**chosen, **settings}

    def _method(self, settings: dict[str, Any]) -> Method:
        if self.kind == "minimum":
            method: Method = self._made(settings)
            return method
        around = {name: settings.pop(name) for name in ("evaluations", "restarts") if name in settings}
        radii, per_radius = settings.pop("radii", None), settings.pop("per_radius", None)
        if radii is None:
            return BySearch(ball=self._made(settings), **around)
        around.pop("evaluations", None)  # the radii are given
        balls = [self._made({**settings, **own}) for own in per_radius or [{}] * len(radii)]
        return AtRadii(balls=tuple(zip(map(float, radii), balls, strict=True)), **around)

    def _made(self, settings: dict[str, Any]) -> Any:
        module, _, name = self.factory.partition(":")
        kind = getattr(importlib.import_module(f"pdpgd.{module}"), name)
        unknown = sorted(set(settings) - set(kind.__dataclass_fields__))
        if unknown:
            known = ", ".join(kind.__dataclass_fields__)
            raise InvalidInputError(f"attack {self.name}: expected settings among {known}, got {', '.join(unknown)}")
        made: Method | Ball = kind(**settings)
        return made


_RIVALS = (
    Rival(
        name="bb",
        norms=("linf", "l2", "l1", "l0"),
        about="Brendel & Bethge: along the boundary, from a point beyond it",
        citation="Brendel et al. 2019, arXiv:1907.01003",
        cost="1f + 1b",
        factory="baselines.foolbox:BrendelBethge",
        library=FOOLBOX,
        within=budgets.brendel_bethge,
        paper=paper.brendel_bethge,
        grid=paper.brendel_bethge_grid,
    ),
    Rival(
        name="cw",
        norms=("l2",),
        about="Carlini & Wagner: Adam on a penalty, its weight by bisection",
        citation="Carlini & Wagner 2017, arXiv:1608.04644",
        cost="1f + 1b",
        factory="baselines.foolbox:CarliniWagner",
        library=FOOLBOX,
        within=budgets.carlini_wagner,
        paper=paper.carlini_wagner,
    ),
    Rival(
        name="corner-search",
        norms=("l0",),
        about="CornerSearch: single pixels at the corners of the colour box, then draws of several",
        citation="Croce & Hein 2019, arXiv:1909.05040",
        cost="1f",
        factory="baselines.corner_search:CornerSearch",
        needs_gradients=False,
        within=budgets.corner_search,
        paper=paper.corner_search,
    ),
    Rival(
        name="ddn",
        norms=("l2",),
        about="DDN: a step of unit length, its norm grown or shrunk by a factor",
        citation="Rony et al. 2019, arXiv:1811.09600",
        cost="1f + 1b",
        factory="baselines.advlib:DDN",
        library=ADV_LIB,
        within=budgets.gradient_steps,
        paper=paper.ddn,
        grid=paper.ddn_grid,
    ),
    Rival(
        name="deepfool",
        norms=("linf", "l2"),
        about="DeepFool: to the nearest linearised boundary, again and again",
        citation="Moosavi-Dezfooli et al. 2016, arXiv:1511.04599",
        cost="1f + (k-1)b",
        factory="baselines.advlib:DeepFool",
        library=ADV_LIB,
        targeted=False,
        within=budgets.deepfool,
        paper=paper.deepfool,
    ),
    Rival(
        name="daa",
        norms=("linf",),
        about="DAA: PGD whose samples move as one cloud (Lagrangian blob)",
        citation="Zheng et al. 2019, arXiv:1808.05537",
        cost="1f + 1b",
        factory="baselines.daa:DAA",
        kind="ball",
        within=budgets.ball,
        paper=paper.ball,
        grid=paper.ball_grid,
    ),
    Rival(
        name="daa-attraction",
        norms=("linf",),
        about="DAA, a variant of ours: PGD whose samples attract each other (smoothed log density)",
        citation="after Zheng et al. 2019, arXiv:1808.05537",
        cost="1f + 1b",
        factory="baselines.daa:Attraction",
        kind="ball",
        within=budgets.ball,
    ),
    Rival(
        name="ead",
        norms=("l1",),
        about="EAD: C&W with an elastic net, by soft thresholding",
        citation="Chen et al. 2018, arXiv:1709.04114",
        cost="2f + 1b",
        factory="baselines.foolbox:EAD",
        library=FOOLBOX,
        within=budgets.ead,
        paper=paper.ead,
    ),
    Rival(
        name="fab",
        norms=("linf", "l2", "l1"),
        about="FAB: projections on the linearised boundary, biased towards the input",
        citation="Croce & Hein 2020, arXiv:1907.02044",
        cost="2f + (k-1)b",
        factory="baselines.advlib:FAB",
        library=ADV_LIB,
        within=budgets.fab,
        paper=paper.fab,
        targeted=False,
    ),
    Rival(
        name="jsma",
        norms=("l0",),
        about="JSMA: the pair of features with the largest saliency, one pair at a time",
        citation="Papernot et al. 2016, arXiv:1511.07528",
        cost="1f + 2b a target (1b by the target alone)",
        factory="baselines.jsma:JSMA",
        within=budgets.jsma,
        paper=paper.jsma,
        grid=paper.jsma_grid,
    ),
    Rival(
        name="one-pixel",
        norms=("l0",),
        about="One-Pixel: a few pixels by differential evolution",
        citation="Su et al. 2019, arXiv:1710.08864",
        cost="1f a candidate",
        factory="baselines.one_pixel:OnePixel",
        needs_gradients=False,
        kind="ball",
        within=budgets.one_pixel,
        paper=paper.one_pixel,
    ),
    Rival(
        name="pgd",
        norms=("linf", "l2", "l1", "l0"),
        about="PGD: climb the loss in a ball",
        citation="Madry et al. 2018, arXiv:1706.06083; l0: arXiv:1909.05040",
        cost="1f + 1b",
        factory="attacks.pgd:PGD",
        kind="ball",
        within=budgets.ball,
        paper=paper.pgd,
        grid=paper.pgd_grid,
    ),
    Rival(
        name="sparsefool",
        norms=("l1", "l0"),
        about="SparseFool: DeepFool's hyperplane, reached by one coordinate after another",
        citation="Modas et al. 2019, arXiv:1811.02248",
        cost="2f + (k-1)b, in DeepFool",
        factory="baselines.sparsefool:SparseFool",
        targeted=False,
        within=budgets.sparsefool,
        paper=paper.sparsefool,
    ),
    Rival(
        name="fmn",
        norms=("linf", "l2", "l1", "l0"),
        about="FMN: PGD whose radius follows the linearised distance",
        citation="Pintor et al. 2021, arXiv:2102.12827",
        cost="1f + 1b",
        factory="baselines.advlib:FMN",
        library=ADV_LIB,
        within=budgets.gradient_steps,
    ),
    Rival(
        name="alma",
        norms=("l2", "l1"),
        about="ALMA: an augmented Lagrangian",
        citation="Rony et al. 2021, arXiv:2011.11857",
        cost="1f + 1b",
        factory="baselines.advlib:ALMA",
        library=ADV_LIB,
        within=budgets.gradient_steps,
    ),
    Rival(
        name="sigma-zero",
        norms=("l0",),
        about="sigma-zero: a smooth stand-in for l0, and a threshold that adapts",
        citation="Cina et al. 2025, arXiv:2402.01879",
        cost="1f + 1b",
        factory="baselines.advlib:SigmaZero",
        library=ADV_LIB,
        within=budgets.gradient_steps,
        targeted=False,
    ),
    Rival(
        name="apgd",
        norms=("linf", "l2", "l1"),
        about="APGD: PGD that halves its steps by itself",
        citation="Croce & Hein 2020, arXiv:2003.01690; l1: arXiv:2103.01208",
        cost="1f + 1b",
        factory="baselines.advlib_ball:APGD",
        kind="ball",
        library=ADV_LIB,
        within=budgets.apgd,
    ),
    Rival(
        name="apgd-t",
        norms=("linf", "l2", "l1"),
        about="APGD-T: APGD towards each class in turn",
        citation="Croce & Hein 2020, arXiv:2003.01690; l1: arXiv:2103.01208",
        cost="1f + 1b a target",
        factory="baselines.advlib_ball:APGDT",
        kind="ball",
        library=ADV_LIB,
        targeted=False,
        within=budgets.apgd_t,
    ),
    Rival(
        name="fab-t",
        norms=("linf", "l2", "l1"),
        about="FAB-T: FAB towards each of the likeliest classes in turn",
        citation="Croce & Hein 2020, arXiv:1907.02044, arXiv:2003.01690",
        cost="2f + 1b a target",
        factory="baselines.advlib:FABT",
        library=ADV_LIB,
        within=budgets.fab_t,
        targeted=False,
    ),
    Rival(
        name="superdeepfool",
        norms=("l2",),
        about="SuperDeepFool: DeepFool, then a projection on the normal that it found",
        citation="Abdolahpourrostam et al. 2024, arXiv:2303.12481",
        cost="1f + (k-1)b, in DeepFool",
        factory="baselines.advlib:SuperDeepFool",
        library=ADV_LIB,
        targeted=False,
        within=budgets.superdeepfool,
    ),
    Rival(
        name="vfga",
        norms=("l0",),
        about="VFGA: one pixel at a time, by the gradient and a few random values",
        citation="Hajri et al. 2022, arXiv:2011.12423",
        cost="21f + 1b",
        factory="baselines.advlib:VFGA",
        library=ADV_LIB,
        within=budgets.vfga,
    ),
)


def _also(name: str, library: Library, factory: str, within: Callable[[Budget], dict[str, Any]], cost: str) -> Rival:
    """The same attack as another library has it: to check one by the other."""
    (first,) = (rival for rival in _RIVALS if rival.name == name)
    about = f"{first.about.partition(':')[0]}, as {library.short} has it"
    return replace(
        first,
        name=f"{name}@{library.short.lower()}",
        about=about,
        library=library,
        factory=factory,
        within=within,
        cost=cost,
        paper=None,
        grid=lambda norm: {},
    )


_SECOND = (
    _also("cw", ADV_LIB, "baselines.advlib:AdvLibCarliniWagner", budgets.carlini_wagner, "1f + 1b"),
    _also("ddn", FOOLBOX, "baselines.foolbox:FoolboxDDN", budgets.gradient_steps, "1f + 1b"),
    _also("deepfool", FOOLBOX, "baselines.foolbox:FoolboxDeepFool", budgets.deepfool_of_foolbox, "(k-1)(f + b)"),
    replace(_also("deepfool", ART, "baselines.art:ArtDeepFool", budgets.deepfool_of_art, "2f + kb"), norms=("l2",)),
    _also("ead", ART, "baselines.art:ArtEAD", budgets.ead_of_art, "4f + (k+3)b"),
    _also("jsma", ART, "baselines.art:ArtJSMA", budgets.jsma_of_art, "2f + 1b a target"),
    replace(_also("pgd", ADV_LIB, "baselines.advlib_ball:AdvLibPGD", budgets.ball, "1f + 1b"), norms=("linf",)),
    _also("one-pixel", ART, "baselines.art:ArtPixel", budgets.one_pixel_of_art, "400f"),
)
RIVALS: Mapping[str, Rival] = {rival.name: rival for rival in (*_RIVALS, *_SECOND)}
