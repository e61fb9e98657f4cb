"""A cache of the Hugging Face hub that a test fills, on a machine without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def offline_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the hub's library look only into `cache`."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def put(cache: Path, repository: str, file: str) -> Path:
    """Return the path in the cache of a file from a repository, for the test to write."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    path = folder / "snapshots" / COMMIT / file
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(COMMIT)
    return path
