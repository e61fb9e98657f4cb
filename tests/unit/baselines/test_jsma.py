"""JSMA: the pair is the best of all pairs, the box and the share hold, and every pass is counted."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pdpgd import AttackResult, InvalidInputError, UnknownNameError
from pdpgd.attacks.base import Bounds
from pdpgd.attacks.catalogue import ATTACKS, paper_settings
from pdpgd.attacks.frame import Framed
from pdpgd.baselines import jsma
from pdpgd.baselines.jsma import JSMA, best_pair, chosen_pair
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model
from support.models import Affine, Cliff, Counting, RootAtHalf, Stubborn, TinyConv, random_affine
from support.results import answers
from support.rounding import assert_answers

NUMBERS = st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0]) | st.floats(-4, 4, width=32)


def attack(
    method: JSMA,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
) -> AttackResult:
    framed = Framed("jsma", ("l0",), lambda classes: method)
    return framed(model, inputs, labels, norm="l0", targets=targets, bounds=bounds)


def score(u: Tensor, v: Tensor, p: int, q: int) -> float:
    sum_u, sum_v = float(u[p] + u[q]), float(v[p] + v[q])
    return sum_u * sum_v if sum_u > 0 and sum_v > 0 else -1.0


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    rows, features = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    size = rows * features
    u, v = (torch.tensor(draw(st.lists(NUMBERS, min_size=size, max_size=size)), dtype=torch.float64) for _ in "uv")
    free = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    return u.reshape(rows, features), v.reshape(rows, features), free.reshape(rows, features)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(tables(), st.sampled_from([1, 2**21]))
def test_the_pair_is_the_best_of_all_pairs(tables: tuple[Tensor, Tensor, Tensor], block: int) -> None:
    u, v, free = tables
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsma, "BLOCK", block)
        pairs = best_pair(u.masked_fill(~free, -torch.inf), v.masked_fill(~free, -torch.inf))
    for row, (p, q) in enumerate(pairs.tolist()):
        places = free[row].nonzero().flatten().tolist()
        best = max((score(u[row], v[row], *pair) for pair in itertools.combinations(places, 2)), default=-1.0)
        if best <= 1e-12:
            # No pair is allowed, or only one whose product underflows: then any allowed pair is correct.
            assert best > -1 or (p, q) == (-1, -1)
        else:
            assert p != q
            assert bool(free[row, p] & free[row, q])
            assert score(u[row], v[row], p, q) == pytest.approx(best, rel=1e-9)


def test_the_pair_is_the_best_where_no_feature_dominates_another(monkeypatch: pytest.MonkeyPatch) -> None:
    u = torch.linspace(-1, 2, 60, dtype=torch.float64)[None]
    v = 1.0 - u + 0.1 * torch.sin(9 * u)
    monkeypatch.setattr(jsma, "BLOCK", 100)
    p, q = best_pair(u, v)[0].tolist()
    best = max(score(u[0], v[0], *pair) for pair in itertools.combinations(range(60), 2))
    assert score(u[0], v[0], p, q) == pytest.approx(best)


def test_without_an_allowed_pair_what_raises_the_target_most_is_moved() -> None:
    u = torch.tensor([[1.0, 3.0, 2.0], [1.0, -1.0, -2.0], [-1.0, -2.0, -3.0]])
    v = torch.zeros_like(u)
    every = torch.ones_like(u, dtype=torch.bool)
    assert chosen_pair(u, v, every, others=2).tolist() == [[1, 2], [0, 0], [-1, -1]]
    assert chosen_pair(u, v, every & (u != 3.0), others=2)[0].tolist() == [2, 0]


@pytest.mark.parametrize("saliency", ["pair", "target"])
@pytest.mark.parametrize("theta", [1.0, -1.0, 0.1, -0.1])
def test_points_are_adversarial_and_moved_one_way_inside_the_box(
    conv: TinyConv, images: Tensor, theta: float, saliency: str
) -> None:
    low, high = -1.0, 3.0
    inputs = low + (high - low) * images
    model = nn.Sequential(Shifted(low, high), conv).eval()
    labels = answers(model, inputs)
    result = attack(JSMA(theta=theta, saliency=saliency), model, inputs, labels, bounds=(low, high))
    assert int(result.found.sum()) >= 4
    assert torch.equal(result.labels != labels, result.found)
    assert_answers(
        model, result.adversarials, result.labels, error=conv.rounding((result.adversarials - low) / (high - low))
    )
    delta = result.adversarials - inputs
    assert torch.equal((delta != 0).any(1).flatten(1).sum(1).float()[result.found], result.distances[result.found])
    assert bool((delta * theta >= 0).all())
    if abs(theta) == 1.0:
        end = high if theta > 0 else low
        assert bool((result.adversarials[delta != 0] == end).all())
    assert float(result.adversarials.min()) >= low
    assert float(result.adversarials.max()) <= high


class Shifted(nn.Module):
    """Map a box to [0, 1]."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.low) / (self.high - self.low)


def test_on_an_affine_model_the_two_best_features_are_moved() -> None:
    weight = torch.zeros(2, 8)
    weight[1] = torch.tensor([0.5, 3.0, 0.1, 0.2, 4.0, 0.3, 1.0, 2.0])
    weight[0] = -weight[1]
    model = Affine(weight, torch.tensor([12.0, 0.0]))
    result = attack(JSMA(), model, torch.zeros(1, 8), torch.tensor([0]))
    assert result.adversarials.nonzero()[:, 1].tolist() == [1, 4]
    assert result.distances.tolist() == [2]


def test_more_targets_never_give_more_pixels_and_fewer_cost_less(conv: TinyConv, images: Tensor) -> None:
    labels = answers(conv, images)
    one, every = (attack(JSMA(targets=targets), conv, images, labels) for targets in (1, None))
    assert bool((every.distances <= one.distances).all())
    assert bool((every.distances < one.distances).any())
    assert int(one.forwards.sum()) < int(every.forwards.sum())


@pytest.mark.parametrize("saliency", ["pair", "target"])
@pytest.mark.parametrize("steps", [1, 3, None])
@pytest.mark.parametrize("max_rows", [3, 20])
def test_every_pass_is_counted_and_no_call_has_more_rows_than_allowed(
    conv: TinyConv, images: Tensor, saliency: str, steps: int | None, max_rows: int
) -> None:
    counting = Counting(conv)
    method = JSMA(saliency=saliency, steps=steps, max_rows=max_rows)
    result = attack(method, counting, images, answers(conv, images))
    assert sum(counting.forwards) == int(result.forwards.sum())
    assert sum(counting.backwards) == int(result.backwards.sum())
    # The frame judges the inputs in a call of its own.
    assert max(counting.forwards[1:]) <= max_rows
    if steps is not None:
        # One pass of the frame, one that ranks the classes, and those of 4 targets with a final one each.
        assert int(result.forwards.max()) <= 2 + 4 * (steps + 1)


def test_a_sample_is_treated_alike_in_any_batch(conv: TinyConv, images: Tensor) -> None:
    # In double precision, no choice depends on a last bit that depends on the batch.
    conv, images = conv.double(), images.double()
    labels = answers(conv, images)
    together = attack(JSMA(max_rows=12), conv, images, labels)
    for row in range(len(images)):
        one = slice(row, row + 1)
        alone = attack(JSMA(max_rows=12), conv, images[one], labels[one])
        assert torch.equal(alone.distances, together.distances[one])
        assert torch.equal(alone.adversarials, together.adversarials[one])
        assert torch.equal(alone.forwards, together.forwards[one])


def test_a_target_is_reached(conv: TinyConv, images: Tensor) -> None:
    with torch.no_grad():
        labels, targets = conv(images).topk(2, dim=1).indices.unbind(1)
    result = attack(JSMA(), conv, images, labels, targets=targets)
    assert int(result.found.sum()) >= 4
    assert torch.equal(result.labels[result.found], targets[result.found])
    assert_answers(conv, result.adversarials, result.labels)


@pytest.mark.parametrize("saliency", ["pair", "target"])
@pytest.mark.parametrize("theta", [1.0, -1.0])
def test_of_both_signs_the_better_run_is_kept_per_sample(saliency: str, theta: float) -> None:
    # Class 1 is reached by increasing the features with positive weight, or by decreasing those with negative weight; a
    # sample of zeros has no room for the latter, and the others have none for the former.
    slopes = torch.tensor([1.0, 1.0, -3.4, -3.3, -3.0, -3.0])
    model = Affine(torch.stack([torch.zeros(6), slopes]), torch.tensor([1.0, 0.0]))
    inputs = torch.tensor([[0.0] * 6, [1.0] * 6, [1.0, 1.0, 0.4, 0.4, 0.1, 0.1]])
    labels = torch.zeros(3, dtype=torch.long)
    up, down = (attack(JSMA(theta=sign, saliency=saliency), model, inputs, labels) for sign in (1.0, -1.0))
    both = attack(JSMA(theta=theta, saliency=saliency, both_signs=True), model, inputs, labels)
    assert up.distances.tolist() == [2.0, torch.inf, torch.inf]
    assert down.distances.tolist() == [torch.inf, 4.0, 2.0]
    assert both.distances.tolist() == [2.0, 4.0, 2.0]
    assert torch.equal(both.adversarials, torch.stack([up.adversarials[0], *down.adversarials[1:]]))


def test_the_papers_jsma_is_the_one_of_art_both_ways() -> None:
    found = paper_settings("jsma", "mnist", "l0", "plain")
    assert found == {"gamma": 1.0, "targets": None, "saliency": "target", "both_signs": True}
    assert paper_settings("jsma", "restricted-imagenet", "l0", "plain")["targets"] == 1
    assert ATTACKS["jsma"].combinations("l0") == [{"theta": 1.0}, {"theta": 0.1}]


@pytest.mark.parametrize("features", [1, 5])
def test_a_hopeless_input_is_not_found_and_comes_back_as_it_was(features: int) -> None:
    inputs = torch.full((3, features), 0.4)
    before = inputs.clone()
    result = attack(JSMA(theta=0.3), Stubborn(), inputs, torch.zeros(3, dtype=torch.long))
    assert bool(result.distances.isinf().all())
    assert torch.equal(result.adversarials, before)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("model", [Cliff(0.5), Cliff(0.2), RootAtHalf()], ids=["flat", "constant-other", "nan"])
def test_slopes_that_vanish_or_are_undefined_are_survived(model: nn.Module) -> None:
    inputs = torch.full((2, 4), 0.5) if isinstance(model, RootAtHalf) else torch.full((2, 4), 0.21)
    result = attack(JSMA(), model, inputs, torch.zeros(2, dtype=torch.long))
    reachable = not (isinstance(model, Cliff) and model.threshold == 0.5)
    assert result.found.tolist() == [reachable] * 2


@pytest.mark.parametrize(("gamma", "most"), [(0.3, 3), (0.5, 5), (1.0, 10)])
@pytest.mark.parametrize("theta", [1.0, 0.3])
def test_no_more_features_change_than_the_share(gamma: float, most: int, theta: float) -> None:
    # Each feature adds 1 to the lead of class 1: class 0 falls with `needed` of them.
    needs = torch.arange(1, 11)
    found = []
    for needed in needs.tolist():
        model = Affine(torch.stack([torch.zeros(10), torch.ones(10)]), torch.tensor([needed - 0.01, 0.0]))
        result = attack(JSMA(theta=theta, gamma=gamma), model, torch.zeros(1, 10), torch.tensor([0]))
        found.append(bool(result.found))
        assert int((result.adversarials != 0).sum()) <= most
    assert found == (needs <= most).tolist()


def test_every_image_of_mnist_is_fooled_with_few_pixels() -> None:
    images, labels = load_data("mnist-1000", count=10).batch(range(10))
    model = load_model("mnist-plain")
    means = {}
    for saliency in ("pair", "target"):
        result = attack(JSMA(saliency=saliency), model, images, labels)
        assert bool(result.found.all())
        means[saliency] = float(result.distances.mean())
    # Measured: 13.6 and 21.4. ART's, which continues until it reaches the target class itself, needs 15.8. The last bit
    # may decide between pixels, and change one image of the ten by some twenty pixels, two in the mean.
    assert means["target"] < 15.8
    assert means["pair"] < 23.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flat_inputs_and_two_classes_work(generator: torch.Generator, dtype: torch.dtype) -> None:
    model = random_affine(generator, features=31, classes=2, dtype=dtype)
    inputs = torch.rand(6, 31, generator=generator, dtype=dtype)
    result = attack(JSMA(), model, inputs, model.labels(inputs))
    assert bool(result.found.all())
    assert result.adversarials.dtype == dtype


@pytest.mark.parametrize(
    ("name", "value"),
    [("theta", 0.0), ("theta", 1.5), ("gamma", 0.0), ("gamma", 1.1), ("targets", 0), ("steps", 0), ("max_rows", 0)],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"JSMA.{name}: expected"):
        JSMA(**{name: value})


def test_an_unknown_saliency_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'pair'"):
        JSMA(saliency="pairs")
