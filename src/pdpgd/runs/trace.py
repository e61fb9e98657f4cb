"""How the distances of a run came about: the best so far of each sample, after certain numbers of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.attacks.base import History

# Forward + backward passes at which the best so far is kept: ten a decade, as far as a sample went.
MARKS = np.unique(np.round(10 ** np.arange(0, 7.01, 0.1)).astype(np.int64))


@dataclass(frozen=True)
class Trace:
    """The best so far of the norm's own attack."""

    passes: NDArray[Any]
    """Marks, shape (marks,)."""
    distances: NDArray[Any]
    """Shape (samples, marks): inf if none was found with so many passes; nan where the attack does not tell."""


def traced(
    history: History | None, courses: Sequence[NDArray[Any]], passes: NDArray[Any], ends: NDArray[Any]
) -> NDArray[Any]:
    """Rows of the best so far at the marks, up to `ends`, what was had with all passes.

    An attack that keeps a history says with how many passes it found what. One that only lets its iterations be seen
    has its passes spread evenly over them.
    """
    last = int(np.searchsorted(MARKS, passes.max(initial=1)))
    marks = MARKS[: last + 1]
    rows = np.full((len(passes), len(marks)), np.nan, dtype=np.float32)
    for row, (course, spent, end) in enumerate(zip(courses, passes, ends, strict=True)):
        if history is not None:
            at, sizes = (column[row].detach().double().cpu().numpy() for column in (history.passes, history.distances))
        elif len(course) and spent > 0:
            at = spent * np.arange(1, len(course) + 1) / len(course)
            sizes = np.minimum.accumulate(course)
        else:
            continue
        seen = np.searchsorted(at, marks, side="right") - 1
        sofar = np.where(seen >= 0, sizes[np.maximum(seen, 0)], np.inf)
        # The last point of all is judged after the last iteration that was seen.
        rows[row] = np.where(marks >= spent, np.minimum(sofar, end), sofar)
    return rows


def nothing_traced(samples: int) -> NDArray[Any]:
    return np.full((samples, 1), np.nan, dtype=np.float32)


def spread(rows: NDArray[Any], places: NDArray[Any], samples: int) -> NDArray[Any]:
    """The rows at their places among all samples."""
    every = np.full((samples, rows.shape[1]), np.nan, dtype=np.float32)
    every[places] = rows
    return every


def joined_traces(parts: Sequence[NDArray[Any]]) -> Trace | None:
    """Of all chunks; one that ended earlier stays at its last. None if no sample has any."""
    marks = max(part.shape[1] for part in parts)
    distances = np.concatenate([np.pad(part, ((0, 0), (0, marks - part.shape[1])), mode="edge") for part in parts])
    return None if np.isnan(distances).all() else Trace(MARKS[:marks], distances)
