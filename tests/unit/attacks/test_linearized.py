"""The exact answer on a linear margin, against grids, enumerated supports and a linear program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from pdpgd.attacks.auto_config import PriceSearch, TrustRule
from pdpgd.attacks.linearized import Linear, Trust, cross
from pdpgd.attacks.responses import AnyResponse, Guess, Level, Response, Scratch, Step, response_of
from pdpgd.norms import L0, L1, L2, LINF, BoxProx, Norm
from pdpgd.proximal import prox_l1_box, prox_l2_box

Array = NDArray[np.float64]
Answer = Callable[["Question"], Tensor]

SAMPLES = 12
PRICES = PriceSearch()
RULE = TrustRule()
EPS = torch.finfo(torch.float64).eps
# Sums of a few products of numbers up to one.
ROUNDING = 32 * EPS
# What it may cost to go as far as a point that is itself known to a few roundings: the highest price for each.
ROUNDED_COST = 8 * EPS * math.exp(PRICES.highest)
# A price is found to a step of its grid, which a last bit may shift by one.
PRICE = 2 * math.expm1((PRICES.highest - PRICES.lowest) / 2**PRICES.rounds)


@dataclass(frozen=True)
class Question:
    """Perturbations inside a box around 0, each with a linear margin that is left to be crossed."""

    delta: Tensor
    linear: Linear
    low: Tensor
    high: Tensor
    step: Tensor
    overshoot: Tensor

    @property
    def need(self) -> Tensor:
        return self.linear.gap + self.overshoot

    @property
    def as_step(self) -> Step:
        return Step(self.delta, self.linear.slope, self.step, self.low, self.high)

    def row(self, i: int) -> Question:
        linear = Linear(self.linear.gap[i : i + 1], self.linear.slope[i : i + 1])
        rest = (self.delta, self.low, self.high, self.step, self.overshoot)
        delta, low, high, step, overshoot = (value[i : i + 1] for value in rest)
        return Question(delta, linear, low, high, step, overshoot)

    def to(self, dtype: torch.dtype) -> Question:
        linear = Linear(self.linear.gap.to(dtype), self.linear.slope.to(dtype))
        rest = (self.delta, self.low, self.high, self.step, self.overshoot)
        delta, low, high, step, overshoot = (value.to(dtype) for value in rest)
        return Question(delta, linear, low, high, step, overshoot)


def corner(question: Question) -> Tensor:
    """As far down the slope as the box allows."""
    return torch.where(question.linear.slope > 0, question.low, question.high)


def question_of(generator: torch.Generator, *, samples: int = SAMPLES, features: int = 3) -> Question:
    """The boundary lies between a tenth and three quarters of the way to the farthest corner of the box."""

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    low, high = -0.05 - 0.45 * draw(samples, features), 0.05 + 0.45 * draw(samples, features)
    delta = low + (high - low) * draw(samples, features)
    slope = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    slope = slope / slope.norm(dim=1, keepdim=True)
    question = Question(delta, Linear(draw(samples), slope), low, high, 0.1 + 3 * draw(samples), 0.02 * draw(samples))
    farthest = question.linear.descent(corner(question) - delta)
    gap = (0.1 + 0.65 * draw(samples)) * farthest
    return Question(delta, Linear(gap, slope), low, high, question.step, question.overshoot)


@pytest.fixture
def question(generator: torch.Generator) -> Question:
    return question_of(generator)


def answered(given: Question, response: Response, *, levels: bool = False) -> Tensor:
    guess = Guess(torch.ones_like(given.step), torch.zeros_like(given.step))
    call = (response, given.linear, given.delta, given.overshoot, PRICES)
    return cross(*call, guess=guess, rounds=PRICES.rounds, levels=levels)[0]


def by_prox(prox: BoxProx) -> Answer:
    return lambda given: answered(given, AnyResponse(prox, given.as_step))


def by_norm(norm: Norm) -> Answer:
    def answer(given: Question) -> Tensor:
        response = response_of(norm, given.as_step, Scratch())
        assert not isinstance(response, AnyResponse)
        return answered(given, response)

    return answer


def by_level(given: Question) -> Tensor:
    return answered(given, Level(given.as_step, Scratch()), levels=True)


ANSWERS = [
    pytest.param(by_norm(L1), id="l1"),
    pytest.param(by_norm(L2), id="l2"),
    pytest.param(by_norm(L0), id="l0"),
    pytest.param(by_prox(prox_l2_box), id="exact-l2"),
    pytest.param(by_level, id="linf"),
]


def l1(points: Array) -> Array:
    return np.abs(points).sum(-1)


def l2(points: Array) -> Array:
    return np.sqrt((points**2).sum(-1))


def l0(points: Array) -> Array:
    return (points != 0).sum(-1).astype(np.float64)


@dataclass(frozen=True)
class Sample:
    """One row of a question, in NumPy."""

    r: Array
    g: Array
    low: Array
    high: Array
    t: float
    need: float

    @classmethod
    def of(cls, question: Question, i: int) -> Sample:
        r, g, low, high = (
            value[i].numpy() for value in (question.delta, question.linear.slope, question.low, question.high)
        )
        return cls(r, g, low, high, float(question.step[i]), float(question.need[i]))

    def as_far_as(self, u: Tensor) -> Sample:
        """The same, with the boundary where `u` is."""
        return replace(self, need=float((self.r - u.numpy()) @ self.g))

    def cost(self, size: Callable[[Array], Array], points: Array) -> Array:
        return size(points) + ((points - self.r) ** 2).sum(-1) / (2 * self.t)

    def allowed(self, points: Array) -> Array:
        inside = ((points >= self.low) & (points <= self.high)).all(-1)
        eligible: Array = inside & ((self.r - points) @ self.g >= self.need - ROUNDING)
        return eligible

    def on_the_boundary(self, points: Array) -> Array:
        """Each point, moved along each of the axes until it is on the linear boundary."""
        short = self.need - (self.r - points) @ self.g
        moved = [points - (short / self.g[axis])[:, None] * np.eye(len(self.g))[axis] for axis in range(len(self.g))]
        return np.concatenate(moved)

    def cheapest_on_zooming_grid(self, size: Callable[[Array], Array]) -> float:
        begin, end, best = self.low, self.high, np.inf
        for _ in range(12):
            axes = [np.linspace(b, e, 13) for b, e in zip(begin, end, strict=True)]
            points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(self.r))
            points = np.concatenate([points, self.on_the_boundary(points)])
            costs = np.where(self.allowed(points), self.cost(size, points), np.inf)
            center, reach = points[costs.argmin()], (end - begin) / 4
            best = min(best, float(costs.min()))
            begin, end = np.maximum(center - reach, self.low), np.minimum(center + reach, self.high)
        return best

    def cheapest_by_supports(self) -> float:
        """The cheapest over all choices of changed entries, each with its nearest point that crosses."""
        best, need = np.inf, self.need - 1e-9
        for chosen in product([False, True], repeat=len(self.r)):
            support = np.array(chosen)
            low, high = np.where(support, self.low, 0.0), np.where(support, self.high, 0.0)
            if (self.r - np.where(self.g > 0, low, high)) @ self.g < need:
                continue
            bottom, top = 0.0, 1e9
            for _ in range(80):
                middle = (bottom + top) / 2
                crossed = (self.r - np.clip(self.r - middle * self.g, low, high)) @ self.g >= need
                bottom, top = (bottom, middle) if crossed else (middle, top)
            start = np.clip(self.r, low, high)
            point = start if (self.r - start) @ self.g >= need else np.clip(self.r - top * self.g, low, high)
            best = min(best, float(support.sum() + ((point - self.r) ** 2).sum() / (2 * self.t)))
        return best


@pytest.mark.parametrize("features", [3, 5])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_answer_is_inside_the_box_and_across_the_boundary(
    answer: Answer, features: int, generator: torch.Generator
) -> None:
    question = question_of(generator, samples=60, features=features)
    if answer is by_level:
        # Far enough that the trust region is no obstacle.
        question = replace(question, step=question.step + 3)
    u = answer(question)
    assert (u >= question.low).all()
    assert (u <= question.high).all()
    assert (question.linear.descent(u - question.delta) >= question.need - ROUNDING).all()


CONVEX = pytest.mark.parametrize(("prox", "size"), [(prox_l1_box, l1), (prox_l2_box, l2)], ids=["l1", "l2"])


@CONVEX
def test_no_point_of_a_fine_grid_that_goes_as_far_costs_less(
    prox: BoxProx, size: Callable[[Array], Array], question: Question
) -> None:
    u = by_prox(prox)(question)
    for i in range(SAMPLES):
        sample = Sample.of(question, i).as_far_as(u[i])
        best = sample.cheapest_on_zooming_grid(size)
        # The grid is coarse: it may be the worse of the two.
        assert best - 1e-6 * best <= sample.cost(size, u[i].numpy()) + 0.01
        assert sample.cost(size, u[i].numpy()) <= best + ROUNDED_COST, i


@CONVEX
def test_no_random_point_that_goes_as_far_costs_less(
    prox: BoxProx, size: Callable[[Array], Array], generator: torch.Generator
) -> None:
    question = question_of(generator, samples=40, features=5)
    answers = by_prox(prox)(question)
    for i in range(40):
        sample, u = Sample.of(question, i).as_far_as(answers[i]), answers[i].numpy()
        away = torch.randn(3000, 5, generator=generator, dtype=torch.float64).numpy()
        length = 10.0 ** np.linspace(-3, 0, 3000)[:, None]
        points = np.clip(u + length * away, sample.low, sample.high)
        points = points[sample.allowed(points)]
        assert len(points) > 100
        assert (sample.cost(size, points) >= sample.cost(size, u) - ROUNDED_COST).all(), i


def test_the_l2_answer_of_the_norm_costs_at_most_a_twentieth_more_than_the_best(generator: torch.Generator) -> None:
    """The norm may clip its prox instead of solving in the box."""
    question = question_of(generator, samples=40, features=5)
    best, taken = by_prox(prox_l2_box)(question), by_norm(L2)(question)
    for i in range(40):
        sample = Sample.of(question, i)
        assert sample.cost(l2, taken[i].numpy()) <= 1.05 * sample.cost(l2, best[i].numpy()), i


@CONVEX
def test_the_boundary_is_crossed_by_no_more_than_was_asked_for(
    prox: BoxProx, size: Callable[[Array], Array], generator: torch.Generator
) -> None:
    question = question_of(generator, samples=60, features=5)
    beyond = question.linear.descent(by_prox(prox)(question) - question.delta) - question.need
    # What the cheapest point of all does is not too far: some are across for nothing.
    least = question.linear.descent(prox(question.delta, question.step, question.low, question.high))
    free = question.linear.descent(-question.delta) + least >= question.need
    assert (~free).sum() >= 30
    assert (beyond[~free] < 2e-3).all()


def test_no_support_goes_down_as_far_as_the_l0_answer_for_less(generator: torch.Generator) -> None:
    """A count is not convex: the price finds the cheapest way to where it arrives, which may be beyond the boundary."""
    question = question_of(generator, samples=15, features=5)
    u = by_norm(L0)(question)
    for i in range(15):
        sample = Sample.of(question, i)
        cost = float(sample.cost(l0, u[i].numpy()))
        assert cost <= sample.as_far_as(u[i]).cheapest_by_supports() + 1e-6, i
        # One entry changes from one price to the next.
        assert cost <= sample.cheapest_by_supports() + 1, i


def least_level(sample: Sample) -> float | None:
    """The least l-infinity norm of a point of the box and of the trust region that crosses; None if there is none."""
    features = len(sample.r)
    objective = np.append(np.zeros(features), 1.0)
    below = np.hstack([np.eye(features), -np.ones((features, 1))])
    above = np.hstack([-np.eye(features), -np.ones((features, 1))])
    crossing = np.append(sample.g, 0.0)[None]
    limits = np.concatenate([np.zeros(2 * features), [float(sample.g @ sample.r) - sample.need]])
    low, high = np.maximum(sample.low, sample.r - sample.t), np.minimum(sample.high, sample.r + sample.t)
    bounds = [*zip(low, high, strict=True), (0.0, None)]
    solved = linprog(objective, A_ub=np.vstack([below, above, crossing]), b_ub=limits, bounds=bounds)
    return float(solved.fun) if solved.status == 0 else None


@pytest.mark.parametrize("flat_entries", [0, 2])
def test_the_level_is_that_of_a_linear_program(flat_entries: int, generator: torch.Generator) -> None:
    question = question_of(generator, samples=40, features=5)
    slope = question.linear.slope.clone()
    slope[:, :flat_entries] = 0
    step = 0.05 + 0.6 * torch.rand(40, generator=generator, dtype=torch.float64)
    gap = 0.4 * question.linear.gap
    question = replace(question, linear=Linear(gap, slope), step=step)
    u = by_level(question)
    assert ((u - question.delta).abs() <= step[:, None] + ROUNDING).all()
    assert (u >= question.low).all()
    assert (u <= question.high).all()
    crosses = question.linear.descent(u - question.delta) >= question.need - ROUNDING
    levels = [least_level(Sample.of(question, i)) for i in range(40)]
    assert crosses.tolist() == [level is not None for level in levels]
    assert 20 <= crosses.sum() < 40
    for i, level in enumerate(levels):
        if level is not None:
            assert float(u[i].abs().max()) <= level * (1 + PRICE) + 1e-9, i


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_boundary_out_of_reach_is_answered_by_the_farthest_corner(answer: Answer, question: Question) -> None:
    far = replace(question, linear=Linear(torch.full_like(question.need, 50.0), question.linear.slope))
    u = answer(far)
    assert u.isfinite().all()
    reach = far.step[:, None] if answer is by_level else torch.inf
    wanted = torch.maximum(torch.minimum(corner(far), far.delta + reach), far.delta - reach)
    # A level ends at 1, the width of the box.
    wanted = wanted.clamp(-1, 1) if answer is by_level else wanted
    torch.testing.assert_close(u, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("gap", [0.3, 0.0, -0.3])
@pytest.mark.parametrize("answer", ANSWERS)
def test_without_a_slope_the_answer_is_finite_and_no_larger(answer: Answer, gap: float, question: Question) -> None:
    linear = Linear(torch.full_like(question.need, gap), torch.zeros_like(question.delta))
    lost = replace(question, linear=linear)
    u = answer(lost)
    assert u.isfinite().all()
    assert (u >= lost.low).all()
    assert (u <= lost.high).all()
    assert (u.abs() <= lost.delta.abs() + ROUNDING).all()


def test_what_is_beyond_the_boundary_already_comes_back_as_far_as_it_may(question: Question) -> None:
    """With much trust, the answer from far beyond the boundary is the smallest perturbation on the boundary."""
    delta = corner(question)
    gap = -0.5 * question.linear.descent(delta)
    trusting = torch.full_like(question.step, 5.0)
    beyond = replace(question, delta=delta, linear=Linear(gap, question.linear.slope))
    beyond = replace(beyond, step=trusting, overshoot=torch.zeros_like(gap))
    for norm in (L1, L2):
        u = by_norm(norm)(beyond)
        assert (norm.size(u) < norm.size(delta)).all()
        torch.testing.assert_close(beyond.linear.descent(u - delta), gap, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_row_of_a_batch_is_answered_as_it_is_alone(answer: Answer, question: Question) -> None:
    together = answer(question)
    for i in range(SAMPLES):
        torch.testing.assert_close(answer(question.row(i))[0], together[i], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_dtype_is_kept(answer: Answer, dtype: torch.dtype, question: Question) -> None:
    u = answer(question.to(dtype))
    assert u.dtype == dtype
    far = (u.double() - answer(question)).abs().amax(1)
    assert (far < PRICE).sum() >= SAMPLES - 1  # a threshold may turn a last bit into an entry


def test_images_are_answered_as_their_flat_entries_are(generator: torch.Generator) -> None:
    question = question_of(generator, samples=6, features=12)
    images = [value.view(6, 3, 2, 2) for value in (question.delta, question.linear.slope, question.low, question.high)]
    delta, slope, low, high = images
    folded = Question(delta, Linear(question.linear.gap, slope), low, high, question.step, question.overshoot)
    for answer in (by_norm(L1), by_norm(L2), by_level):
        torch.testing.assert_close(answer(folded).flatten(1), answer(question))


def test_a_linear_margin_has_a_slope_of_length_one_and_a_gap_in_its_unit() -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.3, -0.4]], dtype=torch.float64)
    linear = Linear.of(torch.tensor([1.0, -0.25], dtype=torch.float64), gradient)
    torch.testing.assert_close(linear.slope, torch.tensor([[0.6, 0.8], [0.6, -0.8]], dtype=torch.float64))
    torch.testing.assert_close(linear.gap, torch.tensor([0.2, -0.5], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gap_is_wider_than_the_diagonal_of_the_unit_box(dtype: torch.dtype) -> None:
    gradient = torch.full((3, 4, 2, 2), 1e-3, dtype=dtype)
    linear = Linear.of(torch.tensor([1e6, -1e6, 1e-3], dtype=dtype), gradient)
    assert linear.gap.dtype == linear.slope.dtype == dtype
    assert linear.gap.tolist() == pytest.approx([4.0, -4.0, 0.25])
    assert math.isclose(float(linear.slope[0].norm()), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize("margin", [1.0, 0.0, -1.0])
def test_a_margin_without_slope_is_as_far_as_can_be_and_keeps_its_zero_slope(margin: float) -> None:
    linear = Linear.of(torch.tensor([margin]), torch.zeros(1, 9))
    assert linear.gap.tolist() == [3.0 * margin]
    assert linear.slope.eq(0).all()


@pytest.mark.parametrize("steepness", [1e-30, 1e-22, 1e18])
def test_the_slope_has_length_one_however_flat_or_steep_the_margin_is(steepness: float) -> None:
    """Squares of such entries leave the range of float32."""
    linear = Linear.of(torch.tensor([1.0]), torch.full((1, 1024), steepness))
    assert float(linear.slope.double().norm()) == pytest.approx(1.0, rel=1e-5)


def judged(value: float, promised: float, actual: float) -> float:
    trust = Trust(torch.tensor([value], dtype=torch.float64))
    columns = [torch.tensor([number], dtype=torch.float64) for number in (promised, actual)]
    return float(trust.judged(*columns, RULE).value)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("promised", [-2.0, 3.0])
def test_trust_falls_where_the_linear_model_misled_and_grows_where_it_was_confirmed(promised: float, sign: int) -> None:
    assert judged(1.0, promised, promised) == pytest.approx(RULE.more)
    assert judged(1.0, promised, promised * (1 + sign * 0.9 * RULE.confirmed)) == pytest.approx(RULE.more)
    assert judged(1.0, promised, promised * (1 + sign * (RULE.confirmed + RULE.misled) / 2)) == 1.0
    assert judged(1.0, promised, promised * (1 + sign * 1.1 * RULE.misled)) == pytest.approx(RULE.less)
    assert RULE.less < 1 < RULE.more


def test_trust_stays_within_its_bounds() -> None:
    assert judged(RULE.lowest, -1.0, 5.0) == RULE.lowest
    assert judged(RULE.highest, -1.0, -1.0) == RULE.highest
    assert RULE.lowest < judged(RULE.highest, -1.0, 5.0) < RULE.highest


def test_trust_is_a_number_where_nothing_was_promised() -> None:
    assert math.isfinite(judged(1.0, 0.0, 0.0))
    assert judged(1.0, 0.0, 1.0) == pytest.approx(RULE.less)


def test_trust_is_judged_sample_by_sample() -> None:
    trust = Trust(torch.tensor([1.0, 2.0, 4.0]))
    after = trust.judged(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, 4.0, -1.0]), RULE)
    torch.testing.assert_close(after.value, torch.tensor([RULE.more, 2 * RULE.less, 4 * RULE.more]))
    torch.testing.assert_close(trust.value, torch.tensor([1.0, 2.0, 4.0]))


def test_the_level_geometry_knows_the_norm_it_answers() -> None:
    """The level of an answer is its l-infinity norm: all entries that the step does not limit are at it."""
    slope = torch.tensor([[0.5, -0.5, 0.5, 0.5]], dtype=torch.float64)
    zero, wide = torch.zeros_like(slope), torch.ones_like(slope)
    linear = Linear(torch.tensor([0.6], dtype=torch.float64), slope)
    u = by_level(Question(zero, linear, -wide, wide, wide[:, 0], zero[:, 0]))
    torch.testing.assert_close(u, -0.3 * slope.sign(), rtol=PRICE, atol=0)
    assert float(LINF.size(u)) >= 0.3


def test_an_entry_without_slope_stays_where_it_is_inside_the_level() -> None:
    slope = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    delta = torch.tensor([[0.0, 0.1, -0.45]], dtype=torch.float64)
    wide = torch.full_like(slope, 0.5)
    linear = Linear(torch.tensor([0.3], dtype=torch.float64), slope)
    u = by_level(Question(delta, linear, -wide, wide, wide[:, 0], torch.zeros_like(linear.gap)))
    torch.testing.assert_close(u, torch.tensor([[-0.3, 0.1, -0.3]], dtype=torch.float64), rtol=PRICE, atol=0)
