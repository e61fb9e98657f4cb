"""A run spec for tests that process a single job."""

from __future__ import annotations

from typing import Any

from pdpgd.runs.spec import RunSpec


def small_spec(**settings: Any) -> RunSpec:
    """Return a spec with chunks of ten samples in batches of eight on one thread; `settings` add norms and attack."""
    how: dict[str, Any] = {"seed": 3, "chunk_size": 10, "batch_size": 8, "threads": 1, "device": "cpu"}
    return RunSpec(model={}, data={}, made_with={}, **{**how, **settings})
