"""Every random number of a test comes from the generator it is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# Small tensors: more threads only wait for each other. Two, to see that no result depends on their number.
THREADS = int(os.environ.get("PDPGD_TEST_THREADS", "1"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from support.workers import Grouped

    return Grouped(config, log)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20230601)


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(threads)
