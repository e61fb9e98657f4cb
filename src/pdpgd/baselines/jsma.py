"""JSMA, the Jacobian-based saliency map attack (Papernot et al. 2016), for l0.

Towards a class t, with alpha = d z_t / dx and beta = sum_{j != t} d z_j / dx, move by theta the two features

    argmax_{p != q} -(alpha_p + alpha_q) (beta_p + beta_q)    where  alpha_p + alpha_q > 0 > beta_p + beta_q,

and again, until the class is reached. For theta < 0 the slopes change their signs. A feature at the end of its box
leaves the search.

With u = alpha and v = -beta the score (u_p + u_q)(v_p + v_q) grows in all four wherever a pair is allowed. A feature
that two others dominate (no less in u and v) can thus be replaced by one of the two that is not its partner: a best
pair lies in the first two Pareto layers, which a sort and a running maximum give. Only pairs of these are compared.

The JSMA of the library ART, which the authors of PDPGD ran, leaves beta out: it moves the two features with the
largest alpha. That is the choice "target" of `saliency`. They ran it with theta and with -theta, and kept the better
run per sample: `both_signs`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.primal_dual import batches
from pdpgd.classifier import NO_GRADIENT
from pdpgd.errors import NoGradientError, UnknownNameError, expect_setting
from pdpgd.tensors import flat

SALIENCIES = ("pair", "target")
# Numbers of a tensor that the search for a pair holds at once.
BLOCK = 2**21
# A feature so near the end of its box, as a share of its width, is at it: low + (high - low) need not be high.
AT_END = 1e-6
# The least number that slopes are divided by.
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class JSMA:
    """The settings of JSMA, and the method."""

    theta: float = 1.0
    """How far a feature is moved at once, as a share of the width of its box. The paper: the better of 0.1 and 1."""
    both_signs: bool = False
    """Whether a second run moves features by -theta, and the better run is kept per sample. The paper: yes."""
    gamma: float = 1.0
    """The share of the features that may change. The paper: 1.0."""
    saliency: str = "pair"
    """What decides on the pair: alpha and beta ("pair", Papernot et al.), or alpha alone ("target", ART)."""
    targets: int | None = None
    """Untargeted: how many classes are aimed at, the ones with the highest logits; None: every class but the label.

    The paper: all on MNIST and CIFAR-10, the second-highest on Restricted ImageNet. Whichever wrong class is reached
    counts, and an aim is given up once it has changed as many pixels as the best of its sample.
    """
    steps: int | None = None
    """The most pairs that are moved towards a class; None: until nothing is left to move."""
    max_rows: int = 256
    """Points in one call of the model, a row for each aim: the bound on memory."""

    def __post_init__(self) -> None:
        if self.saliency not in SALIENCIES:
            raise UnknownNameError("saliency", self.saliency, SALIENCIES)
        expect_setting(self, "theta", "within [-1, 1] and not 0", 0 < abs(self.theta) <= 1)
        expect_setting(self, "gamma", "within (0, 1]", 0 < self.gamma <= 1)
        expect_setting(self, "max_rows", "at least 1", self.max_rows >= 1)
        for name in ("targets", "steps"):
            value = getattr(self, name)
            expect_setting(self, name, "at least 1, or None", value is None or value >= 1)

    def __call__(self, task: Task) -> Best:
        best = Best.none(task.inputs)
        aims = self._aims(task)
        runs = (self, replace(self, theta=-self.theta)) if self.both_signs else (self,)
        # The aims of a sample stay together, as they stop each other; so its batch mates do not matter.
        together = max(1, self.max_rows // aims.shape[1])
        for rows in batches(torch.arange(len(task), device=task.samples.device), together):
            for some in torch.split(aims[rows], self.max_rows, dim=1):
                for run in runs:
                    run._descend(task, rows.repeat_interleave(some.shape[1]), some.flatten(), best)
            task.tell((int(rows[-1]) + 1) / len(task))
        return best

    def _aims(self, task: Task) -> Tensor:
        """The classes that each sample is driven to, the nearest first."""
        if task.criterion.targeted:
            return task.criterion.classes[:, None]
        every = torch.arange(len(task), device=task.samples.device)
        logits = torch.cat([task.logits(task.inputs[rows], rows) for rows in batches(every, self.max_rows)])
        order = logits.scatter(1, task.labels[:, None], -torch.inf).argsort(dim=1, descending=True, stable=True)
        return order[:, : min(task.classes - 1, self.targets or task.classes)]

    def _descend(self, task: Task, owner: Tensor, aim: Tensor, best: Best) -> None:
        """Drive row owner[i] of the task to the class aim[i], all i together; note in `best` what is found."""
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
            # What changes more pixels from here on cannot be smaller than it is now.
            going = found.size.isinf() & (size < best.size[state.owner])
            rows = going.nonzero().flatten()
            state = self._moved(task, state.select(rows), [slope[rows] for slope in slopes])
            step += 1

    def _moved(self, task: Task, state: _State, slopes: list[Tensor]) -> _State:
        """The rows with their best pair moved; what has none is gone."""
        box, shape = task.problem.box, state.points.shape[1:]
        low, high = (bound.expand(shape).flatten() for bound in (box.low, box.high))
        points, inputs = flat(state.points), flat(task.inputs[state.owner])
        sign = 1.0 if self.theta > 0 else -1.0
        allowed = int(self.gamma * points.shape[1])
        kept = [state.owner[:0]]
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
            kept.append(rows[some])
            # Twice the same place, where there is no second, gets the same value.
            places = torch.stack([first, second], 1)[some]
            here = points[rows[some, None], places]
            moved = torch.minimum(torch.maximum(here + self.theta * (high - low)[places], low[places]), high[places])
            points[rows[some, None], places] = moved
        return _State(state.owner, state.aim, points.reshape(-1, *shape)).select(torch.cat(kept))


class _State(NamedTuple):
    """Row i drives row owner[i] of the task to the class aim[i], and is at points[i]."""

    owner: Tensor
    aim: Tensor
    points: Tensor

    def select(self, rows: Tensor) -> _State:
        return _State(self.owner[rows], self.aim[rows], self.points[rows])


def chosen_pair(u: Tensor, v: Tensor, free: Tensor, *, others: int) -> Tensor:
    """(rows, 2): the pair of `free` features to move, both the same if one is all there is to move, -1 if none.

    Where no pair is allowed, these are the features that raise z_t most against the mean of the `others`, as far as
    they do: a class may have no slope, and one feature may be left.
    """
    pair = best_pair(u.masked_fill(~free, -torch.inf), v.masked_fill(~free, -torch.inf))
    lacking = (pair[:, 0] < 0).nonzero().flatten()
    if len(lacking) > 0:
        pair[lacking] = top_pair((u + v / others)[lacking], free[lacking], above=0.0)
    return pair


def top_pair(rise: Tensor, free: Tensor, *, above: float = -torch.inf) -> Tensor:
    """(rows, 2): the two `free` features with the largest rise `above` that, twice the same if there is but one."""
    top = rise.masked_fill(~free, -torch.inf).topk(min(2, rise.shape[1]), dim=1)
    places = top.indices.masked_fill(top.values <= above, -1)
    first, last = places[:, 0], places[:, -1]
    return torch.stack([first, torch.where(last < 0, first, last)], 1)


def best_pair(u: Tensor, v: Tensor) -> Tensor:
    """(rows, 2): argmax_{p != q} (u_p + u_q)(v_p + v_q) with both sums above zero; -1 where there is none.

    A feature of which u and v are -inf takes no part.
    """
    if u.shape[1] < 2:
        return torch.full((len(u), 2), -1, device=u.device)
    # The scales do not matter to the argmax, but keep the product within range.
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
    """Places, u and v without most of what two features, chosen to be good, dominate: that spares the sort."""
    pivots = torch.minimum(u, v).topk(2, dim=1).indices
    floor_u, floor_v = (w.gather(1, pivots).amin(1, keepdim=True) for w in (u, v))
    keep = ((u > floor_u) | (v > floor_v)).scatter(1, pivots, True)
    places, filled = _packed(keep)
    u, v = (w.gather(1, places).masked_fill(~filled, -torch.inf) for w in (u, v))
    return places, u, v


def _by_comparison(u: Tensor, v: Tensor) -> Tensor:
    """The best pair of all, in blocks, so that memory is bounded even if no feature dominates another."""
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
    """The largest entry left of each place; -inf at the first."""
    running = v.cummax(1).values
    return torch.cat([torch.full_like(v[:, :1], -torch.inf), running[:, :-1]], 1)


def _packed(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The places of each row that the mask names, moved to the left, and which of the columns hold one."""
    counts = mask.sum(1)
    rows, places = mask.nonzero(as_tuple=True)
    column = torch.arange(len(rows), device=mask.device) - (counts.cumsum(0) - counts)[rows]
    filled = torch.arange(max(2, int(counts.max())), device=mask.device) < counts[:, None]
    packed = torch.zeros_like(filled, dtype=torch.long)
    packed[rows, column] = places
    return packed, filled


def _slopes(task: Task, state: _State, *, both: bool) -> tuple[Tensor, ...]:
    """Logits, alpha and, if `both`, beta, flattened: one forward pass of each row, and a backward pass for each."""
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
    # So that sums of four are still finite.
    limit = torch.finfo(alpha.dtype).max / 8
    return logits.detach(), *(flat(slope).nan_to_num(0.0, limit, -limit).clamp(-limit, limit) for slope in slopes)


def _note(best: Best, found: Best, owner: Tensor) -> None:
    """Of several rivals of the same row the smallest, and of equals the one with the nearest aim."""
    order = found.size.sort(stable=True).indices
    order = order[owner[order].sort(stable=True).indices]
    rows = owner[order]
    leads = torch.ones_like(rows, dtype=torch.bool)
    leads[1:] = rows[1:] != rows[:-1]
    best.improve(found.select(order[leads]), at=rows[leads])
