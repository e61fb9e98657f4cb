"""Numbers and verdicts as a page says them."""

from __future__ import annotations

import re

import numpy as np

from pdpgd.experiments.results import Cell

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


DASH, ELL, SIGMA = "\N{EN DASH}", "\N{SCRIPT SMALL L}", "\N{GREEK SMALL LETTER SIGMA}"
OURS = ("auto", "auto-shared", "pdpgd", "pdgd")

_ATTACKS = {
    "pdpgd": "PDPGD",
    "pdgd": "PDGD",
    "bb": "B&B",
    "cw": "C&W",
    "corner-search": "CornerSearch",
    "ddn": "DDN",
    "deepfool": "DeepFool",
    "daa": "DAA",
    "daa-attraction": "DAA-attraction",
    "ead": "EAD",
    "fab": "FAB",
    "fab-t": "FAB-T",
    "jsma": "JSMA",
    "one-pixel": "One-Pixel",
    "pgd": "PGD",
    "sparsefool": "SparseFool",
    "fmn": "FMN",
    "alma": "ALMA",
    "sigma-zero": f"{SIGMA}-zero",
    "apgd": "APGD",
    "apgd-t": "APGD-T",
    "superdeepfool": "SuperDeepFool",
    "vfga": "VFGA",
}
_NORMS = {"linf": f"{ELL}∞", "l2": f"{ELL}2", "l1": f"{ELL}1", "l0": f"{ELL}0"}
_UNITS = {"l0": "pixels"}
# A radius that is a multiple of this share of a grey level was given in grey levels.
_LEVEL = 1 / (4 * 255)


def attack_name(attack: str, restarts: int | None = None) -> str:
    """`pgd`, 100 -> PGD-100; ours say so, and a second source names its library."""
    first, _, library = attack.partition("@")
    name = _ATTACKS.get(first, first)
    if restarts is not None:
        name = f"{name}-{restarts}"
    if attack in OURS:
        return f"{name} (ours)"
    return f"{name} ({library})" if library else name


def cell_name(cell: Cell) -> str:
    return attack_name(cell.attack, cell.restarts)


def norm_name(norm: str) -> str:
    """With the script l of the paper; a norm of the user's own has the name that it was given."""
    return _NORMS.get(norm, norm)


def distance_label(norm: str) -> str:
    """For an axis."""
    unit = _UNITS.get(norm)
    return f"mean {norm_name(norm)} distance" + (f" ({unit})" if unit else "")


def radius_name(radius: float) -> str:
    """As it was meant: 0.3 and 12 as they are, 0.03137 as 8/255."""
    levels = round(radius / _LEVEL)
    short = abs(radius - round(radius, 4)) < 1e-12
    if not short and levels > 0 and abs(radius - levels * _LEVEL) < 1e-6 * radius:
        return f"{levels / 4:g}/255"
    return f"{radius:.6g}"


def file_stem(text: str) -> str:
    """A user's name as a part of a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"
