"""Slopes of entries that have no gradient, by differences of the logits.

A model may depend on entries whose gradient it does not pass on, for example because a part of the image is detached.
Descents then follow the gradient of the other entries and end far out. For such samples, `auto` measures the slopes of
the blind entries with forward passes, around the input and later around the best point, corrects them by the change of
the loss in each step, and completes every gradient with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pdpgd.attacks.base import random_rows
from pdpgd.attacks.frame import Rows, look
from pdpgd.classifier import Answer
from pdpgd.criteria import Criterion, Surrogate
from pdpgd.norms import size_linf
from pdpgd.tensors import flat, per_row

if TYPE_CHECKING:
    from pdpgd.attacks.descent import Search


@dataclass(frozen=True)
class Blindness:
    """Which entries of some samples have no gradient, though the model depends on them."""

    entries: Tensor
    """The blind entries; none in a sample that has too few of them."""
    suspected: Tensor
    """Which samples spent passes on making sure."""
    steepness: Tensor
    """Largest absolute slope of each entry in the ranked leads."""

    def select(self, rows: Tensor) -> Blindness:
        """Return the given samples."""
        return Blindness(self.entries[rows], self.suspected[rows], self.steepness[rows])

    def groups(self) -> Iterator[tuple[Tensor, bool]]:
        """Divide the samples by what they spent and by whether they have blind entries, which is also returned."""
        blind = flat(self.entries).any(1)
        for rows, some in ((~self.suspected, False), (self.suspected & ~blind, False), (blind, True)):
            where = rows.nonzero().squeeze(1)
            if len(where):
                yield where, some


def find_blind_entries(search: Search, rows: Rows, point: Tensor, answer: Answer, steepness: Tensor) -> Blindness:
    """Find the entries whose gradient is 0 everywhere, and that change the logits nevertheless.

    Args:
        search: Whose passes are spent: none on samples with few entries without a gradient.
        rows: The samples.
        point: A random point per row.
        answer: Margin and gradient at it.
        steepness: Largest absolute slope of each entry in the ranked leads.
    """
    rule, width = search.config.blind, search.problem.box.width
    flat_entries = (answer.gradient == 0) & (steepness == 0)
    suspected = flat(flat_entries).sum(1) > rule.share * flat(point).shape[1]
    where = suspected.nonzero().squeeze(1)
    confirmed = torch.zeros_like(suspected)
    if len(where):
        some, entries = rows.select(where), flat_entries[where]
        count, gradient = flat(entries).sum(1), flat(answer.gradient[where])
        visible = gradient.square().sum(1) / (gradient.shape[1] - count).clamp(min=1)
        center = search.inside(point[where], search.config.hair)
        margin, _ = look(search.problem, some, center)
        slope = torch.zeros_like(margin)
        for turn in range(rule.probes):
            # Short moves: they do not wake up inactive units, behind which ordinary nets are flat.
            signs = random_rows(search.problem, some.samples, some.restarts, 1 + turn).sign() * entries
            moved, _ = look(search.problem, some, center + rule.probe * width * signs)
            slope = torch.maximum(slope, (moved - margin).square() / (count * (rule.probe * width) ** 2))
        confirmed[where] = slope > rule.least_slope**2 * visible
    return Blindness(flat_entries & per_row(confirmed, flat_entries), suspected, steepness)


class Overheard:
    """A surrogate that keeps the logits, and its own slope with respect to them."""

    def __init__(self, surrogate: Surrogate) -> None:
        self._surrogate = surrogate
        self.logits = self.weights = torch.empty(0)

    def __call__(self, margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
        """Return the surrogate."""
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            loss = self._surrogate(criterion.margin(leaf), leaf, criterion)
            (self.weights,) = torch.autograd.grad(loss.sum(), leaf)
        self.logits = leaf.detach()
        return self._surrogate(margin, logits, criterion)


class BlindSlopes:
    """Estimated slopes of blind entries: of the lead over each kept class, and over the mean of the others.

    Any loss of the logits is a sum of these leads, so its slope is one of theirs.
    """

    def __init__(self, search: Search, samples: Tensor, found: Blindness, classes: Tensor | None) -> None:
        self._search, self._blind, self._kept = search, found.entries, classes
        self._steepness = found.steepness
        self._row = torch.zeros(len(search.problem.inputs), dtype=torch.long, device=samples.device)
        self._row[samples] = torch.arange(len(samples), device=samples.device)
        self._measured = torch.zeros_like(samples, dtype=torch.bool)
        self._slopes: Tensor | None = None
        self._point = search.problem.inputs[samples].clone()
        self._visible = torch.zeros_like(self._point)
        self._leads = torch.empty(0)

    def measure(self, rows: Rows, queries: int) -> None:
        """Correct the slopes by differences around the best points: at most `queries` forward passes.

        Where there is no estimate yet, the differences are around the inputs.
        """
        blind = self._blind[self._row[rows.samples]]
        pixels, entries = flat(_parts(blind)).sum(1), flat(blind).sum(1)
        # Rows with fewer blind entries end earlier, whatever they are measured together with.
        for few, all_of_them in sorted(set(zip(pixels.tolist(), entries.tolist(), strict=True))):
            part = rows.select(((pixels == few) & (entries == all_of_them)).nonzero().squeeze(1))
            self._measure(part, min(queries - 1, all_of_them if few == all_of_them else few + all_of_them))

    def complete(self, rows: Rows, point: Tensor, answer: Answer, heard: Overheard) -> Answer:
        """Return the answer with the slopes of the blind entries in its gradient."""
        if self._slopes is None:
            return answer
        at, own = self._row[rows.samples], rows.criterion.classes[:, None]
        weights = -self._by_class(heard.weights.scatter(1, own, 0.0), at)
        visible = answer.gradient.masked_fill(self._blind[at], 0.0)
        self._follow(rows, point, visible, weights, self._leads_of(heard.logits, rows))
        guess = torch.einsum("bk,bkd->bd", weights, self._slopes[at])
        gradient = visible + guess.view_as(visible)
        return answer._replace(gradient=gradient, steepness=flat(gradient).abs().amax(1))

    def _measure(self, rows: Rows, queries: int) -> None:
        search, at, box = self._search, self._row[rows.samples], self._search.problem.box
        known = per_row(self._measured[at], rows.inputs)
        length = search.config.blind.step * size_linf(search.delta(rows))
        length = length.masked_fill(search.best.size[rows.samples].isinf(), torch.inf)
        length = length.clamp(search.config.blind.shortest * box.width, search.config.blind.longest * box.width)
        center = torch.where(known, search.best.point[rows.samples], rows.inputs)
        here = self._leads_at(rows, center)
        if self._slopes is None:
            self._slopes = here.new_zeros(len(self._blind), here.shape[1], flat(self._blind).shape[1])
            self._leads = here.new_zeros(len(self._blind), here.shape[1])
        blind, slopes = self._blind[at], self._slopes[at]
        value = torch.where(known, slopes.square().sum(1).view_as(center), self._saliency(at))
        pixels = int(_parts(blind)[:1].sum())
        middle, far = (box.low + box.high) / 2, per_row(length, center)
        for query in range(queries):
            if query == 0:
                order = _steepest_first(_parts(value * blind), _parts(blind))
            elif query == pixels:
                order = _steepest_first(slopes.square().sum(1).view_as(center), blind)
            place = order[:, query % pixels if query < pixels else query - pixels, None]
            shape = _parts(blind).shape if query < pixels else blind.shape
            chosen = torch.zeros_like(order, dtype=torch.bool).scatter_(1, place, True).view(shape) & blind
            # All channels of a pixel to the same side, the one with more room.
            up = ((center - middle) * chosen).sum(tuple(range(1, center.ndim)), keepdim=True) <= 0
            point = box.clip(center + chosen * torch.where(up, far, -far))
            move = flat(point - center)
            error = self._leads_at(rows, point) - here - torch.einsum("bkd,bd->bk", slopes, move)
            gain = move / move.square().sum(1, keepdim=True).clamp_(min=torch.finfo(move.dtype).tiny)
            slopes.addcmul_(error[:, :, None], gain[:, None])
        self._slopes[at] = slopes
        self._measured[at] = True

    def _follow(self, rows: Rows, point: Tensor, visible: Tensor, weights: Tensor, leads: Tensor) -> None:
        """Make the slopes explain the last step: Broyden's correction, along the move in the blind entries.

        What the visible entries contribute to the change of the loss is known from their gradients at both ends.
        """
        assert self._slopes is not None
        rule, at = self._search.config.blind, self._row[rows.samples]
        move = flat(point - self._point[at])
        hidden = move * flat(self._blind[at])
        change = (weights * (leads - self._leads[at])).sum(1) - (flat(visible + self._visible[at]) / 2 * move).sum(1)
        error = change - (weights * torch.einsum("bkd,bd->bk", self._slopes[at], hidden)).sum(1)
        length, size = hidden.square().sum(1), flat(point - rows.inputs).square().sum(1)
        # Not after a leap, such as to another start, nor after a step so short that rounding decides.
        low, high = rule.secant_range
        sound = (length > low**2 * size) & (length < high**2 * size) & flat(self._visible[at] != 0).any(1)
        tiny = torch.finfo(length.dtype).tiny
        share = weights / weights.square().sum(1, keepdim=True).clamp_(min=tiny)
        scaled = torch.where(sound, error / length.clamp(min=tiny), 0.0)
        self._slopes[at] += (share * scaled[:, None])[:, :, None] * hidden[:, None]
        self._point[at], self._visible[at], self._leads[at] = point, visible, leads

    def _saliency(self, at: Tensor) -> Tensor:
        """Guess how steep blind entries are: as the visible ones around them."""
        steep, seen = self._steepness[at], (~self._blind[at]).to(self._steepness.dtype)
        if steep.ndim != 4:
            return torch.ones_like(steep)
        steep, seen = (F.avg_pool2d(v.sum(1, keepdim=True), 5, 1, 2) for v in (steep, seen))
        return (steep / seen.clamp(min=torch.finfo(seen.dtype).eps)).expand_as(self._blind[at])

    def _leads_at(self, rows: Rows, point: Tensor) -> Tensor:
        logits = self._search.ask(rows, point)
        if self._kept is None:
            rivals = logits.scatter(1, rows.criterion.classes[:, None], -torch.inf)
            kept = rivals.topk(min(self._search.config.ranked_classes, logits.shape[1] - 1), 1).indices
            self._kept = kept.new_zeros(len(self._blind), kept.shape[1])
            self._kept[self._row[rows.samples]] = kept
        return self._leads_of(logits, rows)

    def _leads_of(self, logits: Tensor, rows: Rows) -> Tensor:
        own = rows.criterion.classes[:, None]
        others = self._by_class(logits.scatter(1, own, 0.0), self._row[rows.samples])
        others[:, -1] /= max(1, logits.shape[1] - others.shape[1])
        return logits.gather(1, own) - others

    def _by_class(self, values: Tensor, at: Tensor) -> Tensor:
        """Return the values of the kept classes, and the sum of the others."""
        assert self._kept is not None
        kept = values.gather(1, self._kept[at])
        return torch.cat([kept, values.sum(1, keepdim=True) - kept.sum(1, keepdim=True)], 1)


def _parts(entries: Tensor) -> Tensor:
    """Return what is moved together: the pixels of an image, over all channels, or the entries of a flat input."""
    if entries.ndim < 3:
        return entries
    return entries.any(1, keepdim=True) if entries.dtype == torch.bool else entries.sum(1, keepdim=True)


def _steepest_first(steepness: Tensor, among: Tensor) -> Tensor:
    """Return the order of the positions `among`, the others last."""
    return flat(steepness).masked_fill(~flat(among), -1.0).argsort(dim=1, descending=True, stable=True)
