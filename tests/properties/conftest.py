"""Hypothesis writes the same inputs on every run; a profile, so that other test folders keep their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "properties",
    derandomize=True,
    max_examples=20,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
)


@pytest.fixture(autouse=True)
def reproducible_inputs() -> Iterator[None]:
    profile, threads = settings.get_current_profile_name(), torch.get_num_threads()
    settings.load_profile("properties")
    # Small tensors: more threads only wait for each other.
    torch.set_num_threads(1)
    yield
    settings.load_profile(profile)
    torch.set_num_threads(threads)
