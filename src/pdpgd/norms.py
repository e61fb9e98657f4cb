"""Norms: a size of the perturbation, its proximal operator, and what else an attack may ask about it.

The four norms of the paper are registered by name. A norm of your own is a `Norm` with a size and a prox;
`register_norm` gives it a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
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

# A norm of the user's own may only have a prox in the Euclidean metric. Its prox in Adam's metric is then approximated
# by the inner loop, run to convergence instead of for the paper's five iterations.
INNER_STEPS = 200
INNER_TOLERANCE = 1e-5


class BallShape(Enum):
    """The shape of a ball {delta: size(delta) <= radius}."""

    CUBE = "linf"
    EUCLIDEAN = "l2"
    CROSS_POLYTOPE = "l1"
    FEW_PIXELS = "l0 of pixels"
    FEW_ELEMENTS = "l0 of elements"


@dataclass(frozen=True)
class Norm:
    """A size of perturbations, its proximal operator, and its geometry.

    Name, size and prox are enough for every minimum-norm attack; the other fields make attacks more exact or faster.

    Example:
        >>> price = torch.linspace(1, 2, 784).view(1, 28, 28)
        >>> def size(delta):
        ...     return (price * delta.abs()).flatten(1).sum(1)
        >>> def prox(v, weight):
        ...     return pdpgd.proximal.prox_l1(v, weight[:, None, None, None] * price)
        >>> norm = pdpgd.Norm("priced-l1", size, prox)
        >>> pdpgd.auto(model, images, labels, norm=norm, budget=50).found.all()
        tensor(True)
    """

    name: str
    """Its name in messages, and in the register (`register_norm`)."""
    size: Size
    """Maps perturbations of shape (batch, ...) to sizes of shape (batch,)."""
    prox: Prox
    """(v, weight) -> argmin_z weight * f(z) + 1/2 ||z - v||^2 with one weight per sample, where f is the size or a
    relaxation of it."""
    metric_prox: MetricProx | None = None
    """(v, weight, h) -> the same with 1/2 sum_i h_i (z_i - v_i)^2; None: approximated by an inner loop."""
    gradient: Size | None = None
    """A subgradient of the size, for PDGD; None: computed by autograd."""
    box_prox: BoxProx | None = None
    """(v, weight, low, high) -> the prox of the size itself subject to low <= z <= high; None: `prox`, clipped."""
    relaxed: Norm | None = None
    """A norm with a slope whose small perturbations are also small in this one, for a norm that counts and so has no
    slope itself; None: the norm needs no relaxation."""
    differentiable: bool = True
    """Whether it has a subgradient."""
    degree: float = 1.0
    """The d of f(c z) = c^d f(z) for c > 0, with which an attack adjusts to the units of the inputs."""
    smallest: float = 0.0
    """Smallest size of a nonzero perturbation; a sample that reached it cannot improve."""
    dual: Size | None = None
    """Size of a gradient in the dual norm, max <g, z> over size(z) <= 1; None: not known, and attacks use l2."""
    unit: str = ""
    """What a size counts, such as "pixels"; empty if it is a length in units of the inputs."""
    sparse: bool = False
    """Whether minimizing it leaves most entries unchanged, as l1 and l0 do."""
    level_step: bool = False
    """Whether the step on a linearized margin is the exact one of l-infinity, which moves every entry to the same
    level; otherwise it is the prox in the box."""
    ball: BallShape | None = None
    """Shape of the ball, for attacks within a radius; None: inferred where `size` is that of one of the norms here,
    and otherwise the norm has no ball to attack in."""

    def __post_init__(self) -> None:
        if self.ball is None:
            # By identity: a size of the user's own need not be hashable.
            known = (shape for size, shape in _BALL_OF_SIZE.items() if size is self.size)
            object.__setattr__(self, "ball", next(known, None))

    @property
    def counts(self) -> bool:
        """Whether it counts changes instead of measuring them, and is attacked through its relaxation."""
        return self.relaxed is not None

    def prox_in_metric(self, v: Tensor, weight: Tensor, metric: Tensor) -> Tensor:
        """Return the prox in a diagonal metric, by the inner loop if there is no closed form."""
        if self.metric_prox is not None:
            return self.metric_prox(v, weight, metric)
        return proximal.prox_by_inner_loop(self.prox, v, weight, metric, steps=INNER_STEPS, tolerance=INNER_TOLERANCE)

    def prox_in_box(self, v: Tensor, weight: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the prox inside low <= z <= high."""
        if self.box_prox is not None:
            return self.box_prox(v, weight, low, high)
        # In l2 this is not exact, but iterating it leads to the same fixed points at a tenth of the cost.
        return clip(self.prox(v, weight), low, high)

    def subgradient(self, delta: Tensor) -> Tensor:
        """Return a subgradient of the size, by autograd if none is given."""
        if self.gradient is not None:
            return self.gradient(delta)
        with torch.enable_grad():
            leaf = delta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.size(leaf).sum(), leaf)
        # At the zero perturbation, where most sizes have a kink, zero is a subgradient of every norm.
        return gradient.nan_to_num(0.0, 0.0, 0.0)


def size_linf(delta: Tensor) -> Tensor:
    """Return the largest absolute entry per sample."""
    return flat(delta).abs().amax(1)


def size_l2(delta: Tensor) -> Tensor:
    """Return the Euclidean length per sample."""
    size: Tensor = torch.linalg.vector_norm(flat(delta), dim=1)
    return size


def size_l1(delta: Tensor) -> Tensor:
    """Return the sum of absolute entries per sample."""
    return flat(delta).abs().sum(1)


def count_elements(delta: Tensor) -> Tensor:
    """Return the number of nonzero entries per sample."""
    # Signs are summed exactly, and in a quarter of the time of a comparison.
    return flat(delta).sign().abs_().sum(1)


def count_pixels(delta: Tensor) -> Tensor:
    """Return the number of pixels changed in any channel per sample; on flat inputs each feature is a pixel."""
    return count_elements(delta if delta.ndim < 3 else delta.abs().amax(1))


def _gradient_linf(delta: Tensor) -> Tensor:
    largest = per_sample(size_linf(delta), delta)
    at_top = (delta.abs() == largest) & (delta != 0)
    return delta.sign() * at_top / per_sample(flat(at_top).sum(1).clamp(min=1), delta)


def _gradient_l2(delta: Tensor) -> Tensor:
    return delta / per_sample(size_l2(delta), delta).clamp(min=torch.finfo(delta.dtype).tiny)


_BALL_OF_SIZE: dict[Size, BallShape] = {
    size_linf: BallShape.CUBE,
    size_l2: BallShape.EUCLIDEAN,
    size_l1: BallShape.CROSS_POLYTOPE,
    count_pixels: BallShape.FEW_PIXELS,
    count_elements: BallShape.FEW_ELEMENTS,
}

LINF = Norm(
    "linf",
    size_linf,
    proximal.prox_linf,
    proximal.prox_linf_metric,
    _gradient_linf,
    dual=size_l1,
    level_step=True,
)
L2 = Norm("l2", size_l2, proximal.prox_l2, proximal.prox_l2_metric, _gradient_l2, dual=size_l2)
L1 = Norm("l1", size_l1, proximal.prox_l1, proximal.prox_l1_metric, torch.sign, dual=size_linf, sparse=True)

Operator = Literal["l2/3", "l1/2", "l1", "l0", "largest-channel"]
Unit = Literal["pixel", "element"]

# operator -> (degree of the function it is the prox of, (prox, metric prox) by element, (prox, metric prox) by pixel).
# By pixel, l0 is exact, and the relaxations follow the paper's largest-channel rule, which has a closed form in Adam's
# metric; "largest-channel" is that rule for l0 itself, which the paper calls the prox of the group l0 norm.
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
    """Return the l0 norm: the number of changed pixels or elements, with a choice of proximal operator.

    Args:
        unit: What is counted: "pixel" (changed in any channel; a feature on flat inputs) or "element".
        operator: How PDPGD shrinks it. "l2/3", with which the paper reports l0, "l1/2" and "l1" are relaxations; "l0"
            is the exact prox of the count; "largest-channel" is the paper's rule for the count of pixels, which keeps
            a pixel by its largest channel alone. With one channel, and by element, the last two are the same.

    Returns:
        The norm, named "l0".

    Raises:
        UnknownNameError: There is no such unit or operator.

    Example:
        >>> config = pdpgd.PDPGDConfig(steps=20, finetune_steps=20)
        >>> norm = pdpgd.l0(unit="element", operator="l1/2")
        >>> result = pdpgd.pdpgd(model, images, labels, norm=norm, config=config)
        >>> changed = (result.adversarials != images).flatten(1).sum(1)
        >>> torch.equal(result.distances, changed.float())
        True
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
        unit=f"{unit}s",
        sparse=True,
    )


L0 = l0()

_NORMS: dict[str, Norm] = {norm.name: norm for norm in (LINF, L2, L1, L0)}


def register_norm(norm: Norm) -> Norm:
    """Register a norm under its name, so that attacks, evaluations and the command line find it.

    Args:
        norm: The norm; its name must not be taken.

    Returns:
        The same norm.

    Raises:
        InvalidInputError: The name is taken.

    Example:
        >>> def size(delta):  # l1 in gray levels
        ...     return 255 * delta.abs().flatten(1).sum(1)
        >>> def prox(v, weight):
        ...     return pdpgd.proximal.prox_l1(v, 255 * weight)
        >>> norm = pdpgd.register_norm(pdpgd.Norm("gray-levels", size, prox))
        >>> pdpgd.auto(model, images, labels, norm="gray-levels", budget=50).found.all()
        tensor(True)
    """
    if norm.name in _NORMS:
        raise InvalidInputError(f"expected a norm name that is not taken, got {norm.name!r}")
    _NORMS[norm.name] = norm
    return norm


def norm_of(norm: str | Norm) -> Norm:
    """Look up a norm by name; a `Norm` is returned as it is.

    Args:
        norm: A registered name or a `Norm`.

    Returns:
        The norm.

    Raises:
        UnknownNameError: No norm has that name.

    Example:
        >>> sizes = norm_of("l2").size(result.adversarials - images)
        >>> torch.allclose(sizes, result.distances)
        True
    """
    if isinstance(norm, Norm):
        return norm
    if not isinstance(norm, str) or norm not in _NORMS:
        raise UnknownNameError("norm", norm, _NORMS)
    return _NORMS[norm]


def __getattr__(name: str) -> object:
    return _moved.attribute(__name__, name)
