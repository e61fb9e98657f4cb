"""The contract of `auto` in every norm: sound results within the budget, and an end when nothing more is gained."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AttackResult, InvalidInputError, Norm, Observation, StopAttack, auto, l0
from pdpgd.attacks.auto_config import AutoConfig
from pdpgd.classifier import Classifier
from pdpgd.norms import norm_of
from support.models import Affine, Cliff, Counting, RootAtHalf, Stubborn, TinyConv, ramp_affine, random_affine
from support.results import assert_left_alone, assert_shapes_and_dtypes, assert_sizes
from support.rounding import assert_answers

WRONG_ALREADY = [3, 8]
DEFAULTS = AutoConfig()
# Enough for several descents, one of them from a random start, and for the classes to be ranked.
QUICK = 24
SHORT = DEFAULTS.several_from + 40
# The prices of a descent are on a grid: a last bit in the margin may move one by a step, and the distance with it.
PRICES = DEFAULTS.prices
PRICE_STEP = 2 * math.expm1((PRICES.highest - PRICES.lowest) / 2**PRICES.rounds)
# Too few for a descent; one; and on both sides of the numbers from which on there are several, and classes are ranked.
FEW = [1, 2, 3, 5, 10]
MANY = [DEFAULTS.several_from + 1, DEFAULTS.several_from + 2, DEFAULTS.rank_from - 1, DEFAULTS.rank_from, 333]


def prices(like: Tensor) -> Tensor:
    """1, 2, 3, 1, 2, 3, ... over the entries."""
    return (1 + torch.arange(like[0].numel()) % 3).to(like.dtype).view(like.shape[1:])


def priced_size(delta: Tensor) -> Tensor:
    return (prices(delta) * delta.abs()).flatten(1).sum(1)


def priced_prox(v: Tensor, weight: Tensor) -> Tensor:
    threshold = weight.view(-1, *[1] * (v.ndim - 1)) * prices(v)
    return v - v.clamp(-threshold, threshold)


PRICED = Norm("priced-l1", priced_size, priced_prox)
NORMS: dict[str, str | Norm] = {
    "linf": "linf",
    "l2": "l2",
    "l1": "l1",
    "l0": "l0",
    "l0-element": l0(unit="element"),
    "priced-l1": PRICED,
}


def some_norms(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("norm", [NORMS[name] for name in names], ids=names)


@pytest.fixture(params=NORMS.values(), ids=NORMS.keys())
def norm(request: pytest.FixtureRequest) -> str | Norm:
    chosen: str | Norm = request.param
    return chosen


@pytest.fixture(params=["untargeted", "targeted"])
def aim(request: pytest.FixtureRequest, targets: Tensor) -> dict[str, Any]:
    return {"targets": targets} if request.param == "targeted" else {}


PLAYED: dict[tuple[int, bool], AttackResult] = {}


@pytest.fixture
def result(norm: str | Norm, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]) -> AttackResult:
    """The result of a call that many tests share; none of them writes into it."""
    key = id(norm), bool(aim)
    if key not in PLAYED:
        PLAYED[key] = auto(conv, images, labels, norm=norm, budget=SHORT, **aim)
    return PLAYED[key]


def fresh_answer(model: Any, points: Tensor) -> Tensor:
    with torch.no_grad():
        answer: Tensor = model(points).argmax(1)
    return answer


def spent(result: AttackResult) -> Tensor:
    return result.forwards + result.backwards


def assert_same_bits(one: AttackResult, other: AttackResult) -> None:
    for field in ("adversarials", "distances", "found", "labels", "forwards", "backwards"):
        assert torch.equal(getattr(one, field), getattr(other, field)), field
    assert one.history is not None
    assert other.history is not None
    assert torch.equal(one.history.passes, other.history.passes)
    assert torch.equal(one.history.distances, other.history.distances)


@pytest.fixture
def affine(generator: torch.Generator) -> Affine:
    """Ten classes: more than the ranking uses."""
    return random_affine(generator, features=12, dtype=torch.float64)


@pytest.fixture
def points(affine: Affine, generator: torch.Generator) -> Tensor:
    return 0.2 + 0.6 * torch.rand(4, 12, generator=generator, dtype=torch.float64)


# Soundness


def test_every_sample_of_the_fixture_is_found(result: AttackResult) -> None:
    assert result.found.all()


def test_every_point_is_inside_the_box(result: AttackResult) -> None:
    assert result.adversarials.min() >= 0
    assert result.adversarials.max() <= 1


def test_a_fresh_forward_pass_agrees_with_the_labels_and_with_what_is_found(
    result: AttackResult, conv: TinyConv, labels: Tensor, aim: dict[str, Any]
) -> None:
    assert_answers(conv, result.adversarials, result.labels)
    assert torch.equal(result.labels == aim["targets"] if aim else result.labels != labels, result.found)


def test_distances_are_the_sizes_of_the_perturbations(norm: str | Norm, result: AttackResult, images: Tensor) -> None:
    assert_sizes(result, images, norm)


def test_an_input_that_is_wrong_already_costs_one_forward_pass_and_is_left_alone(
    result: AttackResult, images: Tensor
) -> None:
    assert_left_alone(result, images, WRONG_ALREADY)


def test_shapes_and_dtypes_are_those_of_the_batch(result: AttackResult, images: Tensor) -> None:
    assert_shapes_and_dtypes(result, images)


def test_a_batch_of_all_wrong_inputs_is_not_attacked(conv: TinyConv, images: Tensor) -> None:
    labels = (fresh_answer(conv, images) + 1) % 5
    result = auto(conv, images, labels, norm="l1", budget=SHORT)
    assert result.found.all()
    assert result.distances.eq(0).all()
    assert spent(result).eq(1).all()


@pytest.mark.parametrize(("targeted", "budget"), [(False, SHORT), (True, QUICK)])
@some_norms("linf", "l0", "priced-l1")
def test_a_hopeless_input_is_reported_as_not_found(
    norm: str | Norm, budget: int, targeted: bool, images: Tensor
) -> None:
    images = images[:3]
    labels = torch.zeros(3, dtype=torch.long)
    aim = {"targets": torch.full_like(labels, 2)} if targeted else {}
    result = auto(Stubborn(), images, labels, norm=norm, budget=budget, **aim)
    assert not result.found.any()
    assert result.distances.isinf().all()
    assert torch.equal(result.adversarials, images)
    assert result.labels.eq(0).all()
    assert (spent(result) <= budget).all()


@pytest.mark.parametrize("budget", [QUICK, SHORT])
@some_norms("linf", "l0")
def test_a_model_without_a_slope_is_fooled_from_random_points(
    norm: str | Norm, budget: int, generator: torch.Generator
) -> None:
    model = Cliff(0.75)
    inputs = 0.4 + 0.2 * torch.rand(4, 10, generator=generator)
    result = auto(model, inputs, torch.zeros(4, dtype=torch.long), norm=norm, budget=budget)
    assert result.found.all()
    assert fresh_answer(model, result.adversarials).eq(1).all()


@pytest.mark.parametrize("budget", [QUICK, SHORT])
@some_norms("linf", "l0")
def test_a_gradient_that_is_not_a_number_is_survived(norm: str | Norm, budget: int, generator: torch.Generator) -> None:
    """The slope at the input is NaN in one entry, and sound in the others."""
    model = RootAtHalf()
    inputs = 0.4 + 0.1 * torch.rand(4, 6, generator=generator)
    inputs[:, 0] = 0.5
    result = auto(model, inputs, torch.zeros(4, dtype=torch.long), norm=norm, budget=budget)
    assert result.found.all()
    assert result.adversarials.isfinite().all()
    assert fresh_answer(model, result.adversarials).eq(1).all()


@pytest.mark.parametrize("budget", [QUICK, SHORT])
@some_norms("linf", "l1", "l0")
def test_an_input_on_the_boundary_itself_is_attacked(norm: str | Norm, budget: int) -> None:
    """Both classes tie: the margin is 0, which is not adversarial yet, and neither is a step of length 0."""
    model = Affine(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), torch.tensor([-2.0, 0.0]))
    inputs = torch.full((1, 4), 0.5)
    result = auto(model, inputs, torch.zeros(1, dtype=torch.long), norm=norm, budget=budget)
    assert result.adversarials.isfinite().all()
    assert result.found.all()


# The shape of the problem


@pytest.mark.parametrize("classes", [2, 3])
@some_norms("linf", "l0")
def test_few_classes_work(norm: str | Norm, classes: int, generator: torch.Generator) -> None:
    model = random_affine(generator, features=8, classes=classes)
    inputs = torch.rand(3, 8, generator=generator)
    labels = model.labels(inputs)
    result = auto(model, inputs, labels, norm=norm, budget=SHORT)
    assert result.found.all()
    assert_answers(model, result.adversarials, result.labels)
    assert (result.labels != labels).all()


def test_a_single_feature_works(norm: str | Norm) -> None:
    result = auto(ramp_affine(1), torch.tensor([[0.7]]), torch.tensor([0]), norm=norm, budget=QUICK)
    assert result.found.tolist() == [True]
    assert result.labels.tolist() == [1]
    assert float(result.adversarials) == pytest.approx(0.5, abs=1e-2 if "l0" not in str(norm) else 0.5)


def test_a_batch_of_one_works(
    norm: str | Norm, conv: TinyConv, images: Tensor, labels: Tensor, aim: dict[str, Any]
) -> None:
    one = {name: value[:1] for name, value in aim.items()}
    result = auto(conv, images[:1], labels[:1], norm=norm, budget=QUICK, **one)
    assert result.found.tolist() == [True]
    assert_sizes(result, images[:1], norm)


class Diary(nn.Module):
    """Writes down each forward pass as "f" and each backward pass as "b"."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.passes = model, ""
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.passes += "f"
        output: Tensor = self.model(x)
        if output.requires_grad:
            output.register_hook(self.write)
        return output

    def write(self, gradient: Tensor) -> None:
        self.passes += "b"


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 10])
def test_a_class_is_not_ranked_against_itself(classes: int, generator: torch.Generator) -> None:
    """There are no more runners-up than other classes."""
    model = random_affine(generator, features=8, classes=classes)
    inputs = torch.rand(1, 8, generator=generator)
    diary = Diary(model)
    auto(diary, inputs, model.labels(inputs), norm="l2", budget=SHORT)
    longest = max(len(run) for run in diary.passes.split("f"))
    assert longest <= max(1, min(DEFAULTS.ranked_classes, classes - 1))


def test_leads_are_those_of_the_runners_up_with_their_slopes(affine: Affine, points: Tensor) -> None:
    own = torch.tensor([0, 3, 3, 9])
    leads = Classifier(affine).leads(points, torch.arange(4), own, 4)
    logits = affine(points).detach()
    ranks = logits.argsort(1, descending=True)
    for row in range(4):
        others = [int(other) for other in ranks[row] if other != own[row]][:4]
        assert [int(lead.other[row]) for lead in leads] == others
        for lead, other in zip(leads, others, strict=True):
            assert float(lead.lead[row]) == pytest.approx(float(logits[row, own[row]] - logits[row, other]))
            torch.testing.assert_close(lead.slope[row], (affine.weight[own[row]] - affine.weight[other]).detach())


def test_the_nearest_class_is_pursued_though_another_has_the_higher_logit() -> None:
    """Class 1 is the runner-up by logit, but far; class 2 is near. Six classes are too far to matter."""
    weight = torch.zeros(8, 6)
    weight[0] = 0.0
    weight[1, 0] = 0.1
    weight[2, 1:] = 10.0
    bias = torch.tensor([1.0, 0.9, -25.0, -99.0, -99.0, -99.0, -99.0, -99.0])
    inputs = torch.full((1, 6), 0.5)
    model = Affine(weight, bias)
    assert model.labels(inputs).tolist() == [0]
    for norm in ("linf", "l1", "l0"):
        result = auto(model, inputs, torch.tensor([0]), norm=norm, budget=SHORT)
        assert result.labels.tolist() == [2], norm


# The budget


Spending = tuple[AttackResult, Counting]
SPENT: dict[tuple[int, int, str], Spending] = {}


def spending(norm: str | Norm, budget: int, mode: str, affine: Affine, points: Tensor) -> Spending:
    """Run the attack once per norm, budget and mode."""
    if (id(norm), budget, mode) not in SPENT:
        points = points[:2]
        labels = affine.labels(points)
        call: dict[str, Any] = {}
        if "targeted" in mode:
            call["targets"] = (labels + 1) % 10
        if "starts" in mode:
            call["starts"] = points.roll(1, 0)
        model = Counting(affine)
        SPENT[id(norm), budget, mode] = auto(model, points, labels, norm=norm, budget=budget, **call), model
    return SPENT[id(norm), budget, mode]


def assert_within(budget: int, result: AttackResult, model: Counting) -> None:
    """Assert that no sample costs more, and that the counts are those of the model."""
    assert result.forwards.sum() == sum(model.forwards)
    assert result.backwards.sum() == sum(model.backwards)
    assert int(spent(result).max()) <= budget


SPENDING = [(budget, mode) for budget in FEW for mode in ("plain", "starts", "targeted", "targeted, starts")]
SPENDING += [(budget, mode) for budget in MANY for mode in ("plain", "targeted, starts")]


@pytest.mark.parametrize(("budget", "mode"), SPENDING)
@some_norms("linf", "l0")
def test_no_sample_costs_more_than_the_budget_and_the_books_are_right(
    norm: str | Norm, budget: int, mode: str, affine: Affine, points: Tensor
) -> None:
    assert_within(budget, *spending(norm, budget, mode, affine, points))


@pytest.mark.parametrize("budget", [1, 3, DEFAULTS.several_from + 1])
@some_norms("l2", "l1", "l0-element", "priced-l1")
def test_no_sample_costs_more_than_the_budget_in_the_other_norms(
    norm: str | Norm, budget: int, affine: Affine, points: Tensor
) -> None:
    assert_within(budget, *spending(norm, budget, "plain", affine, points))


@pytest.mark.parametrize(("budget", "mode"), SPENDING)
@some_norms("linf", "l0")
def test_at_most_half_of_the_budget_are_backward_passes(
    norm: str | Norm, budget: int, mode: str, affine: Affine, points: Tensor
) -> None:
    result, _ = spending(norm, budget, mode, affine, points)
    assert int(result.backwards.max()) <= budget / 2


def test_no_batch_is_larger_than_allowed(affine: Affine, points: Tensor) -> None:
    model = Counting(affine)
    auto(model, points, affine.labels(points), norm="l1", budget=QUICK, starts=points.roll(1, 0), max_batch=3)
    assert max(model.forwards) == 3


def test_the_books_name_the_samples_that_were_worked_on(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    """Each alone in its batch, so that the model's own count is the sample's."""
    for sample in (0, 3):
        model = Counting(conv)
        rows = slice(sample, sample + 1)
        result = auto(model, images[rows], labels[rows], norm="l1", budget=50)
        assert result.forwards.tolist() == [sum(model.forwards)]
        assert result.backwards.tolist() == [sum(model.backwards)]


@some_norms("linf", "l1", "priced-l1")
def test_more_passes_find_smaller_perturbations(norm: str | Norm, conv: TinyConv, images: Tensor) -> None:
    labels = fresh_answer(conv, images)
    few, more = (auto(conv, images, labels, norm=norm, budget=budget) for budget in (12, 2 * QUICK))
    assert few.distances.isfinite().any()
    assert more.distances.mean() < few.distances.mean()


@some_norms("linf", "l0")
def test_a_sample_that_gains_nothing_spends_its_budget_in_other_ways(
    norm: str | Norm, affine: Affine, points: Tensor
) -> None:
    impatient = replace(DEFAULTS, patience=2)
    result = auto(affine, points[:1], affine.labels(points[:1]), norm=norm, budget=3000, config=impatient)
    assert result.found.all()
    assert (spent(result) > 2700).all()
    assert (spent(result) <= 3000).all()


def test_a_sample_that_cannot_get_better_stops_with_that_descent(affine: Affine, points: Tensor) -> None:
    labels = affine.labels(points)
    long = auto(affine, points, labels, norm="l0", budget=SHORT)
    single = long.distances == 1
    assert single.any()
    again = auto(affine, points[single], labels[single], norm="l0", budget=SHORT, starts=long.adversarials[single])
    assert again.distances.eq(1).all()
    assert (spent(again) < SHORT / 2).all()


# Sharing


@pytest.fixture
def uneven() -> tuple[Affine, Tensor]:
    """Class 0 leads by 5 x_0 + x_1 + ... + x_9 - c_k. Six samples need one feature, two need three."""
    weight = torch.zeros(8, 10)
    weight[0] = 1.0
    weight[0, 0] = 5.0
    inputs = torch.full((8, 10), 0.9)
    inputs[:6] = 0.5
    inputs[6:, 0] = 0.0
    bias = torch.full((8,), -20.0)
    bias[0], bias[1] = 0.0, 5.7
    return Affine(weight, bias), inputs


def test_what_early_samples_leave_is_spent_on_the_others(uneven: tuple[Affine, Tensor]) -> None:
    model, inputs = uneven
    labels = model.labels(inputs)
    assert labels.eq(0).all()
    budget = 2 * DEFAULTS.several_from
    alone = auto(model, inputs, labels, norm="l0", budget=budget)
    shared = auto(model, inputs, labels, norm="l0", budget=budget, share=True)
    assert alone.distances[:6].eq(1).all()
    assert (alone.distances[6:] >= 3).all()
    assert (spent(alone)[:6] < budget).all()
    assert (spent(alone) <= budget).all()
    assert (spent(shared)[6:] > budget).all()
    assert spent(shared).double().mean() <= budget


@pytest.mark.parametrize("budget", [1, QUICK, SHORT])
@some_norms("linf", "l0")
def test_sharing_keeps_the_mean_within_the_budget_and_makes_nothing_worse(
    norm: str | Norm, budget: int, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    images, labels = images[:6], labels[:6]
    attacked = torch.arange(6) != 3
    alone = auto(conv, images, labels, norm=norm, budget=budget)
    shared = auto(conv, images, labels, norm=norm, budget=budget, share=True)
    assert spent(shared)[attacked].double().mean() <= budget
    assert (shared.distances <= alone.distances).all()
    assert_answers(conv, shared.adversarials, shared.labels)


def test_sharing_with_no_one_to_attack_ends(conv: TinyConv, images: Tensor) -> None:
    labels = (fresh_answer(conv, images) + 1) % 5
    assert spent(auto(conv, images, labels, norm="l2", budget=SHORT, share=True)).eq(1).all()


# Randomness and batches


@pytest.mark.parametrize("aim", ["untargeted"], indirect=True)
def test_the_same_seed_gives_the_same_bits(
    norm: str | Norm, result: AttackResult, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    torch.rand(5)
    assert_same_bits(auto(conv, images, labels, norm=norm, budget=SHORT), result)


def test_another_seed_gives_other_random_starts(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    one, other = (auto(conv, images, labels, norm="l1", budget=SHORT, seed=seed) for seed in (0, 1))
    assert not torch.equal(one.adversarials, other.adversarials)


@some_norms("linf", "l0")
def test_a_sample_does_not_depend_on_its_batch(norm: str | Norm, affine: Affine, points: Tensor) -> None:
    labels = affine.labels(points)
    together = auto(affine, points, labels, norm=norm, budget=SHORT)
    narrow = auto(affine, points, labels, norm=norm, budget=SHORT, max_batch=3)
    torch.testing.assert_close(narrow.distances, together.distances, rtol=PRICE_STEP, atol=0)
    assert torch.equal(spent(narrow), spent(together))
    some = torch.tensor([2, 0])
    apart = auto(affine, points[some], labels[some], norm=norm, budget=SHORT, indices=some)
    torch.testing.assert_close(apart.distances, together.distances[some], rtol=PRICE_STEP, atol=0)
    assert torch.equal(spent(apart), spent(together)[some])


@some_norms("linf", "l0-element", "priced-l1")
def test_an_image_does_not_depend_on_its_batch(
    norm: str | Norm, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    """In double precision: in single, the last bits of a batch's logits may lead a sample to another minimum."""
    conv.double()
    images = images.double()
    rows = torch.tensor([7, 1, 3])
    together = auto(conv, images, labels, norm=norm, budget=SHORT)
    apart = auto(conv, images[rows], labels[rows], norm=norm, budget=SHORT, indices=rows)
    torch.testing.assert_close(apart.distances, together.distances[rows], rtol=PRICE_STEP, atol=0)


def test_a_sample_that_converges_does_not_wait_for_the_rest_of_its_batch(
    conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    """Some have converged before the budget is spent, some have not: each costs what it costs alone."""
    impatient = replace(DEFAULTS, patience=3)
    conv.double()
    images = images.double()
    together = auto(conv, images, labels, norm="l1", budget=2 * SHORT, config=impatient)
    passes = spent(together)
    passes[WRONG_ALREADY] = passes.max()
    rows = passes.argmin().view(1)
    assert passes.min() < passes.max()
    alone = auto(conv, images[rows], labels[rows], norm="l1", budget=2 * SHORT, indices=rows, config=impatient)
    assert spent(alone).tolist() == passes[rows].tolist()
    torch.testing.assert_close(alone.distances, together.distances[rows], rtol=PRICE_STEP, atol=0)


def test_a_sample_takes_the_same_way_in_any_batch(affine: Affine, points: Tensor) -> None:
    """Not only the best points are the same: all margins on the way there are, of random starts too."""
    labels = affine.labels(points)
    ways: list[list[float]] = []
    for rows in (torch.arange(4), torch.tensor([2])):
        way: list[float] = []

        def watch(moment: Observation, place: int = rows.tolist().index(2), way: list[float] = way) -> None:
            way.extend(moment.margin[moment.samples == place].tolist())

        auto(affine, points[rows], labels[rows], norm="linf", budget=SHORT, indices=rows, observe=watch)
        ways.append(way)
    assert ways[0] == pytest.approx(ways[1], rel=1e-4, abs=1e-4)


def test_indices_choose_the_random_numbers(conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    here = auto(conv, images[:3], labels[:3], norm="l1", budget=SHORT)
    there = auto(conv, images[:3], labels[:3], norm="l1", budget=SHORT, indices=torch.tensor([40, 41, 42]))
    assert not torch.equal(here.adversarials, there.adversarials)


# Points known before


def test_a_small_adversarial_start_is_kept_or_improved(norm: str | Norm, conv: TinyConv, images: Tensor) -> None:
    labels = fresh_answer(conv, images)
    known = auto(conv, images, labels, norm=norm, budget=QUICK)
    for budget in (2, 9):
        result = auto(conv, images, labels, norm=norm, budget=budget, starts=known.adversarials)
        assert (result.distances <= known.distances).all()
        assert result.found.all()


def test_a_start_that_is_the_only_find_is_returned(norm: str | Norm, images: Tensor) -> None:
    """The budget allows one forward pass for the input and one for the start."""
    model = Affine(torch.stack([torch.ones(108), torch.zeros(108)]), torch.tensor([-20.0, 0.0]))
    starts = 0.1 * images
    result = auto(model, images, torch.zeros(12, dtype=torch.long), norm=norm, budget=2, starts=starts)
    assert torch.equal(result.adversarials, starts)
    assert_sizes(result, images, norm)
    assert result.labels.eq(1).all()
    assert spent(result).eq(2).all()


@some_norms("linf", "l0")
def test_a_useless_start_is_harmless(norm: str | Norm, affine: Affine, points: Tensor) -> None:
    """The input itself, and a point that is far."""
    labels = affine.labels(points)
    without = auto(affine, points, labels, norm=norm, budget=SHORT)
    for starts in (points, points.roll(1, 0)):
        result = auto(affine, points, labels, norm=norm, budget=SHORT, starts=starts)
        assert result.found.all()
        assert (result.distances <= 1.02 * without.distances).all()


def test_a_start_counts_when_it_has_the_target_and_only_then(conv: TinyConv, images: Tensor) -> None:
    answers = fresh_answer(conv, images)
    targets, starts = answers.roll(1), images.roll(1, 0)
    differs = answers != targets
    result = auto(conv, images, answers, norm="l2", targets=targets, starts=starts, budget=2)
    assert differs.any()
    assert torch.equal(result.adversarials[differs], starts[differs])
    assert torch.equal(result.labels, targets)
    others = auto(conv, images, answers, norm="l2", targets=(targets + 1) % 5, starts=starts, budget=2)
    assert torch.equal(others.found, answers == (targets + 1) % 5)


# History and hooks


def test_the_history_tells_how_the_distances_came_about(result: AttackResult) -> None:
    history = result.history
    assert history is not None
    assert history.passes.shape == history.distances.shape
    assert history.passes.shape[0] == 12
    assert (history.passes.diff(dim=1) >= 0).all()
    assert (history.distances[:, 1:] <= history.distances[:, :-1]).all()
    assert torch.equal(history.passes[:, -1], spent(result))
    assert torch.equal(history.distances[:, -1], result.distances)
    assert (history.distances[WRONG_ALREADY] == 0).all()
    open_samples = [row for row in range(12) if row not in WRONG_ALREADY]
    assert history.distances[open_samples, 0].isinf().all()


def test_the_distances_within_a_number_of_passes_fall_as_it_grows(result: AttackResult) -> None:
    history = result.history
    assert history is not None
    columns = [history.within(passes) for passes in range(1, SHORT + 2)]
    assert all((later <= earlier).all() for earlier, later in pairwise(columns))
    assert torch.equal(columns[-1], result.distances)
    assert columns[0].isinf().sum() == 10
    assert len({tuple(column.tolist()) for column in columns}) > 4


def test_the_history_ends_where_the_books_do_though_nothing_was_tried(affine: Affine, points: Tensor) -> None:
    """A start of a single feature cannot be beaten in l0."""
    points = torch.full_like(points, 0.5)
    model = Affine(*(torch.zeros(10, 12, dtype=torch.float64), torch.linspace(1, 0, 10, dtype=torch.float64)))
    with torch.no_grad():
        model.weight[0, 4] = 1.0
    starts = points.clone()
    starts[:, 4] = 0.0
    with torch.no_grad():
        model.bias[0] = 0.5
        model.bias[1:] = torch.linspace(0.9, 0.1, 9, dtype=torch.float64)
    result = auto(model, points, torch.zeros(4, dtype=torch.long), norm="l0", budget=2 * SHORT, starts=starts)
    assert result.distances.eq(1).all()
    assert result.history is not None
    assert torch.equal(result.history.passes[:, -1], spent(result))


class StopAfter:
    """A hook that raises an error at a given call."""

    def __init__(self, calls: int, error: BaseException) -> None:
        self.calls, self.error, self.left = calls, error, calls

    def __call__(self, moment: Observation) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


@some_norms("linf", "l0")
def test_a_search_that_is_stopped_returns_the_best_so_far(norm: str | Norm, affine: Affine, points: Tensor) -> None:
    labels = affine.labels(points)
    whole = auto(affine, points, labels, norm=norm, budget=SHORT, max_batch=3)
    assert whole.history is not None
    for calls in (1, 7, 25):
        stop = StopAfter(calls, StopAttack())
        result = auto(affine, points, labels, norm=norm, budget=SHORT, max_batch=3, observe=stop)
        assert stop.left == 0
        assert int(spent(result).max()) < SHORT
        for row, passes in enumerate(spent(result).tolist()):
            assert float(result.distances[row]) == float(whole.history.within(passes)[row])
        assert_answers(affine, result.adversarials, result.labels)
        assert result.history is not None
        assert torch.equal(result.history.passes[:, -1], spent(result))
        assert torch.equal(result.history.distances[:, -1], result.distances)
        assert result.found[:3].all() or calls < 25
        assert spent(result)[3] == 1
        assert result.distances[3].isinf()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine")])
def test_any_other_error_in_the_hook_reaches_the_caller(error: BaseException, affine: Affine, points: Tensor) -> None:
    with pytest.raises(type(error)) as caught:
        auto(affine, points, affine.labels(points), norm="l1", budget=SHORT, observe=StopAfter(3, error))
    assert caught.value is error


@some_norms("linf", "l0")
def test_the_hook_is_shown_the_rows_at_work_and_changes_nothing(
    norm: str | Norm, affine: Affine, points: Tensor
) -> None:
    labels = affine.labels(points)
    labels[2] = (labels[2] + 1) % 10
    seen: list[Observation] = []
    watched = auto(affine, points, labels, norm=norm, budget=SHORT, observe=seen.append)
    assert_same_bits(watched, auto(affine, points, labels, norm=norm, budget=SHORT))
    best = torch.full((4,), torch.inf, dtype=torch.float64)
    best[2] = 0
    for moment in seen:
        assert 2 not in moment.samples.tolist()
        assert moment.margin.shape == moment.size.shape == moment.samples.shape
        best[moment.samples] = moment.size
    assert torch.equal(best, watched.distances)
    assert all(later.done > earlier.done for earlier, later in pairwise(seen))
    assert seen[-1].done == int(spent(watched).sum())
    assert seen[-1].total == 3 * SHORT


# Boxes


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0)])
@some_norms("linf", "l2", "l1", "l0", "l0-element")
def test_another_unit_gives_the_same_distances_in_that_unit(
    norm: str | Norm, low: float, high: float, affine: Affine, points: Tensor
) -> None:
    width, labels = high - low, affine.labels(points)
    plain = auto(affine, points, labels, norm=norm, budget=SHORT)
    scaled = auto(
        lambda x: affine((x - low) / width), low + points * width, labels, norm=norm, budget=SHORT, bounds=(low, high)
    )
    unit = 1.0 if norm_of(norm).name == "l0" else width
    torch.testing.assert_close(scaled.distances, plain.distances * unit, rtol=1e-3, atol=0)
    assert scaled.adversarials.min() >= low
    assert scaled.adversarials.max() <= high


def test_each_channel_may_have_a_box_of_its_own(norm: str | Norm, conv: TinyConv, images: Tensor) -> None:
    """Shifting the box does not change the distances. In double precision, so that the offset rounds nothing away."""
    conv.double()
    images = images[:4].double()
    labels = fresh_answer(conv, images)
    offset = torch.tensor([0.0, 2.0, -0.5], dtype=torch.float64)
    shift = offset.view(3, 1, 1)
    plain = auto(conv, images, labels, norm=norm, budget=QUICK)
    moved = auto(
        lambda x: conv(x - shift), images + shift, labels, norm=norm, budget=QUICK, bounds=(offset, offset + 1)
    )
    torch.testing.assert_close(moved.distances, plain.distances, rtol=1e-3, atol=0)


def test_each_channel_stays_in_the_bounds_of_its_own(norm: str | Norm, conv: TinyConv, images: Tensor) -> None:
    low, high = torch.tensor([0.0, 0.2, -1.0]), torch.tensor([1.0, 0.8, 1.0])
    inputs = low[:, None, None] + images * (high - low)[:, None, None]
    result = auto(conv, inputs, fresh_answer(conv, inputs), norm=norm, bounds=(low, high), budget=QUICK)
    assert result.found.sum() >= 8
    for channel in range(3):
        assert result.adversarials[:, channel].min() >= low[channel]
        assert result.adversarials[:, channel].max() <= high[channel]


# The call


@pytest.mark.parametrize("name", ["budget", "max_batch"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "x", None])
def test_counts_that_are_none_are_refused(name: str, value: Any, affine: Affine, points: Tensor) -> None:
    with pytest.raises(InvalidInputError) as caught:
        auto(affine, points, affine.labels(points), norm="l2", **{name: value})
    assert str(caught.value) == f"{name}: expected an integer >= 1, got {value!r}"


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ({"labels": torch.zeros(3, dtype=torch.long)}, r"labels: expected .*\(4,\), got \(3,\)"),
        ({"labels": torch.full((4,), 10)}, "labels: expected classes 0 to 9, got"),
        ({"targets": torch.full((4,), -1)}, "targets: expected classes 0 to 9, got"),
        ({"bounds": (0.0, 0.4)}, "inputs: expected values inside the box"),
        ({"seed": -1}, "seed: expected an integer >= 0, got -1"),
        ({"indices": torch.arange(3)}, "indices: expected 4 integers"),
        ({"starts": torch.zeros(4, 11, dtype=torch.float64)}, r"starts: expected \(4, 12\)"),
        ({"norm": "l_2"}, "norm"),
    ],
    ids=["labels", "classes", "targets", "box", "seed", "indices", "starts", "norm"],
)
def test_a_bad_call_is_refused(instead: dict[str, Any], words: str, affine: Affine, points: Tensor) -> None:
    call = {"labels": affine.labels(points), "norm": "l2", "budget": 10, **instead}
    with pytest.raises(InvalidInputError, match=words):
        auto(affine, points, **call)


@some_norms("linf", "l0")
def test_the_model_and_the_callers_tensors_are_left_as_they_were(
    norm: str | Norm, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    conv.first.bias.requires_grad_(False)
    for parameter in (conv.last.weight, conv.second.bias):
        parameter.grad = torch.full_like(parameter, 7.0)
    state = copy.deepcopy(conv.state_dict())
    wanted = {name: parameter.requires_grad for name, parameter in conv.named_parameters()}
    given, right, starts = images.clone(), labels.clone(), images.roll(1, 0)
    known = starts.clone()
    result = auto(conv, images, labels, norm=norm, budget=SHORT, starts=starts)
    assert not conv.training
    assert all(torch.equal(value, state[name]) for name, value in conv.state_dict().items())
    assert {name: parameter.requires_grad for name, parameter in conv.named_parameters()} == wanted
    grads = {name: parameter.grad for name, parameter in conv.named_parameters() if parameter.grad is not None}
    assert grads.keys() == {"last.weight", "second.bias"}
    assert all(grad.eq(7).all() for grad in grads.values())
    assert torch.is_grad_enabled()
    result.adversarials.zero_()
    assert torch.equal(images, given)
    assert torch.equal(labels, right)
    assert torch.equal(starts, known)


@some_norms("linf", "l0")
def test_it_works_whatever_gradient_mode_the_caller_is_in(
    norm: str | Norm, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    expected = auto(conv, images, labels, norm=norm, budget=SHORT)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            inside = auto(conv, images.clone(), labels.clone(), norm=norm, budget=SHORT)
            assert not torch.is_grad_enabled()
        assert_same_bits(inside, expected)


def test_double_precision_stays_double(norm: str | Norm, conv: TinyConv, images: Tensor, labels: Tensor) -> None:
    conv.double()
    images = images[:5].double()
    result = auto(conv, images, labels[:5], norm=norm, budget=QUICK)
    assert result.adversarials.dtype == result.distances.dtype == torch.float64
    assert result.history is not None
    assert result.history.distances.dtype == torch.float64
    assert_answers(conv, result.adversarials, result.labels)
