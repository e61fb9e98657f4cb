"""The referee: it trusts no attack and verifies every point in fresh forward passes, as floats and at 8 bits.

A point counts if it is finite, inside the box, not the input itself, and beyond the decision boundary in a pass of its
batch and in a pass of its own. Where the margin is so small that rounding may decide it, the point counts and is marked
as fragile.

At 8 bits, a point is rounded to gray levels, repaired where rounding made it lose its effect, and judged again.
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

ROUNDINGS = 8
"""A margin below this many rounding errors of the largest logit may have either sign. Between a batch and a pass of a
single sample, the logits of the shipped nets differ by about one."""
SPARED = 1000
"""A margin this many times as large has the same sign in any order of the sums."""
GRAY_LEVELS = 255
NEAR = (1.0, 1.02, 1.05, 1.1, 1.2)
"""Factors of the perturbation for a repair at 8 bits; all are tried, and the smallest adversarial result is used."""
FAR = (1.5, 2.0, 4.0, 16.0, 256.0)
"""Larger factors, which are tried one after the other until one of them repairs the point."""

VERIFIED = "verified"
STILL_RIGHT = "still right"
OUTSIDE = "outside the box"
NOT_FINITE = "not finite"
UNPERTURBED = "not perturbed"
UNSTEADY = "answers differ"
NONE = "none"


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on a batch of points; each field has one row per point."""

    word: np.ndarray[tuple[int], np.dtype[np.str_]]
    """"verified", the reason why the point does not count, or "none" if it was not judged."""
    valid: Tensor
    """Whether the point counts as adversarial."""
    fragile: Tensor
    """Whether rounding may decide on which side of the boundary it is."""
    prediction: Tensor
    """Predicted class; -1 where there was no pass."""
    margin: Tensor
    """The larger margin of the two passes, inf where there was none; below zero, both are adversarial."""
    confidence: Tensor
    """Softmax probability of the predicted class, nan where there was no pass."""


class Referee:
    """Judges points against their inputs, with the user's own model instead of the one that the attack was given."""

    draws = 1
    """Number of draws of a randomized model that a gradient is the mean over."""

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
        """Judge the points that an attack claims to be adversarial.

        A point that equals its input is rejected whatever the model answers: a randomized model may misclassify the
        input itself.

        Args:
            points: One point per input.
            claimed: Which of them to judge; the verdict on the others is "none".
            sparing: Pass a point alone only where its margin is so small that this could matter. Meant for quantized
                copies of points that were judged with both passes, and ignored once the model has contradicted itself.

        Returns:
            One verdict per point.
        """
        points = points.detach().to(self.inputs)
        claimed = claimed.to(self.inputs.device, torch.bool)
        return self._judged(points, claimed, self._perturbed(points), sparing=sparing)

    def _judged(
        self, points: Tensor, claimed: Tensor, eligible: Tensor, *, sparing: bool = False, logits: Tensor | None = None
    ) -> Verdicts:
        """Judge the points; `logits` are those of their batches, if they are known."""
        candidates = self._candidates(points, claimed, eligible)
        together, rounding, prediction, confidence = self._margins(
            points, candidates.nonzero().flatten(), logits=logits
        )
        crossed = candidates & (together < rounding)
        spared = crossed & (together < -SPARED * rounding) if sparing and self._steady else torch.zeros_like(crossed)
        repeated = (crossed & ~spared).nonzero().flatten()
        lone, _, lone_prediction, lone_confidence = self._margins(points, repeated, batch_size=1)
        lone = torch.where(spared, together, lone)

        # One of the passes must be adversarial; the other may differ by no more than rounding explains.
        larger, smaller = torch.maximum(together, lone), torch.minimum(together, lone)
        prediction = torch.where(lone < together, lone_prediction, prediction)
        confidence = torch.where(lone < together, lone_confidence, confidence)
        adversarial = candidates & (smaller < 0)
        valid = adversarial & (larger < rounding)
        fragile = valid & (larger > -(rounding + (lone - together).abs()))
        word = self._worded(points, claimed, eligible, adversarial, valid)
        self._steady &= UNSTEADY not in word
        return Verdicts(word, valid, fragile, prediction, torch.where(crossed, larger, together), confidence)

    def _finite_and_inside(self, points: Tensor) -> tuple[Tensor, Tensor]:
        finite = points.flatten(1).isfinite().all(1)
        return finite, ((points >= self.box.low) & (points <= self.box.high)).flatten(1).all(1)

    def _candidates(self, points: Tensor, claimed: Tensor, eligible: Tensor) -> Tensor:
        """Return which points the model is asked about."""
        finite, inside = self._finite_and_inside(points)
        return claimed & finite & inside & eligible

    def _worded(
        self, points: Tensor, claimed: Tensor, eligible: Tensor, adversarial: Tensor, valid: Tensor
    ) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
        """Return the verdict on each point in a word; an adversarial point that is not valid was contradicted."""
        finite, inside = self._finite_and_inside(points)
        word = np.full(len(points), NONE, dtype="U24")
        for where, said in (
            (claimed & ~finite, NOT_FINITE),
            (claimed & finite & ~inside, OUTSIDE),
            (claimed & finite & inside & ~eligible, UNPERTURBED),
            (claimed & finite & inside & eligible & ~adversarial, STILL_RIGHT),
            (adversarial & ~valid, UNSTEADY),
            (valid, VERIFIED),
        ):
            word[where.cpu().numpy()] = said
        return word

    def judge_inputs(self) -> Verdicts:
        """Judge the clean inputs: a valid one is misclassified before any attack."""
        every = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
        self._answers = self.logits(self.inputs, every.nonzero().flatten())
        return self._judged(self.inputs, every, every, logits=self._answers)

    def drift(self) -> float:
        """Return how far the logits of the inputs have moved since they were judged, in units of rounding errors."""
        assert self._answers is not None
        now = self.logits(self.inputs, torch.arange(len(self.inputs), device=self.inputs.device))
        return drift(self._answers, now)

    def logits(self, points: Tensor, rows: Tensor, *, batch_size: int | None = None) -> Tensor:
        """Return the logits of these rows of the points, computed in batches."""
        with torch.no_grad():
            parts = [self._classifier.logits(points[part], part) for part in self.parts(rows, batch_size)]
        self.forwards += len(rows)
        return torch.cat(parts)

    def adversarial(self, points: Tensor, rows: Tensor) -> Tensor:
        """Tell which of these rows are adversarial in a single pass, for a search whose result is judged later."""
        if len(rows) == 0:
            return rows.new_zeros(0, dtype=torch.bool)
        fooled = self._criterion.select(rows).margin(self.logits(points, rows)) < 0
        return fooled & self._perturbed(points)[rows]

    def steadied(self, points: Tensor, claimed: Tensor) -> Tensor:
        """Return the points as they are: the model answers the referee as it answered the attack."""
        return points

    def sizes(self, points: Tensor, norm: str) -> Tensor:
        """Measure the perturbations in double precision, in which the difference of two float32 numbers is exact."""
        return norm_of(norm).size(points.double() - self.inputs.double())

    def _perturbed(self, points: Tensor) -> Tensor:
        return (points != self.inputs).flatten(1).any(1)

    def _margins(
        self, points: Tensor, rows: Tensor, *, batch_size: int | None = None, logits: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return margin, rounding error, class and confidence of these rows; the margin of the others is inf."""
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
        """Split rows into batches."""
        size = batch_size or self.batch_size
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


def drift(before: Tensor, now: Tensor) -> float:
    """Return the largest difference between two evaluations of the logits, in units of `ROUNDINGS` rounding errors."""
    rounding = ROUNDINGS * torch.finfo(before.dtype).eps * before.abs().amax().clamp(min=1e-30)
    return float((now - before).abs().amax() / rounding)


def as_pixels(points: Tensor) -> Tensor:
    """Round points to the nearest gray levels, as uint8."""
    return (points * GRAY_LEVELS).round().clamp(0, GRAY_LEVELS).to(torch.uint8)


def from_pixels(pixels: Tensor) -> Tensor:
    """Convert pixels to floats in [0, 1], as a reader of an image file does."""
    return pixels.to(torch.float32).div(GRAY_LEVELS)


def quantized(referee: Referee, points: Tensor, found: Tensor, norm: str) -> tuple[Tensor, Verdicts]:
    """Quantize adversarial examples to 8 bits, repair those that are no longer adversarial, and judge them.

    Args:
        referee: Knows the inputs. Distances at 8 bits are from the quantized input, as an image file would hold it.
        points: One point per input.
        found: Which of them are adversarial examples.
        norm: Norm in which the result should be small.

    Returns:
        Pixels of uint8, those of the input where there is no adversarial example, and the verdicts on them.
    """
    base = as_pixels(referee.inputs)
    best = base.clone()
    size = torch.full((len(points),), torch.inf, dtype=torch.float64, device=points.device)
    step = (points - referee.inputs) * GRAY_LEVELS

    def offer(factor: float, outward: bool, rows: Tensor) -> None:
        """Use this rounding for the rows where it is adversarial and smaller than the best one so far."""
        pixels = _rounded(base, step * factor, outward)
        candidate = from_pixels(pixels)
        mine = pixel_sizes(pixels, base, norm)
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
    return best, referee.judge(from_pixels(best), size.isfinite(), sparing=True)


def pixel_sizes(pixels: Tensor, base: Tensor, norm: str) -> Tensor:
    """Measure perturbations in the units of the inputs; a change by k gray levels is k / 255 to the last bit."""
    steps = pixels.to(torch.float64) - base.to(torch.float64)
    return norm_of(norm).size(steps / GRAY_LEVELS)


def _rounded(base: Tensor, step: Tensor, outward: bool) -> Tensor:
    steps = step.sign() * step.abs().ceil() if outward else step.round()
    return (base.to(step) + steps).clamp(0, GRAY_LEVELS).to(torch.uint8)
