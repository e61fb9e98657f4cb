"""One-Pixel finds the relevant pixel, changes no more pixels than allowed, and every pass is counted."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult, InvalidInputError, Norm, UnknownNameError, l0
from pdpgd.attacks.base import pose
from pdpgd.attacks.frame import Framed
from pdpgd.attacks.radius_search import BySearch
from pdpgd.baselines.one_pixel import STRATEGIES, Canvas, OnePixel, _different, _latin_hypercube
from pdpgd.criteria import Criterion
from support.models import Affine, Counting, Stubborn, TinyConv
from support.rounding import assert_answers

SMALL: dict[str, Any] = {"population": 30, "generations": 6}


def run(
    model: Any, inputs: Tensor, labels: Tensor, radius: float | list[float], norm: str | Norm = "l0", **call: Any
) -> AttackResult:
    radii = torch.as_tensor(radius, dtype=inputs.dtype).expand(len(inputs))
    ball, restart = OnePixel(**{**SMALL, **call.pop("settings", {})}), call.pop("restart", 0)
    attack = Framed("one-pixel", ("l0",), lambda classes: lambda task: ball(task, radii[task.samples], restart))
    return attack(model, inputs, labels, norm=norm, **call)


def fragile(shape: tuple[int, ...], place: tuple[int, ...]) -> Affine:
    """A model that predicts class 0 with a margin of 0.8 at x = 1/2, which only all channels of one pixel can remove.

    Each element outside the pixel at `place` changes the margin by at most 0.025, so three pixels by at most 0.23.
    """
    weight = torch.full(shape, 0.05)
    pixel = (slice(None), *place) if len(shape) > 1 else place
    weight[pixel] = 2.0 / weight[pixel].numel()
    flat = weight.flatten()
    return Affine(torch.stack([flat, torch.zeros_like(flat)]), torch.tensor([0.8 - float(flat.sum()) / 2, 0.0]))


@pytest.fixture
def images(conv: TinyConv, generator: torch.Generator) -> Tensor:
    return torch.rand(12, 3, 6, 6, generator=generator)


@pytest.fixture
def labels(conv: TinyConv, images: Tensor) -> Tensor:
    with torch.no_grad():
        return conv(images).argmax(1)


@pytest.fixture
def targets(labels: Tensor) -> Tensor:
    """Images of which some can be fooled with a pixel or two, and some cannot."""
    return (labels + 1) % 5


@pytest.mark.parametrize(
    ("shape", "place"),
    [((1, 6, 7), (1, 5)), ((3, 6, 7), (5, 6)), ((2, 9), (8,)), ((30,), (4,))],
    ids=["gray", "color", "sound", "flat"],
)
@pytest.mark.parametrize("radius", [1.0, 3.5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_pixel_that_matters_is_found(
    shape: tuple[int, ...], place: tuple[int, ...], radius: float, strategy: str
) -> None:
    model = fragile(shape, place)
    inputs = torch.full((2, *shape), 0.5)
    settings = {"population": 100, "generations": 40, "strategy": strategy}
    result = run(model, inputs, torch.zeros(2, dtype=torch.long), radius, settings=settings)
    assert bool(result.found.all())
    assert bool((result.distances <= radius).all())
    changed = result.adversarials != inputs
    pixels = changed.any(1) if len(shape) > 1 else changed
    assert bool(pixels[(slice(None), *place)].all())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_evolution_finds_what_the_first_draw_does_not(strategy: str) -> None:
    # Six values near the edge of the box at once, which few candidates of the first generation have.
    model, inputs = fragile((6, 1, 1), (0, 0)), torch.full((40, 6, 1, 1), 0.5)
    settings = {"population": 50, "generations": 40, "strategy": strategy}
    result = run(model, inputs, torch.zeros(40, dtype=torch.long), 1.0, settings=settings)
    assert int((result.forwards == 1 + 50).sum()) <= 10
    assert int(result.found.sum()) >= 32


def test_no_more_pixels_change_than_the_radius_of_each_sample_allows() -> None:
    # A pixel reduces the margin by at most 0.5: a margin of 0.8 needs two pixels.
    model = Affine(torch.stack([torch.ones(9), torch.zeros(9)]), torch.tensor([-3.7, 0.0]))
    inputs = torch.full((6, 1, 3, 3), 0.5)
    radii = [0.5, 1.0, 1.99, 2.0, 4.0, 100.0]
    result = run(model, inputs, torch.zeros(6, dtype=torch.long), radii, settings={"generations": 20})
    assert result.found.tolist() == [False, False, False, True, True, True]
    assert bool((result.distances[3:] <= torch.tensor([2.0, 4.0, 9.0])).all())
    assert int(result.forwards[0]) == 1, "nothing may be changed, so nothing is tried"


def test_points_are_at_their_target_and_in_the_box_of_their_channel(
    conv: TinyConv, images: Tensor, labels: Tensor, targets: Tensor
) -> None:
    before = images.clone()
    low, high = torch.tensor([0.0, -0.5, 0.0]), torch.tensor([1.0, 1.0, 1.5])
    result = run(conv, images, labels, 1.0, targets=targets, bounds=(low, high))
    assert 0 < int(result.found.sum()) < len(images)
    assert torch.equal(images, before)
    assert_answers(conv, result.adversarials, result.labels)
    assert torch.equal(result.labels == targets, result.found)
    assert bool((result.distances[result.found] <= 1).all())
    assert bool((result.adversarials >= low[:, None, None]).all())
    assert bool((result.adversarials <= high[:, None, None]).all())
    beyond = (result.adversarials < 0) | (result.adversarials > 1)
    assert bool(beyond.any()), "the whole box is used"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_box_gives_the_same_points_in_its_unit(
    conv: TinyConv, images: Tensor, labels: Tensor, strategy: str
) -> None:
    conv, images, settings = conv.double(), images.double(), {"strategy": strategy}
    plain = run(conv, images, labels, 2.0, settings=settings)
    moved = run(lambda x: conv((x + 2) / 4), 4 * images - 2, labels, 2.0, bounds=(-2.0, 2.0), settings=settings)
    assert bool(plain.found.any())
    assert torch.equal(moved.distances, plain.distances)
    torch.testing.assert_close((moved.adversarials + 2) / 4, plain.adversarials)


@pytest.mark.parametrize("max_rows", [7, 30, 64, 1000])
def test_every_pass_is_counted_and_none_has_too_many_rows(max_rows: int) -> None:
    counting = Counting(Stubborn())
    inputs = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    settings = {"max_rows": max_rows}
    result = run(counting, inputs, torch.tensor([0, 0, 1]), 2.0, settings=settings)  # the third is misclassified
    assert result.distances.tolist() == [torch.inf, torch.inf, 0.0]
    assert torch.equal(result.adversarials, inputs)
    assert result.forwards.tolist() == [211, 211, 1]
    assert sum(counting.forwards) == 423
    assert max(counting.forwards[1:]) <= max_rows
    assert result.backwards.tolist() == [0, 0, 0]
    assert not counting.backwards


def test_a_sample_that_is_fooled_costs_no_more(conv: TinyConv, images: Tensor, labels: Tensor, targets: Tensor) -> None:
    counting = Counting(conv)
    result = run(counting, images, labels, 1.0, targets=targets)
    assert sum(counting.forwards) == int(result.forwards.sum())
    assert bool((result.forwards[~result.found] == 211).all())
    assert bool(((result.forwards[result.found] - 1) % 30 == 0).all())
    assert int(result.forwards[result.found].min()) < 211


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sample_is_treated_alike_in_any_batch_and_the_seed_decides(
    conv: TinyConv, images: Tensor, labels: Tensor, targets: Tensor, strategy: str
) -> None:
    # In double precision, no comparison depends on a last bit that depends on the batch.
    conv, images, settings = conv.double(), images.double(), {"strategy": strategy}
    radii = [1.0, 1.0, 3.0, 1.0, 1.0, 2.0] * 2
    together = run(conv, images, labels, radii, targets=targets, seed=3, settings=settings)
    assert 3 <= int(together.found.sum()) < 12
    for row in range(len(images)):
        one = slice(row, row + 1)
        here: dict[str, Any] = {"targets": targets[one], "indices": torch.tensor([row])}
        alone = run(conv, images[one], labels[one], radii[row], seed=3, settings=settings, **here)
        torch.testing.assert_close(alone.adversarials[0], together.adversarials[row])
        assert int(alone.forwards[0]) == int(together.forwards[row])
    apart = run(conv, images, labels, radii, targets=targets, seed=3, settings={**settings, "max_rows": 11})
    torch.testing.assert_close(apart.adversarials, together.adversarials)
    for other in ({"seed": 4}, {"seed": 3, "restart": 1}, {"seed": 3, "indices": torch.arange(12, 24)}):
        result = run(conv, images, labels, radii, targets=targets, settings=settings, **other)
        assert not torch.equal(result.adversarials, together.adversarials)


def test_where_channels_count_one_by_one_they_are_painted_one_by_one(
    conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    result = run(conv, images, labels, 4.0, norm=l0(unit="element"), settings={"generations": 20})
    assert bool(result.found.any())
    assert int((result.adversarials != images).flatten(1).sum(1).max()) <= 4


def test_a_search_over_the_radii_finds_the_fewest_pixels() -> None:
    model = Affine(torch.stack([torch.ones(9), torch.zeros(9)]), torch.tensor([-3.7, 0.0]))
    attack = Framed("one-pixel", ("l0",), lambda classes: BySearch(ball=OnePixel(population=50, generations=20)))
    result = attack(model, torch.full((2, 9), 0.5), torch.zeros(2, dtype=torch.long), norm="l0")
    assert result.distances.tolist() == [2.0, 2.0]


def test_the_first_of_two_genes_on_a_pixel_counts_and_idle_genes_do_not() -> None:
    inputs = torch.zeros(2, 1, 2, 3)
    problem = pose(
        Stubborn(), inputs, torch.zeros(2).long(), norm="l0", targets=None, bounds=(0, 2), seed=0, indices=None
    )
    # (row, column, value): the second gene is on the pixel of the first; a relative position of 1 is the last row.
    genes = torch.tensor([[[0.6, 0.4, 0.25], [0.9, 0.6, 0.75], [0.0, 0.0, 0.5], [1.0, 1.0, 1.0]]]).repeat(2, 1, 1)
    painted = Canvas.of(problem).painted(inputs, genes, torch.tensor([4, 2]))
    assert painted[0, 0].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 2.0]]
    assert painted[1, 0].tolist() == [[0.0, 0.0, 0.0], [0.0, 0.5, 0.0]]


def test_three_different_parents_are_drawn_and_all_triples_are_alike_likely() -> None:
    draws = torch.tensor(list(product(range(5), range(4), range(3))))
    triples = torch.stack(_different(draws), dim=-1)
    assert sorted(map(tuple, triples.tolist())) == sorted(permutations(range(5), 3))


def test_a_latin_hypercube_has_one_number_in_each_interval() -> None:
    numbers = _latin_hypercube(np.random.default_rng(0), (8, 3, 2))
    assert np.array_equal(np.sort(np.floor(8 * numbers), axis=0), np.arange(8)[:, None, None] * np.ones((1, 3, 2)))
    assert not np.array_equal(np.argsort(numbers[:, 0, 0]), np.argsort(numbers[:, 0, 1])), "each axis has its own order"


def test_children_of_the_best_are_a_scaled_difference_of_two_others_away_from_it() -> None:
    rows, size = 2, 6
    genes = 0.45 + 0.1 * torch.rand(rows, size, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fitness = torch.tensor([[3.0, 1.0, 2.0, 0.0, 4.0, 5.0], [3.0, 1.0, 2.0, 6.0, -4.0, 5.0]])
    chance = [np.random.default_rng(row) for row in range(rows)]
    method = OnePixel(population=size, generations=1, strategy="best")
    children = method._of_the_best(genes, fitness, torch.tensor([3, 3]), chance)
    for row, best in enumerate([3, 4]):
        scales = []
        for child in range(size):
            way = children[row, child] - genes[row, best]
            fits = {
                (b, c): float((way / (genes[row, b] - genes[row, c])).median())
                for b, c in permutations(set(range(size)) - {child}, 2)
                if torch.allclose(
                    way, (way / (genes[row, b] - genes[row, c])).median() * (genes[row, b] - genes[row, c])
                )
            }
            scales.append([scale for scale in fits.values() if scale > 0])
        assert all(len(found) == 1 for found in scales), "one pair of others, in one order"
        assert 0.5 <= scales[0][0] < 1
        assert all(found[0] == pytest.approx(scales[0][0]) for found in scales), "one scale for a generation"


def test_what_leaves_its_range_is_drawn_anew_and_idle_genes_stay_idle() -> None:
    genes = torch.zeros(1, 5, 2, 3, dtype=torch.float64)
    genes[0, :, 0] = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)[:, None]
    method = OnePixel(population=5, generations=1, strategy="best")
    chance = [np.random.default_rng(1)]
    children = method._of_the_best(genes, torch.arange(5.0)[None], torch.tensor([1]), chance)
    assert bool(((children >= 0) & (children <= 1)).all())
    assert bool((children[:, :, 1] == 0).all())
    assert len(children[0, :, 0].flatten().unique()) > 3, "what was drawn anew is not all the same"


def test_a_row_of_few_genes_draws_no_more_beside_one_of_many() -> None:
    method = OnePixel(population=5, generations=1, strategy="best")
    genes = torch.rand(2, 5, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    genes[0, :, 1:] = 0.0  # the first row has one gene
    fitness = torch.rand(2, 5, generator=torch.Generator().manual_seed(1))
    beside, alone = ([np.random.default_rng(0), np.random.default_rng(1)], [np.random.default_rng(0)])
    for _ in range(2):  # random numbers drawn in excess by one generation would be missing in the next
        together = method._of_the_best(genes, fitness, torch.tensor([1, 3]), beside)
        by_itself = method._of_the_best(genes[:1, :, :1], fitness[:1], torch.tensor([1]), alone)
        assert torch.equal(together[:1, :, :1], by_itself)


@pytest.mark.parametrize("targeted", [False, True])
def test_by_the_strategy_of_art_the_fitness_is_one_logit(targeted: bool) -> None:
    logits = torch.tensor([[2.0, 7.0, 1.0], [5.0, 0.0, 6.0]])
    criterion = Criterion(torch.tensor([1, 2]), targeted)
    assert OnePixel(strategy="best")._fitness(criterion, logits).tolist() == ([-7.0, -6.0] if targeted else [7.0, 6.0])
    assert torch.equal(OnePixel()._fitness(criterion, logits), criterion.margin(logits))


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="strategy"):
        OnePixel(strategy="worst")


@pytest.mark.parametrize("settings", [{"population": 2}, {"generations": 0}, {"scale": 0.0}, {"max_rows": 1.5}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        OnePixel(**settings)
