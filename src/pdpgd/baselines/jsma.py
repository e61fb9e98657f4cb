"""JSMA, the Jacobian-based saliency map attack (Papernot et al. 2016), for l0.

Towards a class t, with alpha = d z_t / dx and beta = sum_{j != t} d z_j / dx, move by theta the two features

    argmax_{p != q} -(alpha_p + alpha_q) (beta_p + beta_q)    where  alpha_p + alpha_q > 0 > beta_p + beta_q,

and repeat until the class is reached. For theta < 0 the gradients change their signs. A feature at the bound of its box
leaves the search.

With u = alpha and v = -beta, the score (u_p + u_q)(v_p + v_q) increases in all four wherever a pair is allowed. A
feature dominated by two others (no smaller in u and v) can thus be replaced by the one of them that is not its partner:
a best pair lies in the first two Pareto layers, which a sort and a running maximum find. Only pairs of these features
are compared.

The JSMA of the library ART, which the authors of PDPGD ran, ignores beta: it moves the two features with the largest
alpha. That is `saliency` "target". They ran it with theta and with -theta, and used the better run per sample:
`both_signs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task, batches
from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.settings import LARGE
from pdpgd.classifier import NO_GRADIENT
from pdpgd.errors import NoGradientError, UnknownNameError, expect_setting
from pdpgd.tensors import flat

SALIENCIES = ("pair", "target")
# Maximum number of elements of a tensor in the search for a pair.
BLOCK = 2**21
# A feature this close to its bound, relative to the width of the box, is at it: low + (high - low) need not be high.
AT_END = 1e-6
# Minimum divisor of gradients.
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class JSMA(Preparable):
    """JSMA with its settings."""

    theta: float = 1.0
    """How far a feature moves per step, relative to the width of its box. The paper: the better of 0.1 and 1."""
    both_signs: bool = False
    """Whether a second run moves features by -theta, and the better run counts per sample. The paper: yes."""
    gamma: float = 1.0
    """Maximum share of the features that change. The paper: 1.0."""
    saliency: str = "pair"
    """What the pair is chosen by: alpha and beta ("pair", Papernot et al.), or alpha only ("target", ART)."""
    targets: int | None = None
    """Untargeted: number of target classes, those with the highest logits; None: every class but the label.

    The paper: all on MNIST and CIFAR-10, the second-highest on Restricted ImageNet. Any wrong class that is reached
    counts, and a target is given up once it has changed as many pixels as the best result of its sample.
    """
    steps: int | None = None
    """Maximum number of pairs moved towards a class; None: until no feature is left to move."""
    max_rows: int = 256
    """Maximum number of points per call of the model, one per sample and target, which bounds the memory."""

    def __post_init__(self) -> None:
        if self.saliency not in SALIENCIES:
            raise UnknownNameError("saliency", self.saliency, SALIENCIES)
        expect_setting(self, "theta", "within [-1, 1] and not 0", 0 < abs(self.theta) <= 1)
        expect_setting(self, "gamma", "within (0, 1]", 0 < self.gamma <= 1)
        expect_setting(self, "max_rows", "at least 1", self.max_rows >= 1)
        for name in ("targets", "steps"):
            value = getattr(self, name)
            expect_setting(self, name, "at least 1, or None", value is None or value >= 1)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Try the runners-up first, as many as get about forty steps in each direction, by the "target" saliency.

        That saliency is cheaper and better. Mean pixels on ten images of mnist-plain: 13.6 by the gradient of the
        target, 21.4 by pairs (ART's, 15.8). Images 300-331, 1000 passes, mnist-plain / mnist-linf-at: both signs of
        theta fool 31 / 27 of 31 samples at 11.0 / 53.5 pixels, one sign 31 / 16 at 13.1 / 72.9.
        """
        targets = max(1, min(budget.classes - 1, budget.passes // 160))
        return {"targets": targets, "saliency": "target", "both_signs": True, "steps": budget.steps(4 * targets)}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings.

        The saliency of ART and the better of theta and -theta per sample are those of the authors' scripts. All classes
        are targets, on Restricted ImageNet only the second-highest.
        """
        targets = 1 if setup.dataset == LARGE else None
        return {"gamma": 1.0, "targets": targets, "saliency": "target", "both_signs": True}

    @classmethod
    def paper_grid(cls, norm: str) -> Mapping[str, tuple[Any, ...]]:
        """Return the step lengths that the paper selected from."""
        return {"theta": (1.0, 0.1)}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        best = Best.none(task.inputs)
        aims = self._aims(task)
        runs = (self, replace(self, theta=-self.theta)) if self.both_signs else (self,)
        # The targets of a sample stay in one batch, as they stop each other: so results do not depend on the batch.
        together = max(1, self.max_rows // aims.shape[1])
        for rows in batches(torch.arange(len(task), device=task.samples.device), together):
            for some in torch.split(aims[rows], self.max_rows, dim=1):
                for run in runs:
                    run._descend(task, rows.repeat_interleave(some.shape[1]), some.flatten(), best)
            task.report_progress((int(rows[-1]) + 1) / len(task))
        return best

    def _aims(self, task: Task) -> Tensor:
        """Return the target classes of each sample, the nearest first."""
        if task.criterion.targeted:
            return task.criterion.classes[:, None]
        every = torch.arange(len(task), device=task.samples.device)
        logits = torch.cat([task.logits(task.inputs[rows], rows) for rows in batches(every, self.max_rows)])
        order = logits.scatter(1, task.labels[:, None], -torch.inf).argsort(dim=1, descending=True, stable=True)
        return order[:, : min(task.classes - 1, self.targets or task.classes)]

    def _descend(self, task: Task, owner: Tensor, aim: Tensor, best: Best) -> None:
        """Move row owner[i] of the task towards the class aim[i], for all i together; record results in `best`."""
        state = _State(owner, aim, task.inputs[owner])
        step = 0
        while len(state.owner) > 0:
            last = step == self.steps
            if last:
                logits = task.logits(state.points, state.owner)
            else:
                logits, *slopes = _slopes(task, state, both=self.saliency == "pair")
            found = task.judged(state.points, logits, state.owner)
            _note(best, found, state.owner)
            if last:
                return
            size = task.problem.norm.size(state.points - task.inputs[state.owner])
            # The number of changed pixels does not decrease, so rows that cannot beat the best result stop.
            going = found.size.isinf() & (size < best.size[state.owner])
            rows = going.nonzero().flatten()
            state = self._moved(task, state.select(rows), [slope[rows] for slope in slopes])
            step += 1

    def _moved(self, task: Task, state: _State, slopes: list[Tensor]) -> _State:
        """Move the best pair of each row, and drop rows that have none."""
        box, shape = task.problem.box, state.points.shape[1:]
        low, high = (bound.expand(shape).flatten() for bound in (box.low, box.high))
        points, inputs = flat(state.points), flat(task.inputs[state.owner])
        sign = 1.0 if self.theta > 0 else -1.0
        allowed = int(self.gamma * points.shape[1])
        moving = [state.owner[:0]]
        for rows in batches(torch.arange(len(points), device=points.device), max(1, BLOCK // points.shape[1])):
            room = (high - points[rows]) if self.theta > 0 else (points[rows] - low)
            changed = points[rows] != inputs[rows]
            left = allowed - changed.sum(1)
            free = (room > AT_END * (high - low)) & (changed | (left > 0)[:, None])
            u, *v = (sign * slope[rows] for slope in slopes)
            pair = chosen_pair(u, -v[0], free, others=task.classes - 1) if v else top_pair(u, free)
            first, second = pair.unbind(1)
            both_new = ~changed.gather(1, pair.clamp(min=0)).any(1)
            second = torch.where((left == 1) & both_new, first, second)
            some = (first >= 0).nonzero().flatten()
            moving.append(rows[some])
            # Where there is no second feature, the first appears twice and gets the same value.
            places = torch.stack([first, second], 1)[some]
            here = points[rows[some, None], places]
            moved = torch.minimum(torch.maximum(here + self.theta * (high - low)[places], low[places]), high[places])
            points[rows[some, None], places] = moved
        return _State(state.owner, state.aim, points.reshape(-1, *shape)).select(torch.cat(moving))


class _State(NamedTuple):
    """Row i moves row owner[i] of the task towards the class aim[i], and is at points[i]."""

    owner: Tensor
    aim: Tensor
    points: Tensor

    def select(self, rows: Tensor) -> _State:
        """Return the state of these rows."""
        return _State(self.owner[rows], self.aim[rows], self.points[rows])


def chosen_pair(u: Tensor, v: Tensor, free: Tensor, *, others: int) -> Tensor:
    """Return the pair of `free` features to move, with shape (rows, 2): twice the same if only one is left, -1 if none.

    Where no pair is allowed, these are the features that increase z_t most relative to the mean of the `others`, if
    they do: a class may have no gradient, and only one feature may be left.
    """
    pair = best_pair(u.masked_fill(~free, -torch.inf), v.masked_fill(~free, -torch.inf))
    lacking = (pair[:, 0] < 0).nonzero().flatten()
    if len(lacking) > 0:
        pair[lacking] = top_pair((u + v / others)[lacking], free[lacking], above=0.0)
    return pair


def top_pair(rise: Tensor, free: Tensor, *, above: float = -torch.inf) -> Tensor:
    """Return the two `free` features with the largest rise `above` a bound, (rows, 2); a single one appears twice."""
    top = rise.masked_fill(~free, -torch.inf).topk(min(2, rise.shape[1]), dim=1)
    places = top.indices.masked_fill(top.values <= above, -1)
    first, last = places[:, 0], places[:, -1]
    return torch.stack([first, torch.where(last < 0, first, last)], 1)


def best_pair(u: Tensor, v: Tensor) -> Tensor:
    """Return argmax_{p != q} (u_p + u_q)(v_p + v_q) with both sums above zero, with shape (rows, 2); -1 if none.

    Features whose u and v are -inf are excluded.
    """
    if u.shape[1] < 2:
        return torch.full((len(u), 2), -1, device=u.device)
    # Scaling does not change the argmax, but keeps the product within range.
    u, v = (w / w.abs().masked_fill(w.isinf(), 0).amax(1, keepdim=True).clamp(min=TINY) for w in (u, v))
    places, u, v = _thinned(u, v)
    order = u.sort(dim=1, descending=True)
    u, v, places = order.values, v.gather(1, order.indices), places.gather(1, order.indices)
    first = v > _maximum_before(v)
    second = ~first & (v > _maximum_before(v.masked_fill(first, -torch.inf)))
    columns, filled = _packed(first | second)
    u, v = (w.gather(1, columns).masked_fill(~filled, -torch.inf) for w in (u, v))
    pair = _by_comparison(u, v)
    return torch.where(pair < 0, pair, places.gather(1, columns).gather(1, pair.clamp(min=0)))


def _thinned(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Drop most features that two good ones dominate, to speed up the sort; return positions, u and v of the rest."""
    pivots = torch.minimum(u, v).topk(2, dim=1).indices
    floor_u, floor_v = (w.gather(1, pivots).amin(1, keepdim=True) for w in (u, v))
    keep = ((u > floor_u) | (v > floor_v)).scatter(1, pivots, True)
    places, filled = _packed(keep)
    u, v = (w.gather(1, places).masked_fill(~filled, -torch.inf) for w in (u, v))
    return places, u, v


def _by_comparison(u: Tensor, v: Tensor) -> Tensor:
    """Compare all pairs, in blocks that bound the memory even if no feature dominates another."""
    rows, width = u.shape
    best, pair = u.new_full((rows,), -torch.inf), torch.full((rows, 2), -1, device=u.device)
    partner = torch.arange(width, device=u.device)
    for mine in batches(partner, max(1, BLOCK // (rows * width))):
        sum_u, sum_v = (w[:, mine, None] + w[:, None, :] for w in (u, v))
        barred = (sum_u <= 0) | (sum_v <= 0) | (mine[:, None] == partner)
        top, place = (sum_u * sum_v).masked_fill(barred, -torch.inf).flatten(1).max(1)
        better = top > best
        best = torch.where(better, top, best)
        found = torch.stack([mine[place // width], place % width], 1)
        pair = torch.where(better[:, None], found, pair)
    return pair


def _maximum_before(v: Tensor) -> Tensor:
    """Return the largest entry to the left of each position; -inf at the first."""
    running = v.cummax(1).values
    return torch.cat([torch.full_like(v[:, :1], -torch.inf), running[:, :-1]], 1)


def _packed(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pack the positions that the mask selects per row to the left; return them, and which columns are filled."""
    counts = mask.sum(1)
    rows, places = mask.nonzero(as_tuple=True)
    column = torch.arange(len(rows), device=mask.device) - (counts.cumsum(0) - counts)[rows]
    filled = torch.arange(max(2, int(counts.max())), device=mask.device) < counts[:, None]
    packed = torch.zeros_like(filled, dtype=torch.long)
    packed[rows, column] = places
    return packed, filled


def _slopes(task: Task, state: _State, *, both: bool) -> tuple[Tensor, ...]:
    """Return logits, alpha and, if `both`, beta, flattened: 1 forward pass per row, 1 backward pass per gradient."""
    samples = task.samples[state.owner]
    with torch.enable_grad():
        leaf = state.points.detach().requires_grad_()
        logits = task.problem.classifier.logits(leaf, samples)
        if not logits.requires_grad:
            raise NoGradientError(NO_GRADIENT)
        (alpha,) = torch.autograd.grad(logits.gather(1, state.aim[:, None]).sum(), leaf, retain_graph=both)
        slopes = [alpha]
        if both:
            (every,) = torch.autograd.grad(logits.sum(), leaf)
            slopes.append(every - alpha)
    task.problem.ledger.add(samples, forwards=1, backwards=len(slopes))
    # Sums of four stay finite.
    limit = torch.finfo(alpha.dtype).max / 8
    return logits.detach(), *(flat(slope).nan_to_num(0.0, limit, -limit).clamp(-limit, limit) for slope in slopes)


def _note(best: Best, found: Best, owner: Tensor) -> None:
    """Record the smallest candidate per row. Ties go to the nearest target."""
    order = found.size.sort(stable=True).indices
    order = order[owner[order].sort(stable=True).indices]
    rows = owner[order]
    leads = torch.ones_like(rows, dtype=torch.bool)
    leads[1:] = rows[1:] != rows[:-1]
    best.improve(found.select(order[leads]), at=rows[leads])
