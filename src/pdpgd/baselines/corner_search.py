"""CornerSearch (Croce & Hein 2019, "Sparse and Imperceivable Adversarial Attacks"), for l0. It needs no gradients.

Move a single pixel to a corner of its color box, for all pixels and corners in turn; if the class changes, that is the
result. Otherwise rank these changes, for each class r other than the label y, by z_r - z_y, and once, in the place of
y, by max_r z_r - z_y; keep the first N of each ranking, and apply several of them together.

The authors' schedule (`forwards` is None), as in the code of CornerSearch that the authors of PDPGD ran:

    for k = 2, 3, ..., k_max, and for each ranking: `iterations` points with k changes each,
    drawn with replacement, the i-th of the ranking with probability (2N - 2i + 1) / N^2;

the first adversarial point in this order is the result. A pixel may have several corners among the N; if it is drawn
with more than one, the last counts.

That schedule would use up a budget (`forwards`) on the first few k. Within a budget, the N changes are therefore of N
different pixels, each with its best corner, and the k changes of a point are drawn without replacement. The draws are
divided into equal rounds, spread evenly over the rankings. Up to half of the rounds climb the ladder k = 2, 3, 4, 6, 8,
12, ... to the first k that succeeds; the rest bisect between that and the last k that failed, and then try one pixel
less than the best.

Mean pixels over images 300-315 of mnist-1000 (all correctly classified), seeds 0 and 1, the authors' schedule with
`iterations` 10, 100 and 1000 / ours with as many passes as that took on average:

    mnist-plain    2548 passes: 11.0 / 10.2   10,116: 9.8 / 9.0   74,014: 8.8 / 8.2
    mnist-linf-at  2265 passes:  8.3 /  7.4     6850: 6.8 / 6.4   46,154: 6.2 / 5.9

At most `max_rows` points are built at once, and for the single-pixel changes only the N leading changes of each ranking
are stored.
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
from pdpgd.attacks.frame import Task, batches
from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.criteria import Criterion, lead_over
from pdpgd.errors import InvalidInputError, expect_setting

# Maximum share of a budget for single-pixel changes. Mean pixels at 1000, 1500 and 2000 passes on images 300-331 of
# mnist-1000, seeds 0 and 1, with one half / with this: mnist-plain 15.8, 12.6, 11.2 / 13.8, 11.4, 10.4; mnist-linf-at
# 13.4, 9.6, 8.0 / 11.0, 8.4, 7.2. (1568 passes try all of them, so from a budget of 2091 on there is no difference.)
FIRST_SHARE = 0.75
# A color of c channels has 2^c corners.
MAX_CHANNELS = 8


@dataclass(frozen=True, kw_only=True)
class CornerSearch(Preparable):
    """CornerSearch with its settings."""

    iterations: int = 1000
    """Draws per number of pixels and ranking; ignored if `forwards` is given. The authors: 1000."""
    candidates: int = 100
    """N, the number of leading changes of each ranking to draw from. The authors: 100."""
    max_sparsity: int | None = None
    """Maximum number of pixels that change; None: all. The authors: 784 on MNIST, 1024 on CIFAR-10, which is all."""
    max_rows: int = 512
    """Maximum number of points per call of the model, which bounds the memory."""
    forwards: int | None = None
    """Maximum number of forward passes per sample, besides the one that judges the input; None: the authors' schedule.

    At most three quarters of them are spent on single-pixel changes; if these do not suffice for all pixels, a random
    subset of the pixels is tried.
    """

    def __post_init__(self) -> None:
        for name in ("iterations", "candidates", "max_rows"):
            expect_setting(self, name, "at least 1", getattr(self, name) >= 1)
        for name in ("max_sparsity", "forwards"):
            value = getattr(self, name)
            expect_setting(self, name, "at least 1, or None", value is None or value >= 1)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on forward passes."""
        return {"forwards": budget.passes}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings.

        The released scripts give the sparsity only; the rest are defaults of the released code. The paper did not run
        it on Restricted ImageNet, for lack of memory; ours streams, and is run as on CIFAR-10.
        """
        return {"iterations": 1000, "candidates": 100, "max_sparsity": 784 if setup.dataset == "mnist" else 1024}

    def __call__(self, task: Task) -> Best:
        """Attack the samples of a task."""
        corners = Corners(task.problem)
        best = Best.none(task.inputs)
        # Few enough samples for the rankings of a thousand classes to fit, enough for a round of draws to fill a call.
        for rows in batches(torch.arange(len(task), device=task.samples.device), max(1, self.max_rows // 16)):
            self._attack(task, rows, corners, best)
        return best

    def _attack(self, task: Task, rows: Tensor, corners: Corners, best: Best) -> None:
        """Attack these rows of the task, and record the results in `best`."""
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
                    task.report_progress(int(rows[row]) / len(task))
        task.report_progress((int(rows[-1]) + 1) / len(task))

    def _pixels(self, task: Task, corners: Corners) -> Tensor:
        """Return the pixels to try per sample, in ascending order: all, or a random subset that the budget pays for."""
        tried = corners.pixels
        if self.forwards is not None:
            tried = min(tried, int(FIRST_SHARE * self.forwards) // corners.count)
        if tried == corners.pixels:
            return torch.arange(tried, device=task.samples.device).expand(len(task), -1)
        generators = _generators(task, 0)
        chosen = [np.sort(generator.permutation(corners.pixels)[:tried]) for generator in generators]
        return torch.from_numpy(np.stack(chosen)).to(task.samples.device)

    def _one_pixel(self, task: Task, corners: Corners, pixels: Tensor, best: Best) -> Tensor:
        """Try every single-pixel change, record adversarial points in `best`, and return the leading changes.

        They have shape (samples, rankings, N), best first, with the rankings in the order of the classes. Within a
        budget they are the best corners of N pixels, and the ranking with the best change comes first.
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
                # With few draws for many classes, only the first rankings are used.
                promise = lists.scores[:, :, 0].argsort(dim=1, descending=True, stable=True)
                ranked.append(lists.changes.gather(1, promise[:, :, None].expand(shape)))
        return torch.cat(ranked)

    def _in_turn(self, task: Task, corners: Corners, ranked: Tensor) -> Best:
        """Run the authors' schedule for a task of one sample, and return its first success, if any."""
        (generator,) = _generators(task, 1)
        row = torch.zeros_like(task.samples)
        best = Best.none(task.inputs)
        for k in range(2, min(corners.pixels, self.max_sparsity or corners.pixels) + 1):
            for ranking in ranked:
                places = torch.from_numpy(drawn(generator, (self.iterations, k), len(ranking))).to(ranked.device)
                for changes in batches(corners.settled(ranking[places]), self.max_rows):
                    self._try(task, corners, row, changes[None], best, first=True)
                    if bool(best.size.isfinite()):
                        return best
        return best

    def _within(self, task: Task, corners: Corners, ranked: Tensor, draws: int) -> Best:
        """Apply several of the `ranked` changes together, as the module describes for a budget of `draws` points."""
        best = Best.none(task.inputs)
        rankings, leading = ranked.shape[1:]
        rungs = ladder(min(leading, self.max_sparsity or leading), most=draws // 2)
        if draws < 1 or len(rungs) == 0:
            return best
        share = max(1, draws // (2 * len(rungs)))
        weight = 2.0 * leading - 2.0 * np.arange(1, leading + 1) + 1.0
        generators = _generators(task, 1)
        failed = torch.ones_like(task.samples)
        for number, first in enumerate(range(0, draws, share)):
            # Two pixels cannot be improved: all single-pixel changes were tried.
            rows = (best.size > 2).nonzero().flatten()
            if len(rows) == 0:
                break
            wanted = _wanted(best.size[rows], failed[rows], rungs[min(number, len(rungs) - 1)])
            before = best.size[rows]
            last = min(first + share, draws)
            # A long round is processed in parts to bound the memory; the result is the same.
            for part in batches(torch.arange(first, last), max(1, 16 * self.max_rows // len(rows))):
                # An exponential race: the first k arrivals are a weighted draw of k without replacement.
                races = [generators[row].standard_exponential((len(part), leading)) / weight for row in rows.tolist()]
                places = torch.from_numpy(np.stack(races)).argsort(2)[:, :, : int(wanted.max())].to(ranked.device)
                # Applying a change twice has no effect, so rows with fewer changes are padded with their first one.
                surplus = torch.arange(places.shape[2], device=places.device) >= wanted[:, None, None]
                places = torch.where(surplus, places[:, :, :1], places)
                ranking = part.to(ranked.device) % rankings
                self._try(task, corners, rows, ranked[rows[:, None, None], ranking[None, :, None], places], best)
            missed = best.size[rows] == before
            failed[rows[missed]] = torch.maximum(failed[rows], wanted)[missed]
        return best

    def _try(
        self, task: Task, corners: Corners, rows: Tensor, changes: Tensor, best: Best, *, first: bool = False
    ) -> Tensor:
        """Apply the changes[i, j] together to row rows[i], and record an adversarial point per row, if any.

        Args:
            task: The samples.
            corners: Their single-pixel changes.
            rows: Rows of the task.
            changes: Changes of shape (rows, tries, changes).
            best: Records the adversarial points.
            first: Record the first adversarial point of a row rather than the smallest.

        Returns:
            The logits, of shape (rows, tries, classes).
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
    """The single-pixel changes: change j moves pixel j // count to corner j % count of its color box."""

    def __init__(self, problem: Problem) -> None:
        inputs, box = problem.inputs, problem.box
        shape = inputs.shape[1:]
        self.channels = shape[0] if len(shape) > 1 else 1
        one = torch.zeros_like(inputs[:1]).reshape(self.channels, -1)
        one[:, 0] = 1
        if float(problem.norm.size(one.reshape(1, *shape))) > 1:
            self.channels = 1  # the norm counts elements, so each is a pixel of its own
        if self.channels > MAX_CHANNELS:
            raise InvalidInputError(f"CornerSearch: expected at most {MAX_CHANNELS} channels, got {self.channels}")
        self.inputs = inputs
        self.low, self.high = (bound.expand(shape).reshape(self.channels, -1) for bound in (box.low, box.high))
        self.pixels = self.low.shape[1]
        self.count = 2**self.channels
        numbers = torch.arange(self.count, device=inputs.device)[:, None]
        self._is_high = (numbers >> torch.arange(self.channels, device=inputs.device)) % 2 == 1

    def applied(self, samples: Tensor, changes: Tensor) -> Tensor:
        """Return the inputs of `samples` with all changes[i] applied to samples[i]."""
        pixel, values = self._moved(changes)
        inputs = self.inputs[samples]
        points = inputs.reshape(len(samples), self.channels, -1)
        points.scatter_(2, pixel, values)
        return points.reshape(inputs.shape)

    def size(self, samples: Tensor, changes: Tensor) -> Tensor:
        """Count the pixels that really change: a pixel may already be in its corner, or appear twice."""
        pixel, values = self._moved(changes)
        # Gather single entries, to avoid a copy of the inputs per row.
        channel = torch.arange(self.channels, device=pixel.device)[:, None]
        entries = self.inputs.reshape(len(self.inputs), self.channels, -1)[samples[:, None, None], channel, pixel]
        moved = torch.where((entries != values).any(1), pixel[:, 0], -1).sort(1).values
        fresh = torch.cat([torch.ones_like(moved[:, :1], dtype=torch.bool), moved[:, 1:] != moved[:, :-1]], 1)
        return (fresh & (moved >= 0)).sum(1).to(self.inputs.dtype)

    def settled(self, changes: Tensor) -> Tensor:
        """Replace every change of a pixel by the last change of that pixel in the row.

        The order in which the changes of a row are applied then does not matter.
        """
        pixel, order = (changes // self.count).sort(dim=1, stable=True)
        last = torch.ones_like(pixel, dtype=torch.bool)
        last[:, :-1] = pixel[:, 1:] != pixel[:, :-1]
        places = torch.arange(changes.shape[1], device=changes.device)
        # For each position, the next position that holds the last change of its pixel.
        end = torch.where(last, places, changes.shape[1]).flip(1).cummin(1).values.flip(1)
        return changes.gather(1, order).gather(1, end)

    def _moved(self, changes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pixel and the new value of each change, both of shape (rows, channels, changes)."""
        pixel = (changes // self.count)[:, None].expand(-1, self.channels, -1)
        is_high = self._is_high[changes % self.count].transpose(1, 2)
        channel = torch.arange(self.channels, device=pixel.device)[:, None]
        return pixel, torch.where(is_high, self.high[channel, pixel], self.low[channel, pixel])


class _Leading(NamedTuple):
    """The leading changes of each ranking so far, best first; both have shape (samples, rankings, N)."""

    scores: Tensor
    changes: Tensor

    def merge(self, rows: Tensor, helps: Tensor, changes: Tensor, count: int) -> None:
        """Merge the best of every `count` consecutive changes into the lists of these rows.

        Ties go to the earlier change, so results do not depend on the batch. `helps` has shape (rows, entries * count,
        rankings), `changes` (rows, entries * count).
        """
        top, corner = helps.reshape(len(helps), -1, count, helps.shape[2]).max(2)
        mine = (changes[:, ::count, None] + corner).transpose(1, 2)
        scores = torch.cat([self.scores[rows], top.transpose(1, 2)], 2)
        order = scores.argsort(dim=2, descending=True, stable=True)[:, :, : self.scores.shape[2]]
        self.scores[rows] = scores.gather(2, order)
        self.changes[rows] = torch.cat([self.changes[rows], mine], 2).gather(2, order)


def drawn(generator: np.random.Generator, shape: tuple[int, ...], count: int) -> npt.NDArray[np.int64]:
    """Draw positions below `count`, each with probability (2 count - 2 position - 1) / count^2."""
    steps = np.arange(1, count + 1) ** 2
    # The number of squares up to u is the integer part of its root.
    return count - 1 - np.searchsorted(steps, generator.integers(count**2, size=shape), side="right")


def ladder(top: int, *, most: int) -> list[int]:
    """Return 2, 3, 4, 6, 8, 12, ... and `top`, or an even selection of `most` (at least 1) of them if they are more."""
    rungs = sorted({k for i in range(1, 32) for k in (2**i, 3 * 2 ** (i - 1)) if k < top} | {top}) if top >= 2 else []
    most = max(1, most)
    return rungs if len(rungs) <= most else [rungs[(i + 1) * len(rungs) // most - 1] for i in range(most)]


def _wanted(size: Tensor, failed: Tensor, rung: int) -> Tensor:
    """Return how many changes to try next, given the best size so far and the largest number that failed."""
    found = size.isfinite()
    known = torch.where(found, size, 0).long()
    descent = torch.where(failed + 1 < known, (failed + known) // 2, known - 1)
    return torch.where(found, descent, rung)


def _helps(logits: Tensor, task: Task) -> Tensor:
    """Score each try in each ranking, with shape (rows, tries, rankings).

    Untargeted, the position of the label holds the lead of the best other class. Targeted, the scores are the lead of
    the target over the best other class and over the label.
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
    """Seed one generator per sample, so that results do not depend on the batch."""
    indices = task.problem.indices[task.samples.cpu()].tolist()
    return [np.random.default_rng((task.problem.seed, index, 0, stage)) for index in indices]
