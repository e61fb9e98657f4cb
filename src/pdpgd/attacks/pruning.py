"""Take single changes back, as long as the point stays adversarial: forward passes only."""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.attacks.loop import Rows
from pdpgd.attacks.search import Search


def prune(search: Search, samples: Tensor, *, passes: int) -> None:
    """Try the changed pixels (entries, of a flat input) of the best points in turn, the smallest change first."""
    problem = search.problem
    changes = _changes(problem.inputs[samples], search.best.point[samples])
    order = changes.masked_fill(changes == 0, torch.inf).argsort(dim=1, stable=True)
    counts = (changes > 0).sum(1)
    for turn in range(min(passes, int(counts.amax()))):
        going = (turn < counts).nonzero().squeeze(1)
        rows = Rows.of(problem, samples[going], torch.zeros_like(going))
        point = search.best.point[rows.samples]
        back = torch.zeros_like(changes[going], dtype=torch.bool).scatter(1, order[going, turn, None], True)
        mask = back.view(len(going), *_pixels(point)) if point.ndim < 3 else back.view(len(going), 1, *_pixels(point))
        search.look(rows, torch.where(mask, rows.inputs, point))


def _pixels(points: Tensor) -> torch.Size:
    return points.shape[2:] if points.ndim > 2 else points.shape[1:]


def _changes(inputs: Tensor, points: Tensor) -> Tensor:
    change = (points - inputs).abs()
    return (change.amax(1) if change.ndim > 2 else change).flatten(1)
