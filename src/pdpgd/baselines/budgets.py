"""What a budget of forward + backward passes a sample is spent on, attack by attack.

The few passes with which inputs and single points are judged come on top; what was really spent is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdpgd.attacks.radius_search import BySearch

# The bisections of C&W and EAD, as their authors have it.
BISECTIONS = 9
SHORT_BISECTIONS = 5
# Candidates of a generation, where a budget is to be met; the paper's 400 would leave no generations.
POPULATION = 20


@dataclass(frozen=True)
class Budget:
    """What an attack may spend, and on what."""

    norm: str
    passes: int
    """Forward + backward, a sample."""
    classes: int
    settings: Mapping[str, Any]
    """What is settled already: restarts and radii share the passes."""

    @property
    def restarts(self) -> int:
        return int(self.settings.get("restarts", 1))

    @property
    def evaluations(self) -> int:
        """Radii at which a sample is attacked."""
        radii = self.settings.get("radii")
        return len(radii) if radii is not None else int(self.settings.get("evaluations", BySearch.evaluations))

    def steps(self, passes: float) -> int:
        """Of so many passes each, in every restart."""
        return max(1, int(self.passes / (passes * self.restarts)))


def gradient_steps(budget: Budget) -> dict[str, Any]:
    return {"steps": budget.steps(2)}


def brendel_bethge(budget: Budget) -> dict[str, Any]:
    """A twentieth of the passes for a start from noise; an image costs one to three, the way to the boundary eleven.

    Mean pixels in l0 over five seeds by the number of blends, 200 steps at lr 1, images 300-331 of mnist-linf-at: 23.2
    (10), 20.7 (30), 20.4 (50), 20.6 (100), 23.6 (1000, as the authors).
    """
    search = max(1, min(1000, budget.passes // 20))
    from_noise = budget.settings.get("start", "noise") == "noise"
    steps = max(1, (budget.passes - 12 - search * from_noise) // 2)
    return {"steps": steps, "directions": search, "blends": search}


def carlini_wagner(budget: Budget) -> dict[str, Any]:
    """Fewer bisections and longer steps than its authors', whose thousands of steps a budget does not pay for.

    On images 900-924 of mnist-plain, 1000 passes: 9 bisections and steps of 0.01 find 2 of 25, 5 and 0.1 all of them.
    """
    long = budget.passes >= 2 * BISECTIONS * 1000
    if long:
        return _bisected(budget, 2, BISECTIONS)
    return {**_bisected(budget, 2, SHORT_BISECTIONS), "stepsize": 0.1, "initial_const": 1.0}


def ead(budget: Budget) -> dict[str, Any]:
    return _bisected(budget, 3, BISECTIONS)


def ead_of_art(budget: Budget) -> dict[str, Any]:
    """It takes the gradient of every class."""
    return _bisected(budget, 7 + budget.classes, BISECTIONS)


def _bisected(budget: Budget, passes: int, most: int) -> dict[str, Any]:
    bisections = min(most, max(1, budget.passes // (10 * passes)))
    return {"binary_search_steps": bisections, "steps": budget.steps(passes * bisections)}


def deepfool(budget: Budget) -> dict[str, Any]:
    """At most: it ends where it has crossed the boundary."""
    return {"steps": budget.steps(budget.classes)}


def deepfool_of_foolbox(budget: Budget) -> dict[str, Any]:
    candidates = min(10, budget.classes)
    return {"steps": budget.steps(2 * (candidates - 1)), "candidates": candidates}


def deepfool_of_art(budget: Budget) -> dict[str, Any]:
    return {"steps": budget.steps(2 + budget.classes)}


def superdeepfool(budget: Budget) -> dict[str, Any]:
    """It ends by itself, after some two hundred passes; where there is nothing to find, it spends ten budgets."""
    return {"steps": min(100, budget.steps(5 * budget.classes)), "deepfool_steps": 50}


def fab(budget: Budget) -> dict[str, Any]:
    return {"steps": budget.steps(1 + budget.classes)}


def fab_t(budget: Budget) -> dict[str, Any]:
    targets = min(9, budget.classes - 1)
    return {"steps": budget.steps(3 * targets), "targets": targets}


def ball(budget: Budget) -> dict[str, Any]:
    return {"steps": budget.steps(2 * budget.evaluations)}


def apgd(budget: Budget) -> dict[str, Any]:
    """With a pass at the start of each radius."""
    return {"steps": max(1, budget.steps(2 * budget.evaluations) - 1)}


def apgd_t(budget: Budget) -> dict[str, Any]:
    """At most: a sample that is fooled is not aimed at another class."""
    targets = min(9, budget.classes - 1)
    return {"steps": max(1, budget.steps(2 * budget.evaluations * targets) - 1), "targets": targets}


def one_pixel(budget: Budget) -> dict[str, Any]:
    """The first generation is drawn, and costs as much as the others; by Su et al.'s strategy.

    Mean pixels on images 300-315 at 1000 passes, mnist-plain / mnist-linf-at: 116 / 83, and 145 / 92 by ART's.
    """
    population = min(POPULATION, max(4, budget.passes // (2 * budget.evaluations)))
    return {"population": population, "generations": max(1, budget.steps(population * budget.evaluations) - 1)}


def one_pixel_of_art(budget: Budget) -> dict[str, Any]:
    """Four hundred candidates in every generation, and at least one generation."""
    return {"steps": budget.steps(400 * budget.evaluations)}


def corner_search(budget: Budget) -> dict[str, Any]:
    return {"forwards": budget.passes}


def jsma(budget: Budget) -> dict[str, Any]:
    """The runners-up first, as many as have some forty iterations each way, by the saliency that is cheaper and better.

    Mean pixels on ten images of mnist-plain: 13.6 by the target's gradient alone, 21.4 by pairs (ART's, 15.8). Images
    300-331, 1000 passes, mnist-plain / mnist-linf-at: both signs of theta fool 31 / 27 of 31 at 11.0 / 53.5 pixels, one
    sign 31 / 16 at 13.1 / 72.9.
    """
    targets = max(1, min(budget.classes - 1, budget.passes // 160))
    return {"targets": targets, "saliency": "target", "both_signs": True, "steps": budget.steps(4 * targets)}


def jsma_of_art(budget: Budget) -> dict[str, Any]:
    """It ends when it has found something, and has no bound on that."""
    return {"targets": max(1, min(budget.classes - 1, budget.passes // 80))}


def sparsefool(budget: Budget) -> dict[str, Any]:
    """It ends when it has found something; only a small budget makes its rounds fewer."""
    return {"steps": min(20, max(1, budget.passes // (3 * (1 + budget.classes))))}


def vfga(budget: Budget) -> dict[str, Any]:
    """A step tries ten values of the pixel at once, and each of them twice."""
    return {"steps": budget.steps(22)}
