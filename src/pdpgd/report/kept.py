"""What a page takes from the points of a run: each chunk is read once, since all of them may not fit the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.evaluation import trace
from pdpgd.evaluation.result import Evaluation
from pdpgd.evaluation.trace import Trace

Rows = Mapping[str, Sequence[int]]
"""By norm, the rows whose pictures are wanted."""


@dataclass(frozen=True)
class Kept:
    traces: Mapping[str, Trace | None]
    """By norm; None if the attack does not tell."""
    pixels: Mapping[tuple[str, int], tuple[NDArray[Any], NDArray[Any]]]
    """Input and point, as float, by norm and row."""
    wanted: Rows
    """Their order is that in which they are shown while there is room."""
    inputs: bool
    """Whether the run kept its inputs: one that was made before they were did not."""


def kept_of(run: Evaluation, wanted: Rows) -> Kept:
    size = run.spec.chunk_size
    traces: dict[str, list[NDArray[Any]]] = {norm: [] for norm in run.norms}
    pixels: dict[tuple[str, int], tuple[NDArray[Any], NDArray[Any]]] = {}
    inputs = True
    for number, chunk in enumerate(run.chunks):
        found = run.store.examples(chunk)
        inputs = inputs and "input" in found
        for norm in run.norms:
            if f"{norm}_trace" in found:
                traces[norm].append(found[f"{norm}_trace"])
            for row in wanted.get(norm, ()) if inputs else ():
                if row // size == number:
                    # Copies, so that the rest of the chunk can go.
                    pixels[norm, row] = _as_float(found["input"][row % size]), found[norm][row % size].copy()
    joined = {
        norm: trace.joined(parts) if parts and len(parts) == len(run.chunks) else None for norm, parts in traces.items()
    }
    return Kept(joined, pixels, wanted, inputs)


class Shelf:
    """What runs have kept; runs are looked up by identity, since they are large and not hashable."""

    def __init__(self, runs: Iterable[Evaluation], wanted: Mapping[int, Rows]) -> None:
        self._kept = {id(run): kept_of(run, wanted.get(id(run), {})) for run in runs}

    def of(self, run: Evaluation) -> Kept:
        return self._kept[id(run)]


def _as_float(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels.astype(np.float32) / np.float32(255) if pixels.dtype == np.uint8 else pixels.copy()
