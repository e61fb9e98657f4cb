"""A model without a gradient is refused before the run if the attack follows gradients, and only then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd.errors import NoGradientError
from pdpgd.evaluation.compare import compare
from pdpgd.evaluation.evaluate import evaluate

Answer = Callable[[Tensor], Tensor]


@pytest.fixture
def net(generator: torch.Generator) -> nn.Module:
    """All its classes occur in the box."""
    first, last = nn.Linear(16, 8), nn.Linear(8, 3)
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        first.bias.copy_(-first.weight.sum(1) / 2)
        last.bias.zero_()
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), last).eval()


class Without(nn.Module):
    """Answers inside a context in which no graph is made."""

    def __init__(self, net: nn.Module, context: Callable[[], Any]) -> None:
        super().__init__()
        self.net, self.context = net, context
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with self.context():
            logits: Tensor = self.net(x)
        return logits


def quantized(net: nn.Module) -> nn.Module:
    with pytest.warns((DeprecationWarning, UserWarning)):
        made: nn.Module = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    return made.eval()


def in_numpy(net: nn.Module, *, detached: bool) -> Answer:
    def answer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return net(torch.from_numpy((x.detach() if detached else x).numpy().copy()))

    return answer


KINDS: dict[str, Callable[[nn.Module], Answer]] = {
    "no_grad": lambda net: Without(net, torch.no_grad),
    "inference_mode": lambda net: Without(net, torch.inference_mode),
    "numpy": lambda net: in_numpy(net, detached=False),
    "numpy, detached": lambda net: in_numpy(net, detached=True),
    "quantize_dynamic": quantized,
}


@pytest.fixture(params=KINDS)
def blind(request: pytest.FixtureRequest, net: nn.Module) -> Answer:
    return KINDS[request.param](net)


@pytest.fixture
def data(net: nn.Module, blind: Answer, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    points = torch.rand(12, 1, 4, 4, generator=generator)
    return points, blind(points).argmax(1).clone()


# torch warns of a quantized layer that it is asked to differentiate.
pytestmark = [pytest.mark.filterwarnings("ignore:.*(autograd kernel|quantization|TypedStorage|quantize).*")]


@pytest.mark.parametrize(("attack", "norm"), [("auto", "l2"), ("pdpgd", "linf"), ("pgd", "linf"), ("jsma", "l0")])
def test_an_attack_that_follows_gradients_is_refused_before_any_chunk(
    attack: str, norm: str, blind: Answer, data: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(
        NoGradientError,
        match=rf"expected a gradient .* which the attack {attack} follows, .* use an attack that needs no gradient \("
        "corner-search, one-pixel, square, sparse-rs",
    ):
        evaluate(blind, data, norms=(norm,), attack=attack, budget=20, threads=1, chunk_size=6)


@pytest.mark.parametrize("attack", ["one-pixel", "corner-search"])
def test_an_attack_that_needs_none_is_run_with_all_checks(
    attack: str, blind: Answer, data: tuple[Tensor, Tensor]
) -> None:
    evaluation = evaluate(blind, data, norms=("l0",), attack=attack, budget=60, threads=1, chunk_size=6)
    assert evaluation.clean_accuracy == 1.0
    assert "zero gradients" in [check.name for check in evaluation.reliability.alarms]
    assert set(evaluation.column("source", "l0")) <= {"", "l0", "noise", "another image"}


def test_a_function_of_the_users_own_is_run(blind: Answer, data: tuple[Tensor, Tensor]) -> None:
    def away(model: Answer, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        points = 1 - inputs
        return SimpleNamespace(adversarials=points, found=model(points).argmax(1) != labels)

    evaluation = evaluate(blind, data, norms=("l2",), attack=away, threads=1)
    assert evaluation.counts("l2")["fooled"] > 0


def test_a_comparison_continues_with_the_attacks_that_need_none(net: nn.Module, generator: torch.Generator) -> None:
    blind, points = Without(net, torch.no_grad), torch.rand(6, 1, 4, 4, generator=generator)
    labels = blind(points).argmax(1)
    found = compare(blind, (points, labels), norms=("l0",), attacks=["auto", "one-pixel"], budget=40, threads=1)
    assert [row.label for row in found.of("l0")] == ["one-pixel"]
    (failed,) = found.failed("l0")
    assert failed.failure is not None
    assert "which the attack auto follows" in failed.failure


def test_a_gradient_that_is_zero_is_no_reason_to_refuse(net: nn.Module, generator: torch.Generator) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = net(x.round())
            return logits

    model, points = Rounded().eval(), torch.rand(12, 1, 4, 4, generator=generator)
    labels = model(points).argmax(1)
    evaluation = evaluate(model, (points, labels), norms=("l2",), budget=6, threads=1)
    assert "zero gradients" in [check.name for check in evaluation.reliability.alarms]
