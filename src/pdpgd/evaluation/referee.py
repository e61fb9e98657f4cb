"""A referee that trusts no attack: it derives label, box and sizes of every point again, in fresh forward passes.

A point counts if it is finite, inside the box, not the input itself, and beyond the decision boundary in a pass of its
batch and in a pass of its own. Where the margin is so small that rounding may decide it, the point is fragile: it
stays, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pdpgd.classifier import Classifier, Model
from pdpgd.criteria import Box, Criterion
from pdpgd.norms import norm_of

# A margin below this many roundings of the largest logit may have either sign. Between a batch and a lone pass, the
# shipped nets' logits differ by about one.
ROUNDINGS = 8

# A margin this many times as large is beyond what any order of the sums can change.
SPARED = 1000

VERIFIED = "verified"
STILL_RIGHT = "still right"
OUTSIDE = "outside the box"
NOT_FINITE = "not finite"
UNPERTURBED = "not perturbed"
UNSTEADY = "answers differ"
NONE = "none"


@dataclass(frozen=True)
class Verdicts:
    """What the referee says of a batch of points; each field has the batch as its first dimension."""

    word: np.ndarray[tuple[int], np.dtype[np.str_]]
    """Verified, or why it does not count."""
    valid: Tensor
    fragile: Tensor
    prediction: Tensor
    margin: Tensor
    """The larger of the two passes, inf where there was none: below zero, both are."""
    confidence: Tensor
    """The softmax's share of the prediction, nan where there was no pass."""


class Referee:
    """Judges points against their inputs. Its model is the user's own, not what the attack was given."""

    def __init__(self, model: Model, inputs: Tensor, labels: Tensor, *, batch_size: int) -> None:
        self.inputs, self.labels, self.batch_size = inputs, labels, batch_size
        self.box = Box(inputs.new_tensor(0.0), inputs.new_tensor(1.0))
        self._steady = True
        self.forwards = 0
        self.backwards = 0
        self._classifier = Classifier(model)
        self._criterion = Criterion(labels)
        self._answers: Tensor | None = None

    def judge(self, points: Tensor, claimed: Tensor, *, sparing: bool = False) -> Verdicts:
        """Judge the points that are `claimed` to be adversarial; the others are "none".

        A point that equals its input is refused, whatever the model answers: a model that answers by chance may call
        the input itself adversarial.

        `sparing` makes the lone pass only where the margin is so small that it could matter: for the grid's copies of
        points that were judged with it, of a model that has not shown two answers yet.
        """
        points = points.detach().to(self.inputs)
        claimed = claimed.to(self.inputs.device, torch.bool)
        return self._judged(points, claimed, self._perturbed(points), sparing=sparing)

    def _judged(
        self, points: Tensor, claimed: Tensor, eligible: Tensor, *, sparing: bool = False, logits: Tensor | None = None
    ) -> Verdicts:
        """`logits` are those of the points' batches, if they are known."""
        finite = points.flatten(1).isfinite().all(1)
        inside = ((points >= self.box.low) & (points <= self.box.high)).flatten(1).all(1)
        candidates = claimed & finite & inside & eligible
        together, rounding, prediction, confidence = self._margins(
            points, candidates.nonzero().flatten(), logits=logits
        )
        crossed = candidates & (together < rounding)
        spared = crossed & (together < -SPARED * rounding) if sparing and self._steady else torch.zeros_like(crossed)
        doubtful = (crossed & ~spared).nonzero().flatten()
        lone, _, lone_prediction, lone_confidence = self._margins(points, doubtful, batch_size=1)
        lone = torch.where(spared, together, lone)

        # One pass must say adversarial; the other may disagree by no more than rounding explains.
        larger, smaller = torch.maximum(together, lone), torch.minimum(together, lone)
        prediction = torch.where(lone < together, lone_prediction, prediction)
        confidence = torch.where(lone < together, lone_confidence, confidence)
        adversarial = candidates & (smaller < 0)
        valid = adversarial & (larger < rounding)
        fragile = valid & (larger > -(rounding + (lone - together).abs()))
        word = np.full(len(points), NONE, dtype="U24")
        for where, said in (
            (claimed & ~finite, NOT_FINITE),
            (claimed & finite & ~inside, OUTSIDE),
            (claimed & finite & inside & ~eligible, UNPERTURBED),
            (candidates & ~adversarial, STILL_RIGHT),
            (adversarial & ~valid, UNSTEADY),
            (valid, VERIFIED),
        ):
            word[where.cpu().numpy()] = said
        self._steady &= UNSTEADY not in word
        return Verdicts(word, valid, fragile, prediction, torch.where(crossed, larger, together), confidence)

    def judge_inputs(self) -> Verdicts:
        """The inputs as they came: which are wrong already?"""
        every = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
        self._answers = self.logits(self.inputs, every.nonzero().flatten())
        return self._judged(self.inputs, every, every, logits=self._answers)

    def drift(self) -> float:
        """By how many times what rounding explains the logits of the inputs differ from when they were judged."""
        assert self._answers is not None
        now = self.logits(self.inputs, torch.arange(len(self.inputs), device=self.inputs.device))
        return drift(self._answers, now)

    def logits(self, points: Tensor, rows: Tensor, *, batch_size: int | None = None) -> Tensor:
        """Of these rows of the points, in batches."""
        with torch.no_grad():
            parts = [self._classifier.logits(points[part], part) for part in self.parts(rows, batch_size)]
        self.forwards += len(rows)
        return torch.cat(parts)

    def adversarial(self, points: Tensor, rows: Tensor) -> Tensor:
        """Whether these rows are adversarial by one pass: for a search, whose result is to be judged."""
        if len(rows) == 0:
            return rows.new_zeros(0, dtype=torch.bool)
        fooled = self._criterion.select(rows).margin(self.logits(points, rows)) < 0
        return fooled & self._perturbed(points)[rows]

    def sizes(self, points: Tensor, norm: str) -> Tensor:
        """In double precision: the difference of two float32 numbers is exact there."""
        return norm_of(norm).size(points.double() - self.inputs.double())

    def _perturbed(self, points: Tensor) -> Tensor:
        return (points != self.inputs).flatten(1).any(1)

    def _margins(
        self, points: Tensor, rows: Tensor, *, batch_size: int | None = None, logits: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Margin, rounding error, class and confidence of these rows; the margin of the others is inf."""
        margin = self.inputs.new_full((len(points),), torch.inf)
        rounding = torch.zeros_like(margin)
        prediction = torch.full_like(self.labels, -1)
        confidence = torch.full_like(margin, torch.nan)
        if len(rows):
            logits = self.logits(points, rows, batch_size=batch_size) if logits is None else logits[rows]
            margin[rows] = self._criterion.select(rows).margin(logits)
            rounding[rows] = logits.abs().amax(1) * (ROUNDINGS * torch.finfo(logits.dtype).eps)
            prediction[rows] = logits.argmax(1)
            confidence[rows] = logits.softmax(1).amax(1).to(confidence)
        return margin, rounding, prediction, confidence

    def parts(self, rows: Tensor, batch_size: int | None = None) -> Iterator[Tensor]:
        size = batch_size or self.batch_size
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


def drift(before: Tensor, now: Tensor) -> float:
    """The largest difference of the logits, in units of what rounding explains."""
    rounding = ROUNDINGS * torch.finfo(before.dtype).eps * before.abs().amax().clamp(min=1e-30)
    return float((now - before).abs().amax() / rounding)


GREYS = 255
# How much further a repair may go: the small factors compete, the large ones are tried in turn where none did.
NEAR = (1.0, 1.02, 1.05, 1.1, 1.2)
FAR = (1.5, 2.0, 4.0, 16.0, 256.0)


def grey(points: Tensor) -> Tensor:
    """The nearest point of the grid, as uint8."""
    return (points * GREYS).round().clamp(0, GREYS).to(torch.uint8)


def from_grey(pixels: Tensor) -> Tensor:
    """What a reader of the file gets."""
    return pixels.to(torch.float32).div(GREYS)


def on_grid(referee: Referee, points: Tensor, found: Tensor, norm: str) -> tuple[Tensor, Verdicts]:
    """The points `found` as uint8, repaired where rounding broke them, and the referee's verdict on them.

    Distances on the grid are from the rounded input, as the file of the input would hold it: `referee` judges these.
    """
    base = grey(referee.inputs)
    best = base.clone()
    size = torch.full((len(points),), torch.inf, dtype=torch.float64, device=points.device)
    step = (points - referee.inputs) * GREYS

    def offer(factor: float, outward: bool, rows: Tensor) -> None:
        """Take this rounding of these rows where it is adversarial and smaller than what there is."""
        pixels = _rounded(base, step * factor, outward)
        candidate = from_grey(pixels)
        mine = grid_sizes(pixels, base, norm)
        better = rows[mine[rows] < size[rows]]
        better = better[referee.adversarial(candidate, better)]
        best[better], size[better] = pixels[better], mine[better]

    rows = found.nonzero().flatten()
    offer(1.0, False, rows)
    broken = rows[size[rows].isinf()]
    for factor in NEAR:
        offer(factor, False, broken)
        offer(factor, True, broken)
    for factor in FAR:
        broken = broken[size[broken].isinf()]
        offer(factor, False, broken)
    return best, referee.judge(from_grey(best), size.isfinite(), sparing=True)


def grid_sizes(pixels: Tensor, base: Tensor, norm: str) -> Tensor:
    """In the units of the inputs; a change of k grey steps is k / 255 to the last bit."""
    steps = pixels.to(torch.float64) - base.to(torch.float64)
    return norm_of(norm).size(steps / GREYS)


def _rounded(base: Tensor, step: Tensor, outward: bool) -> Tensor:
    steps = step.sign() * step.abs().ceil() if outward else step.round()
    return (base.to(step) + steps).clamp(0, GREYS).to(torch.uint8)
