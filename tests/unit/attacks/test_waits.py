"""A step does not wait for the device: operations whose result the host reads are counted, whatever the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pdpgd import ModelError, auto
from pdpgd.attacks.auto_config import AutoConfig
from pdpgd.attacks.best import Best
from pdpgd.classifier import CHECKED_TOGETHER, Classifier
from support.models import TinyConv

READS = (
    *("_local_scalar_dense", "is_nonzero", "nonzero", "nonzero_numpy", "equal", "masked_select", "unique_dim"),
    *("_unique2", "unique_consecutive", "bincount", "repeat_interleave"),
)
# Steps between two looks at whether a gradient vanished.
LOOKED_AT = AutoConfig().check_every
SAMPLES = 6


class Waits(TorchDispatchMode):
    """Counts the operations that end only when the device has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        self.count += name in READS or masks
        return func(*args, **(kwargs or {}))


@pytest.fixture
def net(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(SAMPLES, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def waits(net: TinyConv, images: Tensor, norm: str, budget: int) -> tuple[int, int]:
    """The waits of an attack that is a single descent, and its steps."""
    with Waits() as seen:
        result = auto(net, images, net(images).argmax(1), norm=norm, budget=budget)
    return seen.count, int(result.backwards.max())


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_more_steps_wait_only_where_gradients_and_logits_are_looked_at(
    norm: str, net: TinyConv, images: Tensor
) -> None:
    few, short = waits(net, images, norm, 24)
    many, long = waits(net, images, norm, 88)
    steps = long - short
    assert steps >= 24
    assert many - few <= steps // LOOKED_AT + steps // CHECKED_TOGETHER + 2


@pytest.mark.parametrize(
    "read", [float, int, bool, lambda value: (value > 0).nonzero(), lambda value: value[value > 0]]
)
def test_the_count_sees_reads(read: Any) -> None:
    with Waits() as seen:
        read(torch.ones(()) if read in (float, int, bool) else torch.ones(3))
    assert seen.count == 1


def test_records_with_and_without_room_take_over_the_same_rows(images: Tensor) -> None:
    generator = torch.Generator().manual_seed(2)
    roomy = Best.none(images)
    plain = Best(*(value.clone() for value in (roomy.size, roomy.point, roomy.prediction, roomy.penalty)))
    assert roomy.roomy is not None
    for _ in range(6):
        at = torch.randperm(SAMPLES, generator=generator)[:4]
        size, margin = torch.rand(4, generator=generator), torch.rand(4, generator=generator) - 0.7
        point, prediction = torch.rand(4, 3, 6, 6, generator=generator), torch.randint(9, (4,), generator=generator)
        found = Best.candidates(point, size, margin, prediction, penalty=size + 1)
        with Waits() as seen:
            roomy.improve(found, at=at)
        assert seen.count == 0
        plain.improve(found, at=at)
        for name in ("size", "point", "prediction", "penalty"):
            torch.testing.assert_close(getattr(roomy, name), getattr(plain, name), rtol=0, atol=0, equal_nan=True)
    assert int(roomy.size.isfinite().sum()) > 0
    assert len(roomy.size) == len(roomy.point) == SAMPLES


def breaks(net: TinyConv, *, at: int) -> Any:
    """The model, whose answer to its call number `at` has a NaN in the last row."""
    calls = 0

    def model(points: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        logits: Tensor = net(points)
        if calls == at:
            logits = logits.clone()
            logits[-1] = float("nan")
        return logits

    return model


@pytest.mark.parametrize("call", [1, 2, 9, 24, 25])
def test_broken_logits_are_reported_whenever_they_come(call: int, net: TinyConv, images: Tensor) -> None:
    """A budget of 50 makes 25 calls: the inputs, 24 steps of a descent, and its last point."""
    labels = net(images).argmax(1)
    made = 0

    def counted(points: Tensor) -> Tensor:
        nonlocal made
        made += 1
        logits: Tensor = net(points)
        return logits

    auto(counted, images, labels, norm="l2", budget=50)
    assert made >= 25
    with pytest.raises(ModelError, match=r"expected finite logits, got NaN or inf for samples \[5\]"):
        auto(breaks(net, at=min(call, made)), images, labels, norm="l2", budget=50)


def test_a_check_that_was_put_off_names_the_samples_and_is_made_once(net: TinyConv, images: Tensor) -> None:
    classifier, samples = Classifier(breaks(net, at=2)), torch.arange(SAMPLES) + 10
    for _ in range(3):
        classifier.logits(images, samples, check_later=True)
    with pytest.raises(ModelError, match=r"samples \[15\]"):
        classifier.check()
    classifier.check()


def test_large_logits_are_finite(images: Tensor) -> None:
    """Their sum is not."""
    classifier = Classifier(lambda points: torch.full((len(points), 4), 3e38))
    assert classifier.logits(images, None).isfinite().all()
