"""When a point is adversarial, and what an attack minimizes to make it so.

The margin is positive while a sample is classified correctly (untargeted) or not yet as the target (targeted), and a
point is adversarial iff its margin is below zero. Where logits tie, the model's own argmax decides. A surrogate is a
differentiable stand-in for "the margin is not negative".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pdpgd.errors import UnknownNameError
from pdpgd.tensors import clip

# Beyond this margin e^m is continued by its tangent, so that a confident model cannot overflow it.
EXPONENTIAL_LIMIT = 20.0


@dataclass(frozen=True)
class Criterion:
    """What counts as adversarial: any class but `classes` (untargeted), or exactly `classes` (targeted)."""

    classes: Tensor
    targeted: bool = False

    def margin(self, logits: Tensor) -> Tensor:
        """z_y - max_{i != y} z_i; for a target t, max_{i != t} z_i - z_t.

        A tie gives 0, or a tiny number below 0 if the argmax of the logits is adversarial: the margin is below 0
        exactly where the argmax is not the label (untargeted) or is the target (targeted).
        """
        rival = self._others(logits.detach()).argmax(1)
        margin = lead_over(logits, rival, self.classes) if self.targeted else lead_over(logits, self.classes, rival)
        fooled = (logits.detach().argmax(1) == self.classes) == self.targeted
        tied = (margin.detach() == 0) & fooled
        # A constant, so that the gradient is that of the margin; whether there are ties only the device knows.
        return margin - tied.to(margin.dtype) * torch.finfo(margin.dtype).tiny

    def soft_margin(self, logits: Tensor) -> Tensor:
        """The margin with log-sum-exp in place of the maximum over the other classes."""
        own = logits.gather(1, self.classes[:, None]).squeeze(1)
        margin = own - self._others(logits).logsumexp(1)
        return -margin if self.targeted else margin

    def select(self, rows: Tensor) -> Criterion:
        """Return the given rows."""
        return Criterion(self.classes[rows], self.targeted)

    def _others(self, logits: Tensor) -> Tensor:
        return logits.scatter(1, self.classes[:, None], -math.inf)


def lead_over(logits: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Return z_own - z_other, for one pair of classes per sample."""
    # As a product with constants, its backward pass is one operation.
    sign = torch.zeros_like(logits).scatter_(1, own[:, None], 1.0)
    one = torch.ones_like(other, dtype=logits.dtype)[:, None]
    return (logits * sign.scatter_add_(1, other[:, None], -one)).sum(1)


Surrogate = Callable[[Tensor, Tensor, Criterion], Tensor]
"""(margin, logits, criterion) -> loss per sample, small where the sample is fooled."""


def logistic(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """log2(1 + e^m), the paper's choice (its released code scales it to 1 at the boundary)."""
    return F.softplus(margin) / math.log(2.0)


def hinge(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """max(0, 1 + m)."""
    return (1.0 + margin).clamp(min=0.0)


def squared(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """max(0, 1 + m)^2."""
    return hinge(margin, logits, criterion).square()


def exponential(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """e^m."""
    excess = (margin - EXPONENTIAL_LIMIT).clamp(min=0.0)
    return margin.clamp(max=EXPONENTIAL_LIMIT).exp() + math.exp(EXPONENTIAL_LIMIT) * excess


def matsushita(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """Return m + sqrt(1 + m^2)."""
    # For m < 0 the two terms cancel; the conjugate form 1 / (sqrt(1 + m^2) - m) does not.
    root = (1.0 + margin.square()).sqrt()
    return torch.where(margin < 0, 1.0 / (root - margin.clamp(max=0.0)), root + margin)


def cross_entropy(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """-log(1 - p_y) untargeted, -log p_t targeted: both are bounded below, unlike log p_y."""
    return F.softplus(criterion.soft_margin(logits))


def dlr(margin: Tensor, logits: Tensor, criterion: Criterion) -> Tensor:
    """The difference-of-logits ratio (Croce & Hein 2020): the margin over the spread of the leading logits.

    The spread is z_(1) - z_(3), targeted z_(1) - (z_(3) + z_(4)) / 2; with three classes z_(3) stands in for the mean,
    and with two, where there is no third logit, the result is the margin itself.
    """
    classes = logits.shape[1]
    if classes < 3:
        return margin
    top = logits.topk(min(4, classes), dim=1).values
    runner_up = top[:, 2:].mean(1) if criterion.targeted else top[:, 2]
    return margin / (top[:, 0] - runner_up + 1e-12)


SURROGATES: Mapping[str, Surrogate] = {
    "logistic": logistic,
    "hinge": hinge,
    "squared": squared,
    "exponential": exponential,
    "matsushita": matsushita,
    "cross-entropy": cross_entropy,
    "dlr": dlr,
}


def surrogate_by_name(name: str) -> Surrogate:
    """Look up a surrogate; an UnknownNameError lists the names."""
    if name not in SURROGATES:
        raise UnknownNameError("surrogate", name, SURROGATES)
    return SURROGATES[name]


@dataclass(frozen=True)
class Box:
    """The valid inputs, low <= x <= high; both bounds broadcast against a batch."""

    low: Tensor
    high: Tensor

    @property
    def width(self) -> float:
        """The widest side: the unit of rates and start radii."""
        return float((self.high - self.low).amax())

    def clip(self, points: Tensor) -> Tensor:
        """Move points into the box."""
        return clip(points, self.low, self.high)
