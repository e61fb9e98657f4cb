"""The rows of the catalogue: one `AttackInfo` for each attack.

A new attack is a class, which holds its settings, its paper preset and how it spends a budget, and one row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pdpgd.attacks.info import ADV_LIB, ART, FOOLBOX, AttackInfo, Library

EVERY = ("linf", "l2", "l1", "l0")
CONVEX = ("linf", "l2", "l1")

_OURS = (
    AttackInfo(
        name="auto",
        norms=EVERY,
        about="ours, with nothing to tune: many short exact descents",
        citation="this package, docs/auto.md",
        cost="1f + 1b",
        factory="pdpgd.attacks.prepare:OwnAuto",
        any_norm=True,
    ),
    AttackInfo(
        name="auto-shared",
        norms=EVERY,
        about="auto, the samples of a call sharing what is left over",
        citation="this package, docs/auto.md",
        cost="1f + 1b",
        factory="pdpgd.attacks.prepare:OwnAutoShared",
        any_norm=True,
    ),
    AttackInfo(
        name="pdpgd",
        norms=EVERY,
        about="the paper's choice: PDGD in l2, PDPGD in linf, l1 and l0",
        citation="Matyasko & Chau 2021, arXiv:2106.01538",
        cost="1f + 1b",
        factory="pdpgd.attacks.prepare:OwnPDPGD",
        in_paper=True,
    ),
    AttackInfo(
        name="pdgd",
        norms=CONVEX,
        about="Algorithm 1 of the paper: both players follow gradients",
        citation="Matyasko & Chau 2021, arXiv:2106.01538",
        cost="1f + 1b",
        factory="pdpgd.attacks.prepare:OwnPDGD",
        in_paper=True,
    ),
)
_BASELINES = (
    AttackInfo(
        name="bb",
        norms=EVERY,
        about="Brendel & Bethge: along the boundary, from a point beyond it",
        citation="Brendel et al. 2019, arXiv:1907.01003",
        cost="1f + 1b",
        factory="pdpgd.baselines.foolbox:BrendelBethge",
        library=FOOLBOX,
        in_paper=True,
    ),
    AttackInfo(
        name="cw",
        norms=("l2",),
        about="Carlini & Wagner: Adam on a penalty, its weight by bisection",
        citation="Carlini & Wagner 2017, arXiv:1608.04644",
        cost="1f + 1b",
        factory="pdpgd.baselines.foolbox:CarliniWagner",
        library=FOOLBOX,
        in_paper=True,
    ),
    AttackInfo(
        name="corner-search",
        norms=("l0",),
        about="CornerSearch: single pixels at the corners of the color box, then draws of several",
        citation="Croce & Hein 2019, arXiv:1909.05040",
        cost="1f",
        factory="pdpgd.baselines.corner_search:CornerSearch",
        needs_gradients=False,
        in_paper=True,
    ),
    AttackInfo(
        name="ddn",
        norms=("l2",),
        about="DDN: a step of unit length, its norm grown or shrunk by a factor",
        citation="Rony et al. 2019, arXiv:1811.09600",
        cost="1f + 1b",
        factory="pdpgd.baselines.advlib:DDN",
        library=ADV_LIB,
        in_paper=True,
    ),
    AttackInfo(
        name="deepfool",
        norms=("linf", "l2"),
        about="DeepFool: to the nearest linearized boundary, again and again",
        citation="Moosavi-Dezfooli et al. 2016, arXiv:1511.04599",
        cost="1f + (k-1)b",
        factory="pdpgd.baselines.advlib:DeepFool",
        library=ADV_LIB,
        targeted=False,
        in_paper=True,
    ),
    AttackInfo(
        name="daa",
        norms=("linf",),
        about="DAA: PGD whose samples move as one cloud (Lagrangian blob)",
        citation="Zheng et al. 2019, arXiv:1808.05537",
        cost="1f + 1b",
        factory="pdpgd.baselines.daa:DAA",
        kind="ball",
        in_paper=True,
    ),
    AttackInfo(
        name="daa-attraction",
        norms=("linf",),
        about="DAA, a variant of ours: PGD whose samples attract each other (smoothed log density)",
        citation="after Zheng et al. 2019, arXiv:1808.05537",
        cost="1f + 1b",
        factory="pdpgd.baselines.daa:Attraction",
        kind="ball",
    ),
    AttackInfo(
        name="ead",
        norms=("l1",),
        about="EAD: C&W with an elastic net, by soft thresholding",
        citation="Chen et al. 2018, arXiv:1709.04114",
        cost="2f + 1b",
        factory="pdpgd.baselines.foolbox:EAD",
        library=FOOLBOX,
        in_paper=True,
    ),
    AttackInfo(
        name="fab",
        norms=CONVEX,
        about="FAB: projections on the linearized boundary, biased towards the input",
        citation="Croce & Hein 2020, arXiv:1907.02044",
        cost="2f + (k-1)b",
        factory="pdpgd.baselines.advlib_fab:FAB",
        library=ADV_LIB,
        targeted=False,
        in_paper=True,
    ),
    AttackInfo(
        name="jsma",
        norms=("l0",),
        about="JSMA: the pair of features with the largest saliency, one pair at a time",
        citation="Papernot et al. 2016, arXiv:1511.07528",
        cost="1f + 2b a target (1b by the target alone)",
        factory="pdpgd.baselines.jsma:JSMA",
        in_paper=True,
    ),
    AttackInfo(
        name="one-pixel",
        norms=("l0",),
        about="One-Pixel: a few pixels by differential evolution",
        citation="Su et al. 2019, arXiv:1710.08864",
        cost="1f a candidate",
        factory="pdpgd.baselines.one_pixel:OnePixel",
        kind="ball",
        needs_gradients=False,
        in_paper=True,
    ),
    AttackInfo(
        name="pgd",
        norms=EVERY,
        about="PGD: climb the loss in a ball",
        citation="Madry et al. 2018, arXiv:1706.06083; l0: arXiv:1909.05040",
        cost="1f + 1b",
        factory="pdpgd.baselines.settings:BallPGD",
        kind="ball",
        in_paper=True,
    ),
    AttackInfo(
        name="sparsefool",
        norms=("l1", "l0"),
        about="SparseFool: DeepFool's hyperplane, reached by one coordinate after another",
        citation="Modas et al. 2019, arXiv:1811.02248",
        cost="2f + (k-1)b, in DeepFool",
        factory="pdpgd.baselines.sparsefool:SparseFool",
        targeted=False,
        in_paper=True,
    ),
    AttackInfo(
        name="fmn",
        norms=EVERY,
        about="FMN: PGD whose radius follows the linearized distance",
        citation="Pintor et al. 2021, arXiv:2102.12827",
        cost="1f + 1b",
        factory="pdpgd.baselines.advlib:FMN",
        library=ADV_LIB,
    ),
    AttackInfo(
        name="alma",
        norms=("l2", "l1"),
        about="ALMA: an augmented Lagrangian",
        citation="Rony et al. 2021, arXiv:2011.11857",
        cost="1f + 1b",
        factory="pdpgd.baselines.advlib:ALMA",
        library=ADV_LIB,
    ),
    AttackInfo(
        name="sigma-zero",
        norms=("l0",),
        about="sigma-zero: a smooth stand-in for l0, and a threshold that adapts",
        citation="Cina et al. 2025, arXiv:2402.01879",
        cost="1f + 1b",
        factory="pdpgd.baselines.advlib:SigmaZero",
        library=ADV_LIB,
        targeted=False,
    ),
    AttackInfo(
        name="apgd",
        norms=CONVEX,
        about="APGD: PGD that halves its steps by itself",
        citation="Croce & Hein 2020, arXiv:2003.01690; l1: arXiv:2103.01208",
        cost="1f + 1b",
        factory="pdpgd.baselines.advlib_ball:APGD",
        kind="ball",
        library=ADV_LIB,
    ),
    AttackInfo(
        name="apgd-t",
        norms=CONVEX,
        about="APGD-T: APGD towards each class in turn",
        citation="Croce & Hein 2020, arXiv:2003.01690; l1: arXiv:2103.01208",
        cost="1f + 1b a target",
        factory="pdpgd.baselines.advlib_ball:APGDT",
        kind="ball",
        library=ADV_LIB,
        targeted=False,
    ),
    AttackInfo(
        name="fab-t",
        norms=CONVEX,
        about="FAB-T: FAB towards each of the likeliest classes in turn",
        citation="Croce & Hein 2020, arXiv:1907.02044, arXiv:2003.01690",
        cost="2f + 1b a target",
        factory="pdpgd.baselines.advlib_fab:FABT",
        library=ADV_LIB,
        targeted=False,
    ),
    AttackInfo(
        name="superdeepfool",
        norms=("l2",),
        about="SuperDeepFool: DeepFool, then a projection on the normal that it found",
        citation="Abdolahpourrostam et al. 2024, arXiv:2303.12481",
        cost="1f + (k-1)b, in DeepFool",
        factory="pdpgd.baselines.advlib:SuperDeepFool",
        library=ADV_LIB,
        targeted=False,
    ),
    AttackInfo(
        name="vfga",
        norms=("l0",),
        about="VFGA: one pixel at a time, by the gradient and a few random values",
        citation="Hajri et al. 2022, arXiv:2011.12423",
        cost="21f + 1b",
        factory="pdpgd.baselines.advlib:VFGA",
        library=ADV_LIB,
    ),
)


def _also(name: str, library: Library, factory: str, cost: str, *, norms: tuple[str, ...] | None = None) -> AttackInfo:
    """Describe the implementation of an attack in another library, which serves to check one against the other."""
    (first,) = (info for info in _BASELINES if info.name == name)
    return replace(
        first,
        name=f"{name}@{library.short.lower()}",
        about=f"{first.about.partition(':')[0]}, as {library.short} has it",
        library=library,
        factory=f"pdpgd.baselines.{factory}",
        cost=cost,
        norms=norms or first.norms,
        in_paper=False,
    )


_SECOND_SOURCES = (
    _also("cw", ADV_LIB, "advlib:AdvLibCarliniWagner", "1f + 1b"),
    _also("ddn", FOOLBOX, "foolbox:FoolboxDDN", "1f + 1b"),
    _also("deepfool", FOOLBOX, "foolbox:FoolboxDeepFool", "(k-1)(f + b)"),
    _also("deepfool", ART, "art:ArtDeepFool", "2f + kb", norms=("l2",)),
    _also("ead", ART, "art:ArtEAD", "4f + (k+3)b"),
    _also("jsma", ART, "art:ArtJSMA", "2f + 1b a target"),
    _also("pgd", ADV_LIB, "advlib_ball:AdvLibPGD", "1f + 1b", norms=("linf",)),
    _also("one-pixel", ART, "art:ArtPixel", "400f"),
)
_ATTACKS = {info.name: info for info in (*_OURS, *_BASELINES, *_SECOND_SOURCES)}
ATTACKS: Mapping[str, AttackInfo] = MappingProxyType(_ATTACKS)
"""Every attack by its name: ours, the baselines, and second implementations of baselines (`NAME@LIBRARY`)."""
