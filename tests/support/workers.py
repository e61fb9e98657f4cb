"""Scheduling of tests with pytest-xdist: some groups of tests share a worker."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

# A cluster, a browser and gigabytes: no two tests of a group run at once.
GROUPS = {
    "test_ray": "ray",
    "test_report_browser": "chromium",
    "test_memory": "memory",
    "test_rival_memory": "memory",
}
# Modules whose tests share something that is slow to make.
WHOLE = (
    "test_arithmetic",
    "test_evaluate",
    "test_experiment_page",
    "test_figures",
    "test_report",
    "test_restricted_imagenet",
    "test_site",
)


class Grouped(LoadScopeScheduling):
    """Gives each test to any free worker, except for groups that stay together.

    pytest-xdist 3.8 has groups by a mark, which pytest 9.2 no longer lets it write into a test's name.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = PurePosixPath(nodeid.partition("::")[0]).stem
        return GROUPS.get(module, module if module in WHOLE else nodeid)
