"""CornerSearch (Croce & Hein 2019, "Sparse and Imperceivable Adversarial Attacks"), for l0. It needs no gradients.

Move one pixel to one corner of its colour box, all pixels and corners in turn; if the class changes, that is the
answer. Else order these changes, for each class r but the label y, by z_r - z_y, and once, in the place of y, by
max_r z_r - z_y; keep the first N of each ordering, and apply several of them together.

The authors' schedule (`forwards` is None), as the code of CornerSearch has it that the authors of PDPGD ran:

    for k = 2, 3, ..., k_max, and for each ordering: `iterations` points with k changes each,
    drawn with repetition, the i-th of the ordering with probability (2N - 2i + 1) / N^2;

the first adversarial point in this order is the answer. A pixel may have several corners among the N, and where it is
drawn with more than one, the last counts.

Within a budget (`forwards`), which that schedule would use up on the first few k, the N changes are of N pixels, each
with its best corner, and the k of a point are drawn without repetition. The draws are cut into equal rounds, spread
evenly over the orderings. Up to half of the rounds climb the ladder k = 2, 3, 4, 6, 8, 12, ... to the first k that
succeeds; the rest bisects between that and the last k that failed, and then tries one pixel less than the best.

Mean pixels over images 300-315 of mnist-1000 (all correctly classified), seeds 0 and 1, the authors' schedule with
`iterations` 10, 100 and 1000 / ours with as many passes as that took on average:

    mnist-plain    2548 passes: 11.0 / 10.2   10,116: 9.8 / 9.0   74,014: 8.8 / 8.2
    mnist-linf-at  2265 passes:  8.3 /  7.4     6850: 6.8 / 6.4   46,154: 6.2 / 5.9

The changes are built for at most `max_rows` points at once, and of the logits of those of one pixel only the N leading
changes of each ordering are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdpgd.attacks.base import Problem
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.primal_dual import batches
from pdpgd.criteria import Criterion, lead_over
from pdpgd.errors import InvalidInputError, expect_setting

# Of a budget, what the changes of one pixel may cost. Mean pixels at 1000, 1500 and 2000 passes on images 300-331 of
# mnist-1000, seeds 0 and 1, with a half / with this: mnist-plain 15.8, 12.6, 11.2 / 13.8, 11.4, 10.4; mnist-linf-at
# 13.4, 9.6, 8.0 / 11.0, 8.4, 7.2. (1568 of its passes try all of them, so from 2091 on there is no difference.)
FIRST_SHARE = 0.75
# A colour of c channels has 2^c corners.
MAX_CHANNELS = 8


@dataclass(frozen=True, kw_only=True)
class CornerSearch:
    """The settings of CornerSearch, and the method."""

    iterations: int = 1000
    """Draws for each number of pixels and each ordering; `forwards` takes its place. The authors: 1000."""
    candidates: int = 100
    """N, the leading changes of each ordering that are drawn from. The authors: 100."""
    max_sparsity: int | None = None
    """The most pixels that may change; None: all. The authors: 784 on MNIST, 1024 on CIFAR-10, which is all."""
    max_rows: int = 512
    """Points in one call of the model: the bound on memory."""
    forwards: int | None = None
    """The most forward passes per sample, beside the one that judges the input; None: the authors' schedule.

    Three quarters of them may go to the changes of one pixel; where these are more, a random subset of the pixels is
    tried.
    """

    def __post_init__(self) -> None:
        for name in ("iterations", "candidates", "max_rows"):
            expect_setting(self, name, "at least 1", getattr(self, name) >= 1)
        for name in ("max_sparsity", "forwards"):
            value = getattr(self, name)
            expect_setting(self, name, "at least 1, or None", value is None or value >= 1)

    def __call__(self, task: Task) -> Best:
        corners = Corners(task.problem)
        best = Best.none(task.inputs)
        # So few together that the orderings of a thousand classes fit, so many that a round of draws fills a call.
        for rows in batches(torch.arange(len(task), device=task.samples.device), max(1, self.max_rows // 16)):
            self._attack(task, rows, corners, best)
        return best

    def _attack(self, task: Task, rows: Tensor, corners: Corners, best: Best) -> None:
        part = task.select(rows)
        pixels = self._pixels(part, corners)
        if pixels.shape[1] > 0:
            found = Best.none(part.inputs)
            ranked = self._one_pixel(part, corners, pixels, found)
            best.improve(found, at=rows)
            still = found.size.isinf().nonzero().flatten()
            if self.forwards is not None:
                draws = self.forwards - pixels.shape[1] * corners.count
                best.improve(self._within(part.select(still), corners, ranked[still], draws), at=rows[still])
            else:
                for row in still:
                    best.improve(self._in_turn(part.select(row[None]), corners, ranked[row]), at=rows[row][None])
                    task.tell(int(rows[row]) / len(task))
        task.tell((int(rows[-1]) + 1) / len(task))

    def _pixels(self, task: Task, corners: Corners) -> Tensor:
        """The pixels of each sample that are tried, ascending: all, or as many by chance as may be paid for."""
        tried = corners.pixels
        if self.forwards is not None:
            tried = min(tried, int(FIRST_SHARE * self.forwards) // corners.count)
        if tried == corners.pixels:
            return torch.arange(tried, device=task.samples.device).expand(len(task), -1)
        generators = _generators(task, 0)
        chosen = [np.sort(generator.permutation(corners.pixels)[:tried]) for generator in generators]
        return torch.from_numpy(np.stack(chosen)).to(task.samples.device)

    def _one_pixel(self, task: Task, corners: Corners, pixels: Tensor, best: Best) -> Tensor:
        """Try every change of one pixel, note what is adversarial in `best`, and return the leading changes.

        These are (samples, orderings, N), best first, the orderings in the order of the classes. Within a budget they
        are of N pixels, the best corner of each, and the ordering with the best change comes first.
        """
        tried, count = pixels.shape[1], corners.count
        width = min(tried, max(1, self.max_rows // count))
        per_entry = 1 if self.forwards is None else count
        leading = min(self.candidates, tried * count // per_entry)
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
                lists.merge(still, _helps(logits, task.select(rows[still])), mine, per_entry)
            if self.forwards is None:
                ranked.append(lists.changes)
            else:
                # With few draws for many classes, the first orderings alone are used.
                promise = lists.scores[:, :, 0].argsort(dim=1, descending=True, stable=True)
                ranked.append(lists.changes.gather(1, promise[:, :, None].expand(shape)))
        return torch.cat(ranked)

    def _in_turn(self, task: Task, corners: Corners, ranked: Tensor) -> Best:
        """The authors' schedule, for a task of one sample: its first success, if any."""
        (generator,) = _generators(task, 1)
        row = torch.zeros_like(task.samples)
        best = Best.none(task.inputs)
        for k in range(2, min(corners.pixels, self.max_sparsity or corners.pixels) + 1):
            for ordering in ranked:
                places = torch.from_numpy(drawn(generator, (self.iterations, k), len(ordering))).to(ranked.device)
                for changes in batches(corners.settled(ordering[places]), self.max_rows):
                    self._try(task, corners, row, changes[None], best, first=True)
                    if bool(best.size.isfinite()):
                        return best
        return best

    def _within(self, task: Task, corners: Corners, ranked: Tensor, draws: int) -> Best:
        """So many draws of several of the `ranked` changes together, as the module says of a budget."""
        best = Best.none(task.inputs)
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
            wanted = _wanted(best.size[rows], failed[rows], rungs[min(number, len(rungs) - 1)])
            before = best.size[rows]
            last = min(first + share, draws)
            # A long round in parts: they bound the memory, and change nothing.
            for part in batches(torch.arange(first, last), max(1, 16 * self.max_rows // len(rows))):
                # An exponential race: the first k to arrive are k drawn one after the other, without repetition.
                races = [generators[row].standard_exponential((len(part), leading)) / weight for row in rows.tolist()]
                places = torch.from_numpy(np.stack(races)).argsort(2)[:, :, : int(wanted.max())].to(ranked.device)
                # A change that is made twice is made once: so rows of fewer changes are filled up.
                surplus = torch.arange(places.shape[2], device=places.device) >= wanted[:, None, None]
                places = torch.where(surplus, places[:, :, :1], places)
                ordering = part.to(ranked.device) % orderings
                self._try(task, corners, rows, ranked[rows[:, None, None], ordering[None, :, None], places], best)
            missed = best.size[rows] == before
            failed[rows[missed]] = torch.maximum(failed[rows], wanted)[missed]
        return best

    def _try(
        self, task: Task, corners: Corners, rows: Tensor, changes: Tensor, best: Best, *, first: bool = False
    ) -> Tensor:
        """Apply changes[i, j], all of them together, to row rows[i]; note an adversarial point of each row, if any.

        Args:
            task: The samples.
            corners: Of these.
            rows: Places in the task.
            changes: (rows, tries, changes).
            best: Where the points are noted.
            first: Note the first adversarial point of a row, and not the smallest.

        Returns:
            The logits (rows, tries, classes).
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
            place = size[hit].isfinite().int().argmax(1) if first else size[hit].argmin(1)
            chosen = hit * tries + place
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

    def settled(self, changes: Tensor) -> Tensor:
        """The same changes with one corner per pixel and row, that of its last change; repeated where it was repeated.

        So it does not matter in which order the changes of a row are made.
        """
        pixel, order = (changes // self.count).sort(dim=1, stable=True)
        last = torch.ones_like(pixel, dtype=torch.bool)
        last[:, :-1] = pixel[:, 1:] != pixel[:, :-1]
        places = torch.arange(changes.shape[1], device=changes.device)
        # For each place, the nearest last one from there on.
        end = torch.where(last, places, changes.shape[1]).flip(1).cummin(1).values.flip(1)
        return changes.gather(1, order).gather(1, end)

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
        """Merge changes into the lists of these rows, of every `count` neighbors the best one.

        Ties go to the earlier change, so results do not depend on the batch. `helps` is (rows, entries * count,
        orderings), `changes` (rows, entries * count).
        """
        top, corner = helps.reshape(len(helps), -1, count, helps.shape[2]).max(2)
        mine = (changes[:, ::count, None] + corner).transpose(1, 2)
        scores = torch.cat([self.scores[rows], top.transpose(1, 2)], 2)
        order = scores.argsort(dim=2, descending=True, stable=True)[:, :, : self.scores.shape[2]]
        self.scores[rows] = scores.gather(2, order)
        self.changes[rows] = torch.cat([self.changes[rows], mine], 2).gather(2, order)


def drawn(generator: np.random.Generator, shape: tuple[int, ...], count: int) -> npt.NDArray[np.int64]:
    """Places among `count`, each drawn with probability (2 count - 2 place - 1) / count^2."""
    steps = np.arange(1, count + 1) ** 2
    # The number of squares up to u is the whole part of its root.
    return count - 1 - np.searchsorted(steps, generator.integers(count**2, size=shape), side="right")


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
