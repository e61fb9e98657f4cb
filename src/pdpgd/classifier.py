"""The model as attacks see it: points in, checked logits out, and every pass counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pdpgd.criteria import Criterion, Surrogate, lead_over
from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, ModelError, NoGradientError, PdpgdError, named, warn_user
from pdpgd.tensors import flat

Model = Callable[[Tensor], Any]

NO_GRADIENT = "expected logits that depend on the inputs, got a graph that does not reach them"

# Gradients are clipped here, so that their squares, which Adam averages, stay within the range of float32.
STEEPEST = 1e18
# Attacks have the logits of their steps checked together, after this many calls: a check waits for the device.
CHECKED_TOGETHER = 16
# Part of torch's message when NumPy reads a tensor that requires a gradient.
NOT_FOR_NUMPY = "on Tensor that requires grad"


class Ledger:
    """Counts the forward and backward passes spent on each sample of a call."""

    def __init__(self, samples: int, device: torch.device) -> None:
        self.forwards = torch.zeros(samples, dtype=torch.long, device=device)
        self.backwards = torch.zeros(samples, dtype=torch.long, device=device)

    def add(self, samples: Tensor, *, forwards: int = 0, backwards: int = 0) -> None:
        """Add passes; a sample may appear in a batch several times, once per restart."""
        one = torch.ones_like(samples)
        if forwards:
            self.forwards.index_add_(0, samples, one, alpha=forwards)
        if backwards:
            self.backwards.index_add_(0, samples, one, alpha=backwards)


class Answer(NamedTuple):
    """The result of one forward and one backward pass over a batch of points."""

    margin: Tensor
    prediction: Tensor
    loss: Tensor
    """The surrogate, which was differentiated."""
    gradient: Tensor
    steepness: Tensor
    """Largest absolute entry of each sample's gradient."""


class Lead(NamedTuple):
    """By how much a class leads another one, and the gradient of that."""

    other: Tensor
    lead: Tensor
    slope: Tensor


class Classifier:
    """Calls the model, accepts an output with `.logits`, and checks the logits. Never changes the model's state.

    Args:
        model: Maps a batch of inputs to logits.
        draws: Number of draws of a randomized model whose mean is taken; logits and gradients are those of the mean.
    """

    def __init__(self, model: Model, *, draws: int = 1) -> None:
        if not callable(model):
            raise InvalidInputError(f"model: expected something that maps inputs to logits, got {type(model).__name__}")
        self._model = model if draws == 1 else MeanOfDraws(model, draws)
        self.draws = draws
        """Number of passes of the model that a call takes."""
        self._pending: list[tuple[Tensor, Tensor | None]] = []
        if isinstance(model, nn.Module) and model.training:
            warn_user(
                "the model is in train mode: dropout and batch normalization make its outputs depend on chance and on "
                "the batch; call model.eval() first"
            )

    def logits(self, points: Tensor, samples: Tensor | None, *, check_later: bool = False) -> Tensor:
        """Return the logits in the dtype of the points, whatever precision the model computes in.

        `samples` numbers the points in error messages; None if it is not known which samples they belong to. With
        `check_later`, whether they are finite is checked after several calls, and by `check`, which must follow.
        """
        try:
            output = self._model(points)
        except PdpgdError:
            raise
        except FOREIGN_ERRORS as error:  # torch raises RuntimeError, other libraries anything
            if NOT_FOR_NUMPY in str(error):
                raise NoGradientError(f"{NO_GRADIENT} ({error})") from error
            raise ModelError(
                f"the model failed on inputs of shape {tuple(points.shape)}, {points.dtype}, {points.device}: "
                f"{type(error).__name__}: {error}"
            ) from error
        output = getattr(output, "logits", output)
        logits = self._formed(output, len(points))
        # The largest is finite only if every logit is.
        self._pending.append((logits.detach().abs().amax(1), samples))
        if not check_later or len(self._pending) >= CHECKED_TOGETHER:
            self.check()
        return _as(points.dtype, logits)

    def check(self) -> None:
        """Raise a ModelError if logits that were to be checked later are not finite."""
        pending, self._pending = self._pending, []
        if not pending or bool(torch.cat([largest for largest, _ in pending]).isfinite().all()):
            return
        for largest, samples in pending:
            broken = ~largest.isfinite()
            if bool(broken.any()):
                which = "" if samples is None else f" for samples {named(sorted(set(samples[broken].tolist())))}"
                raise ModelError(f"expected finite logits, got NaN or inf{which}")

    def margin_and_gradient(
        self,
        points: Tensor,
        samples: Tensor,
        criterion: Criterion,
        surrogate: Surrogate,
        *,
        check_later: bool = False,
    ) -> Answer:
        """Return margin, class and gradient of the surrogate: one forward and one backward pass."""
        with torch.enable_grad():
            leaf = points.detach().requires_grad_()
            logits = self.logits(leaf, samples, check_later=check_later)
            margin = criterion.margin(logits)
            loss = surrogate(margin, logits, criterion)
            gradient = _slope(loss, leaf)
        # A model may have an undefined slope (a square root at zero): no direction is better than NaN.
        gradient = gradient.nan_to_num(0.0, STEEPEST, -STEEPEST).clamp_(-STEEPEST, STEEPEST)
        steepness = flat(gradient).abs().amax(1)
        return Answer(margin.detach(), logits.detach().argmax(1), loss.detach(), gradient, steepness)

    def leads(self, points: Tensor, samples: Tensor, own: Tensor, count: int) -> list[Lead]:
        """Return the runners-up to the class `own` by logit: a forward pass, and at most `count` backward passes."""
        with torch.enable_grad():
            leaf = points.detach().requires_grad_()
            logits = self.logits(leaf, samples)
            rivals = logits.detach().scatter(1, own[:, None], -math.inf)
            others = rivals.topk(min(count, logits.shape[1] - 1), 1).indices
            leads = [(other, lead_over(logits, own, other)) for other in others.T]
            slopes = [_slope(lead, leaf, keep=True) for _, lead in leads]
        return [
            Lead(other, lead.detach(), slope.nan_to_num(0.0, STEEPEST, -STEEPEST))
            for (other, lead), slope in zip(leads, slopes, strict=True)
        ]

    def _formed(self, logits: object, batch: int) -> Tensor:
        """Check all about the logits that is known without their values."""
        if not isinstance(logits, Tensor):
            raise ModelError(f"expected a tensor of logits (or an output with .logits), got {type(logits).__name__}")
        if logits.ndim != 2 or logits.shape[0] != batch or logits.shape[1] < 2:
            raise ModelError(f"expected logits of shape ({batch}, classes >= 2), got {tuple(logits.shape)}")
        if not logits.is_floating_point():
            raise ModelError(f"expected floating-point logits, got {logits.dtype}")
        return logits


def _slope(loss: Tensor, leaf: Tensor, *, keep: bool = False) -> Tensor:
    """Return the gradient of the summed losses at the points; `keep` retains the graph for another one."""
    gradient = None
    if loss.requires_grad:
        try:
            (gradient,) = torch.autograd.grad(loss.sum(), leaf, allow_unused=True, retain_graph=keep)
        except PdpgdError:
            raise
        except FOREIGN_ERRORS as error:  # a model may define its own gradients
            raise ModelError(f"the model failed in its backward pass: {type(error).__name__}: {error}") from error
    if gradient is None:
        raise NoGradientError(NO_GRADIENT)
    return gradient


def _as(dtype: torch.dtype, logits: Tensor) -> Tensor:
    """Convert the logits to a dtype but keep the model's argmax: rounding may make the first two tie."""
    rounded = logits.to(dtype)
    if torch.finfo(logits.dtype).bits <= torch.finfo(dtype).bits:
        return rounded
    own = logits.detach().argmax(1, keepdim=True)
    lost = rounded.detach().argmax(1, keepdim=True) != own
    top = rounded.detach().gather(1, own)
    # Up by one unit in the last place, as a constant: the gradient is that of the logits.
    ahead = (torch.nextafter(top, torch.full_like(top, math.inf)) - top) * lost
    return rounded + torch.zeros_like(rounded).scatter(1, own, ahead)


def warn_of_probabilities(logits: Tensor) -> None:
    """Warn if all rows are nonnegative and sum to one: probabilities have small margins and vanishing gradients."""
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        warn_user("the model's outputs look like probabilities; expected logits: take the softmax out of the model")


class MeanOfDraws(nn.Module):
    """The mean of the logits over several draws of a randomized model (expectation over transformation).

    Each draw is a call of its own, since a model may draw one random number for its whole batch. With gradients, the
    graphs of all draws are in memory at once.
    """

    def __init__(self, model: Model, draws: int) -> None:
        super().__init__()
        # Not as a child module: the model's mode, parameters and hooks belong to its owner.
        self._drawn: Callable[[], Model] = lambda: model
        self.training = bool(getattr(model, "training", False))
        self.draws = draws

    def forward(self, inputs: Tensor) -> Any:
        """Call the model once per draw and average the logits."""
        total: Any = None
        for _ in range(self.draws):
            output = self._drawn()(inputs)
            logits = getattr(output, "logits", output)
            if not isinstance(logits, Tensor) or not logits.is_floating_point():
                return logits  # what it should have been, the classifier says
            total = logits if total is None else total + logits
        return total / self.draws


class Counted(nn.Module):
    """Wraps a model and counts every row that goes forward or backward, whatever an attack reports."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        # Not as a child module: the model's mode, parameters and hooks belong to its owner.
        self._counted: Callable[[], Model] = lambda: model
        self.training = bool(getattr(model, "training", False))
        self.forwards = self.backwards = 0

    def forward(self, inputs: Tensor) -> Any:
        """Call the model and count the rows."""
        self.forwards += len(inputs)
        output = self._counted()(inputs)
        logits = getattr(output, "logits", output)
        if isinstance(logits, Tensor) and logits.requires_grad:
            logits.register_hook(self._backward)  # type: ignore[no-untyped-call]  # torch does not type it
        return output

    def _backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
