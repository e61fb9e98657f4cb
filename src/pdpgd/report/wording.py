"""How reports write numbers, and the names of attacks, norms and radii."""

from __future__ import annotations

import re

import numpy as np

from pdpgd.experiments.results import Cell

LONGEST_LABEL = 44
# DASH is displayed where there is no value.
DASH, ELL, SIGMA = "\N{EN DASH}", "\N{SCRIPT SMALL L}", "\N{GREEK SMALL LETTER SIGMA}"


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """The difference of two shares in percentage points, with its sign."""
    return _with_minus(f"{100 * value:+.1f}")


def signed(value: float) -> str:
    """The difference of two distances, with its sign."""
    return _with_minus(f"{value:+.3g}")


def size(value: float, norm: str) -> str:
    """A distance; l0 counts pixels."""
    if np.isnan(value):
        return DASH
    if np.isinf(value):
        return "not fooled"
    return f"{value:.0f}" if norm == "l0" and float(value).is_integer() else f"{value:.3g}"


def size_in_words(value: float, norm: str) -> str:
    """A distance for a sentence, with its unit if it has one."""
    if norm == "l0":
        return f"{size(value, norm)} pixel{'' if value == 1 else 's'}"
    return size(value, norm)


def count(number: int, thing: str) -> str:
    """A number of things, in the plural unless it is 1."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Join names as in "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shortened(label: str) -> str:
    """Shorten a path or name to fit a legend, keeping its beginning and end."""
    if len(label) <= LONGEST_LABEL:
        return label
    half = (LONGEST_LABEL - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def _with_minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}") if text.strip("+-0.") else text.lstrip("+-")


# The attacks of this package that follow the paper.
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
    "autoattack": "AutoAttack",
    "apgd-ce": "APGD-CE",
    "square": "Square",
    "superdeepfool": "SuperDeepFool",
    "vfga": "VFGA",
    "sparse-rs": "Sparse-RS",
}
_NORMS = {"linf": f"{ELL}∞", "l2": f"{ELL}2", "l1": f"{ELL}1", "l0": f"{ELL}0"}
_UNITS = {"l0": "pixels"}


def attack_name(attack: str, restarts: int | None = None) -> str:
    """The name of an attack in the paper's style: `pgd` with 100 restarts is PGD-100.

    Our attacks are marked as such; implementations from another library name it.
    """
    first, _, library = attack.partition("@")
    name = _ATTACKS.get(first, first)
    if restarts is not None:
        name = f"{name}-{restarts}"
    if attack in OURS:
        return f"{name} (ours)"
    return f"{name} ({library})" if library else name


def cell_name(cell: Cell) -> str:
    """The name of the attack of a cell, with its restarts."""
    return attack_name(cell.attack, cell.restarts)


def norm_name(norm: str) -> str:
    """The name of a norm with the paper's script l; user-defined norms keep their names."""
    return _NORMS.get(norm, norm)


def distance_label(norm: str) -> str:
    """Axis label of mean distances in a norm."""
    unit = _UNITS.get(norm)
    return f"mean {norm_name(norm)} distance" + (f" ({unit})" if unit else "")


def file_stem(text: str) -> str:
    """Turn a name given by the user into a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"
