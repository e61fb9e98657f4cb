from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdpgd.cli.evaluate import Requirement
from pdpgd.errors import InvalidInputError


def measured(*, trusted: bool = True) -> Any:
    """Return an evaluation with robust accuracy 0.6 in one norm, 0.5 in several at once, and clean accuracy 0.9."""
    return SimpleNamespace(
        robust_accuracy=lambda radii: 0.6 if len(radii) == 1 else 0.5,
        clean_accuracy=0.9,
        reliability=SimpleNamespace(trusted=trusted),
    )


@pytest.mark.parametrize(
    ("text", "radii", "share"),
    [
        ("linf@0.1>=0.6", (("linf", 0.1),), 0.6),
        ("linf@8/255>=1/2", (("linf", 8 / 255),), 0.5),
        (" linf @ 0.1 , l2@1 >= 0.5 ", (("linf", 0.1), ("l2", 1.0)), 0.5),
        ("clean>=0.9", (), 0.9),
        ("l0@3>=0", (("l0", 3.0),), 0.0),
    ],
)
def test_a_requirement_is_parsed(text: str, radii: tuple[tuple[str, float], ...], share: float) -> None:
    requirement = Requirement.parse(text)
    assert (requirement.radii, requirement.share) == (radii, share)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "linf",
        "linf>=0.5",
        "linf@0.1",
        "linf@>=0.5",
        "@0.1>=0.5",
        "linf@a>=0.5",
        "linf@-1>=0.5",
        "linf@nan>=0.5",
        "linf@0.1>=",
        "linf@0.1>=1.5",
        "linf@0.1>=-0.1",
        "linf@0.1>=nan",
        "linf@1/0>=0.5",
        "linf@inf>=0",
        "linf@0.1>0.5",
    ],
)
def test_text_that_is_not_a_requirement_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="require: expected"):
        Requirement.parse(text)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("linf@0.1>=0.6", True),
        ("linf@0.1>=0.61", False),
        ("linf@0.1,l2@1>=0.5", True),
        ("linf@0.1,l2@1>=0.55", False),
        ("clean>=0.9", True),
        ("clean>=0.91", False),
        ("trusted", True),
    ],
)
def test_a_requirement_is_met_or_not(text: str, met: bool) -> None:
    assert Requirement.parse(text).met(measured()) is met


def test_trusted_results_can_be_required() -> None:
    assert not Requirement.parse("trusted").met(measured(trusted=False))


def test_a_norm_that_is_not_measured_is_refused_before_the_run() -> None:
    Requirement.parse("linf@0.1>=0.6").check(("linf",))
    with pytest.raises(InvalidInputError, match="expected one of the run's norms, linf, got 'l2'"):
        Requirement.parse("l2@1>=0.6").check(("linf",))
