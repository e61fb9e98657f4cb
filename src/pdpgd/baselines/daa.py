"""DAA (Zheng, Chen & Ren 2019), the Lagrangian blob variant: PGD in linf whose samples interact.

The M samples of a cloud are particles of one distribution of adversarial points:

    x_i <- Pi( x_i + step * radius * sign( g_i + c/M * sum_j K_ij (g_j + (x_j - x_i) / h^2) ) )
    K_ij = exp(-||x_i - x_j||^2 / (2 h^2)),    h^2 = median_ij ||x_i - x_j||^2 / (2 log M)

where g_i is the gradient of the sample's own loss, which is maximized, and the median is over all M^2 pairs, including
i = j. This is the code that the authors of PDPGD ran and released, with these losses and kernel weights c:

    cross-entropy   -log p_y                     c = 1.1
    hinge           -max(0, margin + 50)         c = 10

The first has almost no gradient where the model is confident, so that there the cloud decides the signs. The samples
attract each other; a flow that keeps a distribution wide would have x_i - x_j.

As in the authors' code, clouds have 200 samples and are redrawn every ten steps from the samples attacked together.
There are two differences. The authors look for adversarial points only after the last step; here those on the way count
too, and the sample stays in its cloud (robust accuracy of mnist-linf-at at 0.32, images 800-899, 50 steps,
cross-entropy, seed 0: 60 % by their rule, 48 % here). And samples that are misclassified without a perturbation, or
were fooled at a smaller radius, are not in the cloud.

`Attraction` is our own variant of DAA.

The samples are coupled by design: the result for a sample depends on the samples it is attacked with, and so on
`max_batch` and on the order of the inputs. A single sample is attacked by PGD.
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
from pdpgd.attacks.frame import Task, differentiate, look
from pdpgd.attacks.pgd import Stand, climb, room_of
from pdpgd.baselines.settings import BallSteps, PaperBall
from pdpgd.criteria import Criterion, Surrogate, surrogate_by_name
from pdpgd.errors import expect_setting
from pdpgd.tensors import flat, per_sample

# The loss is flat only for samples whose margin is below minus this, which are long adversarial.
HINGE_WIDTH = 50.0


def cross_entropy(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """Return log p_y untargeted, -log p_t targeted."""
    soft = criterion.soft_margin(logits)
    return F.softplus(soft) if criterion.targeted else -F.softplus(-soft)


def hinge(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """max(0, margin + 50)."""
    return (margin + HINGE_WIDTH).clamp(min=0.0)


LOSSES: Mapping[str, tuple[Surrogate, float]] = {"cross-entropy": (cross_entropy, 1.1), "hinge": (hinge, 10.0)}
"""The surrogate to minimize, and the authors' c for it."""


@dataclass(frozen=True, kw_only=True)
class DAA(PaperBall):
    """DAA in an linf ball, as in the authors' code."""

    steps: int = 500
    """Number of steps. The paper: 500."""
    step: float = 0.1
    """Length of a step, relative to the radius. The paper: the best of 1, 1/2, 1/5, 1/10, 1/25, 1/50, 1/100."""
    surrogate: str = "cross-entropy"
    """The loss, which determines the kernel weight c. The paper: the better of "cross-entropy" and "hinge"."""
    cloud: int = 200
    """Maximum number of samples that interact. The authors: 200."""
    deal_every: int = 10
    """Steps between redraws of the clouds, if there is more than one. The authors: 10."""

    def __post_init__(self) -> None:
        expect_setting(self, "surrogate", f"one of {', '.join(LOSSES)}", self.surrogate in LOSSES)
        for name in ("steps", "cloud", "deal_every"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", isinstance(value, int) and value >= 1)
        expect_setting(self, "step", "above 0", self.step > 0)

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        problem, rows = task.problem, task.rows(restart)
        loss, weight = LOSSES[self.surrogate]
        best = Best.none(rows.inputs)
        clouds: list[Tensor] = []
        length = per_sample(self.step * radius, rows.inputs)
        delta = spread(random_rows(problem, rows.samples, rows.restarts), "linf", radius)
        point = problem.box.clip(rows.inputs + delta)
        every = torch.arange(len(task), device=rows.inputs.device)
        for number in range(self.steps):
            answer = differentiate(problem, rows, point, loss)
            size = problem.norm.size(point - rows.inputs)
            best.improve(Best.candidates(point, size, answer.margin, answer.prediction), at=every)
            if bool(best.size.isfinite().all()):
                return best
            if number % self.deal_every == 0:
                clouds = self._dealt(task, restart, number)
            push = torch.empty_like(point)
            for cloud in clouds:
                # A surrogate decreases towards misclassification.
                push[cloud] = blob(point[cloud], -answer.gradient[cloud], weight)
            delta = project(point - rows.inputs + length * push.sign(), "linf", radius)
            point = problem.box.clip(rows.inputs + delta)

        margin, prediction = look(problem, rows, point)
        size = problem.norm.size(point - rows.inputs)
        best.improve(Best.candidates(point, size, margin, prediction), at=every)
        return best

    def _dealt(self, task: Task, restart: int, number: int) -> list[Tensor]:
        """Divide the rows randomly and evenly into clouds."""
        first = int(task.problem.indices[task.samples[:1].cpu()])
        order = np.random.default_rng((task.problem.seed, first, restart, number)).permutation(len(task))
        parts = np.array_split(order, math.ceil(len(task) / self.cloud))
        return [torch.from_numpy(np.sort(part)).to(task.samples.device) for part in parts]


def blob(points: Tensor, slopes: Tensor, weight: float) -> Tensor:
    """Return the direction before its sign is taken: g_i + c/M * sum_j K_ij (g_j + (x_j - x_i) / h^2), c = `weight`.

    In the limit h = 0, where most points coincide, only coinciding points interact.
    """
    x, g = flat(points), flat(slopes)
    # Distances are invariant to translation; centered points lose the least precision to cancellation.
    x = x - x.mean(0)
    distances = squared_distances(x)
    count = len(x)
    # 2 h^2. A single point forms the whole cloud, whatever h.
    width = 0.0 if count < 2 else float(np.median(distances.cpu().numpy())) / math.log(count)
    if width == 0:
        kernel = (distances == 0).to(x.dtype)
        pull = torch.zeros_like(x)
    else:
        kernel = (-distances / width).exp_()
        pull = 2 / width * (kernel @ x - kernel.sum(1, keepdim=True) * x)
    return (g + weight / count * (kernel @ g + pull)).reshape(points.shape)


@dataclass(frozen=True, kw_only=True)
class Attraction(BallSteps):
    """PGD with an attraction term, the gradient of a smoothed log density: a variant of DAA.

        x_i <- Pi( x_i + step * radius * sign( grad L(x_i) + c/M * a_i ) )
        a_i  = sum_j grad_i K(x_i, x_j) (1/S_i + 1/S_j),  S_i = sum_k K(x_i, x_k),  K(x, y) = exp(-||x - y||^2 / h)

    where h is the median of the squared distances between different samples, divided by log M. Unlike in DAA, L has a
    gradient where the model is confident, the gradients of other samples play no role, the attraction is divided by the
    density, and fooled samples leave.
    """

    steps: int = 500
    step: float = 0.1
    """Length of a step, relative to the radius."""
    surrogate: str = "cross-entropy"
    """The surrogate to minimize: any of `criteria.SURROGATES`."""
    strength: float = 0.3
    """c, the strength of the attraction; 0 gives PGD. From 0.01 to 1 it is at least as strong as PGD at 0.3 (images
    800-899 of mnist-1000, mnist-linf-at)."""

    def __post_init__(self) -> None:
        surrogate_by_name(self.surrogate)
        expect_setting(self, "steps", "an integer of at least 1", isinstance(self.steps, int) and self.steps >= 1)
        expect_setting(self, "step", "above 0", self.step > 0)
        expect_setting(self, "strength", "at least 0", 0 <= self.strength < math.inf)

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        rows, room = task.rows(restart), room_of(task, radius)

        def move(at: Stand) -> Tensor:
            push = at.gradient + self.strength / len(at.point) * attraction(at.point)
            ahead = self.step * per_sample(at.room.radius, at.delta) * push.sign()
            return project(at.delta + ahead, "linf", at.room.radius)

        start = spread(random_rows(task.problem, rows.samples, rows.restarts), "linf", radius)
        return climb(task, rows, room, start, steps=self.steps, surrogate=self.surrogate, move=move)


def attraction(points: Tensor) -> Tensor:
    """Compute a of the formula of `Attraction`; zero for a single point, and for points that all coincide."""
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
    """Squared distances between the rows of a matrix, by a matrix product: center them first to limit cancellation."""
    squares = x.square().sum(1)
    return (squares[:, None] + squares - 2 * x @ x.T).clamp_(min=0).fill_diagonal_(0)


def _bandwidth(distances: Tensor) -> float:
    """Apply the median heuristic (Liu & Wang 2016): the neighbors of a point together weigh about as much as itself."""
    count = len(distances)
    if count < 2:
        return 0.0
    above = torch.triu_indices(count, count, 1, device=distances.device)
    return float(distances[above[0], above[1]].median()) / math.log(count)
