"""What a run is cut into, and what comes of each piece. Both travel between processes and machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray
from torch import Tensor

from pdpgd.evaluation.contestants import Contestant
from pdpgd.evaluation.records import Columns
from pdpgd.evaluation.spec import Spec

Kind = Literal["chunk", "second start", "preflight"]

Progress = Callable[[float], None]
"""Told what share of the job is done."""


@dataclass(frozen=True)
class Job:
    """What to do: these samples, as the spec says."""

    name: str
    """The only one of its name that the engine has."""
    kind: Kind
    spec: Spec
    contestant: Contestant
    inputs: Tensor
    labels: Tensor
    indices: Tensor
    model: str = ""
    """Which of the engine's models it is for."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job. The facts (timings, counts) may differ from one time to the next; the rest may not."""

    facts: dict[str, Any]
    columns: Columns | None = None
    examples: dict[str, NDArray[Any]] = field(default_factory=dict)
