"""A look at the model before the run: is it such that its robustness can be measured at all?"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pdpgd.classifier import Classifier, Model
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError, NoGradientError
from pdpgd.evaluation.referee import Referee, drift
from pdpgd.tensors import flat

# Half a grey step: what no eye and no file can tell from the image itself.
TINY = 1 / 510
REPETITIONS = 3


def preflight(model: Model, inputs: Tensor, labels: Tensor, *, batch_size: int, seed: int) -> dict[str, Any]:
    """Numbers on a few samples; `reliability` says what they mean."""
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
    return {
        "samples": len(inputs),
        "classes": logits.shape[1],
        "modules_in_train_mode": _in_train_mode(model),
        "repeated": max(drift(logits, other) for other in again),
        "alone": drift(logits, alone),
        "probabilities": float(((logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < 1e-3)).double().mean()),
        "gradient_path": slopes is not None,
        "no_gradient": float((finite & (flat(gradient) == 0).all(1)).double().mean()),
        "broken_gradient": float((~finite).double().mean()),
        "shaken": float((shaken.argmax(1) != logits.argmax(1)).double().mean()),
        "forwards": {"attacks": 0, "checks": referee.forwards},
        "backwards": {"attacks": 0, "checks": referee.backwards},
    }


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
    draws = np.random.default_rng((seed, 2**33)).uniform(-TINY, TINY, tuple(inputs.shape))
    return torch.from_numpy(draws).to(inputs)
