"""A referee for randomized models: a point is judged by the majority of draws that the attack has not seen.

A minimum-norm attack keeps the smallest point that was ever adversarial. On a randomized model that is a lucky one, and
a single judgment has luck of its own. Here a point counts if more than half of the draws misclassify it. The inputs,
and so the clean accuracy, are judged in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.classifier import Model
from pdpgd.evaluation.referee import (
    ROUNDINGS,
    Referee,
    Verdicts,
    drift,
)
from pdpgd.random import seeded_globally

VOTES = 25
"""Least number of draws that vote. Of points that two fifths of all draws misclassify, 15 % pass such a vote."""
CLEAR = 0.7
"""Share of the draws that must misclassify a point in a search. On mnist-plain behind noise of deviation 0.2 (40
images, l2, 400 passes, 4 draws), the vote rejects 29 points as the attack found them, 13 searched with 0.6, and 1 with
0.7."""
FACTORS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)
"""Factors of the perturbation that are tried one after the other until the majority is clear."""


class VotingReferee(Referee):
    """Judges each point by a vote over draws of the model.

    Args:
        model: The user's model.
        inputs: Clean inputs.
        labels: Their labels.
        batch_size: Maximum number of rows per forward pass.
        draws: Number of draws that an attack averages over; searches for cheap points use as many.
        key: Integers that determine the random numbers of the draws. Each judgment has numbers of its own.
    """

    def __init__(
        self, model: Model, inputs: Tensor, labels: Tensor, *, batch_size: int, draws: int, key: tuple[int, ...]
    ) -> None:
        super().__init__(model, inputs, labels, batch_size=batch_size)
        self.draws = draws
        # An odd number of votes has no ties.
        self.votes = max(draws, VOTES) | 1
        self._key, self._judgments = key, 0

    def judge_inputs(self) -> Verdicts:
        """Judge the clean inputs by a vote: a valid one is misclassified before any attack."""
        every = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
        self._answers = self._first_draw()
        return self._judged(self.inputs, every, every)

    def drift(self) -> float:
        """Return how far the logits of the inputs have moved since they were judged, for the same random numbers."""
        assert self._answers is not None
        return drift(self._answers, self._first_draw())

    def adversarial(self, points: Tensor, rows: Tensor) -> Tensor:
        """Tell which of these rows are adversarial in a few draws, for a search whose result is judged later."""
        if len(rows) == 0:
            return rows.new_zeros(0, dtype=torch.bool)
        return self._clear(points, rows, self.draws) & self._perturbed(points)[rows]

    def steadied(self, points: Tensor, claimed: Tensor) -> Tensor:
        """Move points that an attack claims outward, along their perturbation, until most draws misclassify them.

        The minimum of an attack lies where the mean of its draws is on the boundary, and about half of other draws
        would reject it. The result is judged as any other point.
        """
        finite = points.flatten(1).isfinite().all(1)
        steady, rows = points.clone(), (claimed & finite & self._perturbed(points)).nonzero().flatten()
        for factor in FACTORS:
            if len(rows) == 0:
                break
            # Not scaled by 1, which would round.
            moved = points if factor == 1.0 else self.box.clip(self.inputs + factor * (points - self.inputs))
            clear = self._clear(moved, rows, self.votes)
            steady[rows[clear]], rows = moved[rows[clear]], rows[~clear]
        return steady

    def _judged(
        self, points: Tensor, claimed: Tensor, eligible: Tensor, *, sparing: bool = False, logits: Tensor | None = None
    ) -> Verdicts:
        """Judge the points by a vote, always with new draws."""
        candidates = self._candidates(points, claimed, eligible)
        rows = candidates.nonzero().flatten()
        margin = self.inputs.new_full((len(points),), torch.inf)
        prediction, confidence = torch.full_like(self.labels, -1), torch.full_like(margin, torch.nan)
        fragile = torch.zeros_like(candidates)
        if len(rows):
            drawn = self._drawn(points, rows, self.votes)
            # Of an odd number of margins, the median is negative if and only if most of them are.
            margin[rows] = self._margins_of(drawn, rows).median(0).values
            prediction[rows], confidence[rows] = self._elected(drawn, rows, margin[rows] < 0)
            rounding = drawn.abs().amax((0, 2)) * (ROUNDINGS * torch.finfo(drawn.dtype).eps)
            fragile[rows] = margin[rows] > -rounding
        valid = candidates & (margin < 0)
        word = self._worded(points, claimed, eligible, valid, valid)
        return Verdicts(word, valid, valid & fragile, prediction, margin, confidence)

    def _clear(self, points: Tensor, rows: Tensor, draws: int) -> Tensor:
        margins = self._margins_of(self._drawn(points, rows, draws), rows)
        return (margins < 0).double().mean(0) >= CLEAR

    def _drawn(self, points: Tensor, rows: Tensor, draws: int) -> Tensor:
        """Return the logits of these rows in new draws, of shape (draws, rows, classes)."""
        self._judgments += 1
        with seeded_globally(*self._key, self._judgments):
            return torch.stack([self.logits(points, rows) for _ in range(draws)])

    def _first_draw(self) -> Tensor:
        with seeded_globally(*self._key, 0):
            return self.logits(self.inputs, torch.arange(len(self.inputs), device=self.inputs.device))

    def _margins_of(self, drawn: Tensor, rows: Tensor) -> Tensor:
        criterion = self._criterion.select(rows)
        return torch.stack([criterion.margin(logits) for logits in drawn])

    def _elected(self, drawn: Tensor, rows: Tensor, fooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class with the most votes, not the label where the majority is against it, and its confidence."""
        votes = torch.zeros_like(drawn[0]).scatter_add(1, drawn.argmax(2).T, torch.ones_like(drawn[:, :, 0]).T)
        label = self.labels[rows, None]
        votes = votes.scatter(1, label, votes.gather(1, label).masked_fill(fooled[:, None], -1.0))
        elected = votes.argmax(1)
        probability = drawn.softmax(2).mean(0).gather(1, elected[:, None]).squeeze(1)
        return elected, probability.to(self.inputs.dtype)
