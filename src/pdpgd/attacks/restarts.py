"""From one game to an attack: sort out what is wrong already, play every restart, fine-tune the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pdpgd.attacks.config import GameConfig
from pdpgd.attacks.contract import AttackResult, Observation, Observe
from pdpgd.attacks.loop import Move, Rows, game_mode, play
from pdpgd.attacks.problem import Problem, check_classes
from pdpgd.attacks.starts import random_rows
from pdpgd.classifier import Answer, warn_of_probabilities
from pdpgd.game.dual import Dual
from pdpgd.game.incumbent import Incumbent


def attack(
    problem: Problem, labels: Tensor, *, move: Move, config: GameConfig, observe: Observe | None
) -> AttackResult:
    """Play the game on every sample the model still gets right."""
    with game_mode():
        prediction, margin = _judge_inputs(problem, labels, config.max_batch)
        wrong = margin < 0
        campaign = _Campaign(problem, move, config, observe, int((~wrong).sum()))
        best = Incumbent.none(problem.inputs)
        best = campaign.search(best, open_samples=(~wrong).nonzero().flatten())
        best = campaign.finetune(best)
        found = best.size.isfinite()
        return AttackResult(
            adversarials=best.point,
            distances=best.size.masked_fill(wrong, 0.0),
            found=found | wrong,
            labels=torch.where(found, best.prediction, prediction),
            forwards=problem.ledger.forwards,
            backwards=problem.ledger.backwards,
            penalty=best.penalty,
        )


def _judge_inputs(problem: Problem, labels: Tensor, max_batch: int) -> tuple[Tensor, Tensor]:
    """One forward pass over the clean inputs: which are adversarial as they stand?"""
    outputs = []
    for samples in _batches(torch.arange(problem.rows(), device=problem.inputs.device), max_batch):
        outputs.append(problem.classifier.logits(problem.inputs[samples], samples).detach())
        problem.ledger.add(samples, forwards=1)
    logits = torch.cat(outputs)
    check_classes(problem, labels, logits.shape[1])
    warn_of_probabilities(logits)
    return logits.argmax(1), problem.criterion.margin(logits)


@dataclass
class _Campaign:
    """The batches of one call, and how far they have come."""

    problem: Problem
    move: Move
    config: GameConfig
    observe: Observe | None
    open_samples: int
    done: int = 0

    @property
    def total(self) -> int:
        config = self.config
        searches = -(-self.open_samples * config.restarts // config.max_batch)
        finetunes = -(-self.open_samples // config.max_batch)
        return searches * config.steps + finetunes * config.finetune_steps

    def search(self, best: Incumbent, open_samples: Tensor) -> Incumbent:
        """Every restart of every open sample, restart by restart, in batches of at most max_batch rows."""
        config, count = self.config, len(open_samples)
        for numbers in _batches(torch.arange(config.restarts * count, device=open_samples.device), config.max_batch):
            restarts, samples = numbers.div(max(count, 1), rounding_mode="floor"), open_samples[numbers % max(count, 1)]
            undecided = best.size[samples] > self.problem.norm.smallest
            restarts, samples = restarts[undecided], samples[undecided]
            if len(samples) == 0:
                self.done += config.steps
                continue
            rows = Rows.of(self.problem, samples, restarts)
            radius = config.start_radius * self.problem.box.width
            delta = radius * random_rows(self.problem, samples, restarts) if radius else torch.zeros_like(rows.inputs)
            penalty = delta.new_full((len(samples),), config.penalty)
            outcome = self._play("search", rows, delta, penalty, config)
            for restart in torch.unique(restarts):
                mine = restarts == restart
                best.write(samples[mine], best.select(samples[mine]).improved_by(outcome.select(mine)))
        return best

    def finetune(self, best: Incumbent) -> Incumbent:
        """Play on from the best point of each sample, with its penalty, at smaller rates."""
        config = self.config
        if config.finetune_steps == 0:
            return best
        small = replace(
            config,
            steps=config.finetune_steps,
            primal_rate=config.primal_rate * config.finetune_primal,
            dual_rate=config.dual_rate * config.finetune_dual,
        )
        # What was not found has no point to start from; what cannot get smaller has nothing to gain.
        eligible = best.size.isfinite() & (best.size > self.problem.norm.smallest)
        for samples in _batches(eligible.nonzero().flatten(), config.max_batch):
            rows = Rows.of(self.problem, samples, torch.full_like(samples, config.restarts))
            start = best.select(samples)
            outcome = self._play("finetune", rows, start.point - rows.inputs, start.penalty, small)
            best.write(samples, start.improved_by(outcome))
        return best

    def _play(self, phase: str, rows: Rows, delta: Tensor, penalty: Tensor, config: GameConfig) -> Incumbent:
        before = self.done

        def watch(step: int, rows: Rows, answer: Answer, best: Incumbent, dual: Dual) -> None:
            self.done = before + step + 1
            if self.observe is not None:
                self.observe(
                    Observation(phase, self.done, self.total, rows.samples, answer.margin, best.size, dual.penalty)
                )

        outcome = play(self.problem, rows, delta, penalty, move=self.move, config=config, watch=watch)
        self.done = before + config.steps
        return outcome


def _batches(rows: Tensor, max_batch: int) -> Iterator[Tensor]:
    for first in range(0, len(rows), max_batch):
        yield rows[first : first + max_batch]
