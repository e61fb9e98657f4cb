"""Attack methods in the common frame, for one norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pdpgd.attacks.frame import Framed, Method
from support.affine_distances import to_each_class
from support.models import Affine, Counting
from support.rounding import margin_error, size_error


def framed(method: Method, norm: str, **settings: Any) -> Framed:
    return Framed("theirs", (norm,), lambda classes: method, **settings)


def assert_near_exact(
    method: Method,
    model: Affine,
    inputs: Tensor,
    norm: str,
    *,
    slack: float,
    passes: tuple[int, int] | None,
    lost: int = 0,
) -> None:
    """Assert that distances lie between the exact one and `slack` times it, and that every pass is counted.

    At most `lost` samples may be missed: an attack may stop on the boundary, where the last bit decides. If `passes` is
    given, each sample costs exactly these forward and backward passes.
    """
    labels, counting = model.labels(inputs), Counting(model)
    least = to_each_class(model, inputs, labels, norm).amin(1)
    result = framed(method, norm)(counting, inputs, labels, norm=norm)
    assert int(result.found.sum()) >= len(inputs) - lost
    assert not result.faults
    spared = margin_error(model, result.adversarials, labels)
    nearest = to_each_class(model, inputs, labels, norm, spared=spared).amin(1)
    assert bool((result.distances >= nearest * (1 - size_error(inputs, norm))).all())
    assert bool((result.distances <= least * slack + 1e-3)[result.found].all()), (result.distances / least).tolist()
    assert int(result.forwards.sum()) == sum(counting.forwards)
    assert int(result.backwards.sum()) == sum(counting.backwards)
    assert model.weight.grad is None
    if passes is not None:
        spent = result.forwards.tolist(), result.backwards.tolist()
        assert spent == ([passes[0]] * len(inputs), [passes[1]] * len(inputs))
