"""What is minimised: a size of the perturbation together with its proximal operator.

The four norms of the paper are here by name. A norm of your own is a `Norm` with a size and a prox; `register_norm`
gives it a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pdpgd import _moved, proximal
from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.tensors import clip, flat, per_sample

Size = Callable[[Tensor], Tensor]
Prox = Callable[[Tensor, Tensor], Tensor]
MetricProx = Callable[[Tensor, Tensor, Tensor], Tensor]
BoxProx = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# A user's norm may know its prox in the Euclidean metric only. Its prox in Adam's metric is then approached by the
# inner loop, run to convergence instead of the paper's five iterations.
INNER_STEPS = 200
INNER_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Norm:
    """A size of perturbations and the operators that shrink it.

    `size(delta)` maps (batch, ...) to (batch,). `prox(v, weight)` with one weight per sample is
    argmin_z weight * f(z) + 1/2 ||z - v||^2, where f is the size or a relaxation of it; `metric_prox(v, weight, h)` is
    the same with 1/2 sum_i h_i (z_i - v_i)^2, and is approached by an inner loop where it is not given.
    `gradient(delta)` is a subgradient of the size for PDGD; without it, autograd differentiates the size.
    """

    name: str
    size: Size
    prox: Prox
    metric_prox: MetricProx | None = None
    gradient: Size | None = None
    box_prox: BoxProx | None = None
    """The prox of the size itself inside low <= z <= high, where that is more than `prox`, clipped."""
    relaxed: Norm | None = None
    """A norm with a slope whose small perturbations are small in this one too: what counts entries has none itself."""
    differentiable: bool = True
    degree: float = 1.0
    """f(c z) = c^degree f(z): what keeps an attack the same when the inputs are given in other units."""
    smallest: float = 0.0
    """The least size a perturbation can have; a sample that reached it cannot get better."""

    def prox_in_metric(self, v: Tensor, weight: Tensor, metric: Tensor) -> Tensor:
        if self.metric_prox is not None:
            return self.metric_prox(v, weight, metric)
        return proximal.prox_by_inner_loop(self.prox, v, weight, metric, steps=INNER_STEPS, tolerance=INNER_TOLERANCE)

    def prox_in_box(self, v: Tensor, weight: Tensor, low: Tensor, high: Tensor) -> Tensor:
        if self.box_prox is not None:
            return self.box_prox(v, weight, low, high)
        # In l2 not quite that, but iterated it comes to rest at the same points, and costs a tenth.
        return clip(self.prox(v, weight), low, high)

    def subgradient(self, delta: Tensor) -> Tensor:
        if self.gradient is not None:
            return self.gradient(delta)
        with torch.enable_grad():
            leaf = delta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.size(leaf).sum(), leaf)
        # The size of the zero perturbation often has a kink: there, zero is a subgradient of every norm.
        return gradient.nan_to_num(0.0, 0.0, 0.0)


def size_linf(delta: Tensor) -> Tensor:
    return flat(delta).abs().amax(1)


def size_l2(delta: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(flat(delta), dim=1)
    return size


def size_l1(delta: Tensor) -> Tensor:
    return flat(delta).abs().sum(1)


def count_elements(delta: Tensor) -> Tensor:
    return (flat(delta) != 0).sum(1).to(delta.dtype)


def count_pixels(delta: Tensor) -> Tensor:
    """A pixel counts once, however many of its channels changed; a feature of a flat input is a pixel of its own."""
    return count_elements(delta) if delta.ndim < 3 else count_elements((delta != 0).any(1).to(delta.dtype))


def _gradient_linf(delta: Tensor) -> Tensor:
    largest = per_sample(size_linf(delta), delta)
    at_top = (delta.abs() == largest) & (delta != 0)
    return delta.sign() * at_top / per_sample(flat(at_top).sum(1).clamp(min=1), delta)


def _gradient_l2(delta: Tensor) -> Tensor:
    return delta / per_sample(size_l2(delta), delta).clamp(min=torch.finfo(delta.dtype).tiny)


LINF = Norm("linf", size_linf, proximal.prox_linf, proximal.prox_linf_metric, _gradient_linf)
L2 = Norm("l2", size_l2, proximal.prox_l2, proximal.prox_l2_metric, _gradient_l2)
L1 = Norm("l1", size_l1, proximal.prox_l1, proximal.prox_l1_metric, torch.sign)

Operator = Literal["l2/3", "l1/2", "l1", "l0", "largest-channel"]
Unit = Literal["pixel", "element"]

# operator -> (degree of the function it is the prox of, by element: prox and metric form, by pixel: the same).
# By pixel, l0 is exact and the relaxations follow the paper's largest-channel rule, the one with a closed form in
# Adam's metric; "largest-channel" is that rule for l0 itself, which the paper calls the prox of the group l0 norm.
_L0_OPERATORS: dict[str, tuple[float, tuple[Prox, MetricProx], tuple[Prox, MetricProx]]] = {
    "l2/3": (
        2 / 3,
        (proximal.prox_l23, proximal.prox_l23_metric),
        (proximal.prox_pixel_l23_largest_channel, proximal.prox_pixel_l23_largest_channel_metric),
    ),
    "l1/2": (
        1 / 2,
        (proximal.prox_l12, proximal.prox_l12_metric),
        (proximal.prox_pixel_l12_largest_channel, proximal.prox_pixel_l12_largest_channel_metric),
    ),
    "l1": (
        1.0,
        (proximal.prox_l1, proximal.prox_l1_metric),
        (proximal.prox_pixel_l1_largest_channel, proximal.prox_pixel_l1_largest_channel_metric),
    ),
    "l0": (
        0.0,
        (proximal.prox_l0, proximal.prox_l0_metric),
        (proximal.prox_pixel_l0, proximal.prox_pixel_l0_metric),
    ),
    "largest-channel": (
        0.0,
        (proximal.prox_l0, proximal.prox_l0_metric),
        (proximal.prox_pixel_l0_largest_channel, proximal.prox_pixel_l0_largest_channel_metric),
    ),
}


def l0(*, unit: Unit = "pixel", operator: Operator = "l2/3") -> Norm:
    """The number of changed pixels or elements, shrunk by a choice of operator.

    Args:
        unit: What is counted: "pixel", changed in any channel (a feature, on flat inputs), or "element".
        operator: How PDPGD shrinks it: "l2/3", with which the paper reports l0, "l1/2" and "l1" are relaxations; "l0"
            is the exact prox of the count; "largest-channel" is the paper's rule for the count of pixels, which keeps
            a pixel by its largest channel alone. On one channel, and by element, the last two are the same.

    Returns:
        The norm, named "l0".

    Raises:
        UnknownNameError: There is no such unit or operator.
    """
    if unit not in ("pixel", "element"):
        raise UnknownNameError("unit of l0", unit, ("pixel", "element"))
    if operator not in _L0_OPERATORS:
        raise UnknownNameError("operator of l0", operator, _L0_OPERATORS)
    degree, by_element, by_pixel = _L0_OPERATORS[operator]
    prox, metric_prox = by_pixel if unit == "pixel" else by_element
    size = count_pixels if unit == "pixel" else count_elements
    box_prox = proximal.prox_pixel_l0_box if unit == "pixel" else proximal.prox_l0_box
    return Norm(
        "l0",
        size,
        prox,
        metric_prox,
        box_prox=box_prox,
        relaxed=L1,
        differentiable=False,
        degree=degree,
        smallest=1.0,
    )


L0 = l0()

_NORMS: dict[str, Norm] = {norm.name: norm for norm in (LINF, L2, L1, L0)}


def register_norm(norm: Norm) -> Norm:
    """Make `norm` known by its name. A name is given once."""
    if norm.name in _NORMS:
        raise InvalidInputError(f"expected a norm name that is not taken, got {norm.name!r}")
    _NORMS[norm.name] = norm
    return norm


def norm_of(norm: str | Norm) -> Norm:
    """The norm of that name, or the norm itself."""
    if isinstance(norm, Norm):
        return norm
    if not isinstance(norm, str) or norm not in _NORMS:
        raise UnknownNameError("norm", norm, _NORMS)
    return _NORMS[norm]


def __getattr__(name: str) -> object:
    return _moved.attribute(__name__, name)
