"""Square (Andriushchenko et al. 2020; l1: Croce & Hein 2021): random search by squares, without gradients.

    linf:     z' = z, but x + s_c radius in a square (s_c = -1 or 1 for each channel c), clipped to the box
    l2, l1:   the perturbation of one square moves to another, where a bump and a dent are added to what is there

Squares shrink as the queries go on (`STEPS`); on flat inputs they are intervals. Points stay in the box, and a
proposal uses the whole radius. Differences from the authors' code: every sample has its own squares; a square reaches
the last row and column; a proposal in linf that would change nothing has its signs flipped; and in l2 the perturbation
is scaled up again after the box has cut it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from pdpgd import proximal
from pdpgd.attacks.balls import Room
from pdpgd.attacks.base import Problem
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Rows, Task
from pdpgd.attacks.proposals import Proposals, Schedule, Slice, State, search
from pdpgd.criteria import Box
from pdpgd.errors import UnknownNameError, expect_setting
from pdpgd.norms import BallShape
from pdpgd.tensors import clip, flat, per_sample

# (queries, divisor of the share), from the authors' code.
STEPS = ((10, 2), (50, 4), (200, 8), (500, 16), (1000, 32), (2000, 64), (4000, 128), (6000, 256), (8000, 512))
# A share of the radius that rounding may add to a perturbation in l2 and l1.
INSIDE = 1 - 1e-6
# Least side of a square in l2 and l1: smaller ones have no room for a bump and a dent.
LEAST_SIDE = 3
# Squares per side of the image at the start, in l2 and l1.
TILES = 5
# How often a perturbation in l2 is scaled up after the box has cut it. Samples of 40 (images 400 on) that withstand
# 1000 queries without it / once / twice: mnist-plain 18.3 / 16.7 / 16.0, mnist-linf-at 15.0 / 10.0 / 10.7.
REFILLS = 1


@dataclass(frozen=True)
class Grid:
    """Inputs as channels of a plane; flat inputs are one channel of one line, signals several channels of one line."""

    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, inputs: Tensor) -> Grid:
        """Derive the grid from the shape of a batch."""
        shape = inputs.shape[1:]
        channels = 1 if len(shape) == 1 else shape[0]
        width = shape[-1]
        return cls(channels, inputs[0].numel() // (channels * width), width)

    def planes(self, v: Tensor) -> Tensor:
        """Return v with shape (rows, channels, cells)."""
        return v.reshape(len(v), self.channels, self.height * self.width)

    def window(self, share: float, *, least: int = 1, odd: bool = False) -> tuple[int, int]:
        """Return the sides of a square with a share of the cells; of a rectangle, if the plane is too narrow for it."""

        def fit(side: float, longest: int) -> int:
            whole = max(round(side), least)
            return min(whole + (odd and whole % 2 == 0), longest)

        area = share * self.height * self.width
        side = area**0.5
        if side > self.height:
            return self.height, fit(area / self.height, self.width)
        if side > self.width:
            return fit(area / self.width, self.height), self.width
        return fit(side, self.height), fit(side, self.width)

    def cells(self, draws: Tensor, window: tuple[int, int]) -> Tensor:
        """Return the cells of a window at a random place per row, of shape (rows, 1, cells); draws: (rows, 2)."""
        height, width = window
        spots = (self.height - height + 1, self.width - width + 1)
        top, left = ((draws[:, axis] * spots[axis]).long().clamp_(max=spots[axis] - 1) for axis in (0, 1))
        down, right = (torch.arange(side, device=draws.device) for side in window)
        return (top * self.width + left)[:, None, None] + (down[:, None] * self.width + right).flatten()


def proposals_of(problem: Problem, rows: Rows, radius: Tensor) -> Proposals:
    """Return how Square moves in the norm of the problem.

    Args:
        problem: The problem that the rows belong to.
        rows: The rows to search for.
        radius: Radius per row.

    Returns:
        The proposals for these rows.

    Raises:
        UnknownNameError: The ball of the norm is not that of linf, l2 or l1.
    """
    low, high, grid = problem.box.low, problem.box.high, Grid.of(rows.inputs)
    inputs = rows.inputs
    if problem.norm.ball is BallShape.CUBE:
        reach = per_sample(radius, inputs)
        up, down = inputs + reach, inputs - reach
        # A sum that is rounded away from the input would leave the ball.
        up = torch.where(up - inputs > reach, torch.nextafter(up, inputs), up)
        down = torch.where(inputs - down > reach, torch.nextafter(down, inputs), down)
        return SignProposals(grid, inputs, torch.maximum(down, low), torch.minimum(up, high))
    if problem.norm.ball in (BallShape.EUCLIDEAN, BallShape.CROSS_POLYTOPE):
        room = Room(INSIDE * radius, low - inputs, high - inputs, problem.box.width)
        return MassProposals(
            grid, inputs, problem.box, room, power=2 if problem.norm.ball is BallShape.EUCLIDEAN else 1
        )
    raise UnknownNameError("norm of Square", problem.norm.name, ("linf", "l2", "l1"))


@dataclass(frozen=True)
class SignProposals:
    """Square in linf: every entry is moved as far as ball and box allow, up or down; a proposal redraws one square."""

    grid: Grid
    inputs: Tensor
    lowest: Tensor
    """Lower corner of the intersection of ball and box."""
    highest: Tensor

    @property
    def first_draws(self) -> Sequence[int]:
        """One sign per channel and column."""
        return [self.grid.channels * self.grid.width] * len(self.inputs)

    @property
    def draws(self) -> Sequence[int]:
        """A place and one sign per channel."""
        return [2 + self.grid.channels] * len(self.inputs)

    def begin(self, draws: Tensor) -> State:
        """Start from vertical stripes."""
        grid = self.grid
        stripes = (draws < 0.5).reshape(-1, grid.channels, 1, grid.width).expand(-1, -1, grid.height, -1)
        return _at(torch.where(stripes.reshape(self.inputs.shape), self.lowest, self.highest))

    def resume(self, delta: Tensor, draws: Tensor) -> State:
        """Continue from given perturbations."""
        return _at(clip(self.inputs + delta, self.lowest, self.highest))

    def propose(self, state: State, draws: Tensor, share: float) -> State:
        """Redraw the signs of one square; if nothing would change there, flip them."""
        grid = self.grid
        cells = grid.cells(draws, grid.window(share)).expand(-1, grid.channels, -1)
        point = grid.planes(state.point)
        low, high = grid.planes(self.lowest).gather(2, cells), grid.planes(self.highest).gather(2, cells)
        down = draws[:, 2:, None] < 0.5
        same = (torch.where(down, low, high) == point.gather(2, cells)).flatten(1).all(1)
        values = torch.where(down ^ same[:, None, None], low, high)
        return _at(point.scatter(2, cells, values).reshape(state.point.shape))

    def select(self, rows: Tensor) -> SignProposals:
        """Return the given rows."""
        return SignProposals(self.grid, self.inputs[rows], self.lowest[rows], self.highest[rows])


@dataclass(frozen=True)
class MassProposals:
    """Square in l2 and l1: a proposal moves what one square holds of the radius to another square."""

    grid: Grid
    inputs: Tensor
    box: Box
    room: Room
    power: int
    """2 in l2, where squares add up, 1 in l1."""

    @property
    def first_draws(self) -> Sequence[int]:
        """One sign per channel and an orientation for each tile."""
        rows, columns, _, _ = self._tiles()
        return [(self.grid.channels + 1) * rows * columns] * len(self.inputs)

    @property
    def draws(self) -> Sequence[int]:
        """Two places, an orientation and one sign per channel."""
        return [5 + self.grid.channels] * len(self.inputs)

    def begin(self, draws: Tensor) -> State:
        """Start from tiles with a bump and a dent each."""
        grid, (rows, columns, height, width) = self.grid, self._tiles()
        draws = draws.reshape(-1, grid.channels + 1, rows, columns)
        draws = draws.repeat_interleave(height, 2).repeat_interleave(width, 3)
        across, along = (self._pattern((height, width), axis).reshape(height, width) for axis in (0, 1))
        tiles = torch.where(draws[:, -1:] < 0.5, across.repeat(rows, columns), along.repeat(rows, columns))
        tiles = torch.where(draws[:, :-1] < 0.5, tiles, -tiles)
        delta = self.inputs.new_zeros(len(draws), grid.channels, grid.height, grid.width)
        top, left = (grid.height - rows * height) // 2, (grid.width - columns * width) // 2
        delta[:, :, top : top + rows * height, left : left + columns * width] = tiles
        # Large enough that a projection on the ball finds it outside.
        scale = self.room.radius / self._size(flat(delta)) * (1 if self.power == 2 else grid.channels)
        return self._within(delta.reshape(self.inputs.shape) * per_sample(scale, self.inputs))

    def resume(self, delta: Tensor, draws: Tensor) -> State:
        """Continue from given perturbations."""
        return self._moved(clip(delta, self.room.low, self.room.high))

    def propose(self, state: State, draws: Tensor, share: float) -> State:
        """Empty the second square, and fill the first with its old pattern plus a bump and a dent."""
        grid, window = self.grid, self.grid.window(share, least=LEAST_SIDE, odd=True)
        first, second = (grid.cells(at, window).expand(-1, grid.channels, -1) for at in (draws, draws[:, 2:]))
        delta = grid.planes(state.point - self.inputs)
        unused = self._amount(flat(delta), self.room.radius)
        old = delta.gather(2, first)
        # Cells in both squares count once.
        rest = delta.scatter(2, first, 0.0)
        held = self._mass(old) + self._mass(rest.gather(2, second))
        pattern = torch.where(draws[:, 4, None] < 0.5, self._pattern(window, 0), self._pattern(window, 1))[:, None]
        new = torch.where(draws[:, 5:, None] < 0.5, pattern, -pattern) + self._unit(old)
        amount = held + unused[:, None] / grid.channels
        amount = amount.sqrt() if self.power == 2 else amount * grid.channels
        delta = rest.scatter(2, second, 0.0).scatter(2, first, self._unit(new) * amount[:, :, None])
        return self._within(delta.reshape(state.point.shape))

    def select(self, rows: Tensor) -> MassProposals:
        """Return the given rows."""
        return MassProposals(self.grid, self.inputs[rows], self.box, self.room.select(rows), self.power)

    def _tiles(self) -> tuple[int, int, int, int]:
        """Return the number of tiles in a column and in a row, and their sides."""
        height, width = max(1, self.grid.height // TILES), max(1, self.grid.width // TILES)
        return self.grid.height // height, self.grid.width // width, height, width

    def _pattern(self, window: tuple[int, int], axis: int) -> Tensor:
        return _bump_and_dent(window, axis, self.power, self.inputs.dtype, self.inputs.device)

    def _mass(self, v: Tensor) -> Tensor:
        """Return the sum of squares (l2) or of absolute values (l1) in the last dimension."""
        return v.square().sum(-1) if self.power == 2 else v.abs().sum(-1)

    def _size(self, v: Tensor) -> Tensor:
        return self._mass(v).sqrt() if self.power == 2 else self._mass(v)

    def _unit(self, v: Tensor) -> Tensor:
        return v / self._size(v).clamp(min=torch.finfo(v.dtype).tiny)[..., None]

    def _amount(self, delta: Tensor, radius: Tensor) -> Tensor:
        """Return how much of the radius (l1), or of its square (l2), a perturbation leaves unused."""
        return (radius**self.power - self._mass(delta)).clamp(min=0)

    def _within(self, delta: Tensor) -> State:
        """Return the points with these perturbations, moved into ball and box."""
        room = self.room
        if self.power == 1:
            return self._moved(proximal.project_l1_ball_box(delta, room.radius, room.low, room.high))
        for _ in range(1 + REFILLS):
            size = self._size(flat(delta)).clamp(min=torch.finfo(delta.dtype).tiny)
            delta = clip(delta * per_sample(room.radius / size, delta), room.low, room.high)
        return self._moved(delta)

    def _moved(self, delta: Tensor) -> State:
        # Bounds of perturbations are rounded, so that a sum may leave the box by a bit.
        return _at(self.box.clip(self.inputs + delta))


def _at(point: Tensor) -> State:
    return State(point, torch.zeros(len(point), 0, dtype=torch.long, device=point.device))


@lru_cache(maxsize=64)
def _bump_and_dent(window: tuple[int, int], axis: int, power: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a bump beside a dent along an axis, of size 1 in l2 or l1, flattened; a bump alone if there is no room."""
    height, width = window
    first = window[axis] // 2
    if first == 0:
        pattern = _bump(height, width, power)
    elif axis == 0:
        pattern = torch.cat([_bump(first, width, power), -_bump(height - first, width, power)])
    else:
        pattern = torch.cat([_bump(height, first, power), -_bump(height, width - first, power)], 1)
    size = pattern.square().sum().sqrt() if power == 2 else pattern.abs().sum()
    return (pattern / size).flatten().to(device, dtype)


def _bump(height: int, width: int, power: int) -> Tensor:
    """Return sum_{k >= d} 1 / (k + 1)^q at the distance d from the center, of size 1; q = 2 in l2, 4 in l1."""
    down = (torch.arange(height, dtype=torch.float64) - height // 2).abs()
    right = (torch.arange(width, dtype=torch.float64) - width // 2).abs()
    distance = torch.maximum(down[:, None], right).long()
    terms = torch.arange(1, max(height, width) // 2 + 2, dtype=torch.float64) ** -(2 if power == 2 else 4)
    bump = terms.flip(0).cumsum(0).flip(0)[distance]
    return bump / (bump.square().sum().sqrt() if power == 2 else bump.sum())


@dataclass(frozen=True, kw_only=True)
class Square:
    """Square in a ball of linf, l2 or l1: the point with the smallest margin that random squares lead to."""

    queries: int = 5000
    """Forward passes per start. AutoAttack: 5000."""
    p_init: float | None = None
    """Share of the pixels that the first squares have. None: 0.8, as AutoAttack, and 0.4 in l2."""

    def __post_init__(self) -> None:
        whole = isinstance(self.queries, int) and self.queries >= 1
        expect_setting(self, "queries", "an integer of at least 1", whole)
        expect_setting(self, "p_init", "above 0 and at most 1", self.p_init is None or 0 < self.p_init <= 1)

    def schedule(self, shape: BallShape | None) -> Schedule:
        """Return the shares of the squares in a ball; the schedule is stretched to the queries in linf only.

        Samples that withstand 1000 queries, stretched / not, on mnist-plain and mnist-linf-at, of 40 (images 400 on):
        in l2 17 / 16.5 and 14 / 10.5, in l1 30.5 / 27 and 37 / 22; in linf, of 50 and by AutoAttack's code, 13 / 27 and
        12 / 19. Of 60, with first shares of 0.8 / 0.4: in l2 with 300 queries 40 / 35 and 36 / 33, with 1000 queries
        26 / 24 and 18 / 18; in l1 with 1000 queries 41 / 43 and 33 / 39.
        """
        share = 0.4 if shape is BallShape.EUCLIDEAN else 0.8
        return Schedule(self.p_init or share, STEPS, stretched=shape is BallShape.CUBE)

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Attack the samples of a task, each within its radius."""
        rows, part = task.rows(restart), Slice(self.queries, 0, self.queries)
        proposals = proposals_of(task.problem, rows, radius)
        schedule = self.schedule(task.problem.norm.ball)
        return search(task.problem, rows, proposals, schedule, part=part).candidates(rows, task.problem)
