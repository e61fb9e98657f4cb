"""Sanity checks around an attack: a preflight that measures the model, and cheap attacks that should not beat it.

Each cheap attack follows a path from the input, with t from 0 to 1, and takes the first adversarial point on it:
along the sign of the gradient, along the gradient, over the pixels with the largest gradient, along noise, and towards
another image. A long attack that is beaten by one of them has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor, nn

from pdpgd.classifier import Classifier, Model
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError, NoGradientError
from pdpgd.evaluation.referee import Referee, drift
from pdpgd.random import STREAMS
from pdpgd.runs.stats import ChunkStats, Passes, PreflightStats
from pdpgd.tensors import flat, per_sample

Path = Callable[[Tensor], Tensor]
"""Returns the point of each row at its own t, shape (batch,)."""

HALVINGS = 7
"""Number of values of t that are tried: 1, 1/2, 1/4, ..."""
REFINEMENTS = 3
"""Number of bisections between the smallest adversarial t and its half."""
TINY = 1 / 510
"""Half a gray level: neither an eye nor an image file can distinguish it from the image itself."""
REPETITIONS = 3
"""Number of times that the preflight passes the same samples through the model."""


def cheap_points(
    referee: Referee, model: Model, prediction: Tensor, correct: Tensor, *, seed: int, indices: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Run the cheap attacks.

    Args:
        referee: Knows the inputs and counts the passes.
        model: The model.
        prediction: Predicted classes of the inputs.
        correct: Which inputs are correctly classified; only these are attacked.
        seed: Random seed.
        indices: Positions of the inputs in the data set.

    Yields:
        Name of the attack, one point per input, and which of them are adversarial.
    """
    rows = correct.nonzero().flatten()
    if len(rows) == 0:
        return
    paths = {"noise": _noise_path(referee, seed, indices)}
    # Without gradients, noise and other images remain.
    with suppress(NoGradientError):
        paths = {**_gradient_paths(referee, model, rows), **paths}
    towards = _another_image(referee, prediction, rows)
    if towards is not None:
        paths["another image"] = towards
    for name, path in paths.items():
        points, found = _first_on(path, referee, rows)
        yield name, points, found


def _first_on(path: Path, referee: Referee, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Halve t, starting from 1, take the smallest adversarial one, and bisect between it and its half."""
    inputs = referee.inputs
    best = torch.full((len(inputs),), torch.inf, dtype=inputs.dtype, device=inputs.device)
    for halving in range(HALVINGS):
        at = torch.full_like(best, 0.5**halving)
        hit = rows[referee.adversarial(path(at), rows)]
        best[hit] = at[hit]
    low, rows = best / 2, rows[best[rows].isfinite()]
    for _ in range(REFINEMENTS):
        at = (low + best) / 2
        adversarial = referee.adversarial(path(at.nan_to_num(0.0, 0.0)), rows)
        best[rows[adversarial]], low[rows[~adversarial]] = at[rows[adversarial]], at[rows[~adversarial]]
    found = best.isfinite()
    return path(best.nan_to_num(0.0, 0.0)), found


def _gradient_paths(referee: Referee, model: Model, rows: Tensor) -> dict[str, Path]:
    inputs, box = referee.inputs, referee.box
    gradient = torch.zeros_like(inputs)
    for part in referee.parts(rows):
        criterion = Criterion(referee.labels[part])
        referee.forwards += len(part) * referee.draws
        answer = Classifier(model, draws=referee.draws).margin_and_gradient(
            inputs[part], part, criterion, lambda margin, logits, criterion: margin
        )
        gradient[part] = answer.gradient
        referee.backwards += len(part) * referee.draws
    downhill = -gradient
    largest = per_sample(flat(downhill).abs().amax(1), inputs).clamp(min=torch.finfo(inputs.dtype).tiny)
    corner = torch.where(downhill > 0, box.high, torch.where(downhill < 0, box.low, inputs))
    steepness = downhill.abs().amax(1, keepdim=True) if inputs.ndim > 2 else downhill.abs()
    order = flat(steepness).argsort(dim=1, descending=True, stable=True).argsort(1).reshape(steepness.shape)
    # At t, the steepest t^2 * pixels of them change: all at t = 1, a quarter at t = 1/2, down to a single one.
    pixels = flat(steepness).shape[1]

    def along_sign(t: Tensor) -> Tensor:
        return box.clip(inputs + per_sample(t, inputs) * downhill.sign())

    def along_gradient(t: Tensor) -> Tensor:
        return box.clip(inputs + per_sample(4 * t, inputs) * downhill / largest)

    def over_pixels(t: Tensor) -> Tensor:
        count = (t.square() * pixels).ceil() * (t > 0)
        return torch.where(order < per_sample(count, inputs), corner, inputs)

    return {"sign step": along_sign, "gradient step": along_gradient, "steepest pixels": over_pixels}


def _noise_path(referee: Referee, seed: int, indices: Tensor) -> Path:
    """Follow random signs that depend on the seed and the index of the sample only, not on the batch."""
    inputs = referee.inputs
    shape = tuple(inputs.shape[1:])
    draws = [np.random.default_rng((seed, index, STREAMS["noise"])).integers(0, 2, shape) for index in indices.tolist()]
    signs = torch.from_numpy(np.stack(draws)).to(inputs).mul_(2).sub_(1)
    return lambda t: referee.box.clip(inputs + per_sample(t, inputs) * signs)


def _another_image(referee: Referee, prediction: Tensor, rows: Tensor) -> Path | None:
    """Go towards the nearest image of the chunk whose predicted class differs from the label; None without any."""
    inputs = referee.inputs
    distance = torch.cdist(flat(inputs).double(), flat(inputs).double())
    distance = distance.masked_fill(prediction[None, :] == referee.labels[:, None], torch.inf)
    nearest = distance.min(1)
    if not bool(nearest.values[rows].isfinite().any()):
        return None
    toward = torch.where(per_sample(nearest.values.isfinite(), inputs).bool(), inputs[nearest.indices], inputs)
    return lambda t: torch.lerp(inputs, toward, per_sample(t, inputs)).clamp(0.0, 1.0)


def preflight(
    model: Model, inputs: Tensor, labels: Tensor, *, batch_size: int, seed: int, random_parameters: int | None
) -> ChunkStats:
    """Measure the model on a few samples before it is attacked.

    Args:
        model: The model.
        inputs: A few samples.
        labels: Their labels.
        batch_size: Maximum number of rows per forward pass.
        seed: Random seed of the noise.
        random_parameters: Number of parameters that are drawn at random when the model is built; None if unknown.

    Returns:
        The measurements, which `reliability.model_checks` interprets, and the passes they took.

    Raises:
        InvalidInputError: A label is not among the classes of the model.
    """
    referee = Referee(model, inputs, labels, batch_size=batch_size)
    rows = torch.arange(len(inputs), device=inputs.device)
    logits = referee.logits(inputs, rows)
    check_labels(labels, logits.shape[1])
    again = [referee.logits(inputs, rows) for _ in range(REPETITIONS - 1)]
    alone = referee.logits(inputs, rows, batch_size=1)
    shaken = referee.logits((inputs + _noise(inputs, seed)).clamp(0.0, 1.0), rows)
    slopes = _gradient(referee, model, rows)
    gradient = torch.zeros_like(inputs) if slopes is None else slopes
    finite = flat(gradient).isfinite().all(1)
    measured = PreflightStats(
        samples=len(inputs),
        classes=logits.shape[1],
        modules_in_train_mode=_in_train_mode(model),
        repeated=max(drift(logits, other) for other in again),
        alone=drift(logits, alone),
        probabilities=float(((logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < 1e-3)).double().mean()),
        gradient_path=slopes is not None,
        no_gradient=float((finite & (flat(gradient) == 0).all(1)).double().mean()),
        broken_gradient=float((~finite).double().mean()),
        shaken=float((shaken.argmax(1) != logits.argmax(1)).double().mean()),
        random_parameters=random_parameters,
        random_parameters_measured=True,
    )
    return ChunkStats(forwards=Passes(0, referee.forwards), backwards=Passes(0, referee.backwards), preflight=measured)


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise InvalidInputError for labels beyond the classes of the model."""
    if int(labels.max()) >= classes:
        raise InvalidInputError(
            f"labels: expected 0 to {classes - 1}, the classes of the model, got {int(labels.max())}"
        )


def _gradient(referee: Referee, model: Model, rows: Tensor) -> Tensor | None:
    """Compute the raw gradient of the margin, NaN and inf included; None if the logits have no path to the inputs."""
    classifier, parts, reached = Classifier(model), [], False
    for part in referee.parts(rows):
        referee.forwards += len(part)
        with torch.enable_grad():
            leaf = referee.inputs[part].detach().clone().requires_grad_()
            gradient = None
            # The forward passes of the same inputs without gradients have succeeded.
            with suppress(NoGradientError):
                margin = Criterion(referee.labels[part]).margin(classifier.logits(leaf, part)).sum()
                if margin.requires_grad:
                    (gradient,) = torch.autograd.grad(margin, leaf, allow_unused=True)
                    referee.backwards += len(part)
        reached |= gradient is not None
        parts.append(torch.zeros_like(leaf) if gradient is None else gradient)
    return torch.cat(parts).detach() if reached else None


def _in_train_mode(model: Model) -> int:
    return sum(module.training for module in model.modules()) if isinstance(model, nn.Module) else 0


def _noise(inputs: Tensor, seed: int) -> Tensor:
    draws = np.random.default_rng((seed, STREAMS["preflight noise"])).uniform(-TINY, TINY, tuple(inputs.shape))
    return torch.from_numpy(draws).to(inputs)
