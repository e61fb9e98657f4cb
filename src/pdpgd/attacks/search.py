"""The books of a search: what it may spend, what it has found, and how that came about."""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.attacks.contract import History, Observation, Observe
from pdpgd.attacks.loop import Rows
from pdpgd.attacks.problem import Problem
from pdpgd.classifier import Answer, Lead
from pdpgd.criteria import Surrogate
from pdpgd.game.incumbent import Incumbent


class Search:
    """Queries the model, pays for it, and keeps the smallest adversarial point of each sample."""

    def __init__(self, problem: Problem, *, wrong: Tensor, budget: int, observe: Observe | None) -> None:
        self.problem = problem
        self.best = Incumbent.none(problem.inputs)
        self._wrong, self._observe = wrong, observe
        self._total = budget * int((~wrong).sum())
        everyone = torch.arange(len(wrong), device=wrong.device)
        self._records: list[tuple[Tensor, Tensor, Tensor]] = []
        self._record(everyone)

    @property
    def spent(self) -> Tensor:
        return self.problem.ledger.forwards + self.problem.ledger.backwards

    def delta(self, rows: Rows) -> Tensor:
        """The best perturbation of each row's sample; zero where nothing was found."""
        return self.best.point[rows.samples] - rows.inputs

    def answer(self, rows: Rows, point: Tensor, pursue: Surrogate) -> Answer:
        """One forward and one backward pass."""
        answer = self.problem.classifier.margin_and_gradient(point, rows.samples, rows.criterion, pursue)
        self.problem.ledger.add(rows.samples, forwards=1, backwards=1)
        self._keep(rows, point, answer.margin, answer.prediction)
        return answer

    def look(self, rows: Rows, point: Tensor) -> None:
        """One forward pass."""
        logits = self.problem.classifier.logits(point, rows.samples)
        self.problem.ledger.add(rows.samples, forwards=1)
        self._keep(rows, point, rows.criterion.margin(logits), logits.argmax(1))

    def leads(self, rows: Rows, count: int) -> list[Lead]:
        """One forward pass at the inputs, and a backward pass for each of the first `count` runners-up."""
        leads = self.problem.classifier.leads(rows.inputs, rows.samples, rows.criterion.classes, count)
        self.problem.ledger.add(rows.samples, forwards=1, backwards=len(leads))
        self._record(rows.samples)
        return leads

    def history(self) -> History:
        longest = int(torch.cat([samples for samples, _, _ in self._records]).bincount().amax())
        passes = self.spent.new_zeros(len(self._wrong), longest)
        distances = self.best.size.new_full((len(self._wrong), longest), torch.inf)
        filled = torch.zeros_like(self.spent)
        for samples, spent, size in self._records:
            passes[samples, filled[samples]] = spent
            distances[samples, filled[samples]] = size
            filled[samples] += 1
        distances[self._wrong] = 0.0
        return History(passes.cummax(1).values, distances.cummin(1).values)

    def _keep(self, rows: Rows, point: Tensor, margin: Tensor, prediction: Tensor) -> None:
        size = self.problem.norm.size(point - rows.inputs)
        # The input itself was right; if it is not in this batch, that is float noise and no perturbation.
        size = size.masked_fill((margin >= 0) | (size == 0), torch.inf)
        nothing = torch.full_like(size, torch.nan)
        self.best.improve(Incumbent(size, point, prediction, nothing), at=rows.samples)
        best = self._record(rows.samples)
        if self._observe is not None:
            done = int(self.spent.sum())
            self._observe(Observation("search", done, self._total, rows.samples, margin, best, nothing))

    def _record(self, samples: Tensor) -> Tensor:
        ledger, best = self.problem.ledger, self.best.size[samples]
        self._records.append((samples, ledger.forwards[samples] + ledger.backwards[samples], best))
        return best
