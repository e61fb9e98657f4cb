from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pdpgd.criteria import SURROGATES, Box, Criterion, surrogate_by_name
from pdpgd.errors import UnknownNameError

MARGINS = [-1e4, -1e3, -50.0, -20.0, -3.0, -1.0, -0.5, 0.0, 1e-3, 0.5, 1.0, 3.0, 20.0, 50.0, 1e3, 1e4]


def log2_of_one_plus_exp(m: float) -> float:
    return m / math.log(2) if m > 700 else math.log1p(math.exp(m)) / math.log(2)


def tangent_exp(m: float) -> float:
    return math.exp(m) if m <= 20 else math.exp(20) * (1 + m - 20)


FORMULAS: dict[str, Callable[[float], float]] = {
    "logistic": log2_of_one_plus_exp,
    "hinge": lambda m: max(0.0, 1 + m),
    "squared": lambda m: max(0.0, 1 + m) ** 2,
    "exponential": tangent_exp,
    "matsushita": lambda m: m + math.sqrt(1 + m * m) if m > 0 else 1 / (math.sqrt(1 + m * m) - m),
}


def two_class_logits(margins: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows whose margin for class 0 is exactly as given."""
    margin = torch.tensor(margins, dtype=dtype)
    return torch.stack([margin, torch.zeros_like(margin)], dim=1)


def of_class_zero(rows: int, *, targeted: bool = False) -> Criterion:
    return Criterion(torch.zeros(rows, dtype=torch.long), targeted)


def random_logits(generator: torch.Generator, classes: int, rows: int = 40) -> tuple[Tensor, Tensor]:
    logits = 3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (rows,), generator=generator)


def test_untargeted_margin_is_the_lead_of_the_label() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0], [1.0, 5.0, 3.0], [2.0, -4.0, 2.5]])
    margin = Criterion(torch.tensor([1, 0, 0])).margin(logits)
    assert margin.tolist() == [2.0, -4.0, -0.5]


def test_targeted_margin_is_what_the_target_lacks() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0], [1.0, 5.0, 3.0], [2.0, -4.0, 2.5]])
    margin = Criterion(torch.tensor([1, 0, 1]), targeted=True).margin(logits)
    assert margin.tolist() == [-2.0, 4.0, 6.5]


@pytest.mark.parametrize("targeted", [False, True])
def test_margin_of_two_classes_is_their_difference(targeted: bool) -> None:
    margin = of_class_zero(2, targeted=targeted).margin(torch.tensor([[2.0, -1.0], [-2.0, 4.0]]))
    assert margin.tolist() == ([-3.0, 6.0] if targeted else [3.0, -6.0])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_margin_is_negative_exactly_where_the_answer_is_adversarial(classes: int, generator: torch.Generator) -> None:
    logits, classes_of_rows = random_logits(generator, classes)
    answer = logits.argmax(1)
    assert torch.equal(Criterion(classes_of_rows).margin(logits) < 0, answer != classes_of_rows)
    assert torch.equal(Criterion(classes_of_rows, targeted=True).margin(logits) < 0, answer == classes_of_rows)


def test_selected_rows_keep_their_class_and_their_aim() -> None:
    chosen = Criterion(torch.tensor([4, 5, 6]), targeted=True).select(torch.tensor([True, False, True]))
    assert chosen.classes.tolist() == [4, 6]
    assert chosen.targeted


@pytest.mark.parametrize("name", FORMULAS)
def test_surrogate_agrees_with_its_formula(name: str) -> None:
    logits = two_class_logits(MARGINS, torch.float64)
    criterion = of_class_zero(len(MARGINS))
    loss = SURROGATES[name](criterion.margin(logits), logits, criterion)
    expected = torch.tensor([FORMULAS[name](m) for m in MARGINS], dtype=torch.float64)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_and_its_gradient_are_finite_for_any_margin(name: str, targeted: bool, dtype: torch.dtype) -> None:
    logits = two_class_logits(MARGINS, dtype).requires_grad_()
    criterion = of_class_zero(len(MARGINS), targeted=targeted)
    loss = SURROGATES[name](criterion.margin(logits), logits, criterion)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert loss.dtype == dtype


@pytest.mark.parametrize("name", FORMULAS)
def test_surrogate_never_falls_as_the_margin_rises(name: str) -> None:
    margins = torch.cat([-torch.logspace(4, -3, 400), torch.logspace(-3, 4, 400)])
    logits = two_class_logits(margins.tolist())
    criterion = of_class_zero(len(margins))
    loss = SURROGATES[name](criterion.margin(logits), logits, criterion)
    assert (loss.diff() >= 0).all()
    assert loss[-1] > loss[0]


@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_surrogate_of_a_right_answer_has_a_slope_that_lowers_the_label(name: str) -> None:
    logits = torch.tensor([[5.0, 1.0, 0.0, -1.0]], requires_grad=True)
    criterion = of_class_zero(1)
    (gradient,) = torch.autograd.grad(SURROGATES[name](criterion.margin(logits), logits, criterion).sum(), logits)
    assert gradient[0, 0] > 0
    assert gradient[0, 1] < 0


def test_logistic_is_one_at_the_boundary() -> None:
    logits = two_class_logits([0.0])
    criterion = of_class_zero(1)
    assert SURROGATES["logistic"](criterion.margin(logits), logits, criterion).item() == pytest.approx(1.0)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_untargeted_cross_entropy_is_the_log_of_the_other_classes_probability(
    classes: int, generator: torch.Generator
) -> None:
    logits, label = random_logits(generator, classes)
    criterion = Criterion(label)
    probability = logits.softmax(1).gather(1, label[:, None]).squeeze(1)
    loss = SURROGATES["cross-entropy"](criterion.margin(logits), logits, criterion)
    torch.testing.assert_close(loss, -torch.log(1 - probability), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_targeted_cross_entropy_is_the_log_of_the_targets_probability(classes: int, generator: torch.Generator) -> None:
    logits, target = random_logits(generator, classes)
    criterion = Criterion(target, targeted=True)
    probability = logits.softmax(1).gather(1, target[:, None]).squeeze(1)
    loss = SURROGATES["cross-entropy"](criterion.margin(logits), logits, criterion)
    torch.testing.assert_close(loss, -torch.log(probability), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_untargeted_dlr_is_the_margin_over_first_minus_third(classes: int, generator: torch.Generator) -> None:
    logits, label = random_logits(generator, classes)
    criterion = Criterion(label)
    loss = SURROGATES["dlr"](criterion.margin(logits), logits, criterion)
    for row, own, value in zip(logits.tolist(), label.tolist(), loss.tolist(), strict=True):
        ranked = sorted(row, reverse=True)
        margin = row[own] - max(z for i, z in enumerate(row) if i != own)
        assert value == pytest.approx(margin / (ranked[0] - ranked[2]), rel=1e-9)


@pytest.mark.parametrize("classes", [4, 10])
def test_targeted_dlr_divides_by_first_minus_the_mean_of_third_and_fourth(
    classes: int, generator: torch.Generator
) -> None:
    logits, target = random_logits(generator, classes)
    criterion = Criterion(target, targeted=True)
    loss = SURROGATES["dlr"](criterion.margin(logits), logits, criterion)
    for row, own, value in zip(logits.tolist(), target.tolist(), loss.tolist(), strict=True):
        ranked = sorted(row, reverse=True)
        margin = max(z for i, z in enumerate(row) if i != own) - row[own]
        assert value == pytest.approx(margin / (ranked[0] - (ranked[2] + ranked[3]) / 2), rel=1e-9)


def test_targeted_dlr_of_three_classes_uses_the_third_alone() -> None:
    logits = torch.tensor([[4.0, 1.0, 0.0]])
    criterion = Criterion(torch.tensor([1]), targeted=True)
    assert SURROGATES["dlr"](criterion.margin(logits), logits, criterion).item() == pytest.approx(3 / 4)


@pytest.mark.parametrize("targeted", [False, True])
def test_dlr_of_two_classes_is_the_margin(targeted: bool, generator: torch.Generator) -> None:
    logits, classes = random_logits(generator, 2)
    criterion = Criterion(classes, targeted)
    margin = criterion.margin(logits)
    assert torch.equal(SURROGATES["dlr"](margin, logits, criterion), margin)


def test_dlr_ignores_the_scale_of_the_logits(generator: torch.Generator) -> None:
    logits, label = random_logits(generator, 10)
    criterion = Criterion(label)
    dlr = SURROGATES["dlr"]
    torch.testing.assert_close(
        dlr(criterion.margin(1000 * logits), 1000 * logits, criterion), dlr(criterion.margin(logits), logits, criterion)
    )


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_of_a_row_does_not_depend_on_its_batch(name: str, generator: torch.Generator) -> None:
    logits, label = random_logits(generator, 5)
    criterion = Criterion(label)
    together = SURROGATES[name](criterion.margin(logits), logits, criterion)
    for row in (0, 17):
        alone = Criterion(label[row : row + 1])
        part = logits[row : row + 1]
        torch.testing.assert_close(SURROGATES[name](alone.margin(part), part, alone), together[row : row + 1])


def test_unknown_surrogate_is_answered_with_a_suggestion_and_the_list() -> None:
    with pytest.raises(UnknownNameError) as caught:
        surrogate_by_name("logistc")
    message = str(caught.value)
    assert "did you mean 'logistic'?" in message
    assert "got 'logistc'" in message
    assert all(name in message for name in SURROGATES)


def test_a_name_like_no_other_gets_the_list_but_no_suggestion() -> None:
    with pytest.raises(UnknownNameError) as caught:
        surrogate_by_name("qqqqqqqq")
    assert "did you mean" not in str(caught.value)
    assert "hinge" in str(caught.value)


def test_box_is_as_wide_as_its_widest_side_and_clips_each_channel_to_its_own() -> None:
    box = Box(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 2.0]))
    assert box.width == 3.0
    assert box.clip(torch.tensor([[5.0, 5.0], [-5.0, -5.0], [0.5, 0.5]])).tolist() == [[1, 2], [0, -1], [0.5, 0.5]]
