from __future__ import annotations

import numpy as np
import pytest

from pdpgd.cli.evaluate import WIDTH, drawn
from pdpgd.runs.metrics import curve


@pytest.mark.parametrize("norms", [("l2",), ("linf", "l2"), ("linf", "l2", "l1"), ("linf", "l2", "l1", "l0")])
def test_every_norm_is_drawn_within_eighty_columns(norms: tuple[str, ...]) -> None:
    text = drawn({norm: curve(np.linspace(0.1, 1.0, 50)) for norm in norms})
    assert all(f"{norm}: robust accuracy" in text for norm in norms)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text


@pytest.mark.parametrize("distances", [[0.0, 0.0], [np.inf], [0.5], [0.0, np.inf, 2.0]])
def test_a_curve_that_falls_at_once_or_never_is_drawn_too(distances: list[float]) -> None:
    assert "l2" in drawn({"l2": curve(np.array(distances))})


def test_a_curve_falls_from_the_top_left_to_the_bottom_right() -> None:
    lines = [line[4:] for line in drawn({"l2": curve(np.linspace(0.1, 1.0, 100))}).splitlines()]
    drawn_at = [
        next(place for place, mark in enumerate(line) if mark > "\u2800") for line in lines if max(line) > "\u2800"
    ]
    assert drawn_at == sorted(drawn_at)
    assert drawn_at[0] < 4 < drawn_at[-1]
