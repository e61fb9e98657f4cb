"""Gradient-free search inside a ball for a slice of a budget: Square in linf, l2 and l1, Sparse-RS in l0."""

from __future__ import annotations

from torch import Tensor

from pdpgd.attacks import sparse_rs, square
from pdpgd.attacks.balls import Room, ball_of
from pdpgd.attacks.base import Problem
from pdpgd.attacks.frame import Rows
from pdpgd.attacks.proposals import Searched, Slice, search
from pdpgd.errors import InvalidInputError


def random_search(
    problem: Problem,
    rows: Rows,
    radius: Tensor,
    *,
    queries: int,
    start: Tensor | None = None,
    done: int = 0,
    total: int | None = None,
    share: float | None = None,
) -> Searched:
    """Search for the point with the smallest margin within a radius of each input, by queries alone.

    A longer search can be made in slices: give the point that one slice ends at to the next one as its start, and say
    how many queries are `done`, out of which `total`; the squares, or the share of the pixels replaced, go on shrinking
    from there. A row that is fooled leaves within 8 queries, and only queries that are made are counted.

    Args:
        problem: The problem that the rows belong to; its ledger counts the queries.
        rows: The rows to search for, with one or more rows per sample.
        radius: Radius per row; in l0 a number of pixels, at least 1.
        queries: Maximum number of forward passes per row; the first is spent on the start.
        start: Perturbation per row to start at, of shape (rows, ...); it is projected on ball and box. None starts at
            random.
        done: Number of queries made in earlier slices. The random numbers depend on it, too.
        total: Number of queries that the schedule is for; None: `done + queries`.
        share: Share of the pixels in a first square, or replaced by a first proposal of Sparse-RS; None: the default
            of `Square` or `SparseRS`.

    Returns:
        The point with the smallest margin per row (adversarial where the margin is below 0), never worse than the
        projected start, and the number of queries made.

    Raises:
        InvalidInputError: The number of queries is below 1, or above the total.
        UnknownNameError: The norm has no ball that is searched.

    Example:
        >>> rows = Rows.of(problem, samples)
        >>> first = random_search(problem, rows, radius, queries=100, total=500)
        >>> delta = first.point - rows.inputs
        >>> second = random_search(problem, rows, radius, queries=400, start=delta, done=100, total=500)
    """
    part = Slice(queries, done, done + queries if total is None else total)
    if queries < 1 or part.total < done + queries:
        raise InvalidInputError(
            f"queries: expected at least 1, and with those done at most the total of {part.total}, "
            f"got {queries} after {done}"
        )
    ball = ball_of(problem.norm)
    if start is not None:
        low, high = problem.box.low - rows.inputs, problem.box.high - rows.inputs
        start = ball.back(start, Room(radius, low, high, problem.box.width)).clamp(low, high)
    if problem.norm.counts:
        pixels = sparse_rs.SparseRS(queries=queries, alpha=share).schedule(targeted=problem.criterion.targeted)
        return search(problem, rows, sparse_rs.proposals_of(problem, rows, radius), pixels, part=part, start=start)
    squares = square.Square(queries=queries, p_init=share).schedule(problem.norm.ball)
    return search(problem, rows, square.proposals_of(problem, rows, radius), squares, part=part, start=start)
