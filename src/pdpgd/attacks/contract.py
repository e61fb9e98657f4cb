"""What every attack takes and gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pdpgd.classifier import Model
from pdpgd.norms import Norm

Bounds = tuple[float | Tensor, float | Tensor]


@dataclass(frozen=True)
class AttackResult:
    """The smallest perturbation found for each sample of a call; every field has the batch as its first dimension."""

    adversarials: Tensor
    """The adversarial points, inside the box; a sample that was not fooled, or was wrong already, stands as it came."""
    distances: Tensor
    """The size of the perturbation: inf if none was found, 0 if the sample was misclassified to begin with."""
    found: Tensor
    """Whether the point is adversarial."""
    labels: Tensor
    """The class the model gave to the returned point."""
    forwards: Tensor
    """Forward passes spent on the sample."""
    backwards: Tensor
    """Backward passes spent on the sample."""
    penalty: Tensor
    """lambda_1 / lambda_2 at the best point; NaN where the game found none, or has no such weights."""
    history: History | None = None
    """How the distances came about; None if the attack does not record it."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """Samples on which the attack itself broke, and how: they were not fooled, but not withstood either."""


@dataclass(frozen=True)
class History:
    """The best so far against the passes spent. Both have shape (batch, records); a row that ended repeats its last."""

    passes: Tensor
    """Forward + backward passes spent on the sample."""
    distances: Tensor
    """The smallest size found with them: inf if none, 0 if the sample was misclassified to begin with."""

    def within(self, passes: int) -> Tensor:
        """The distances of all samples after at most so many passes each."""
        return self.distances.masked_fill(self.passes > passes, torch.inf).amin(1)


class StopAttack(Exception):  # noqa: N818 (a request, as StopIteration is, and no error)
    """Raised by an `observe` hook to end a search; `auto` then returns the best found so far."""


@dataclass(frozen=True)
class Observation:
    """What the progress hook is shown after each iteration of a batch. Its rows are restarts of samples."""

    phase: str
    """Either "search" or "finetune"."""
    done: int
    """Iterations played so far in this call, over all batches."""
    total: int
    """Iterations the call will play at the most."""
    samples: Tensor
    """The position in the call of each row's sample."""
    margin: Tensor
    """The margin of each row at this iteration's point."""
    size: Tensor
    """The smallest adversarial size of each row so far, inf if none."""
    penalty: Tensor
    """lambda_1 / lambda_2 of each row."""


Observe = Callable[[Observation], None]


class Attack(Protocol):
    """The call shape that ours and all rival attacks share; each has settings of its own beside it.

    `starts` are points known before, shaped as the inputs and inside the box, one a sample: where one is adversarial it
    competes with what the attack finds.
    """

    def __call__(
        self,
        model: Model,
        inputs: Tensor,
        labels: Tensor,
        *,
        norm: str | Norm,
        targets: Tensor | None = None,
        bounds: Bounds = (0.0, 1.0),
        seed: int = 0,
        indices: Tensor | None = None,
        starts: Tensor | None = None,
        observe: Observe | None = None,
    ) -> AttackResult: ...
