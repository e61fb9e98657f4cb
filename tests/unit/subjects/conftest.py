from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pooch
import pytest

from pdpgd.subjects.known import DATA


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache on a machine that has no data: nothing in it, no variable set, no package installed."""
    monkeypatch.delenv("PDPGD_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    for name, known in list(DATA.items()):
        monkeypatch.setitem(DATA, name, replace(known, system=None))
    return tmp_path / "cache" / "pdpgd"
