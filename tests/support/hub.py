"""A cache of the Hugging Face hub that a test fills, on a machine without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def offline_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hub's library look into `cache`, and nowhere else."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def put(cache: Path, repository: str, file: str) -> Path:
    """The path of a file that was downloaded from a repository, ready to be written."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    path = folder / "snapshots" / COMMIT / file
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(COMMIT)
    return path
