"""Every check catches the operators it is there to catch, and every check has caught one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, settings

from support.prox_checks import CHECKS, Check
from support.prox_mutants import MUTANTS, Mutant, l23_without_threshold

PAIRS = [
    pytest.param(mutant, check, id=f"{mutant.apply.__name__}-{check.__name__}")
    for mutant in MUTANTS
    for check in mutant.killed_by
]


@pytest.fixture(autouse=True)
def unshrunk_inputs(reproducible_inputs: None) -> None:
    """A mutant only has to fail; nobody reads the smallest input it fails on.

    The first input that kills it ends the search, so that many may be tried: which ones Hypothesis draws changes with
    every edit of a check.
    """
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", settings.get_profile("properties"), phases=phases, max_examples=300)
    settings.load_profile("mutants")


@pytest.mark.parametrize(("mutant", "check"), PAIRS)
def test_check_fails_on_the_mutant(mutant: Mutant, check: Check) -> None:
    """That it passes on the original is tested with the operators, for every check that concerns it."""
    with pytest.raises(AssertionError):
        check(mutant.operator)


def test_every_check_has_killed_a_mutant() -> None:
    assert set(CHECKS) == {check for mutant in MUTANTS for check in mutant.killed_by}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.apply.__name__)
def test_a_mutant_is_judged_by_checks_that_concern_its_original(mutant: Mutant) -> None:
    assert all(CHECKS[check](mutant.original) for check in mutant.killed_by)


def test_the_l23_mutant_shows_both_published_faults() -> None:
    too_early = torch.linspace(1.3, 1.47, 50)[None]
    assert bool(l23_without_threshold(too_early, 1.0).any())
    above = torch.linspace(0.1, 1, 2000)[None]
    # A cancellation, which the last bits of the cube root decide on: a twentieth of them on one processor.
    assert float((l23_without_threshold(above, 1e-6) == 0).float().mean()) > 0.01
