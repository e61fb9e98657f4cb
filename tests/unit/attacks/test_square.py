"""Square: its squares and patterns, and what it finds without gradients in linf, l2 and l1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pdpgd import InvalidInputError, UnknownNameError
from pdpgd.attacks.base import pose
from pdpgd.attacks.catalogue import prepared
from pdpgd.attacks.frame import Rows
from pdpgd.attacks.proposals import State
from pdpgd.attacks.square import Grid, SignProposals, Square, _bump, _bump_and_dent, proposals_of
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model
from pdpgd.norms import norm_of

NORMS = ("linf", "l2", "l1")
# At these radii, 300 queries fool most of the images below.
RADIUS = {"linf": 0.2, "l2": 3.0, "l1": 25.0}


class Blind(nn.Module):
    """A model whose outputs do not depend on the inputs as far as autograd can see."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model(x.detach())
        return logits


@pytest.mark.parametrize("norm", NORMS)
def test_most_images_are_fooled_at_a_radius_also_without_gradients(
    norm: str, net: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    attack = prepared("square", norm, settings={"radii": [RADIUS[norm]], "queries": 300}, max_batch=64)
    result = attack(Blind(net), *data, norm=norm)
    assert int(result.found.sum()) >= 12
    assert (result.distances[result.found] <= RADIUS[norm] + 1e-6).all()
    assert (result.backwards == 0).all()
    assert torch.equal(net(result.adversarials).argmax(1) != data[1], result.found)
    assert torch.equal(attack(net, *data, norm=norm).adversarials, result.adversarials)


@pytest.mark.parametrize("norm", NORMS)
def test_a_target_is_reached(norm: str, net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    targets = net(data[0]).topk(2).indices[:, 1]
    attack = prepared("square", norm, settings={"radii": [1.5 * RADIUS[norm]], "queries": 300}, max_batch=64)
    result = attack(net, *data, norm=norm, targets=targets)
    assert int(result.found.sum()) >= 8
    assert torch.equal(result.labels == targets, result.found)


@pytest.mark.parametrize("norm", NORMS)
def test_without_radii_the_smallest_radius_is_searched(norm: str, net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    result = prepared("square", norm, budget=400, max_batch=64)(net, *data, norm=norm)
    assert result.found.all()
    assert float(result.distances.median()) < 2 * RADIUS[norm]
    assert int(result.forwards.max()) <= 401


def test_a_budget_is_spent_on_queries_at_each_radius() -> None:
    attack = prepared("square", "linf", budget=600, settings={"radii": [0.001, 0.002], "restarts": 3}, max_batch=8)
    model = load_model("mnist-linf-at")
    images, labels = load_data("mnist-1000").batch(range(2))
    assert attack(model, images, labels, norm="linf").forwards.tolist() == [601, 601]


@pytest.mark.parametrize("settings", [{"queries": 0}, {"queries": 1.5}, {"p_init": 0.0}, {"p_init": 1.5}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        Square(**settings)  # type: ignore[arg-type]  # on purpose


def test_other_balls_are_refused() -> None:
    inputs = torch.rand(1, 4)
    problem = pose(
        nn.Linear(4, 2).eval(),
        inputs,
        torch.tensor([0]),
        norm="l0",
        targets=None,
        bounds=(0.0, 1.0),
        seed=0,
        indices=None,
    )
    with pytest.raises(UnknownNameError, match="norm of Square: expected one of l1, l2, linf"):
        proposals_of(problem, Rows.of(problem, torch.tensor([0])), torch.ones(1))


@pytest.mark.parametrize(
    ("shape", "share", "window"),
    [
        ((3, 28, 28), 0.8, (25, 25)),
        ((1, 28, 28), 1.0, (28, 28)),
        ((1, 28, 28), 0.0001, (1, 1)),
        ((50,), 0.2, (1, 10)),
        ((4, 30), 0.5, (1, 15)),
        ((1, 4, 40), 0.5, (4, 20)),
        ((1, 40, 4), 0.5, (20, 4)),
    ],
)
def test_a_window_has_the_share_of_the_plane(shape: tuple[int, ...], share: float, window: tuple[int, int]) -> None:
    assert Grid.of(torch.zeros(1, *shape)).window(share) == window


def test_windows_of_bumps_are_odd_and_have_room_for_two() -> None:
    grid = Grid(1, 28, 28)
    assert grid.window(0.0001, least=3, odd=True) == (3, 3)
    assert grid.window(16 / 784, least=3, odd=True) == (5, 5)
    assert Grid(1, 1, 2).window(0.1, least=3, odd=True) == (1, 2)


def test_windows_reach_every_cell_and_stay_in_the_plane() -> None:
    grid = Grid(2, 5, 7)
    draws = torch.cartesian_prod(*[torch.tensor([0.0, 0.3, 0.6, 1 - 1e-7])] * 2)
    cells = grid.cells(draws, (2, 3))
    assert cells.shape == (16, 1, 6)
    rows, columns = cells // 7, cells % 7
    assert (rows.amax(2) - rows.amin(2) == 1).all()
    assert (columns.amax(2) - columns.amin(2) == 2).all()
    assert int(cells.min()) == 0
    assert int(cells.max()) == 34


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("size", [(3, 3), (2, 5), (4, 7), (1, 9), (1, 1)])
def test_a_bump_is_a_sum_of_nested_squares(size: tuple[int, int], power: int) -> None:
    height, width = size
    slow = torch.zeros(size, dtype=torch.float64)
    for k in range(max(size) // 2 + 1):
        for row in range(height):
            for column in range(width):
                inside = abs(row - height // 2) <= k and abs(column - width // 2) <= k
                slow[row, column] += inside * (k + 1.0) ** (-2 if power == 2 else -4)
    torch.testing.assert_close(_bump(height, width, power), slow / slow.norm(power))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_bump_and_a_dent_have_size_one_and_half_of_it_each(axis: int, power: int) -> None:
    pattern = _bump_and_dent((5, 5), axis, power, torch.float64, torch.device("cpu")).reshape(5, 5)
    first, second = pattern.split([2, 3], dim=axis)
    assert float(first.min()) > 0 > float(second.max())
    half = 0.5 ** (1 / power)
    torch.testing.assert_close(torch.stack([first.norm(power), second.norm(power)]), torch.full((2,), half).double())


def proposals(norm: str, inputs: Tensor, radius: float) -> tuple[SignProposals, State]:
    problem = pose(
        lambda x: x.flatten(1), inputs, torch.zeros(len(inputs)).long(), norm=norm, targets=None,
        bounds=(0.0, 1.0), seed=0, indices=None,
    )  # fmt: skip
    moves = proposals_of(problem, Rows.of(problem, torch.arange(len(inputs))), torch.full((len(inputs),), radius))
    draws = torch.rand(len(inputs), max(moves.first_draws), generator=torch.Generator().manual_seed(1))
    return moves, moves.begin(draws)  # type: ignore[return-value]  # the tests below use what all proposals have


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_the_whole_radius_is_used(norm: str, generator: torch.Generator) -> None:
    """Half of the entries of a black image can go only up, so that the box cuts half of every pattern."""
    inputs = torch.zeros(4, 3, 15, 15)
    moves, state = proposals(norm, inputs, 1.5)
    for _ in range(5):
        size = norm_of(norm).size(state.point - inputs)
        assert (size > 1.49).all()
        assert (size <= 1.5).all()
        state = moves.propose(state, torch.rand(4, max(moves.draws), generator=generator), 0.1)


def test_a_proposal_in_linf_changes_one_square_and_never_nothing(generator: torch.Generator) -> None:
    inputs = torch.rand(50, 1, 9, 9, generator=generator)
    moves, state = proposals("linf", inputs, 0.1)
    corners = torch.stack([moves.lowest, moves.highest])
    for _ in range(5):
        assert (state.point == corners).any(0).all()
        after = moves.propose(state, torch.rand(50, 3, generator=generator), 1 / 9)
        changed = (after.point != state.point).flatten(1).sum(1)
        assert (changed >= 1).all()
        assert (changed <= 9).all()
        state = after


def test_the_linf_ball_is_not_left_by_rounding(generator: torch.Generator) -> None:
    inputs = torch.rand(50, 1, 9, 9, generator=generator)
    _, state = proposals("linf", inputs, 0.001)
    assert float((state.point - inputs).abs().max()) <= torch.tensor(0.001)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_proposal_in_l2_and_l1_empties_one_square_for_another(norm: str) -> None:
    inputs = torch.full((1, 1, 9, 9), 0.5)
    moves, state = proposals(norm, inputs, 0.5)
    # The first square at the top left, the second at the bottom right.
    draws = torch.tensor([[0.0, 0.0, 0.99, 0.99, 0.2, 0.8]])
    before, after = ((at.point - inputs)[0, 0] for at in (state, moves.propose(state, draws, 1 / 9)))
    assert (before[6:, 6:] != 0).any()
    assert (after[6:, 6:] == 0).all()
    assert float(after[:3, :3].abs().sum()) > float(before[:3, :3].abs().sum())
