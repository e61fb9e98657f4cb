from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from pdpgd.attacks.best import Best
from pdpgd.attacks.game import Adam, Dual, exponential_decay, linear_decay


def dual_at(*penalties: float, average: float = 0.9, floor: float = 1e-6) -> Dual:
    return Dual.start(torch.tensor(penalties, dtype=torch.float64), average=average, floor=floor)


def signs(generator: torch.Generator, moves: int, rows: int) -> torch.Tensor:
    return torch.randint(-1, 2, (moves, rows), generator=generator).double()


def test_dual_begins_at_the_penalty_it_is_given() -> None:
    torch.testing.assert_close(dual_at(0.1, 1.0, 10.0).penalty, torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64))


def test_dual_weights_stay_on_the_simplex(generator: torch.Generator) -> None:
    dual = dual_at(0.1, 1.0, 30.0)
    for sign in signs(generator, 300, 3):
        dual = dual.respond(sign, rate=0.3)
        torch.testing.assert_close(dual.norm_weight + dual.constraint_weight, torch.ones(3, dtype=torch.float64))
        assert (dual.norm_weight >= 0).all()
        assert (dual.constraint_weight >= 0).all()


def test_dual_gives_the_constraint_more_weight_while_the_model_is_right() -> None:
    before = dual_at(0.1, 0.1, 0.1)
    after = before.respond(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), rate=0.1)
    gain = after.constraint_weight - before.constraint_weight
    assert gain[0] > 0
    assert gain[1] == pytest.approx(0, abs=1e-15)
    assert gain[2] < 0
    assert after.penalty[0] < before.penalty[0] < after.penalty[2]


@pytest.mark.parametrize(("sign", "bound"), [(1.0, 1e-3), (-1.0, 1e3)])
def test_dual_ratio_stops_at_the_floor(sign: float, bound: float) -> None:
    dual = dual_at(0.1, floor=1e-3)
    for _ in range(400):
        dual = dual.respond(torch.tensor([sign], dtype=torch.float64), rate=0.5)
    assert dual.penalty.item() == pytest.approx(bound, rel=1e-6)
    # And it comes back at once: nothing piled up behind the floor.
    back = dual.respond(torch.tensor([-sign], dtype=torch.float64), rate=0.5)
    assert abs(math.log(back.penalty.item() / bound)) > 0.04


def test_dual_start_is_brought_inside_the_floor() -> None:
    assert dual_at(1e-9, 1e9, floor=1e-4).penalty.tolist() == pytest.approx([1e-4, 1e4])


def test_dual_weights_are_a_moving_average_of_the_simplex_points(generator: torch.Generator) -> None:
    average, rate, penalty = 0.8, 0.25, 0.2
    moves = signs(generator, 60, 1)
    dual = dual_at(penalty, average=average)
    ratio = 1 / penalty
    norm_weight, constraint_weight = 1 / (1 + ratio), ratio / (1 + ratio)
    for sign in moves:
        dual = dual.respond(sign, rate=rate)
        ratio *= math.exp(rate * sign.item())
        norm_weight = average * norm_weight + (1 - average) / (1 + ratio)
        constraint_weight = average * constraint_weight + (1 - average) * ratio / (1 + ratio)
        assert dual.norm_weight.item() == pytest.approx(norm_weight, rel=1e-12)
        assert dual.constraint_weight.item() == pytest.approx(constraint_weight, rel=1e-12)
        assert dual.penalty.item() == pytest.approx(norm_weight / constraint_weight, rel=1e-12)


def test_dual_rows_do_not_see_each_other(generator: torch.Generator) -> None:
    moves = signs(generator, 20, 4)
    together = dual_at(0.1, 1.0, 2.0, 5.0)
    alone = together.select(torch.tensor([2]))
    for sign in moves:
        together, alone = together.respond(sign, rate=0.2), alone.respond(sign[2:3], rate=0.2)
    assert together.penalty[2] == alone.penalty[0]


def test_respond_leaves_the_old_state_alone() -> None:
    dual = dual_at(0.1)
    weight = dual.norm_weight.clone()
    dual.respond(torch.ones(1, dtype=torch.float64), rate=0.5)
    assert torch.equal(dual.norm_weight, weight)


def test_adam_walks_the_path_of_torchs_adam(generator: torch.Generator) -> None:
    curvature = torch.logspace(-2, 2, 12, dtype=torch.float64)
    start = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([theirs], lr=0.1)
    ours, adam = start.clone(), Adam.start(start)
    for _ in range(50):
        optimiser.zero_grad()
        (0.5 * curvature * theirs.square()).sum().backward()
        optimiser.step()
        step, _ = adam.direction(curvature * ours)
        ours = ours + 0.1 * step
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-9)


def test_adams_metric_is_what_its_step_was_divided_by() -> None:
    gradient = torch.tensor([[4.0, -0.5, 0.0]], dtype=torch.float64)
    step, metric = Adam.start(gradient).direction(gradient)
    torch.testing.assert_close(metric, gradient.abs() + 1e-8, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(step, -gradient / metric, rtol=1e-12, atol=0.0)


def test_keras_adds_its_epsilon_before_the_root_is_corrected() -> None:
    """The first gradient g is corrected to itself: |g| + 1e-7 is the metric, |g| + 1e-7 / sqrt(0.001) the divisor."""
    gradient = torch.tensor([[4e-7, -5e-8, 0.0]], dtype=torch.float64)
    step, metric = Adam.start(gradient, keras=True).direction(gradient)
    torch.testing.assert_close(metric, gradient.abs() + 1e-7, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(step, -gradient / (gradient.abs() + 1e-7 / math.sqrt(0.001)), rtol=1e-12, atol=0.0)


def test_adam_does_not_keep_or_change_the_gradient_it_is_given() -> None:
    gradient = torch.tensor([[4.0, -0.5]])
    adam = Adam.start(gradient)
    first, _ = adam.direction(gradient)
    before = first.clone()
    adam.direction(-gradient)
    assert gradient.tolist() == [[4.0, -0.5]]
    assert torch.equal(first, before)


@pytest.mark.parametrize("keras", [False, True])
def test_selected_rows_of_adam_go_on_as_before(keras: bool, generator: torch.Generator) -> None:
    gradients = torch.randn(6, 4, 5, generator=generator) * 1e-7
    whole = Adam.start(gradients[0], keras=keras)
    for gradient in gradients[:3]:
        whole.direction(gradient)
    rows = torch.tensor([False, True, False, True])
    part = whole.select(rows)
    for gradient in gradients[3:]:
        expected, _ = whole.direction(gradient)
        step, _ = part.direction(gradient[rows])
        assert torch.equal(step, expected[rows])


@pytest.mark.parametrize("decay", [exponential_decay, linear_decay])
def test_rates_run_from_the_first_to_the_last_and_fall_between(decay) -> None:  # type: ignore[no-untyped-def]  # two functions of one shape
    path = [decay(2.0, 0.01, progress / 20) for progress in range(21)]
    assert path[0] == pytest.approx(2.0)
    assert path[-1] == pytest.approx(0.02)
    assert all(later < earlier for earlier, later in pairwise(path))


def test_exponential_decay_halves_by_equal_factors_and_linear_by_equal_differences() -> None:
    assert exponential_decay(1.0, 0.01, 0.5) == pytest.approx(0.1)
    assert linear_decay(1.0, 0.1, 0.5) == pytest.approx(0.55)


def incumbent(sizes: list[float], mark: float) -> Best:
    rows = len(sizes)
    return Best(
        size=torch.tensor(sizes),
        point=torch.full((rows, 2, 2), mark),
        prediction=torch.full((rows,), int(mark)),
        penalty=torch.full((rows,), mark),
    )


def test_incumbent_keeps_the_smaller_and_of_equals_the_elder() -> None:
    best = incumbent([1.0, 2.0, 3.0, math.inf, math.inf, 1.0], 1)
    best.improve(incumbent([2.0, 2.0, 1.0, 5.0, math.inf, math.inf], 2), at=torch.arange(6))
    assert best.size.tolist() == [1.0, 2.0, 1.0, 5.0, math.inf, 1.0]
    winner = [1, 1, 2, 2, 1, 1]
    assert best.prediction.tolist() == winner
    assert best.penalty.tolist() == winner
    assert best.point[:, 1, 1].tolist() == winner


def test_incumbent_of_nothing_holds_the_inputs_themselves_at_infinite_size() -> None:
    inputs = torch.rand(3, 2, generator=torch.Generator().manual_seed(1))
    none = Best.none(inputs)
    assert none.size.tolist() == [math.inf] * 3
    assert torch.equal(none.point, inputs)
    assert none.point.data_ptr() != inputs.data_ptr()


def test_incumbent_improves_the_rows_it_is_told_and_no_others() -> None:
    best = incumbent([1.0, 2.0, 3.0], 1)
    best.improve(incumbent([0.5, 4.0], 7), at=torch.tensor([2, 0]))
    assert best.size.tolist() == [1.0, 2.0, 0.5]
    assert best.prediction.tolist() == [1, 1, 7]
    assert best.point[:, 0, 0].tolist() == [1, 1, 7]


def test_incumbent_is_not_improved_by_nan() -> None:
    best = incumbent([1.0, math.inf], 1)
    best.improve(incumbent([math.nan, math.nan], 7), at=torch.arange(2))
    assert best.size.tolist() == [1.0, math.inf]


def test_selected_incumbents_are_copies() -> None:
    best = incumbent([1.0, 2.0], 1)
    chosen = best.select(torch.tensor([1]))
    chosen.improve(incumbent([0.5], 7), at=torch.tensor([0]))
    assert best.size.tolist() == [1.0, 2.0]
    assert best.point.eq(1).all()


def test_a_candidate_is_adversarial_and_not_the_input_itself() -> None:
    size, margin = torch.tensor([0.5, 0.5, 0.0, 0.5]), torch.tensor([-1.0, 1.0, -1.0, 0.0])
    points, classes = torch.rand(4, 2), torch.arange(4)
    found = Best.candidates(points, size, margin, classes)
    assert found.size.tolist() == [0.5, torch.inf, torch.inf, torch.inf]
    assert torch.equal(found.point, points)
    assert torch.equal(found.prediction, classes)
    assert found.penalty.isnan().all()
    assert size.tolist() == [0.5, 0.5, 0.0, 0.5]
    assert torch.equal(Best.candidates(points, size, margin, classes, size).penalty, size)
