"""The ways in which a search sets out: where a descent starts, and how boldly it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pdpgd.attacks.descent import Style, descend, random_start
from pdpgd.attacks.geometry import geometry_of
from pdpgd.attacks.loop import Rows
from pdpgd.attacks.search import Search
from pdpgd.criteria import Surrogate
from pdpgd.norms import size_l2
from pdpgd.tensors import per_sample

# How long the noise of a hop is, over the perturbation it is added to.
HOP = 3.0


@dataclass(frozen=True)
class Tactic:
    """A start and the style of the descent from it."""

    name: str
    start: Callable[[Search, Rows], Tensor]
    style: Style
    counting: Style
    """Of the second part, in a norm that counts; the first goes down in the norm it is relaxed to."""
    relaxed: float = 0.6
    """The share of that first part."""


def from_input(search: Search, rows: Rows) -> Tensor:
    return torch.zeros_like(rows.inputs)


def from_anywhere(search: Search, rows: Rows) -> Tensor:
    return random_start(search.problem, rows)


def from_best(search: Search, rows: Rows) -> Tensor:
    return search.delta(rows)


def around_input(search: Search, rows: Rows) -> Tensor:
    """Noise as long as the best perturbation."""
    return _noise(search, rows, 1.0)


def around_best(search: Search, rows: Rows) -> Tensor:
    return search.delta(rows) + _noise(search, rows, HOP)


def _noise(search: Search, rows: Rows, length: float) -> Tensor:
    """As long as the best perturbation, times `length`; where there is none yet, a random start."""
    noise = random_start(search.problem, rows)
    best = size_l2(search.delta(rows))
    factor = torch.where(best > 0, length * best / size_l2(noise), 1.0)
    return noise * per_sample(factor, noise)


_QUICK = Style(trust=3.0, overshoot=0.25)
_QUICK_COUNT = Style(trust=1.0, overshoot=0.25)
_STEADY = Style(trust=0.6, overshoot=0.5, adaptive=False, memory=0.7)
_STEADY_COUNT = Style(trust=0.1, overshoot=0.1)

CLASS = Tactic("class", from_input, _QUICK, _QUICK_COUNT)
FAR = Tactic("far", from_anywhere, _QUICK, _QUICK_COUNT)
STEADY = Tactic("steady", from_anywhere, _STEADY, _STEADY_COUNT)
NEAR = Tactic("near", around_input, _QUICK, _QUICK_COUNT)
HOPPING = Tactic("hop", around_best, _STEADY, _STEADY_COUNT)
POLISH = Tactic("polish", from_best, Style(trust=0.3, overshoot=0.05), _STEADY_COUNT, relaxed=0.0)


def carry_out(tactic: Tactic, search: Search, rows: Rows, *, steps: int, pursue: Surrogate) -> None:
    """Descend by a tactic: `steps` forward and backward passes, and a forward pass for the last point."""
    norm = search.problem.norm
    delta = tactic.start(search, rows)
    if norm.relaxed is not None:
        first = round(tactic.relaxed * steps)
        delta = descend(
            search, rows, delta, propose=geometry_of(norm.relaxed), style=tactic.style, steps=first, pursue=pursue
        )
        style, steps = tactic.counting, steps - first
    else:
        style = tactic.style
    delta = descend(search, rows, delta, propose=geometry_of(norm), style=style, steps=steps, pursue=pursue)
    search.look(rows, search.problem.box.clip(rows.inputs + delta))
