"""Settings that make no sense are rejected when the config is created."""

from __future__ import annotations

from typing import Any

import pytest

from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.training.config import Threat, TrainingConfig

LINF = (Threat("linf", 0.3),)


@pytest.mark.parametrize(
    "settings",
    [
        {"inner": "pdg", "threats": LINF},
        {"optimizer": "sdg"},
        {"augment": "flip-crop"},
        {"inner": "pgd", "threats": (Threat("l1", 5.0),)},
        {"inner": "pdpgd", "threats": (Threat("l0", 5.0),)},
    ],
)
def test_an_unknown_name_is_answered_with_the_list(settings: dict[str, Any]) -> None:
    with pytest.raises(UnknownNameError, match="expected one of"):
        TrainingConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner": "pgd"}, "threats: expected one or more"),
        ({"threats": LINF}, "threats: expected one or more"),
        ({"epochs": 0}, "epochs: expected an integer of at least 1, got 0"),
        ({"batch": 1.5}, "batch: expected an integer"),
        ({"rate": 0.0}, "rate: expected above 0"),
        ({"clean_share": 1.5}, "clean_share: expected in"),
        ({"weight_decay": -1.0}, "weight_decay: expected at least 0"),
        ({"seed": -1}, "seed: expected"),
    ],
)
def test_a_number_out_of_its_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        TrainingConfig(**settings)


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
def test_a_radius_is_positive_and_finite(radius: float) -> None:
    with pytest.raises(InvalidInputError, match="radius: expected above 0"):
        Threat("linf", radius)
