"""The referee trusts nothing: each verdict is compared with a model whose margin is known by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd.evaluation.referee import NONE, NOT_FINITE, OUTSIDE, STILL_RIGHT, UNSTEADY, VERIFIED, Referee, Verdicts
from support.models import Affine, Counting, Stubborn, TinyConv

# The last float32 below and the first above.
BELOW_HALF, BELOW_ZERO, ABOVE_ONE = (
    float(torch.nextafter(torch.tensor(at), torch.tensor(toward)))
    for at, toward in ((0.5, 0.0), (0.0, -1.0), (1.0, 2.0))
)


class Step(nn.Module):
    """z_0 - z_1 = 16 (x_0 - 1/2), without any rounding: z_0 = 16 x_0, z_1 = 8, z_2 = -8."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        first = 16 * x.flatten(1)[:, 0]
        return torch.stack([first, torch.full_like(first, 8.0), torch.full_like(first, -8.0)], dim=1)


class Moody(Step):
    """Adds to z_0 when asked for one sample, or when asked for several."""

    def __init__(self, *, alone: float = 0.0, together: float = 0.0) -> None:
        super().__init__()
        self.alone, self.together = alone, together

    def forward(self, x: Tensor) -> Tensor:
        extra = self.alone if len(x) == 1 else self.together
        return super().forward(x) + torch.tensor([extra, 0.0, 0.0])


def of(*first: float) -> Tensor:
    """Images that differ in their first value; the others do not matter to the model."""
    points = torch.full((len(first), 3, 2, 2), 0.25)
    points[:, 0, 0, 0] = torch.tensor(first)
    return points


def judged(model: nn.Module, points: Tensor, claimed: Tensor | None = None, *, batch_size: int = 4) -> Verdicts:
    """Against inputs of class 0."""
    labels = torch.zeros(len(points), dtype=torch.long)
    referee = Referee(model, of(*[0.75] * len(points)), labels, batch_size=batch_size)
    return referee.judge(points, torch.ones(len(points), dtype=torch.bool) if claimed is None else claimed)


def words(verdicts: Verdicts) -> list[str]:
    return [str(word) for word in verdicts.word]


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_an_adversarial_point_is_verified_with_its_margin_and_its_class(batch_size: int) -> None:
    verdicts = judged(Step(), of(0.25, 0.375, 0.0), batch_size=batch_size)
    assert words(verdicts) == [VERIFIED] * 3
    assert verdicts.valid.all()
    assert not verdicts.fragile.any()
    assert verdicts.margin.tolist() == [-4.0, -2.0, -8.0]
    assert verdicts.prediction.tolist() == [1, 1, 1]


def test_the_class_is_that_of_the_largest_logit() -> None:
    model = Affine(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2.0, 0.0, 0.0]))
    referee = Referee(model, torch.tensor([[0.5]]), torch.tensor([0]), batch_size=1)
    verdicts = referee.judge(torch.tensor([[1.0]]), torch.tensor([True]))
    assert verdicts.prediction.tolist() == [0]
    assert words(verdicts) == [STILL_RIGHT]
    other = Referee(model, torch.tensor([[0.5]]), torch.tensor([1]), batch_size=1)
    assert other.judge_inputs().prediction.tolist() == [0]
    assert other.judge_inputs().margin.tolist() == [-1.5]


@pytest.mark.parametrize("value", [ABOVE_ONE, BELOW_ZERO, 1.5, -3.0])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_point_outside_the_box_does_not_count_be_it_by_one_ulp(value: float, place: int) -> None:
    points = of(0.25, 0.25)
    points[1].view(-1)[place] = value
    verdicts = judged(Step(), points)
    assert words(verdicts) == [VERIFIED, OUTSIDE]
    assert verdicts.valid.tolist() == [True, False]


def test_the_edge_of_the_box_is_inside() -> None:
    points = of(0.0, 0.25)
    points[1, 2, 1, 1] = 1.0
    assert words(judged(Step(), points)) == [VERIFIED, VERIFIED]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_point_that_is_not_finite_never_reaches_the_model(value: float) -> None:
    points, model = of(0.25, 0.25, 0.25), Counting(Step())
    points[1, 1, 1, 0] = value
    verdicts = judged(model, points)
    assert words(verdicts) == [VERIFIED, NOT_FINITE, VERIFIED]
    assert verdicts.margin[1] == math.inf
    assert verdicts.prediction[1] == -1
    assert model.forwards == [2, 1, 1]


@pytest.mark.parametrize("first", [0.5, 0.5625, 1.0])
def test_a_point_on_the_boundary_or_before_it_is_still_correctly_classified(first: float) -> None:
    verdicts = judged(Step(), of(first))
    assert words(verdicts) == [STILL_RIGHT]
    assert not verdicts.valid.any()
    assert not verdicts.fragile.any()
    assert verdicts.margin.tolist() == [16 * (first - 0.5)]


def test_what_is_not_claimed_is_none_however_adversarial() -> None:
    points = of(0.25, 0.25, math.nan, 2.0)
    verdicts = judged(Step(), points, torch.tensor([False, True, False, False]))
    assert words(verdicts) == [NONE, VERIFIED, NONE, NONE]
    assert verdicts.valid.tolist() == [False, True, False, False]
    assert verdicts.margin[0] == math.inf


def test_a_margin_of_few_roundings_is_verified_and_fragile() -> None:
    barely = judged(Step(), of(BELOW_HALF))
    assert words(barely) == [VERIFIED]
    assert barely.fragile.all()
    assert barely.margin.item() == 16 * (BELOW_HALF - 0.5) < 0


def test_only_the_row_that_hangs_by_a_thread_is_fragile() -> None:
    verdicts = judged(Step(), of(0.25, BELOW_HALF, 0.49), batch_size=2)
    assert verdicts.valid.all()
    assert verdicts.fragile.tolist() == [False, True, False]


def test_every_kind_of_row_in_one_batch_gets_its_own_word() -> None:
    points = of(0.25, 0.625, 2.0, math.nan, 0.25, BELOW_HALF)
    claimed = torch.tensor([True, True, True, True, False, True])
    verdicts = judged(Step(), points, claimed, batch_size=2)
    assert words(verdicts) == [VERIFIED, STILL_RIGHT, OUTSIDE, NOT_FINITE, NONE, VERIFIED]
    assert verdicts.valid.tolist() == [True, False, False, False, False, True]
    assert verdicts.margin[:2].tolist() == [-4.0, 2.0]


def test_a_point_that_fools_only_in_a_batch_does_not_count() -> None:
    verdicts = judged(Moody(alone=8.0), of(0.25, 0.25))
    assert words(verdicts) == [UNSTEADY, UNSTEADY]
    assert not verdicts.valid.any()
    assert not verdicts.fragile.any()
    assert verdicts.margin.tolist() == [4.0, 4.0]


def test_a_point_that_fools_only_alone_does_not_count() -> None:
    verdicts = judged(Moody(together=8.0), of(0.25, 0.25))
    assert VERIFIED not in words(verdicts)
    assert not verdicts.valid.any()


def test_two_passes_that_differ_by_a_rounding_make_the_point_fragile_not_invalid() -> None:
    rounding = 8 * torch.finfo(torch.float32).eps
    for model in (Moody(alone=2 * rounding), Moody(together=2 * rounding)):
        verdicts = judged(model, of(0.5 - rounding / 16, 0.5 - rounding / 16))
        assert words(verdicts) == [VERIFIED, VERIFIED]
        assert verdicts.fragile.all()
        assert verdicts.margin.tolist() == [rounding, rounding]
        # Of the pass that says adversarial.
        assert verdicts.prediction.tolist() == [1, 1]


def test_a_margin_smaller_than_what_two_passes_differ_by_is_fragile() -> None:
    verdicts = judged(Moody(together=-1.0), of(0.49, 0.25))
    assert words(verdicts) == [VERIFIED, VERIFIED]
    assert verdicts.fragile.tolist() == [True, False]


def test_inputs_that_are_misclassified_are_found(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    verdicts = Referee(model, images, labels, batch_size=4).judge_inputs()
    with torch.no_grad():
        prediction = model(images).argmax(1)
    assert torch.equal(verdicts.valid, prediction != labels)
    assert torch.equal(verdicts.prediction, prediction)
    assert verdicts.valid.sum() == 1
    assert torch.equal(verdicts.margin < 0, verdicts.valid)


def test_sizes_are_those_of_hand_in_all_four_norms() -> None:
    inputs = torch.full((3, 3, 2, 2), 0.5)
    points = inputs.clone()
    # One pixel in all its channels, two pixels in a channel each, and nothing.
    points[0, :, 0, 1] = torch.tensor([0.75, 0.25, 1.0])
    points[1, 0, 0, 0], points[1, 2, 1, 1] = 0.125, 1.0
    referee = Referee(Stubborn(), inputs, torch.zeros(3, dtype=torch.long), batch_size=3)
    expected = {
        "linf": [0.5, 0.5, 0.0],
        "l1": [1.0, 0.875, 0.0],
        "l2": [math.sqrt(0.375), math.sqrt(0.390625), 0.0],
        "l0": [1.0, 2.0, 0.0],
    }
    for norm, sizes in expected.items():
        got = referee.sizes(points, norm)
        assert got.dtype == torch.float64
        assert got.tolist() == pytest.approx(sizes, rel=1e-15)


def test_sizes_are_those_of_double_precision(generator: torch.Generator) -> None:
    # Cubed, so that float32 cannot hold the difference.
    inputs, points = torch.rand(2, 8, 3, 4, 4, generator=generator) ** 3
    assert not torch.equal((points - inputs).double(), points.double() - inputs.double())
    points[:4, :, 1:] = inputs[:4, :, 1:]
    referee = Referee(Stubborn(), inputs, torch.zeros(8, dtype=torch.long), batch_size=3)
    delta = points.numpy().astype(np.float64) - inputs.numpy().astype(np.float64)
    flat = np.abs(delta).reshape(8, -1)
    assert referee.sizes(points, "linf").tolist() == flat.max(1).tolist()
    assert referee.sizes(points, "l0").tolist() == (delta != 0).any(1).reshape(8, -1).sum(1).tolist()
    assert referee.sizes(points, "l1").tolist() == pytest.approx(flat.sum(1), rel=1e-14)
    assert referee.sizes(points, "l2").tolist() == pytest.approx(np.sqrt((flat**2).sum(1)), rel=1e-14)


def test_the_model_is_left_as_it_was(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    model.first.weight.grad = torch.ones_like(model.first.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    referee = Referee(model, images, labels, batch_size=4)
    verdicts = referee.judge(1 - images, torch.ones(len(images), dtype=torch.bool))
    referee.judge_inputs()
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.first.weight.grad.eq(1).all()
    assert model.last.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not verdicts.margin.requires_grad


def test_every_row_that_goes_through_the_model_is_counted(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    counting = Counting(model)
    referee = Referee(counting, images, labels, batch_size=4)
    referee.judge(1 - images, torch.ones(len(images), dtype=torch.bool))
    assert referee.forwards == sum(counting.forwards) > len(images)
    assert max(counting.forwards) == 4
    assert referee.backwards == 0


def test_a_double_point_is_judged_as_the_float_that_is_stored() -> None:
    points = of(0.25, 0.25).double()
    points[0, 1, 1, 1] = 1 + 1e-12
    points[1, 1, 1, 1] = 1 + 1e-6
    assert words(judged(Step(), points)) == [VERIFIED, OUTSIDE]


class Undecided(nn.Module):
    """Another class in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return torch.eye(2)[[self.passes % 2] * len(x)]


def test_a_point_that_equals_its_input_never_counts() -> None:
    inputs = of(0.75, 0.25, 0.25)
    labels, every = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    for model in (Step(), Undecided(), Undecided()):
        verdicts = Referee(model, inputs, labels, batch_size=3).judge(inputs.clone(), every)
        assert words(verdicts) == ["not perturbed"] * 3
        assert not verdicts.valid.any()
    referee = Referee(Step(), inputs, labels, batch_size=3)
    assert not referee.adversarial(inputs, torch.arange(3)).any()
    assert referee.judge_inputs().valid.tolist() == [False, True, True]
