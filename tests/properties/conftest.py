"""Hypothesis writes the same inputs on every run; a profile, so that other test folders keep their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "properties",
    derandomize=True,
    max_examples=20,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],  # a limit on time, which a busy machine reaches
)


@pytest.fixture(autouse=True)
def reproducible_inputs() -> Iterator[None]:
    profile = settings.get_current_profile_name()
    settings.load_profile("properties")
    yield
    settings.load_profile(profile)
