"""The loop of a random search: propose a change of each point, and keep it where the margin does not grow.

    z <- z' if margin(z') <= margin(z),    z' drawn around z inside the ball and the box

Square (`square`) and Sparse-RS (`sparse_rs`) differ in how they propose; `random_search` calls either of them. A query
is one forward pass per sample, and no gradient is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from pdpgd.attacks.base import Problem
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Rows, look
from pdpgd.tensors import per_row

# Queries between two looks at who is fooled: each look waits for the device.
CHECK_EVERY = 8
# Key of the random numbers of these searches, beside those of `random_rows`. It must not change: results depend on it.
STREAM = 61
# Queries whose random numbers are drawn together, unless they are more than these: 16 MB in single precision.
QUERIES_AT_ONCE = 64
DRAWS_AT_ONCE = 2**22
# Number of queries that a stretched schedule is stated for.
SCHEDULED = 10_000


class State(NamedTuple):
    """Where a search is."""

    point: Tensor
    places: Tensor
    """Pixels that the perturbation occupies, one per column, in l0; no columns in other norms."""

    def select(self, rows: Tensor) -> State:
        """Return the given rows."""
        return State(self.point[rows], self.places[rows])

    def where(self, rows: Tensor, other: State) -> State:
        """Return this state in rows that are true, and the other one elsewhere."""
        places = torch.where(rows[:, None], self.places, other.places)
        return State(torch.where(per_row(rows, self.point), self.point, other.point), places)


class Proposals(Protocol):
    """How an attack starts and moves; its tensors have one row per row of the search."""

    @property
    def first_draws(self) -> Sequence[int]:
        """Number of random numbers per row for a start."""
        ...

    @property
    def draws(self) -> Sequence[int]:
        """Number of random numbers per row for a proposal."""
        ...

    def begin(self, draws: Tensor) -> State:
        """Return a random start; the draws are uniform in [0, 1), of shape (rows, largest number)."""
        ...

    def resume(self, delta: Tensor, draws: Tensor) -> State:
        """Return the state at given perturbations inside ball and box; draws as in `begin`."""
        ...

    def propose(self, state: State, draws: Tensor, share: float) -> State:
        """Return the next candidates, which change about a share of the entries."""
        ...

    def select(self, rows: Tensor) -> Self:
        """Return the given rows."""
        ...


@dataclass(frozen=True)
class Schedule:
    """The share of the entries that a proposal changes: `initial`, divided by more and more."""

    initial: float
    steps: tuple[tuple[int, float], ...]
    """Pairs of a number of queries and the divisor from there on; ascending."""
    stretched: bool = True
    """Whether the numbers are out of 10,000, and stretched or shortened to the queries there are."""

    def share(self, query: int, total: int) -> float:
        """Return the share at a query, out of a total."""
        passed = query * SCHEDULED // total if self.stretched else query
        return self.initial / next((by for since, by in reversed(self.steps) if passed > since), 1.0)


@dataclass(frozen=True)
class Slice:
    """Which queries of a search are made: `queries` of them after the first `done`, out of `total`."""

    queries: int
    done: int
    total: int


@dataclass(frozen=True)
class Searched:
    """The point with the smallest margin that a search found for each row; it is adversarial if the margin is below 0.

    Example:
        >>> fooled = searched.margin < 0
        >>> best.improve(searched.candidates(rows, problem), at=rows.samples)
    """

    point: Tensor
    margin: Tensor
    prediction: Tensor
    """Class that the model predicts for the point."""
    queries: Tensor
    """Forward passes made for the row."""

    def candidates(self, rows: Rows, problem: Problem) -> Best:
        """Return the points as candidates: one that is not adversarial has size inf.

        Args:
            rows: The rows that were searched.
            problem: The problem that they belong to.

        Returns:
            One candidate per row.
        """
        return Best.candidates(self.point, problem.norm.size(self.point - rows.inputs), self.margin, self.prediction)

    def put(self, at: Tensor, state: State, margin: Tensor, prediction: Tensor, *, queries: int) -> None:
        """Store, in place, where the rows `at` are after a number of queries."""
        self.point.index_copy_(0, at, state.point)
        self.margin.index_copy_(0, at, margin)
        self.prediction.index_copy_(0, at, prediction)
        self.queries.index_fill_(0, at, queries)


class Chance:
    """Uniform random numbers for each row, keyed by (seed, index of the sample, restart, first query).

    They are drawn for many queries at once, and do not depend on how many, nor on the other rows.
    """

    def __init__(self, problem: Problem, rows: Rows, done: int) -> None:
        keys = zip(problem.indices[rows.samples.cpu()].tolist(), rows.restarts.tolist(), strict=True)
        self._generators = [np.random.default_rng((problem.seed, *key, done, STREAM)) for key in keys]
        self._like = rows.inputs
        self._ready: list[Tensor] = []

    def draw(self, counts: Sequence[int], queries: int = 1) -> Tensor:
        """Draw numbers in [0, 1) of shape (queries, rows, largest count); beyond the count of a row they are 0."""
        dtype = np.float64 if self._like.dtype == torch.float64 else np.float32
        numbers = np.zeros((queries, len(counts), max(counts)), dtype)
        for row, (generator, count) in enumerate(zip(self._generators, counts, strict=True)):
            numbers[:, row, :count] = generator.random((queries, count), dtype=dtype)
        return torch.from_numpy(numbers).to(self._like.device)

    def next(self, counts: Sequence[int], queries: int) -> Tensor:
        """Return the numbers for one query, drawn for at most `queries` more of them at a time."""
        if not self._ready:
            most = max(1, DRAWS_AT_ONCE // max(1, len(counts) * max(counts)))
            self._ready = list(self.draw(counts, min(queries, QUERIES_AT_ONCE, most)).flip(0))
        return self._ready.pop()

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        self._generators = [self._generators[row] for row in rows.tolist()]
        self._ready = [numbers[rows] for numbers in self._ready]


def search(
    problem: Problem, rows: Rows, proposals: Proposals, schedule: Schedule, *, part: Slice, start: Tensor | None = None
) -> Searched:
    """Make the queries of a slice; a fooled row keeps its point, and leaves when this is next looked at.

    Args:
        problem: The problem that the rows belong to.
        rows: The rows to search for.
        proposals: How to start and to move, for the same rows.
        schedule: Share of the entries that a proposal changes.
        part: Which queries are made; the first one is spent on the start.
        start: Perturbations inside ball and box to start at; None draws them at random.

    Returns:
        The point with the smallest margin per row, and the queries made.
    """
    chance = Chance(problem, rows, part.done)
    draws = chance.draw(proposals.first_draws)[0]
    state = proposals.begin(draws) if start is None else proposals.resume(start, draws)
    margin, prediction = look(problem, rows, state.point)
    found = Searched(state.point.clone(), margin.clone(), prediction.clone(), torch.ones_like(rows.samples))
    place = torch.arange(len(rows.samples), device=rows.inputs.device)
    for query in range(1, part.queries):
        if query % CHECK_EVERY == 1:
            keep = (margin >= 0).nonzero().flatten()
            if len(keep) < len(place):
                found.put(place, state, margin, prediction, queries=query)
                if len(keep) == 0:
                    return found
                place, margin, prediction = place[keep], margin[keep], prediction[keep]
                rows, proposals, state = rows.select(keep), proposals.select(keep), state.select(keep)
                chance.select(keep)
        share = schedule.share(part.done + query, part.total)
        candidate = proposals.propose(state, chance.next(proposals.draws, part.queries - query), share)
        new_margin, new_prediction = look(problem, rows, candidate.point)
        # Equal margins are accepted too, so that a search can cross a plateau.
        better = (new_margin <= margin) & (margin >= 0)
        state = candidate.where(better, state)
        margin = torch.where(better, new_margin, margin)
        prediction = torch.where(better, new_prediction, prediction)
    found.put(place, state, margin, prediction, queries=part.queries)
    return found
