"""The page on against_peers.py: which attack has the smallest distances, by how much, and on how many samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

OURS = "auto"
PAPER = "paper, 10 restarts"
# Relative difference up to which two distances are a tie.
TIE = 1e-3
# Decimal places of distances in the tables.
DIGITS = {"linf": 4, "l2": 3, "l1": 2, "l0": 2}

Row = dict[str, Any]
Array = NDArray[np.float64]


class Cell:
    """All rows of a model, a norm and a budget."""

    def __init__(self, rows: list[Row]) -> None:
        self.model, self.norm, self.budget = rows[0]["model"], rows[0]["norm"], rows[0]["budget"]
        self.distances: dict[str, Array] = {row["attack"]: np.array(row["distances"]) for row in rows}
        self.passes: dict[str, float] = {row["attack"]: row["passes"] for row in rows}

    @property
    def peers(self) -> list[str]:
        return [name for name in self.distances if name not in (OURS, PAPER)]

    def mean(self, attack: str) -> float:
        """Return the mean distance: inf unless all samples were fooled, as a mean over the easy ones looks too good."""
        return float(self.distances[attack].mean())

    def best_peer(self) -> str:
        return min(self.peers, key=self.mean)

    def optimality(self, attack: str, among: Iterable[str]) -> float:
        """Return 1 if the attack equals the envelope on every sample, and 0 if no distance is below its maximum."""
        envelope = np.min([self.distances[name] for name in among], axis=0)
        top = envelope.max()
        area = np.minimum(self.distances[attack], top).mean()
        return float(1 - (area - envelope.mean()) / (top - envelope.mean()))

    def number(self, value: float) -> str:
        return f"{value:.{DIGITS[self.norm]}f}" if math.isfinite(value) else "not all"


def summary(distances: list[float]) -> str:
    d = np.array(distances)
    found = np.isfinite(d)
    return f"found {found.mean():.0%} mean {d[found].mean() if found.any() else math.nan:.4f}"


def report(rows: list[Row], samples: list[int]) -> str:
    grouped: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["model"], row["norm"], row["budget"]), []).append(row)
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells = sorted(
        (cell for cell in map(Cell, grouped.values()) if OURS in cell.distances),
        key=lambda cell: (models.index(cell.model), list(DIGITS).index(cell.norm), cell.budget),
    )
    compared = [cell for cell in cells if cell.peers]
    restarted = [cell for cell in cells if PAPER in cell.distances]
    sections = (
        ("Mean distance", _means, compared),
        ("With a fifth of the passes", _fifth, compared),
        ("Against the paper's attack with ten restarts and fine-tuning", _restarts, restarted),
        ("Sample by sample", _samples, compared),
        ("Local optimality", _optimality, compared),
        ("All attacks", _everyone, compared),
    )
    parts = [
        f"# auto compared with public attacks\n\nWritten by `make bench-peers`. Correctly classified images among "
        f"images {samples[0]} to {samples[1] - 1}; seed 0. Every adversarial example was verified by a harness that is "
        "independent of the attacks. A budget is the maximum number of forward + backward passes per sample. "
        "`not all`: not all samples were fooled."
    ]
    # Sections without data are left out.
    for title, write, about in sections:
        body = write(about) if about else ""
        if body:
            parts.append(f"## {title}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def _table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def _means(cells: list[Cell]) -> str:
    lines, ahead = [], 0
    for cell in cells:
        ours, peer = cell.mean(OURS), cell.best_peer()
        ahead += ours < cell.mean(peer)
        found = np.isfinite(cell.distances[OURS]).mean()
        lines.append(
            [
                *(cell.model, cell.norm, str(cell.budget), f"{cell.passes[OURS]:.0f}", f"{found:.0%}"),
                *(f"**{cell.number(ours)}**" if ours < cell.mean(peer) else cell.number(ours), peer),
                *(cell.number(cell.mean(peer)), f"{ours / cell.mean(peer):.3f}"),
            ]
        )
    header = ["model", "norm", "budget", "passes spent", "success", "auto", "best peer", "its mean", "ratio"]
    return f"`auto` has the smallest mean distance in {ahead} of {len(cells)} cells.\n\n" + _table(header, lines)


def _fifth(cells: list[Cell]) -> str:
    by_key = {(cell.model, cell.norm, cell.budget): cell for cell in cells}
    small, large = min(cell.budget for cell in cells), max(cell.budget for cell in cells)
    lines, ahead = [], 0
    for (model, norm, budget), cell in by_key.items():
        other = by_key.get((model, norm, large))
        if budget != small or small == large or other is None:
            continue
        ours, peer = cell.mean(OURS), other.best_peer()
        ahead += ours <= other.mean(peer)
        lines.append(
            [model, norm, cell.number(ours), peer, cell.number(other.mean(peer)), f"{ours / other.mean(peer):.3f}"]
        )
    if not lines:
        return ""
    header = ["model", "norm", f"auto at {small}", f"best peer at {large}", "its mean", "ratio"]
    lead = f"With {small} passes, `auto` is at least as good as the best peer with {large} in"
    return f"{lead} {ahead} of {len(lines)} cells.\n\n" + _table(header, lines)


def _restarts(cells: list[Cell]) -> str:
    lines = [
        [
            *(cell.model, cell.norm, cell.number(cell.mean(OURS)), f"{cell.passes[OURS]:.0f}"),
            *(cell.number(cell.mean(PAPER)), f"{cell.passes[PAPER]:.0f}"),
            f"{cell.mean(OURS) / cell.mean(PAPER):.3f}",
        ]
        for cell in cells
    ]
    lead = "The paper's attack uses the authors' learning rates and projects the gradient step first (our default)."
    return f"{lead}\n\n" + _table(["model", "norm", "auto", "passes", "paper's", "passes", "ratio"], lines)


def _samples(cells: list[Cell]) -> str:
    """Compare per sample, pooled over the models: the logarithm of the ratio is comparable between them."""
    from scipy.stats import wilcoxon

    pooled: dict[tuple[str, int, str], list[Array]] = {}
    for cell in cells:
        for peer in cell.peers:
            with np.errstate(invalid="ignore"):
                ratio = np.log(cell.distances[OURS]) - np.log(cell.distances[peer])
            # If both are inf, it is a tie.
            pooled.setdefault((cell.norm, cell.budget, peer), []).append(np.nan_to_num(ratio, nan=0.0))
    lines = []
    for (norm, budget, peer), parts in pooled.items():
        ratio = np.concatenate(parts)
        ratio = np.where(np.abs(ratio) <= TIE, 0.0, ratio)
        counts = [str(int(np.sum(which))) for which in (ratio < 0, ratio == 0, ratio > 0)]
        p = wilcoxon(np.clip(ratio, -1e3, 1e3), alternative="less", zero_method="zsplit").pvalue
        lines.append([norm, str(budget), peer, *counts, f"{p:.1e}"])
    header = ["norm", "budget", "peer", "auto smaller", "tie", "peer smaller", "Wilcoxon p"]
    return (
        f"Number of samples, over all models. A tie is a difference of at most {TIE:.1%}. p is the p-value of a "
        "one-sided Wilcoxon signed-rank test on the logarithms of the ratios; the null hypothesis is that the "
        "distances of `auto` are not smaller.\n\n" + _table(header, lines)
    )


def _optimality(cells: list[Cell]) -> str:
    lines = []
    for cell in cells:
        equal = [name for name in cell.distances if name != PAPER]
        second = max((name for name in cell.peers), key=lambda name: cell.optimality(name, equal))
        longer = f"{cell.optimality(OURS, cell.distances):.3f}" if PAPER in cell.distances else ""
        lines.append(
            [
                *(cell.model, cell.norm, str(cell.budget), f"{cell.optimality(OURS, equal):.3f}"),
                *(second, f"{cell.optimality(second, equal):.3f}", longer),
            ]
        )
    header = [
        "model",
        "norm",
        "budget",
        "auto",
        "best peer",
        "its value",
        "auto, if the paper's ten restarts are included",
    ]
    return (
        "1 - (A - A\\*) / (A0 - A\\*), where A is the mean of min(distance, A0), A\\* the mean of the envelope (the "
        "smallest distance per sample over all attacks at the budget), and A0 the maximum of the envelope. 1: as "
        "small as the envelope on every sample.\n\n" + _table(header, lines)
    )


def _everyone(cells: list[Cell]) -> str:
    lines = []
    for cell in cells:
        for name in sorted(cell.distances, key=cell.mean):
            if name == PAPER:
                continue
            found = np.isfinite(cell.distances[name])
            mean = cell.distances[name][found].mean() if found.any() else math.nan
            passes = f"{cell.passes[name]:.0f}"
            lines.append(
                [cell.model, cell.norm, str(cell.budget), name, f"{found.mean():.0%}", cell.number(mean), passes]
            )
    header = ["model", "norm", "budget", "attack", "success", "mean of fooled", "passes spent"]
    return _table(header, lines)
