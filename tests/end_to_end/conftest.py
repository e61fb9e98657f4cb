"""Which end-to-end tests stay together on one worker of pytest-xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Modules whose tests share nothing that is slow to make: each test goes to whichever worker is free.
SPREAD = ("test_compare", "test_documents", "test_experiment", "test_resume", "test_train")
# A cluster, a browser and gigabytes: no two tests of a group run at once.
GROUPS = {
    "test_ray": "ray",
    "test_report_browser": "chromium",
    "test_memory": "memory",
    "test_rival_memory": "memory",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.stem not in SPREAD:
            item.add_marker(pytest.mark.xdist_group(GROUPS.get(item.path.stem, item.path.stem)))
