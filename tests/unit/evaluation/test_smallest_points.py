"""The smallest verified point is stored, whichever attack found it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pdpgd.evaluation.referee import Verdicts
from pdpgd.evaluation.tracking import SmallestPoints, SmallestPointsPerNorm
from pdpgd.norms import norm_of


def verdicts(*valid: bool, margin: float = -1.0, prediction: int = 1, fragile: bool = False) -> Verdicts:
    given = torch.tensor(valid)
    return Verdicts(
        np.where(given.numpy(), "verified", "still right"),
        given,
        given & fragile,
        torch.full((len(valid),), prediction),
        torch.full((len(valid),), margin),
        torch.full((len(valid),), 0.6),
    )


def measure(points: Tensor, norm: str) -> Tensor:
    return norm_of(norm).size(points.double())


def test_before_anything_came_in_nothing_is_found() -> None:
    points = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    smallest = SmallestPoints(points)
    assert not smallest.found.any()
    assert smallest.size.isinf().all()
    assert smallest.prediction.tolist() == [-1] * 3
    assert smallest.source.tolist() == [""] * 3
    assert torch.equal(smallest.points, points)


def test_only_a_smaller_and_verified_point_takes_the_place() -> None:
    smallest = SmallestPoints(torch.zeros(4, 2))
    first, second = torch.full((4, 2), 0.5), torch.full((4, 2), 0.25)
    smallest.update("a", first, torch.tensor([1.0, 1.0, 1.0, 1.0]).double(), verdicts(True, True, True, False))
    smallest.update(
        "b",
        second,
        torch.tensor([0.5, 1.0, 0.5, 2.0]).double(),
        verdicts(True, True, False, True, margin=-2.0, prediction=3, fragile=True),
    )
    assert smallest.source.tolist() == ["b", "a", "a", "b"]
    assert smallest.size.tolist() == [0.5, 1.0, 1.0, 2.0]
    assert smallest.margin.tolist() == [-2.0, -1.0, -1.0, -2.0]
    assert smallest.prediction.tolist() == [3, 1, 1, 3]
    assert smallest.fragile.tolist() == [True, False, False, True]
    assert smallest.points[:, 0].tolist() == [0.25, 0.5, 0.5, 0.25]


def test_a_point_of_no_size_cannot_enter() -> None:
    smallest = SmallestPoints(torch.zeros(1, 2))
    smallest.update("a", torch.ones(1, 2), torch.tensor([torch.nan]).double(), verdicts(True))
    assert not smallest.found.any()


def test_the_stored_points_are_copies() -> None:
    given = torch.zeros(1, 2)
    smallest = SmallestPoints(given)
    point = torch.ones(1, 2)
    smallest.update("a", point, torch.tensor([1.0]).double(), verdicts(True))
    given.fill_(7)
    point.fill_(7)
    assert smallest.points.tolist() == [[1.0, 1.0]]


def test_a_point_stands_in_every_norm_it_is_small_in() -> None:
    per_norm = SmallestPointsPerNorm(("linf", "l1"), torch.zeros(1, 4), measure)
    spread, sparse = torch.full((1, 4), 0.25), torch.tensor([[0.5, 0.0, 0.0, 0.0]])
    per_norm.update("l1", spread, verdicts(True))
    per_norm.update("linf", sparse, verdicts(True))
    assert per_norm["linf"].source.tolist() == ["l1"]
    assert per_norm["linf"].size.tolist() == [0.25]
    assert per_norm["l1"].source.tolist() == ["linf"]
    assert per_norm["l1"].size.tolist() == [0.5]
    assert torch.equal(per_norm["l1"].points, sparse)


def test_a_point_beats_the_others_if_it_does_in_any_norm() -> None:
    per_norm = SmallestPointsPerNorm(("linf", "l1"), torch.zeros(3, 2), measure)
    per_norm.update("x", torch.tensor([[0.5, 0.0]]).expand(3, 2), verdicts(True, True, True))
    rivals = torch.tensor([[0.375, 0.375], [0.5, 0.0], [0.125, 0.0]])
    assert per_norm.improved_by(rivals).tolist() == [True, False, True]
