"""What a run is cut into, and what comes of each piece. Both travel between processes and machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray
from torch import Tensor

from pdpgd.evaluation.bound_attack import BoundAttack
from pdpgd.runs.records import Columns
from pdpgd.runs.spec import RunSpec

Kind = Literal["chunk", "second start", "preflight"]

PREFLIGHT, SECOND_START = "preflight", "second-start"
LOOKED_AT = 64
"""Samples that the model is looked at with before the run."""
SECOND_STARTS = (8, 64)
"""Least and most samples that are attacked from another start, a thirtieth of all between them."""

Progress = Callable[[float], None]
"""Told what share of the job is done."""


@dataclass(frozen=True)
class Job:
    """What to do: these samples, as the spec says."""

    name: str
    """The only one of its name that the engine has."""
    kind: Kind
    spec: RunSpec
    contestant: BoundAttack
    inputs: Tensor
    labels: Tensor
    indices: Tensor
    model: str = ""
    """Which of the engine's models it is for."""
    random_parameters: int | None = None
    """How many numbers in that model's weights no training chose; None if that is not known."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job. The facts (timings, counts) may differ from one time to the next; the rest may not."""

    facts: dict[str, Any]
    columns: Columns | None = None
    examples: dict[str, NDArray[Any]] = field(default_factory=dict)


def jobs_of(spec: RunSpec, count: int) -> dict[str, range]:
    """The name of every job, and the samples it is on."""
    jobs = {PREFLIGHT: range(min(count, LOOKED_AT))}
    for number, first in enumerate(range(0, count, spec.chunk_size)):
        jobs[f"chunk-{number:05d}"] = range(first, min(first + spec.chunk_size, count))
    if spec.checks:
        least, most = SECOND_STARTS
        jobs[SECOND_START] = range(min(count, max(least, min(most, count // 30))))
    return jobs


def chunks_of(jobs: Iterable[str]) -> list[str]:
    return [name for name in jobs if kind_of(name) == "chunk"]


def kind_of(name: str) -> Kind:
    kinds: dict[str, Kind] = {PREFLIGHT: "preflight", SECOND_START: "second start"}
    return kinds.get(name, "chunk")
