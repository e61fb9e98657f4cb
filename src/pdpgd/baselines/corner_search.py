"""CornerSearch (Croce & Hein 2019, "Sparse and Imperceivable Adversarial Attacks"), for l0. It needs no gradients.

Move one pixel to one corner of its colour box, all pixels and corners in turn; if the class changes, that is the
answer. Else order these changes, for each class r but the label y, by z_r - z_y, and once by max_r z_r - z_y; keep of
each ordering the first N (of a pixel, its best corner). Then apply k of them together,

    drawn without repetition, the i-th with probability (2N - 2i + 1) / N^2,    k = 2, 3, ..., k_max.

The paper leaves open how the draws are spread over k. Here a sample's draws are cut into equal rounds, spread evenly
over the orderings. Up to half of the rounds climb the ladder k = 2, 3, 4, 6, 8, 12, ... to the first k that succeeds;
the rest bisects between that and the last k that failed, and then tries one pixel less than the best. The changes are
built for at most `max_rows` points at once, and of their logits only the N leading changes of each ordering are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pdpgd.attacks.problem import Problem
from pdpgd.attacks.restarts import batches
from pdpgd.attacks.task import Task
from pdpgd.criteria import Criterion, lead_over
from pdpgd.errors import InvalidInputError, expect_setting
from pdpgd.game.incumbent import Incumbent

# A colour of c channels has 2^c corners.
MAX_CHANNELS = 8


@dataclass(frozen=True, kw_only=True)
class CornerSearch:
    """The settings of CornerSearch, and the method."""

    iterations: int = 1000
    """Combinations of changes that are drawn for a sample. The paper: 1000."""
    candidates: int = 100
    """N, the leading changes of each ordering that are drawn from; no more pixels than that change. The paper: 100."""
    max_sparsity: int | None = None
    """The most pixels that may change; None: all. The paper: 784 on MNIST, 1024 on CIFAR-10, which is all."""
    max_rows: int = 512
    """Points in one call of the model: the bound on memory."""
    forwards: int | None = None
    """The most forward passes a sample may cost, beside the one that judges the input; None: whatever it takes.

    Where that is too little for every change of one pixel and `iterations` draws, the changes may use up what the draws
    leave, and at least half of it: then only those of a random subset of the pixels are tried.
    """

    def __post_init__(self) -> None:
        for name in ("iterations", "candidates", "max_rows"):
            expect_setting(self, name, "at least 1", getattr(self, name) >= 1)
        for name in ("max_sparsity", "forwards"):
            value = getattr(self, name)
            expect_setting(self, name, "at least 1, or None", value is None or value >= 1)

    def __call__(self, task: Task) -> Incumbent:
        corners = Corners(task.problem)
        best = Incumbent.none(task.inputs)
        # So few together that the orderings of a thousand classes fit, so many that a round of draws fills a call.
        for rows in batches(torch.arange(len(task), device=task.samples.device), max(1, self.max_rows // 16)):
            best.improve(self._attack(task.select(rows), corners), at=rows)
            task.tell((int(rows[-1]) + 1) / len(task))
        return best

    def _attack(self, task: Task, corners: Corners) -> Incumbent:
        pixels = self._pixels(task, corners)
        draws = self.iterations
        if self.forwards is not None:
            draws = min(draws, self.forwards - pixels.shape[1] * corners.count)
        best = Incumbent.none(task.inputs)
        if pixels.shape[1] > 0:
            ranked = self._one_pixel(task, corners, pixels, best)
            still = best.size.isinf().nonzero().flatten()
            if len(still) > 0:
                best.improve(self._combine(task.select(still), corners, ranked[still], draws), at=still)
        return best

    def _pixels(self, task: Task, corners: Corners) -> Tensor:
        """The pixels of each sample that are tried, ascending: all, or as many by chance as may be paid for."""
        tried = corners.pixels
        if self.forwards is not None:
            tried = min(tried, max(self.forwards - self.iterations, (self.forwards + 1) // 2) // corners.count)
        if tried == corners.pixels:
            return torch.arange(tried, device=task.samples.device).expand(len(task), -1)
        generators = _generators(task, 0)
        chosen = [np.sort(generator.permutation(corners.pixels)[:tried]) for generator in generators]
        return torch.from_numpy(np.stack(chosen)).to(task.samples.device)

    def _one_pixel(self, task: Task, corners: Corners, pixels: Tensor, best: Incumbent) -> Tensor:
        """Try every change of one pixel, note what is adversarial in `best`, and return the leading changes.

        These are (samples, orderings, N), best first, and the orderings too by the best change of each.
        """
        tried, count = pixels.shape[1], corners.count
        width = min(tried, max(1, self.max_rows // count))
        leading = min(self.candidates, tried)
        ranked = []
        for rows in batches(torch.arange(len(task), device=pixels.device), max(1, self.max_rows // (width * count))):
            shape = (len(rows), 2 if task.criterion.targeted else task.classes, leading)
            lists = _Leading(task.inputs.new_full(shape, -torch.inf), rows.new_zeros(shape))
            for first in range(0, tried, width):
                still = best.size[rows].isinf()
                if not bool(still.any()):
                    break
                mine = pixels[rows, first : first + width, None] * count + torch.arange(count, device=pixels.device)
                mine = mine[still].flatten(1, 2)
                logits = self._try(task, corners, rows[still], mine[:, :, None], best)
                lists.merge(still, _helps(logits, task.select(rows[still])), mine, count)
            # With few draws for many classes, the first orderings alone are used.
            promise = lists.scores[:, :, 0].argsort(dim=1, descending=True, stable=True)
            ranked.append(lists.changes.gather(1, promise[:, :, None].expand(shape)))
        return torch.cat(ranked)

    def _combine(self, task: Task, corners: Corners, ranked: Tensor, draws: int) -> Incumbent:
        """Apply several of the `ranked` changes together, as the module says."""
        best = Incumbent.none(task.inputs)
        orderings, leading = ranked.shape[1:]
        rungs = ladder(min(leading, self.max_sparsity or leading), most=draws // 2)
        if draws < 1 or len(rungs) == 0:
            return best
        share = max(1, draws // (2 * len(rungs)))
        weight = 2.0 * leading - 2.0 * np.arange(1, leading + 1) + 1.0
        generators = _generators(task, 1)
        failed = torch.ones_like(task.samples)
        for number, first in enumerate(range(0, draws, share)):
            # Two pixels are the least that can be hoped for: the changes of one were tried.
            rows = (best.size > 2).nonzero().flatten()
            if len(rows) == 0:
                break
            together = min(share, draws - first)
            wanted = _wanted(best.size[rows], failed[rows], rungs[min(number, len(rungs) - 1)])
            # An exponential race: the first k to arrive are k drawn one after the other, without repetition.
            races = [generators[row].standard_exponential((together, leading)) / weight for row in rows.tolist()]
            places = torch.from_numpy(np.stack(races)).argsort(2)[:, :, : int(wanted.max())].to(ranked.device)
            # A change that is made twice is made once: so rows of fewer changes are filled up.
            surplus = torch.arange(places.shape[2], device=places.device) >= wanted[:, None, None]
            places = torch.where(surplus, places[:, :, :1], places)
            ordering = torch.arange(first, first + together, device=ranked.device) % orderings
            changes = ranked[rows[:, None, None], ordering[None, :, None], places]
            before = best.size[rows]
            self._try(task, corners, rows, changes, best)
            missed = best.size[rows] == before
            failed[rows[missed]] = torch.maximum(failed[rows], wanted)[missed]
        return best

    def _try(self, task: Task, corners: Corners, rows: Tensor, changes: Tensor, best: Incumbent) -> Tensor:
        """Apply changes[i, j], all of them together, to row rows[i]; note the smallest adversarial point of each row.

        Returns the logits (rows, tries, classes).
        """
        tries = changes.shape[1]
        owner, sets = rows.repeat_interleave(tries), changes.flatten(0, 1)
        parts = batches(torch.arange(len(owner), device=owner.device), self.max_rows)
        logits = torch.cat(
            [task.logits(corners.applied(task.samples[owner[part]], sets[part]), owner[part]) for part in parts]
        )
        size = corners.size(task.samples[owner], sets)
        right = task.problem.criterion.select(task.samples[owner]).margin(logits) >= 0
        size = size.masked_fill(right | (size == 0), torch.inf).reshape(-1, tries)
        hit = size.isfinite().any(1).nonzero().flatten()
        if len(hit) > 0:
            chosen = hit * tries + size[hit].argmin(1)
            points = corners.applied(task.samples[rows[hit]], sets[chosen])
            best.improve(task.judged(points, logits[chosen], rows[hit]), at=rows[hit])
        return logits.reshape(len(rows), tries, -1)


class Corners:
    """The changes of one pixel: change j moves pixel j // count to corner j % count of its colour box."""

    def __init__(self, problem: Problem) -> None:
        inputs, box = problem.inputs, problem.box
        shape = inputs.shape[1:]
        self.channels = shape[0] if len(shape) > 1 else 1
        one = torch.zeros_like(inputs[:1]).reshape(self.channels, -1)
        one[:, 0] = 1
        if float(problem.norm.size(one.reshape(1, *shape))) > 1:
            self.channels = 1  # the norm counts elements: each is a pixel of its own
        if self.channels > MAX_CHANNELS:
            raise InvalidInputError(f"CornerSearch: expected at most {MAX_CHANNELS} channels, got {self.channels}")
        self.inputs = inputs
        self.low, self.high = (bound.expand(shape).reshape(self.channels, -1) for bound in (box.low, box.high))
        self.pixels = self.low.shape[1]
        self.count = 2**self.channels
        numbers = torch.arange(self.count, device=inputs.device)[:, None]
        self._is_high = (numbers >> torch.arange(self.channels, device=inputs.device)) % 2 == 1

    def applied(self, samples: Tensor, changes: Tensor) -> Tensor:
        """The inputs with changes[i] made to samples[i], all of them."""
        pixel, values = self._moved(changes)
        inputs = self.inputs[samples]
        points = inputs.reshape(len(samples), self.channels, -1)
        points.scatter_(2, pixel, values)
        return points.reshape(inputs.shape)

    def size(self, samples: Tensor, changes: Tensor) -> Tensor:
        """How many pixels that changes: a pixel may have been in its corner before, or be named twice."""
        pixel, values = self._moved(changes)
        # Entry by entry: a copy of the inputs for each row is what this spares.
        channel = torch.arange(self.channels, device=pixel.device)[:, None]
        entries = self.inputs.reshape(len(self.inputs), self.channels, -1)[samples[:, None, None], channel, pixel]
        moved = torch.where((entries != values).any(1), pixel[:, 0], -1).sort(1).values
        fresh = torch.cat([torch.ones_like(moved[:, :1], dtype=torch.bool), moved[:, 1:] != moved[:, :-1]], 1)
        return (fresh & (moved >= 0)).sum(1).to(self.inputs.dtype)

    def _moved(self, changes: Tensor) -> tuple[Tensor, Tensor]:
        """Pixel and new value of each change, both (rows, channels, changes)."""
        pixel = (changes // self.count)[:, None].expand(-1, self.channels, -1)
        is_high = self._is_high[changes % self.count].transpose(1, 2)
        channel = torch.arange(self.channels, device=pixel.device)[:, None]
        return pixel, torch.where(is_high, self.high[channel, pixel], self.low[channel, pixel])


class _Leading(NamedTuple):
    """The leading changes of each ordering so far, best first: both (samples, orderings, N)."""

    scores: Tensor
    changes: Tensor

    def merge(self, rows: Tensor, helps: Tensor, changes: Tensor, count: int) -> None:
        """Of each pixel its best corner, into the lists of these rows; of equals the elder, so no batch mate matters.

        `helps` is (rows, pixels * count, orderings), `changes` (rows, pixels * count).
        """
        top, corner = helps.reshape(len(helps), -1, count, helps.shape[2]).max(2)
        mine = (changes[:, ::count, None] + corner).transpose(1, 2)
        scores = torch.cat([self.scores[rows], top.transpose(1, 2)], 2)
        order = scores.argsort(dim=2, descending=True, stable=True)[:, :, : self.scores.shape[2]]
        self.scores[rows] = scores.gather(2, order)
        self.changes[rows] = torch.cat([self.changes[rows], mine], 2).gather(2, order)


def ladder(top: int, *, most: int) -> list[int]:
    """2, 3, 4, 6, 8, 12, ... and the top; if these are more than `most` (or than one), as many, evenly, up to it."""
    rungs = sorted({k for i in range(1, 32) for k in (2**i, 3 * 2 ** (i - 1)) if k < top} | {top}) if top >= 2 else []
    most = max(1, most)
    return rungs if len(rungs) <= most else [rungs[(i + 1) * len(rungs) // most - 1] for i in range(most)]


def _wanted(size: Tensor, failed: Tensor, rung: int) -> Tensor:
    """How many changes to try next, given the best size so far and the largest number that failed."""
    found = size.isfinite()
    known = torch.where(found, size, 0).long()
    descent = torch.where(failed + 1 < known, (failed + known) // 2, known - 1)
    return torch.where(found, descent, rung)


def _helps(logits: Tensor, task: Task) -> Tensor:
    """(rows, tries, orderings): how much each try helps. Untargeted, the label's place holds the best of the others.

    Targeted, only the target matters: its lead over the label, and over the best of the others.
    """
    tries = logits.shape[1]
    labels = task.labels.repeat_interleave(tries)
    table = logits.flatten(0, 1)
    criterion = Criterion(task.criterion.classes.repeat_interleave(tries), task.criterion.targeted)
    if criterion.targeted:
        scores = torch.stack([-criterion.margin(table), lead_over(table, criterion.classes, labels)], 1)
    else:
        scores = table - table.gather(1, labels[:, None])
        scores.scatter_(1, labels[:, None], -criterion.margin(table)[:, None])
    return scores.reshape(len(logits), tries, -1)


def _generators(task: Task, stage: int) -> list[np.random.Generator]:
    indices = task.problem.indices[task.samples.cpu()].tolist()
    return [np.random.default_rng((task.problem.seed, index, 0, stage)) for index in indices]
