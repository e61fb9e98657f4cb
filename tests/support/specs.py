"""A spec for tests that do a job without a run around it."""

from __future__ import annotations

from typing import Any

from pdpgd.runs.spec import RunSpec


def small_spec(**settings: Any) -> RunSpec:
    """Chunks of ten samples in batches of eight, on one thread; `settings` say which norms and attack."""
    how: dict[str, Any] = {"seed": 3, "chunk_size": 10, "batch_size": 8, "threads": 1, "device": "cpu"}
    return RunSpec(model={}, data={}, made_with={}, **{**how, **settings})
