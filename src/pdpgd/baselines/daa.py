"""DAA (Zheng, Chen & Ren 2019), the Lagrangian blob variant: PGD in linf whose samples see each other.

The M samples of a cloud are particles of one distribution of adversarial points:

    x_i <- Pi( x_i + step * radius * sign( g_i + c/M * sum_j K_ij (g_j + (x_j - x_i) / h^2) ) )
    K_ij = exp(-||x_i - x_j||^2 / (2 h^2)),    h^2 = median_ij ||x_i - x_j||^2 / (2 log M)

where g_i is the slope of the sample's own loss, which is climbed, and the median is over all M^2 pairs, i = j among
them. So it is in the code that the authors of PDPGD ran and released, with these losses and kernel weights c:

    cross-entropy   -log p_y                     c = 1.1
    hinge           -max(0, margin + 50)         c = 10

The first has next to no slope where the model is sure, so there the cloud decides the signs. The samples attract each
other; a flow that keeps a distribution wide would have x_i - x_j.

It runs as the authors' in clouds of 200, which are dealt anew every ten steps from the samples attacked together. Two
things differ. Theirs looks for adversarial points after the last step alone; here those on the way count too, and the
sample stays in its cloud (mnist-linf-at at 0.32, images 800-899, 50 steps, cross-entropy, seed 0: theirs would leave
60 %, here it is 48 %). And samples that are wrong to begin with, or were fooled at a smaller radius, are not in the
cloud.

`Attraction` is a variant of ours: see there.

Coupled by design: what becomes of a sample depends on the samples it is attacked with, so on `max_batch` and on the
order of the inputs. A single sample is attacked by PGD.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pdpgd.attacks.balls import project, spread
from pdpgd.attacks.base import random_rows
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.pgd import Stand, climb, room_of
from pdpgd.attacks.primal_dual import Rows
from pdpgd.criteria import Criterion, Surrogate, surrogate_by_name
from pdpgd.errors import expect_setting
from pdpgd.tensors import flat, per_sample

# The loss is flat for a sample whose margin is below minus this, so not for any that matters.
HINGE_WIDTH = 50.0


def cross_entropy(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """log p_y untargeted, -log p_t targeted."""
    soft = criterion.soft_margin(logits)
    return F.softplus(soft) if criterion.targeted else -F.softplus(-soft)


def hinge(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    return (margin + HINGE_WIDTH).clamp(min=0.0)


LOSSES: Mapping[str, tuple[Surrogate, float]] = {"cross-entropy": (cross_entropy, 1.1), "hinge": (hinge, 10.0)}
"""What is climbed down, and the authors' c for it."""


@dataclass(frozen=True, kw_only=True)
class DAA:
    """DAA in an linf ball, as its authors have it."""

    steps: int = 500
    """The paper: 500."""
    step: float = 0.1
    """The length of a step over the radius. The paper: the best of 1, 1/2, 1/5, 1/10, 1/25, 1/50, 1/100."""
    surrogate: str = "cross-entropy"
    """The loss, and with it the kernel weight c. The paper: the better of "cross-entropy" and "hinge"."""
    cloud: int = 200
    """The most samples that see each other. The authors: 200."""
    deal_every: int = 10
    """Steps after which the samples are dealt to the clouds anew, if they are more than one. The authors: 10."""

    def __post_init__(self) -> None:
        expect_setting(self, "surrogate", f"one of {', '.join(LOSSES)}", self.surrogate in LOSSES)
        for name in ("steps", "cloud", "deal_every"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", isinstance(value, int) and value >= 1)
        expect_setting(self, "step", "above 0", self.step > 0)

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        problem, rows = task.problem, task.rows(restart)
        loss, weight = LOSSES[self.surrogate]
        best = Best.none(rows.inputs)
        clouds: list[Tensor] = []
        length = per_sample(self.step * radius, rows.inputs)
        delta = spread(random_rows(problem, rows.samples, rows.restarts), "linf", radius)
        point = problem.box.clip(rows.inputs + delta)
        for number in range(self.steps):
            answer = problem.classifier.margin_and_gradient(point, rows.samples, rows.criterion, loss)
            problem.ledger.add(rows.samples, forwards=1, backwards=1)
            _note(best, task, rows, point, answer.margin, answer.prediction)
            if bool(best.size.isfinite().all()):
                return best
            if number % self.deal_every == 0:
                clouds = self._dealt(task, restart, number)
            push = torch.empty_like(point)
            for cloud in clouds:
                # A surrogate is small where the sample is fooled.
                push[cloud] = blob(point[cloud], -answer.gradient[cloud], weight)
            delta = project(point - rows.inputs + length * push.sign(), "linf", radius)
            point = problem.box.clip(rows.inputs + delta)

        logits = problem.classifier.logits(point, rows.samples)
        problem.ledger.add(rows.samples, forwards=1)
        _note(best, task, rows, point, rows.criterion.margin(logits), logits.argmax(1))
        return best

    def _dealt(self, task: Task, restart: int, number: int) -> list[Tensor]:
        """The rows of each cloud: by chance, and as evenly as can be."""
        first = int(task.problem.indices[task.samples[:1].cpu()])
        order = np.random.default_rng((task.problem.seed, first, restart, number)).permutation(len(task))
        parts = np.array_split(order, math.ceil(len(task) / self.cloud))
        return [torch.from_numpy(np.sort(part)).to(task.samples.device) for part in parts]


def blob(points: Tensor, slopes: Tensor, weight: float) -> Tensor:
    """What the signs are taken of: g_i + c/M * sum_j K_ij (g_j + (x_j - x_i) / h^2), with c = `weight`.

    As h goes to 0, where most points are the same, these alone see each other.
    """
    x, g = flat(points), flat(slopes)
    # Distances do not change with the origin; near the middle of the points their squares cancel least.
    x = x - x.mean(0)
    distances = squared_distances(x)
    count = len(x)
    # Twice h^2. A single point is all of its cloud, whatever h.
    width = 0.0 if count < 2 else float(np.median(distances.cpu().numpy())) / math.log(count)
    if width == 0:
        kernel = (distances == 0).to(x.dtype)
        pull = torch.zeros_like(x)
    else:
        kernel = (-distances / width).exp_()
        pull = 2 / width * (kernel @ x - kernel.sum(1, keepdim=True) * x)
    return (g + weight / count * (kernel @ g + pull)).reshape(points.shape)


@dataclass(frozen=True, kw_only=True)
class Attraction:
    """PGD with the pull of a smoothed log density on it, a variant of DAA.

        x_i <- Pi( x_i + step * radius * sign( grad L(x_i) + c/M * a_i ) )
        a_i  = sum_j grad_i K(x_i, x_j) (1/S_i + 1/S_j),  S_i = sum_k K(x_i, x_k),  K(x, y) = exp(-||x - y||^2 / h)

    where h is the median of the squared distances between different samples over log M. Unlike in DAA, L keeps its
    slope where the model is sure, other samples' slopes play no part, the pull is divided by the density, and a sample
    that is fooled leaves.
    """

    steps: int = 500
    step: float = 0.1
    """The length of a step over the radius."""
    surrogate: str = "cross-entropy"
    """What is climbed down: any of `criteria.SURROGATES`."""
    strength: float = 0.3
    """c, how much the samples attract each other; 0 makes it PGD. From 0.01 to 1 at least level with PGD at 0.3 (images
    800-899 of mnist-1000, mnist-linf-at)."""

    def __post_init__(self) -> None:
        surrogate_by_name(self.surrogate)
        expect_setting(self, "steps", "an integer of at least 1", isinstance(self.steps, int) and self.steps >= 1)
        expect_setting(self, "step", "above 0", self.step > 0)
        expect_setting(self, "strength", "at least 0", 0 <= self.strength < math.inf)

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        rows, room = task.rows(restart), room_of(task, radius)

        def move(at: Stand) -> Tensor:
            push = at.gradient + self.strength / len(at.point) * attraction(at.point)
            ahead = self.step * per_sample(at.room.radius, at.delta) * push.sign()
            return project(at.delta + ahead, "linf", at.room.radius)

        start = spread(random_rows(task.problem, rows.samples, rows.restarts), "linf", radius)
        return climb(task, rows, room, start, steps=self.steps, surrogate=self.surrogate, move=move)


def attraction(points: Tensor) -> Tensor:
    """a of the formula above; zero for a single point, and for points that are all the same."""
    x = flat(points)
    x = x - x.mean(0)
    distances = squared_distances(x)
    bandwidth = _bandwidth(distances)
    if bandwidth == 0:
        return torch.zeros_like(points)
    kernel = (-distances / bandwidth).exp_()
    density = kernel.sum(1)
    weight = kernel * (1 / density[:, None] + 1 / density)
    # grad_i K(x_i, x_j) = -2/h (x_i - x_j) K(x_i, x_j), summed over j by a matrix product.
    return (2 / bandwidth * (weight @ x - weight.sum(1, keepdim=True) * x)).reshape(points.shape)


def squared_distances(x: Tensor) -> Tensor:
    """Between the rows of a matrix, which are best near the origin: by a matrix product, so they cancel."""
    squares = x.square().sum(1)
    return (squares[:, None] + squares - 2 * x @ x.T).clamp_(min=0).fill_diagonal_(0)


def _bandwidth(distances: Tensor) -> float:
    """By the median heuristic (Liu & Wang 2016): a point's neighbours weigh together about as much as itself."""
    count = len(distances)
    if count < 2:
        return 0.0
    above = torch.triu_indices(count, count, 1, device=distances.device)
    return float(distances[above[0], above[1]].median()) / math.log(count)


def _note(best: Best, task: Task, rows: Rows, point: Tensor, margin: Tensor, prediction: Tensor) -> None:
    """Keep the smallest adversarial point of each row."""
    size = task.problem.norm.size(point - rows.inputs)
    # The input itself was right; if it is not in this batch, that is float noise and no perturbation.
    fooled = ((margin < 0) & (size > 0)).nonzero().flatten()
    found = Best(size, point, prediction, torch.full_like(size, torch.nan))
    best.improve(found.select(fooled), at=fooled)
