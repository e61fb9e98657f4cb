"""What every attack takes and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

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
    """lambda_1 / lambda_2 at the best point; NaN where the game found none."""


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
    """The call shape that ours and all rival attacks share.

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
        config: Any = None,
        indices: Tensor | None = None,
        starts: Tensor | None = None,
        observe: Observe | None = None,
    ) -> AttackResult: ...
