"""From one game to an attack: judge the inputs and the starts given, play every restart, fine-tune the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pdpgd.attacks.config import GameConfig
from pdpgd.attacks.contract import AttackResult, History, Observation, Observe
from pdpgd.attacks.loop import Move, Rows, game_mode, play
from pdpgd.attacks.problem import Problem, check_classes
from pdpgd.attacks.starts import random_rows
from pdpgd.classifier import warn_of_probabilities
from pdpgd.game.incumbent import Incumbent


def attack(problem: Problem, *, move: Move, config: GameConfig, observe: Observe | None) -> AttackResult:
    """Play the game on every sample the model still gets right."""
    with game_mode():
        clean = judge_inputs(problem, config.max_batch)
        wrong = clean.margin < 0
        campaign = _Campaign(problem, move, config, observe, (~wrong).nonzero().flatten())
        judge_starts(problem, campaign.best, campaign.open_samples, max_batch=config.max_batch, penalty=config.penalty)
        campaign.search()
        campaign.finetune()
        return summed_up(problem, campaign.best, clean.prediction, wrong)


def summed_up(
    problem: Problem,
    best: Incumbent,
    prediction: Tensor,
    wrong: Tensor,
    *,
    history: History | None = None,
    faults: Mapping[int, str] | None = None,
) -> AttackResult:
    """The best points as a result; what was `wrong` already, with this `prediction`, is at distance 0."""
    found = best.size.isfinite()
    return AttackResult(
        adversarials=best.point,
        distances=best.size.masked_fill(wrong, 0.0),
        found=found | wrong,
        labels=torch.where(found, best.prediction, prediction),
        forwards=problem.ledger.forwards,
        backwards=problem.ledger.backwards,
        penalty=best.penalty,
        history=history,
        faults=faults or {},
    )


class Clean(NamedTuple):
    """What the model says of the inputs as they came."""

    prediction: Tensor
    margin: Tensor
    classes: int
    """How many the model has."""


def judge_inputs(problem: Problem, max_batch: int) -> Clean:
    """One forward pass over the clean inputs: which are adversarial as they stand?"""
    outputs = []
    for samples in batches(torch.arange(len(problem.inputs), device=problem.inputs.device), max_batch):
        outputs.append(problem.classifier.logits(problem.inputs[samples], samples))
        problem.ledger.add(samples, forwards=1)
    logits = torch.cat(outputs)
    check_classes(problem, logits.shape[1])
    warn_of_probabilities(logits)
    return Clean(logits.argmax(1), problem.criterion.margin(logits), logits.shape[1])


def judge_starts(
    problem: Problem, best: Incumbent, samples: Tensor, *, max_batch: int, penalty: float = math.nan
) -> None:
    """One forward pass over the points known before: what is adversarial is the first to be beaten."""
    if problem.starts is None:
        return
    for part in batches(samples, max_batch):
        point = problem.starts[part]
        logits = problem.classifier.logits(point, part)
        problem.ledger.add(part, forwards=1)
        size = problem.norm.size(point - problem.inputs[part])
        # The input itself was right; if it is not in this batch, that is float noise and no perturbation.
        worthless = (problem.criterion.select(part).margin(logits) >= 0) | (size == 0)
        size = size.masked_fill(worthless, torch.inf)
        best.improve(Incumbent(size, point, logits.argmax(1), torch.full_like(size, penalty)), at=part)


class _Campaign:
    """The batches of one call: what they have found, and how far they have come."""

    def __init__(
        self, problem: Problem, move: Move, config: GameConfig, observe: Observe | None, open_samples: Tensor
    ) -> None:
        self.problem, self.move, self.config, self.observe = problem, move, config, observe
        self.open_samples = open_samples
        self.best = Incumbent.none(problem.inputs)
        self.done = 0
        searches = math.ceil(len(open_samples) * config.restarts / config.max_batch)
        finetunes = math.ceil(len(open_samples) / config.max_batch)
        self.total = searches * config.steps + finetunes * config.finetune_steps

    def search(self) -> None:
        """Every restart of every open sample, restart by restart, in batches of at most max_batch rows."""
        config, count = self.config, len(self.open_samples)
        numbers = torch.arange(config.restarts * count, device=self.open_samples.device)
        for batch in batches(numbers, config.max_batch):
            restarts, samples = batch // count, self.open_samples[batch % count]
            undecided = self.best.size[samples] > self.problem.norm.smallest
            restarts, samples = restarts[undecided], samples[undecided]
            rows = Rows.of(self.problem, samples, restarts)
            penalty = rows.inputs.new_full((len(samples),), config.penalty)
            outcome = self._play("search", rows, self._start(rows), penalty, config)
            for restart in torch.unique(restarts):
                mine = restarts == restart
                self.best.improve(outcome.select(mine), at=samples[mine])

    def finetune(self) -> None:
        """Play on from the best point of each sample, with its penalty, at smaller rates."""
        config = self.config
        if config.finetune_steps == 0:
            return
        small = replace(
            config,
            steps=config.finetune_steps,
            primal_rate=config.primal_rate * config.finetune_primal,
            dual_rate=config.dual_rate * config.finetune_dual,
        )
        # What was not found has no point to start from; what cannot get smaller has nothing to gain.
        eligible = self.best.size.isfinite() & (self.best.size > self.problem.norm.smallest)
        for samples in batches(eligible.nonzero().flatten(), config.max_batch):
            rows = Rows.of(self.problem, samples, torch.full_like(samples, config.restarts))
            start = self.best.select(samples)
            outcome = self._play("finetune", rows, start.point - rows.inputs, start.penalty, small)
            self.best.improve(outcome, at=samples)

    def _start(self, rows: Rows) -> Tensor:
        radius = self.config.start_radius * self.problem.box.width
        if radius == 0:
            return torch.zeros_like(rows.inputs)
        return radius * random_rows(self.problem, rows.samples, rows.restarts)

    def _play(self, phase: str, rows: Rows, delta: Tensor, penalty: Tensor, config: GameConfig) -> Incumbent:
        before = self.done

        def watch(step: int, rows: Rows, margin: Tensor, size: Tensor, penalty: Tensor) -> None:
            self.done = before + step + 1
            if self.observe is not None:
                self.observe(Observation(phase, self.done, self.total, rows.samples, margin, size, penalty))

        if len(rows.samples) == 0:
            self.done += config.steps
            return Incumbent.none(rows.inputs)
        outcome = play(self.problem, rows, delta, penalty, move=self.move, config=config, watch=watch)
        self.done = before + config.steps
        return outcome


def batches(rows: Tensor, max_batch: int) -> Iterator[Tensor]:
    for first in range(0, len(rows), max_batch):
        yield rows[first : first + max_batch]
