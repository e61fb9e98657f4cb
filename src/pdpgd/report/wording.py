"""Numbers and verdicts as a page says them."""

from __future__ import annotations

import numpy as np

LONGEST_LABEL = 44
# What stands where there is no number.
NOTHING = "\N{EN DASH}"


def share(value: float) -> str:
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """A difference of two shares, in percentage points."""
    return _with_minus(f"{100 * value:+.1f}")


def signed(value: float) -> str:
    """A difference of two distances."""
    return _with_minus(f"{value:+.3g}")


def size(value: float, norm: str) -> str:
    """A distance, in the unit of its norm."""
    if np.isnan(value):
        return NOTHING
    if np.isinf(value):
        return "not fooled"
    return f"{value:.0f}" if norm == "l0" and float(value).is_integer() else f"{value:.3g}"


def change(value: float, norm: str) -> str:
    """The same in a sentence."""
    if norm == "l0":
        return f"{size(value, norm)} pixel{'' if value == 1 else 's'}"
    return f"{size(value, norm)}"


def count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: list[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shortened(label: str) -> str:
    """A path or a name that fits a legend: its beginning and its end."""
    if len(label) <= LONGEST_LABEL:
        return label
    half = (LONGEST_LABEL - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def _with_minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}") if text.strip("+-0.") else text.lstrip("+-")
