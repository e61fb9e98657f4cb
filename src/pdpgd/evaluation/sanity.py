"""Attacks that cost next to nothing. A long attack that one of them beats did not do its work.

Each follows a path out of the input, t from 0 to 1, and takes the first adversarial point it sees on it: along the
gradient's sign, along the gradient, over the pixels with the steepest gradient, along noise, and towards another image.
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
"""The point of each row at its own t, shape (batch,)."""

HALVINGS = 7
REFINEMENTS = 3


def cheap_points(
    referee: Referee, model: Model, prediction: Tensor, right: Tensor, *, seed: int, indices: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, points and whether each was found, of every cheap attack, on the rows that are `right`."""
    rows = right.nonzero().flatten()
    if len(rows) == 0:
        return
    paths = {"noise": _noise_path(referee, seed, indices)}
    # A model without gradients has no steps along them; noise and other images remain.
    with suppress(NoGradientError):
        paths = {**_gradient_paths(referee, model, rows), **paths}
    towards = _another_image(referee, prediction, rows)
    if towards is not None:
        paths["another image"] = towards
    for name, path in paths.items():
        points, found = _first_on(path, referee, rows)
        yield name, points, found


def _first_on(path: Path, referee: Referee, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Halve t from 1 on and take the smallest that is adversarial, then bisect between it and the next smaller."""
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
        referee.forwards += len(part)
        answer = Classifier(model).margin_and_gradient(
            inputs[part], part, criterion, lambda margin, logits, criterion: margin
        )
        gradient[part] = answer.gradient
        referee.backwards += len(part)
    downhill = -gradient
    largest = per_sample(flat(downhill).abs().amax(1), inputs).clamp(min=torch.finfo(inputs.dtype).tiny)
    corner = torch.where(downhill > 0, box.high, torch.where(downhill < 0, box.low, inputs))
    steepness = downhill.abs().amax(1, keepdim=True) if inputs.ndim > 2 else downhill.abs()
    order = flat(steepness).argsort(dim=1, descending=True, stable=True).argsort(1).reshape(steepness.shape)
    # The pixels of rank below t^2 * all: a half, an eighth ... of them, down to a single one.
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
    """Signs drawn from (seed, index of the sample): the same in any batch."""
    inputs = referee.inputs
    shape = tuple(inputs.shape[1:])
    draws = [np.random.default_rng((seed, index, STREAMS["noise"])).integers(0, 2, shape) for index in indices.tolist()]
    signs = torch.from_numpy(np.stack(draws)).to(inputs).mul_(2).sub_(1)
    return lambda t: referee.box.clip(inputs + per_sample(t, inputs) * signs)


def _another_image(referee: Referee, prediction: Tensor, rows: Tensor) -> Path | None:
    """Towards the nearest image of the chunk that the model puts in another class than this one's label."""
    inputs = referee.inputs
    distance = torch.cdist(flat(inputs).double(), flat(inputs).double())
    distance = distance.masked_fill(prediction[None, :] == referee.labels[:, None], torch.inf)
    nearest = distance.min(1)
    if not bool(nearest.values[rows].isfinite().any()):
        return None
    toward = torch.where(per_sample(nearest.values.isfinite(), inputs).bool(), inputs[nearest.indices], inputs)
    return lambda t: torch.lerp(inputs, toward, per_sample(t, inputs)).clamp(0.0, 1.0)


# Half a grey step: what no eye and no file can tell from the image itself.
TINY = 1 / 510
REPETITIONS = 3


def preflight(
    model: Model, inputs: Tensor, labels: Tensor, *, batch_size: int, seed: int, random_parameters: int | None
) -> ChunkStats:
    """Measure the model on a few samples before it is attacked; `reliability` interprets the numbers."""
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
    """Every label is a class the model has."""
    if int(labels.max()) >= classes:
        raise InvalidInputError(f"labels: expected 0 to {classes - 1}, the model's classes, got {int(labels.max())}")


def _gradient(referee: Referee, model: Model, rows: Tensor) -> Tensor | None:
    """Compute the raw gradient of the margin, NaN and inf included; None if the logits have no path to the inputs."""
    classifier, parts, reached = Classifier(model), [], False
    for part in referee.parts(rows):
        referee.forwards += len(part)
        with torch.enable_grad():
            leaf = referee.inputs[part].detach().clone().requires_grad_()
            gradient = None
            # The model answered these very inputs without gradients just now.
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
