"""What every attack takes and returns, and the one place where a call is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pdpgd.classifier import Classifier, Ledger, Model
from pdpgd.criteria import Box, Criterion
from pdpgd.errors import InvalidInputError, named
from pdpgd.norms import Norm, norm_of

Bounds = tuple[float | Tensor, float | Tensor]


@dataclass(frozen=True)
class AttackResult:
    """The smallest perturbation found for each sample of a call; the batch is the first dimension of every field.

    Example:
        >>> result = pdpgd.auto(model, images, labels, norm="l2", budget=50)
        >>> result.found.all()
        tensor(True)
        >>> model(result.adversarials).argmax(1) != labels
        tensor([True, True, True, True])
    """

    adversarials: Tensor
    """The adversarial examples, inside the box; the input itself where none was found or it was misclassified."""
    distances: Tensor
    """Size of the perturbation: inf if none was found, 0 if the input was misclassified to begin with."""
    found: Tensor
    """Whether the point is adversarial."""
    labels: Tensor
    """The model's class for the returned point."""
    forwards: Tensor
    """Forward passes spent on the sample."""
    backwards: Tensor
    """Backward passes spent on the sample."""
    penalty: Tensor
    """lambda_1 / lambda_2 at the best point; NaN where none was found, and for attacks without such weights."""
    history: History | None = None
    """The best distance against the passes spent; None if the attack does not record it."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """Samples on which the attack itself failed, with the reason: they were not fooled, but did not withstand it."""
    radii: tuple[float, ...] = ()
    """The radii that were asked about, ascending; empty if the smallest distance was."""

    @property
    def fooled(self) -> Tensor:
        """Whether each sample is fooled within each of the radii, of shape (batch, radii)."""
        return self.distances[:, None] <= self.distances.new_tensor(self.radii)


@dataclass(frozen=True)
class History:
    """The best distance so far against the passes spent.

    Both fields have shape (batch, records); a row that ended earlier repeats its last record.

    Example:
        >>> history = pdpgd.auto(model, images, labels, norm="l2", budget=50).history
        >>> bool((history.within(50) <= history.within(20)).all())
        True
    """

    passes: Tensor
    """Forward plus backward passes spent on the sample."""
    distances: Tensor
    """The smallest size found with them: inf if none, 0 if the input was misclassified to begin with."""

    def within(self, passes: int) -> Tensor:
        """Return the distances after at most a number of passes per sample.

        Args:
            passes: Forward plus backward passes per sample.

        Returns:
            One distance per sample, inf where nothing had been found yet.
        """
        return self.distances.masked_fill(self.passes > passes, torch.inf).amin(1)


class StopAttack(Exception):  # noqa: N818 (a request, as StopIteration is, and no error)
    """Raised by an `observe` hook to end a search; `auto` then returns the best found so far.

    Example:
        >>> def stop_when_all_are_fooled(observation: pdpgd.Observation) -> None:
        ...     if observation.size.isfinite().all():
        ...         raise pdpgd.StopAttack
        >>> result = pdpgd.auto(model, images, labels, norm="l2", observe=stop_when_all_are_fooled)
        >>> bool((result.forwards + result.backwards).max() < 1000)
        True
    """


@dataclass(frozen=True)
class Observation:
    """What an `observe` hook is shown after each iteration of a batch; its rows are restarts of samples.

    Example:
        >>> def show(seen: pdpgd.Observation) -> None:
        ...     print(f"{seen.phase}: {seen.done} of {seen.total}")
        >>> config = pdpgd.PDPGDConfig(steps=2, finetune_steps=1)
        >>> result = pdpgd.pdpgd(model, images, labels, norm="l1", config=config, observe=show)
        search: 1 of 3
        search: 2 of 3
        finetune: 3 of 3
    """

    phase: str
    """Either "search" or "finetune"."""
    done: int
    """Iterations made so far in this call, over all batches."""
    total: int
    """Largest number of iterations the call may make."""
    samples: Tensor
    """Position in the call of each row's sample."""
    margin: Tensor
    """Margin of each row at this iteration's point."""
    size: Tensor
    """Smallest adversarial size of each row so far, inf if none."""
    penalty: Tensor
    """lambda_1 / lambda_2 of each row."""


Observe = Callable[[Observation], None]


class Attack(Protocol):
    """The call shape that all attacks share, ours and the baselines; each has settings of its own beside it.

    Example:
        >>> def success_rate(attack: pdpgd.Attack) -> float:
        ...     return attack(model, images, labels, norm="l2").found.float().mean().item()
        >>> success_rate(pdpgd.pdpgd)
        1.0
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
    ) -> AttackResult:
        """Attack a batch.

        Args:
            model: Maps a batch of inputs to logits, or to an output with `.logits`.
            inputs: Batch of shape (batch, ...), float32 or float64, inside the bounds.
            labels: True class per sample.
            norm: Name of a norm or a `Norm`.
            targets: Class to reach per sample; None attacks untargeted.
            bounds: Lower and upper bound of valid inputs, each a number, one value per channel, or a tensor.
            seed: Seed of everything random in the attack.
            indices: Position of each input in the whole data set, if the call attacks a part of it.
            starts: One known point per sample, shaped as the inputs and inside the bounds: where one is adversarial, it
                competes with what the attack finds.
            observe: Called with an `Observation` as the attack proceeds.

        Returns:
            One adversarial example per input, with its distance and the passes spent on it.
        """
        ...


# Float noise by which inputs and starts may leave the box, as a share of its width; it is clipped.
BOX_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Problem:
    """A checked call: inputs inside their box, what counts as fooled, and how a perturbation is measured."""

    classifier: Classifier
    inputs: Tensor
    labels: Tensor
    criterion: Criterion
    box: Box
    norm: Norm
    seed: int
    indices: Tensor
    ledger: Ledger
    """Counts calls of the classifier, each of which takes `classifier.draws` passes of the model."""
    starts: Tensor | None
    """One known point per sample, inside the box; it need not be adversarial."""


@torch.inference_mode(False)
def pose(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm,
    targets: Tensor | None,
    bounds: Bounds,
    seed: int,
    indices: Tensor | None,
    starts: Tensor | None = None,
    draws: int = 1,
) -> Problem:
    """Check a call and return the problem it poses; an InvalidInputError says what is wrong with it."""
    _check_inputs(inputs)
    if not isinstance(draws, Integral) or isinstance(draws, bool) or draws < 1:
        raise InvalidInputError(f"draws: expected an integer >= 1, got {draws!r}")
    labels = _class_column("labels", labels, inputs)
    criterion = Criterion(labels)
    if targets is not None:
        criterion = Criterion(_class_column("targets", targets, inputs), targeted=True)
    if not isinstance(seed, Integral) or seed < 0:
        raise InvalidInputError(f"seed: expected an integer >= 0, got {seed!r}")
    indices = torch.arange(len(inputs)) if indices is None else _indices(indices, inputs)
    box = _box(bounds, inputs)
    # Copies made outside the caller's inference mode: autograd cannot work on tensors created inside one.
    clipped = box.clip(_inside("inputs", inputs, box).detach().clone())
    return Problem(
        classifier=Classifier(model, draws=int(draws)),
        inputs=clipped,
        labels=labels,
        criterion=criterion,
        box=box,
        norm=norm_of(norm),
        seed=int(seed),
        indices=indices,
        ledger=Ledger(len(inputs), inputs.device),
        starts=None if starts is None else _starts(starts, inputs, box),
    )


def calls_within(budget: int, draws: int) -> int:
    """Return how many calls of a classifier a budget of passes allows, where each one takes `draws` passes."""
    if budget < draws:
        raise InvalidInputError(
            f"budget: expected at least {draws}, the passes of one mean over the draws, got {budget}"
        )
    return budget // draws


def check_classes(problem: Problem, classes: int) -> None:
    """Check that labels and targets are classes of the model, whose number its first answer shows."""
    columns = {"labels": problem.labels}
    if problem.criterion.targeted:
        columns["targets"] = problem.criterion.classes
    for name, column in columns.items():
        wrong = (column < 0) | (column >= classes)
        if bool(wrong.any()):
            raise InvalidInputError(
                f"{name}: expected classes 0 to {classes - 1}, got {named(column[wrong].tolist())} "
                f"for samples {named(_places_of(wrong))}"
            )


def _check_inputs(inputs: Tensor) -> None:
    if not isinstance(inputs, Tensor):
        raise InvalidInputError(f"inputs: expected a tensor, got {type(inputs).__name__}")
    if inputs.ndim < 2 or inputs.numel() == 0:
        raise InvalidInputError(f"inputs: expected a nonempty batch of shape (batch, ...), got {tuple(inputs.shape)}")
    if inputs.dtype not in (torch.float32, torch.float64):
        raise InvalidInputError(
            f"inputs: expected float32 or float64 (run the model under torch.autocast for less), got {inputs.dtype}"
        )
    _check_finite("inputs", inputs)


def _check_finite(name: str, points: Tensor) -> None:
    broken = ~points.flatten(1).isfinite().all(1)
    if bool(broken.any()):
        raise InvalidInputError(
            f"{name}: expected finite values, got NaN or inf in samples {named(_places_of(broken))}"
        )


def _class_column(name: str, classes: Tensor, inputs: Tensor) -> Tensor:
    if not isinstance(classes, Tensor):
        raise InvalidInputError(f"{name}: expected a tensor of {len(inputs)} classes, got {type(classes).__name__}")
    if classes.shape != (len(inputs),):
        raise InvalidInputError(f"{name}: expected shape ({len(inputs)},), got {tuple(classes.shape)}")
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise InvalidInputError(f"{name}: expected integers, got {classes.dtype}")
    return classes.detach().to(inputs.device, torch.long, copy=True)


def _indices(indices: Tensor, inputs: Tensor) -> Tensor:
    if not isinstance(indices, Tensor):
        raise InvalidInputError(
            f"indices: expected a tensor of {len(inputs)} integers >= 0, got {type(indices).__name__}"
        )
    if indices.shape != (len(inputs),) or indices.is_floating_point() or bool((indices < 0).any()):
        raise InvalidInputError(
            f"indices: expected {len(inputs)} integers >= 0, got {tuple(indices.shape)} of {indices.dtype}"
            + (f", the least {int(indices.min())}" if indices.numel() else "")
        )
    return indices.cpu()


def _starts(starts: Tensor, inputs: Tensor, box: Box) -> Tensor:
    if not isinstance(starts, Tensor):
        raise InvalidInputError(f"starts: expected a tensor, got {type(starts).__name__}")
    if starts.shape != inputs.shape or starts.dtype != inputs.dtype:
        raise InvalidInputError(
            f"starts: expected {tuple(inputs.shape)} of {inputs.dtype} as the inputs are, "
            f"got {tuple(starts.shape)} of {starts.dtype}"
        )
    _check_finite("starts", starts)
    copy = starts.detach().to(inputs.device, copy=True)
    return box.clip(_inside("starts", copy, box))


def _box(bounds: Bounds, inputs: Tensor) -> Box:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InvalidInputError(f"bounds: expected (low, high), got {bounds!r}")
    low, high = (_bound(bound, inputs) for bound in bounds)
    if not bool((low < high).all()) or not bool((low.isfinite() & high.isfinite()).all()):
        raise InvalidInputError(f"bounds: expected finite low < high, got {bounds!r}")
    return Box(low, high)


def _bound(bound: float | Tensor, inputs: Tensor) -> Tensor:
    try:
        value = torch.as_tensor(bound, dtype=inputs.dtype, device=inputs.device)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInputError(
            f"bounds: expected a number or a tensor, got {bound!r} ({type(bound).__name__})"
        ) from None
    if value.ndim == 1 and inputs.ndim > 2:
        # One value per channel.
        value = value.reshape(-1, *[1] * (inputs.ndim - 2))
    try:
        torch.broadcast_to(value, inputs.shape[1:])
    except RuntimeError:
        raise InvalidInputError(
            "bounds: expected a number, one value per channel, or a tensor that broadcasts to "
            f"{tuple(inputs.shape[1:])}, got shape {tuple(value.shape)}"
        ) from None
    return value


def _inside(name: str, points: Tensor, box: Box) -> Tensor:
    tolerance = BOX_TOLERANCE * box.width
    outside = ((points < box.low - tolerance) | (points > box.high + tolerance)).flatten(1).any(1)
    if bool(outside.any()):
        raise InvalidInputError(
            f"{name}: expected values inside the box (bounds), got {float(points.min()):.6g} to "
            f"{float(points.max()):.6g}; outside it: samples {named(_places_of(outside))}"
        )
    return points


def _places_of(rows: Tensor) -> list[int]:
    places: list[int] = rows.nonzero().flatten().tolist()
    return places


def random_rows(problem: Problem, samples: Tensor, restarts: Tensor, step: int = 0) -> Tensor:
    """Draw uniformly from [-1, 1) in the shape of the inputs, keyed by (seed, index of the sample, restart, step).

    Drawn on the CPU, so that the numbers are the same in any batch and on any device.
    """
    shape = problem.inputs.shape[1:]
    dtype = np.float64 if problem.inputs.dtype == torch.float64 else np.float32
    draws = np.empty((len(samples), *shape), dtype)
    keys = zip(problem.indices[samples.cpu()].tolist(), restarts.tolist(), strict=True)
    for row, (index, restart) in enumerate(keys):
        np.random.default_rng((problem.seed, index, restart, step)).random(out=draws[row], dtype=dtype)
    return torch.from_numpy(draws).mul_(2).sub_(1).to(problem.inputs.device)
