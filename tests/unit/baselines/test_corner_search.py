"""CornerSearch: one pixel if one is enough, never more than allowed, every pass counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pdpgd import AttackResult, InvalidInputError, l0
from pdpgd.attacks.contract import Bounds
from pdpgd.attacks.task import Framed
from pdpgd.baselines.corner_search import CornerSearch, _wanted, ladder
from pdpgd.norms import Norm
from pdpgd.subjects import load_data, load_model
from support.models import Affine, Counting, Stubborn, TinyConv, random_affine
from support.results import answers
from support.rounding import assert_answers

SMALL = CornerSearch(iterations=200)


def attack(
    method: CornerSearch,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: str | Norm = "l0",
    targets: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    seed: int = 0,
    indices: Tensor | None = None,
) -> AttackResult:
    framed = Framed("corner-search", ("l0",), lambda classes: method)
    return framed(model, inputs, labels, norm=norm, targets=targets, bounds=bounds, seed=seed, indices=indices)


class Fragile(nn.Module):
    """Class 1 as soon as pixel (2, 3) is (red high, the other channels low); nothing else matters."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        pixel = x[:, :, 2, 3]
        there = (pixel[:, 0] >= self.high) & (pixel[:, 1:] <= self.low).all(1)
        return torch.stack([torch.full_like(pixel[:, 0], 3.0), 6.0 * there.to(x.dtype)], 1)


def runner_up(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(inputs).topk(2, dim=1).indices[:, 1]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 3.0)])
@pytest.mark.parametrize("max_rows", [3, 100, 4096])
def test_a_single_corner_of_a_single_pixel_is_found_in_any_box(
    generator: torch.Generator, low: float, high: float, max_rows: int
) -> None:
    images = low + (high - low) * (0.25 + 0.5 * torch.rand(3, 3, 5, 6, generator=generator))
    labels = torch.zeros(3, dtype=torch.long)
    result = attack(CornerSearch(max_rows=max_rows), Fragile(low, high), images, labels, bounds=(low, high))
    assert result.distances.tolist() == [1, 1, 1]
    expected = images.clone()
    expected[:, :, 2, 3] = torch.tensor([high, low, low])
    assert torch.equal(result.adversarials, expected)


def test_bounds_of_each_channel_are_reached_exactly(generator: torch.Generator) -> None:
    low, high = torch.tensor([-1.0, 0.0, 0.1]), torch.tensor([0.5, 1.0, 0.7])
    column = (slice(None), None, None)
    images = low[column] + (high - low)[column] * torch.rand(4, 3, 6, 6, generator=generator)
    model = TinyConv(generator)
    result = attack(SMALL, model, images, answers(model, images), bounds=(low, high))
    assert bool(result.found.any())
    moved = result.adversarials != images
    corner = (result.adversarials == low[column]) | (result.adversarials == high[column])
    assert bool((~moved | corner).all())


def test_points_are_adversarial_and_as_small_as_reported(conv: TinyConv, images: Tensor) -> None:
    labels = answers(conv, images)
    result = attack(SMALL, conv, images, labels)
    changed = (result.adversarials != images).any(1).flatten(1).sum(1)
    assert bool(result.found.all())
    assert torch.equal(changed.to(result.distances.dtype), result.distances)
    assert torch.equal(result.labels != labels, result.found)
    assert_answers(conv, result.adversarials, result.labels)


def test_what_two_pixels_can_do_is_done_with_two() -> None:
    # Each of the first three features takes 2 of the lead of 3.
    weight = torch.zeros(2, 12)
    weight[1, :3] = 2.0
    weight[1, 3:] = torch.linspace(0.1, 0.3, 9)
    model = Affine(weight, torch.tensor([3.0, 0.0]))
    result = attack(CornerSearch(iterations=400), model, torch.zeros(1, 12), torch.tensor([0]))
    assert result.distances.tolist() == [2]


@pytest.mark.parametrize("most", [1, 5, 9])
def test_the_allowed_number_of_pixels_is_never_exceeded_on_mnist(most: int) -> None:
    images, labels = load_data("mnist-1000", count=20).batch(range(20))
    model = load_model("mnist-plain")
    method = CornerSearch(iterations=50, max_sparsity=most, forwards=450)
    result = attack(method, model, images, labels)
    found = result.distances[result.found]
    assert bool((found <= most).all())
    assert bool(((result.adversarials != images).flatten(1).sum(1) <= most).all())
    if most == 9:
        assert len(found) >= 3, "the bound must be one at which some are found"
        assert float(found.amax()) > 1


def test_the_draws_go_where_they_still_help_on_mnist() -> None:
    images, labels = load_data("mnist-1000", count=8).batch(range(8))
    result = attack(CornerSearch(), load_model("mnist-plain"), images, labels)
    # 8.1 was measured; 100 draws instead of 1000 give 11. Half way: the ranks of the pixels may hang on last bits.
    assert float(result.distances.mean()) < 9.5


def test_every_pass_is_counted_and_no_call_has_more_rows_than_allowed(conv: TinyConv, images: Tensor) -> None:
    counting = Counting(conv)
    result = attack(replace(SMALL, max_rows=50), counting, images, answers(conv, images))
    assert sum(counting.forwards) == int(result.forwards.sum())
    assert 40 < max(counting.forwards) <= 50
    assert counting.backwards == []


@pytest.mark.parametrize("forwards", [3, 40, 200, 400])
def test_a_sample_costs_no_more_than_it_may(images: Tensor, forwards: int) -> None:
    labels = torch.zeros(8, dtype=torch.long)
    method = CornerSearch(iterations=100, forwards=forwards)
    result = attack(method, Stubborn(), images, labels)
    # One more pass, the frame's, judges the input. All there is to try are 36 * 8 changes and 100 draws.
    spent = min(forwards, 36 * 8 + 100)
    assert int(result.forwards.max()) <= spent + 1
    assert forwards < 8 or int(result.forwards.min()) > spent - 8


def test_which_pixels_are_tried_is_up_to_the_seed_if_not_all_can_be(conv: TinyConv, images: Tensor) -> None:
    method, labels = CornerSearch(iterations=20, forwards=60), answers(conv, images)
    points = [attack(method, conv, images, labels, seed=seed).adversarials for seed in (0, 0, 1)]
    assert torch.equal(points[0], points[1])
    assert not torch.equal(points[0], points[2])


def test_a_sample_is_treated_alike_in_any_batch(conv: TinyConv, images: Tensor) -> None:
    # In double precision: no pixel is ranked by a last bit that depends on the batch.
    conv, images = conv.double(), images.double()
    labels = answers(conv, images)
    together = attack(SMALL, conv, images, labels, seed=5)
    for row in range(len(images)):
        one = slice(row, row + 1)
        alone = attack(SMALL, conv, images[one], labels[one], seed=5, indices=torch.tensor([row]))
        assert torch.equal(alone.distances, together.distances[one])
        assert torch.equal(alone.adversarials, together.adversarials[one])
        assert torch.equal(alone.forwards, together.forwards[one])


def test_a_target_is_reached_and_takes_at_least_as_many_pixels(conv: TinyConv, images: Tensor) -> None:
    labels, targets = answers(conv, images), runner_up(conv, images)
    aimed = attack(SMALL, conv, images, labels, targets=targets)
    assert int(aimed.found.sum()) >= 6
    assert torch.equal(aimed.labels[aimed.found], targets[aimed.found])
    assert_answers(conv, aimed.adversarials, aimed.labels)


def test_a_hopeless_input_is_not_found_and_comes_back_as_it_was(images: Tensor) -> None:
    before = images.clone()
    result = attack(SMALL, Stubborn(), images, torch.zeros(8, dtype=torch.long))
    assert not bool(result.found.any())
    assert bool(result.distances.isinf().all())
    assert torch.equal(result.adversarials, before)
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("iterations", [1, 30])
def test_flat_inputs_two_classes_and_a_single_draw_work(
    generator: torch.Generator, dtype: torch.dtype, iterations: int
) -> None:
    model = random_affine(generator, features=30, classes=2, dtype=dtype)
    inputs = torch.rand(6, 30, generator=generator, dtype=dtype)
    result = attack(CornerSearch(iterations=iterations), model, inputs, model.labels(inputs))
    assert bool(result.found.all())
    assert result.adversarials.dtype == dtype


def test_where_elements_are_counted_each_channel_is_moved_on_its_own(conv: TinyConv, images: Tensor) -> None:
    result = attack(replace(SMALL, max_sparsity=4), conv, images, answers(conv, images), norm=l0(unit="element"))
    elements = (result.adversarials != images).flatten(1).sum(1)
    assert bool(result.found.any())
    assert int(elements.max()) <= 4


def test_after_a_success_the_next_count_bisects_and_then_goes_down_one_by_one() -> None:
    size, failed = torch.tensor([torch.inf, 12.0, 9.0, 5.0]), torch.tensor([4, 8, 8, 8])
    assert _wanted(size, failed, 6).tolist() == [6, 10, 8, 4]


def test_the_ladder_ends_at_the_top_however_short_it_is() -> None:
    assert ladder(100, most=500) == [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]
    assert ladder(4, most=500) == [2, 3, 4]
    assert ladder(2, most=0) == [2]
    assert ladder(1, most=10) == []
    assert [len(ladder(100, most=most)) for most in (1, 2, 5, 13, 14)] == [1, 2, 5, 13, 13]
    assert all(ladder(100, most=most)[-1] == 100 for most in range(1, 20))


@pytest.mark.parametrize("name", ["iterations", "candidates", "max_sparsity", "max_rows", "forwards"])
def test_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name}: expected at least 1"):
        CornerSearch(**{name: 0})


def test_more_channels_than_have_few_corners_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at most 8 channels, got 9"):
        attack(SMALL, Stubborn(), torch.rand(1, 9, 2, 2), torch.tensor([0]))
