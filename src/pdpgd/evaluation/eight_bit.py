"""Points that survive a picture file: on the grid of 1/255, and still adversarial there.

Rounding moves a point by up to half a grey step a pixel, and one that was just adversarial may be so no more: it is
repaired by going further along its own perturbation, by as little as does it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdpgd.evaluation.referee import Referee, Verdicts
from pdpgd.norms import norm_of

GREYS = 255
# How much further a repair may go: the small factors compete, the large ones are tried in turn where none did.
NEAR = (1.0, 1.02, 1.05, 1.1, 1.2)
FAR = (1.5, 2.0, 4.0, 16.0, 256.0)


def grey(points: Tensor) -> Tensor:
    """The nearest point of the grid, as uint8."""
    return (points * GREYS).round().clamp(0, GREYS).to(torch.uint8)


def from_grey(pixels: Tensor) -> Tensor:
    """What a reader of the file gets."""
    return pixels.to(torch.float32).div(GREYS)


def on_grid(referee: Referee, points: Tensor, found: Tensor, norm: str) -> tuple[Tensor, Verdicts]:
    """The points `found` as uint8, repaired where rounding broke them, and the referee's verdict on them.

    Distances on the grid are from the rounded input, as the file of the input would hold it: `referee` judges these.
    """
    base = grey(referee.inputs)
    best = base.clone()
    size = torch.full((len(points),), torch.inf, dtype=torch.float64, device=points.device)
    step = (points - referee.inputs) * GREYS

    def offer(factor: float, outward: bool, rows: Tensor) -> None:
        """Take this rounding of these rows where it is adversarial and smaller than what there is."""
        pixels = _rounded(base, step * factor, outward)
        candidate = from_grey(pixels)
        mine = grid_sizes(pixels, base, norm)
        better = rows[mine[rows] < size[rows]]
        better = better[referee.adversarial(candidate, better)]
        best[better], size[better] = pixels[better], mine[better]

    rows = found.nonzero().flatten()
    offer(1.0, False, rows)
    broken = rows[size[rows].isinf()]
    for factor in NEAR:
        offer(factor, False, broken)
        offer(factor, True, broken)
    for factor in FAR:
        broken = broken[size[broken].isinf()]
        offer(factor, False, broken)
    return best, referee.judge(from_grey(best), size.isfinite(), sparing=True)


def grid_sizes(pixels: Tensor, base: Tensor, norm: str) -> Tensor:
    """In the units of the inputs; a change of k grey steps is k / 255 to the last bit."""
    steps = pixels.to(torch.float64) - base.to(torch.float64)
    return norm_of(norm).size(steps / GREYS)


def _rounded(base: Tensor, step: Tensor, outward: bool) -> Tensor:
    steps = step.sign() * step.abs().ceil() if outward else step.round()
    return (base.to(step) + steps).clamp(0, GREYS).to(torch.uint8)
