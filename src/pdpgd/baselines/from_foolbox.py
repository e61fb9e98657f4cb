"""Attacks of Foolbox (Rauber et al. 2020, github.com/bethgelab/foolbox), tried with version 3.3.4.

Lengths among the settings are in a box of [0, 1], whatever the box of the problem is.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd.attacks.starts import random_rows
from pdpgd.attacks.task import Task
from pdpgd.baselines.bridge import (
    Unit,
    by_library,
    expect_counts,
    expect_norm,
    expect_positive,
    expect_untargeted,
)
from pdpgd.baselines.settings import CarliniWagnerSettings, DDNSettings, DeepFoolSettings, EADSettings
from pdpgd.criteria import Criterion
from pdpgd.errors import expect_setting
from pdpgd.extras import need
from pdpgd.game.incumbent import Incumbent

# Images of another class that are tried as a start, the nearest first, and strengths of noise after them.
NEIGHBOURS = 3
STRENGTHS = 10


@dataclass(frozen=True, kw_only=True)
class BrendelBethge:
    """Brendel & Bethge 2019: from an adversarial start along the boundary, each step the best in a trust region.

    A step costs 1 forward and 1 backward pass, and solves a small programme on the CPU; before them 11 forward passes,
    and at least 1 to find a start. The first use of a norm in a process compiles for a minute. The start may be another
    image of the call, so the result depends on which these are.
    """

    steps: int = 1000
    lr: float = 1.0
    """The first trust region, as a share of the number of entries. The paper: the best of 1, 0.1 and 0.01."""
    lr_decay_every: int = 20
    """Steps after which it is halved. The paper: the better of 20 and 100."""

    def __post_init__(self) -> None:
        expect_counts(self, "steps", "lr_decay_every")
        expect_positive(self, "lr")

    def __call__(self, task: Task) -> Incumbent:
        norm = expect_norm(self, task, ("linf", "l2", "l1", "l0"))
        need("numba", extra="foolbox", purpose="the attack BrendelBethge")
        attacks, criterion = _library().attacks, _criterion(task)
        kind = {"linf": "Linfinity", "l2": "L2", "l1": "L1", "l0": "L0"}[norm]

        def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
            starts, usable = starting_points(task, model, inputs, classes, rows)
            points = inputs.clone()
            if bool(usable.any()):
                rival = getattr(attacks, f"{kind}BrendelBethgeAttack")(
                    steps=self.steps,
                    # Foolbox takes the number of entries of the whole batch.
                    lr=self.lr / int(usable.sum()),
                    lr_num_decay=max(1, round(self.steps / self.lr_decay_every)),
                )
                points[usable] = rival.run(
                    _model(model, inputs), inputs[usable], criterion(classes[usable]), starting_points=starts[usable]
                )
            return points

        return by_library(task, attack, name="BrendelBethge")


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(CarliniWagnerSettings):
    """Carlini & Wagner of Foolbox."""

    def __call__(self, task: Task) -> Incumbent:
        expect_norm(self, task, ("l2",))
        return _run(
            self,
            task,
            "L2CarliniWagnerAttack",
            blank_is_failure=True,
            binary_search_steps=self.binary_search_steps,
            steps=self.steps,
            stepsize=self.stepsize,
            initial_const=self.initial_const,
            abort_early=False,  # it aborts the whole batch
        )


@dataclass(frozen=True, kw_only=True)
class EAD(EADSettings):
    """EAD of Foolbox: it costs `binary_search_steps` x `steps` backward passes, and twice as many forward passes."""

    def __call__(self, task: Task) -> Incumbent:
        expect_norm(self, task, ("l1",))
        return _run(
            self,
            task,
            "EADAttack",
            blank_is_failure=True,
            binary_search_steps=self.binary_search_steps,
            steps=self.steps,
            initial_stepsize=self.initial_stepsize,
            regularization=self.regularization,
            initial_const=self.initial_const,
            decision_rule="L1",
            abort_early=False,  # it aborts the whole batch
        )


@dataclass(frozen=True, kw_only=True)
class DDN(DDNSettings):
    """DDN of Foolbox."""

    def __call__(self, task: Task) -> Incumbent:
        expect_norm(self, task, ("l2",))
        return _run(self, task, "DDNAttack", steps=self.steps, init_epsilon=self.init_norm, gamma=self.gamma)


@dataclass(frozen=True, kw_only=True)
class DeepFool(DeepFoolSettings):
    """DeepFool of Foolbox: a step costs a forward and a backward pass for each candidate but the own class.

    It goes on until every sample of the batch is fooled; 1 forward pass before.
    """

    candidates: int = 10
    """The likeliest classes that are looked at, the own among them."""

    def __post_init__(self) -> None:
        DeepFoolSettings.__post_init__(self)
        expect_setting(
            self, "candidates", "an integer of at least 2", isinstance(self.candidates, int) and self.candidates >= 2
        )

    def __call__(self, task: Task) -> Incumbent:
        norm = expect_norm(self, task, ("linf", "l2"))
        expect_untargeted(self, task)
        settings: dict[str, Any] = {"overshoot": self.overshoot, "candidates": self.candidates}
        return _run(self, task, {"linf": "Linf", "l2": "L2"}[norm] + "DeepFoolAttack", steps=self.steps, **settings)


def starting_points(
    task: Task, model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """An adversarial point for each row, and whether there is one; each look costs the row a forward pass.

    Foolbox's own search ends the whole batch with a bare assertion where it finds none. Here it is the nearest inputs
    of the call that are labelled otherwise (as the target), then uniform noise and salt and pepper, ever more of it.
    """
    criterion = Criterion(classes, task.criterion.targeted)
    starts, usable = inputs.clone(), torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)

    def look(candidates: Tensor, open_rows: Tensor) -> None:
        with torch.no_grad():
            fooled = criterion.select(open_rows).margin(model(candidates)) < 0
        starts[open_rows[fooled]] = candidates[fooled]
        usable[open_rows[fooled]] = True

    pool, labels = Unit(task.problem).inward(task.problem.inputs), task.problem.labels
    apart = torch.cdist(inputs.flatten(1), pool.flatten(1))
    apart = apart.masked_fill((labels == classes[:, None]) != criterion.targeted, torch.inf)
    nearest = apart.topk(min(NEIGHBOURS, len(pool)), dim=1, largest=False)
    for distance, place in zip(nearest.values.T, nearest.indices.T, strict=True):
        open_rows = (~usable & distance.isfinite()).nonzero().flatten()
        if len(open_rows):
            look(pool[place[open_rows]], open_rows)

    for number in range(2 * STRENGTHS):
        open_rows = (~usable).nonzero().flatten()
        if len(open_rows) == 0:
            break
        samples, strength = task.samples[rows[open_rows]], (number // 2 + 1) / STRENGTHS
        draws = random_rows(task.problem, samples, torch.zeros_like(samples), step=number).float()
        blended = torch.lerp(inputs[open_rows], (draws + 1) / 2, strength)
        salted = torch.where(draws.abs() < strength, (draws > 0).float(), inputs[open_rows])
        look(salted if number % 2 else blended, open_rows)
    return starts, usable


def _library() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return need("foolbox", extra="foolbox", purpose="this attack")


def _model(model: nn.Module, inputs: Tensor) -> Any:
    return _library().PyTorchModel(model, bounds=(0, 1), device=inputs.device)


def _criterion(task: Task) -> Any:
    library = _library()
    return library.TargetedMisclassification if task.criterion.targeted else library.Misclassification


def _run(config: object, task: Task, name: str, *, blank_is_failure: bool = False, **settings: Any) -> Incumbent:
    """`run`, and not a call of the attack: that would look at the points once more, as the bridge does."""
    rival, criterion = getattr(_library().attacks, name)(**settings), _criterion(task)

    def attack(model: nn.Module, inputs: Tensor, classes: Tensor, rows: Tensor) -> Tensor:
        points: Tensor = rival.run(_model(model, inputs), inputs, criterion(classes))
        return points

    return by_library(task, attack, name=type(config).__name__, blank_is_failure=blank_is_failure)
