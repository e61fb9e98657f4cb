"""The page on against_peers.py: which attack has the smallest distances, by how much, and on how many samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OURS = "auto"
PAPER = "paper, 10 restarts"
# Relative difference up to which two distances are a tie.
TIE = 1e-3
# Significant digits of distances in the tables.
DIGITS = 4
NORMS = ("linf", "l2", "l1", "l0")
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "imagenet": "ImageNet"}

Row = dict[str, Any]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """A cell of the comparison: a model and a norm at a budget, images from a position to another, and attacks."""

    data: str
    model: str
    norm: str
    budget: int
    first: int
    last: int
    attacks: tuple[str, ...] = ()

    @property
    def images(self) -> str:
        return f"{self.first}-{self.last - 1}"

    @property
    def column(self) -> str:
        return f"{self.norm} at {self.budget}"

    def about(self, attack: str) -> Row:
        """Return the entries of a row that say what it is about."""
        return {
            **{"model": self.model, "norm": self.norm, "budget": self.budget},
            **{"images": self.images, "attack": attack},
        }


class Cell:
    """A planned cell and its rows."""

    def __init__(self, plan: Plan, rows: list[Row]) -> None:
        self.plan = plan
        order = (*plan.attacks, PAPER)
        rows = sorted((row for row in rows if row["attack"] in order), key=lambda row: order.index(row["attack"]))
        self.data, self.model, self.norm, self.budget = plan.data, plan.model, plan.norm, plan.budget
        self.errors: dict[str, str] = {row["attack"]: row["error"] for row in rows if "error" in row}
        done = [row for row in rows if "error" not in row]
        self.distances: dict[str, Array] = {row["attack"]: distances_of(row) for row in done}
        self.passes: dict[str, float] = {row["attack"]: row["passes"] for row in done}
        self.complete = {*self.errors, *self.distances} >= set(plan.attacks)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.distances if name not in (OURS, PAPER)]

    @property
    def comparable(self) -> bool:
        """Whether both sides have distances."""
        return OURS in self.distances and bool(self.peers)

    def mean(self, attack: str | None) -> float:
        """Return the mean distance: inf unless all samples were fooled, as a mean over the easy ones looks too good."""
        return float(self.distances[attack].mean()) if attack in self.distances else math.inf

    def found(self, attack: str) -> Array:
        """Return the finite distances."""
        distances = self.distances[attack]
        return distances[np.isfinite(distances)]

    def rank(self, attack: str) -> tuple[int, float]:
        """Return what attacks are ordered by: the number of samples not fooled, then the mean of the others."""
        found = self.found(attack)
        return len(self.distances[attack]) - len(found), float(found.mean()) if len(found) else math.inf

    def best_peer(self) -> str | None:
        return min(self.peers, key=self.rank, default=None)

    def ahead(self) -> bool:
        """Return whether our attack fooled all samples and has the smallest mean."""
        return math.isfinite(self.mean(OURS)) and self.mean(OURS) < self.mean(self.best_peer())

    def optimality(self, attack: str, among: Iterable[str]) -> float:
        """Return 1 if the attack equals the envelope on every sample, and 0 if no distance is below its maximum.

        It is nan if no attack fooled one of the samples, or if the envelope is constant.
        """
        envelope = np.min([self.distances[name] for name in among], axis=0)
        top, mean = envelope.max(), envelope.mean()
        if not math.isfinite(top) or top == mean:
            return math.nan
        area = np.minimum(self.distances[attack], top).mean()
        return float(1 - (area - mean) / (top - mean))


def number(value: float) -> str:
    """Write a distance; one that is not finite is the mean of an attack that did not fool all samples."""
    if not math.isfinite(value):
        return "not all"
    places = DIGITS - 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(places, 0)}f}"


def distances_of(row: Row) -> Array:
    """Return the distances of a row, inf where it has null."""
    return np.array([math.inf if d is None else d for d in row["distances"]], dtype=np.float64)


def summary(row: Row) -> str:
    if "error" in row:
        return str(row["error"])
    distances = distances_of(row)
    found = np.isfinite(distances)
    mean = distances[found].mean() if found.any() else math.nan
    return f"found {found.mean():.0%} mean {mean:.4f} {row['passes']:.0f} passes {row['seconds']:.0f} s"


def report(rows: list[Row], plans: list[Plan], *, seed: int) -> str:
    """Write the page on the planned cells; those without a row of every attack are listed as not measured."""
    plans = sorted(plans, key=lambda plan: list(TITLES).index(plan.data))
    by_cell: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_cell.setdefault((row["model"], row["norm"], row["budget"], row["images"]), []).append(row)
    every = [Cell(plan, by_cell.get((plan.model, plan.norm, plan.budget, plan.images), [])) for plan in plans]
    cells = [cell for cell in every if cell.complete]
    compared = [cell for cell in cells if cell.comparable]
    sections: tuple[tuple[str, Callable[[list[Cell]], str], list[Cell]], ...] = (
        ("Smallest mean distance", _smallest, every),
        ("With a fifth of the passes", _fifth, cells),
        ("Errors", _errors, [cell for cell in every if cell.errors]),
        ("Not measured", _missing, [cell for cell in every if not cell.complete]),
        ("Mean distances", _means, compared),
        (
            "Against the paper's attack with ten restarts and fine-tuning",
            _restarts,
            [cell for cell in cells if {OURS, PAPER} <= cell.distances.keys()],
        ),
        ("Sample by sample", _samples, compared),
        ("Local optimality", _optimality, compared),
        ("All attacks", _everyone, cells),
    )
    parts = [f"# auto compared with public attacks\n\n{_setup(every, rows, seed)}"]
    # Sections without data are left out.
    for title, write, about in sections:
        body = write(about) if about else ""
        if body:
            parts.append(f"## {title}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def _table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def _by_data(cells: list[Cell]) -> dict[str, list[Cell]]:
    return {data: [cell for cell in cells if cell.data == data] for data in dict.fromkeys(cell.data for cell in cells)}


def _list(items: Iterable[object]) -> str:
    """Join as in a sentence: a, b and c."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def _setup(cells: list[Cell], rows: list[Row], seed: int) -> str:
    """Write what was measured, and with which versions."""
    versions = sorted({item for row in rows for item in row["made_by"].items()})
    made_by = ", ".join(f"{'source of auto' if name == 'pdpgd' else name} {value}" for name, value in versions)
    over = {name for cell in cells for name in cell.peers if cell.passes[name] > (1 + TIE) * cell.budget}
    parts = [
        "Written by `make bench-peers`.",
        "`auto` is given a budget and nothing else: the maximum number of forward + backward passes per sample.",
        "The public attacks (peers) are those of adv-lib at their authors' settings; one gradient step is two passes.",
        f"Some exceed the budget: {_list(sorted(over))}." if over else "",
        "Every adversarial example was verified by a harness that is independent of the attacks.",
        f"Seed {seed}. Versions: {made_by or 'none'}.",
        "Nets, with the number of correctly classified images, on which they are attacked:\n",
    ]
    lines = [" ".join(filter(None, parts))]
    for data, group in _by_data(cells).items():
        # Before the first row of a net, the number is not known.
        counts = dict.fromkeys((cell.model for cell in group), "")
        counts |= {cell.model: f" ({len(d)})" for cell in group for d in cell.distances.values()}
        budgets = _list(dict.fromkeys(cell.budget for cell in group))
        images = _list(dict.fromkeys(cell.plan.images for cell in group))
        nets = ", ".join(f"`{model}`{count}" for model, count in counts.items())
        lines.append(f"- {TITLES[data]}, images {images}, budget {budgets}: {nets}")
    return "\n".join(lines)


def _smallest(every: list[Cell]) -> str:
    cells = [cell for cell in every if cell.complete]
    if not cells:
        return ""
    behind = [cell for cell in cells if not cell.ahead()]
    lead = (
        "`auto` has the smallest mean distance, and an adversarial example for every sample, in "
        f"{len(cells) - len(behind)} of {len(cells)} cells"
    )
    exceptions = "; ".join(f"`{cell.model}` {cell.plan.column} ({_versus(cell, cell)})" for cell in behind)
    missing = f" Cells not measured: {len(every) - len(cells)}." if len(cells) < len(every) else ""
    parts = [
        (f"{lead}. Not in: {exceptions}." if behind else f"{lead}.") + missing,
        "Each cell of the tables has the mean distance of `auto` relative to that of the best peer at the same budget, "
        "and the peer. Below 1, `auto` is smaller; where it is not, the cell says **behind**.",
    ]
    for data, group in _by_data(cells).items():
        entries = {(cell.model, cell.plan.column): (cell, cell) for cell in group}
        parts.append(f"{TITLES[data]}:\n\n{_grid(entries, lambda cell, _: cell.ahead())}")
    return "\n\n".join(parts)


def _grid(entries: dict[tuple[str, str], tuple[Cell, Cell]], ahead: Callable[[Cell, Cell], bool]) -> str:
    """Write a table with a line per model, and a column per norm and budget."""
    models = list(dict.fromkeys(model for model, _ in entries))
    places = {column: (mine.budget, NORMS.index(mine.norm)) for (_, column), (mine, _) in entries.items()}
    columns = sorted(places, key=places.__getitem__)
    lines = []
    for model in models:
        line = [model]
        for column in columns:
            pair = entries.get((model, column))
            text = _versus(*pair) if pair else "not measured"
            line.append(f"{text} (**behind**)" if pair and not ahead(*pair) else text)
        lines.append(line)
    return _table(["model", *columns], lines)


def _versus(mine: Cell, theirs: Cell) -> str:
    """Write the ratio of our mean in one cell to that of the best peer in another, or why there is none."""
    peer = theirs.best_peer()
    if OURS not in mine.distances:
        return "auto: error"
    if not math.isfinite(mine.mean(OURS)):
        return f"auto: {_success(mine, OURS)} found"
    if peer is None:
        return "all peers: error"
    if not math.isfinite(theirs.mean(peer)):
        return f"{peer}: {_success(theirs, peer)} found"
    return f"{mine.mean(OURS) / theirs.mean(peer):.3f} {peer}"


def _success(cell: Cell, attack: str) -> str:
    """Write the share of fooled samples; 100% only if it is all of them."""
    return f"{100 * len(cell.found(attack)) // len(cell.distances[attack])}%"


def _fifth(cells: list[Cell]) -> str:
    small, large = min(cell.budget for cell in cells), max(cell.budget for cell in cells)
    longer = {(cell.model, cell.norm): cell for cell in cells if cell.budget == large}
    counts, behind, grids = [], [], []
    for data, group in _by_data(cells).items():
        mine = [cell for cell in group if cell.budget == small < large and (cell.model, cell.norm) in longer]
        pairs = {(cell.model, cell.norm): (cell, longer[cell.model, cell.norm]) for cell in mine}
        if pairs:
            worse = [pair for pair in pairs.values() if not _as_good(*pair)]
            counts.append(f"{len(pairs) - len(worse)} of {len(pairs)} cells on {TITLES[data]}")
            behind += [f"`{pair[0].model}` {pair[0].norm} ({_versus(*pair)})" for pair in worse]
            grids.append(f"{TITLES[data]}:\n\n{_grid(pairs, _as_good)}")
    if not counts:
        return ""
    lead = f"With {small} passes, `auto` is at least as good as the best peer with {large} in {_list(counts)}"
    return "\n\n".join(
        [
            f"{lead}. Not in: {'; '.join(behind)}." if behind else f"{lead}.",
            f"Mean distance of `auto` at {small} relative to that of the best peer at {large}.",
            *grids,
        ]
    )


def _as_good(mine: Cell, theirs: Cell) -> bool:
    return math.isfinite(mine.mean(OURS)) and mine.mean(OURS) <= theirs.mean(theirs.best_peer())


def _errors(cells: list[Cell]) -> str:
    lines = [
        [cell.model, cell.norm, str(cell.budget), name, " ".join(error.split()).replace("|", "\\|")]
        for cell in cells
        for name, error in cell.errors.items()
    ]
    lead = "These attacks raised an error, and are missing in the other tables."
    return f"{lead}\n\n" + _table(["model", "norm", "budget", "attack", "error"], lines)


def _missing(cells: list[Cell]) -> str:
    lines = [f"{len(cells)} cells lack the row of an attack, and are left out:\n"]
    for model in dict.fromkeys(cell.model for cell in cells):
        lines.append(f"- `{model}`: " + ", ".join(cell.plan.column for cell in cells if cell.model == model))
    return "\n".join(lines)


def _means(cells: list[Cell]) -> str:
    lines = []
    for cell in cells:
        peer = cell.best_peer()
        means = (cell.mean(OURS), cell.mean(peer))
        ours, theirs = (f"**{number(mean)}**" if mean == min(means) < math.inf else number(mean) for mean in means)
        ratio = f"{means[0] / means[1]:.3f}" if math.isfinite(max(means)) else ""
        place = [cell.model, cell.norm, str(cell.budget)]
        lines.append([*place, f"{cell.passes[OURS]:.0f}", _success(cell, OURS), ours, str(peer), theirs, ratio])
    header = ["model", "norm", "budget", "passes spent", "success", "auto", "best peer", "its mean", "ratio"]
    return "**Bold**: the smaller mean. `not all`: not all samples were fooled.\n\n" + _table(header, lines)


def _restarts(cells: list[Cell]) -> str:
    lines = [
        [
            *(cell.model, cell.norm, number(cell.mean(OURS)), f"{cell.passes[OURS]:.0f}"),
            *(number(cell.mean(PAPER)), f"{cell.passes[PAPER]:.0f}"),
            f"{cell.mean(OURS) / cell.mean(PAPER):.3f}",
        ]
        for cell in cells
    ]
    lead = "The paper's attack uses the authors' learning rates and projects the gradient step first (our default)."
    return f"{lead}\n\n" + _table(["model", "norm", "auto", "passes", "paper's", "passes", "ratio"], lines)


def _samples(cells: list[Cell]) -> str:
    """Compare per sample, pooled over the models of a data set: logarithms of ratios are comparable between them."""
    from scipy.stats import wilcoxon

    pooled: dict[tuple[str, str, int, str], list[Array]] = {}
    for cell in cells:
        for peer in cell.peers:
            with np.errstate(invalid="ignore"):
                ratio = np.log(cell.distances[OURS]) - np.log(cell.distances[peer])
            # If both are inf, it is a tie.
            key = (TITLES[cell.data], cell.norm, cell.budget, peer)
            pooled.setdefault(key, []).append(np.nan_to_num(ratio, nan=0.0))
    lines = []
    for (data, norm, budget, peer), parts in pooled.items():
        ratio = np.concatenate(parts)
        ratio = np.where(np.abs(ratio) <= TIE, 0.0, ratio)
        counts = [str(int(np.sum(which))) for which in (ratio < 0, ratio == 0, ratio > 0)]
        # With ties alone, there is nothing to test.
        p = wilcoxon(np.clip(ratio, -1e3, 1e3), alternative="less", zero_method="zsplit").pvalue if ratio.any() else 1.0
        lines.append([data, norm, str(budget), peer, *counts, f"{p:.1e}"])
    header = ["data", "norm", "budget", "peer", "auto smaller", "tie", "peer smaller", "Wilcoxon p"]
    return (
        f"Number of samples, over all models of a data set. A tie is a difference of at most {TIE:.1%}. p is the "
        "p-value of a one-sided Wilcoxon signed-rank test on the logarithms of the ratios; the null hypothesis is that "
        "the distances of `auto` are not smaller.\n\n" + _table(header, lines)
    )


def _optimality(cells: list[Cell]) -> str:
    lines = []
    for cell in cells:
        equal = [name for name in cell.distances if name != PAPER]
        values = {name: cell.optimality(name, equal) for name in equal}
        second = max(cell.peers, key=values.__getitem__)
        lines.append(
            [
                *(cell.model, cell.norm, str(cell.budget), f"{values[OURS]:.3f}", second, f"{values[second]:.3f}"),
                f"{cell.optimality(OURS, cell.distances):.3f}" if PAPER in cell.distances else "",
            ]
        )
    header = ["model", "norm", "budget", "auto", "best peer", "its value"]
    if any(PAPER in cell.distances for cell in cells):
        header.append("auto, if the paper's ten restarts are included")
    return (
        "1 - (A - A\\*) / (A0 - A\\*), where A is the mean of min(distance, A0), A\\* the mean of the envelope (the "
        "smallest distance per sample over all attacks at the budget), and A0 the maximum of the envelope. 1: as "
        "small as the envelope on every sample. nan: no attack fooled one of the samples.\n\n"
        + _table(header, [line[: len(header)] for line in lines])
    )


def _everyone(cells: list[Cell]) -> str:
    lines = []
    for cell in cells:
        place = [cell.model, cell.norm, str(cell.budget)]
        for name in sorted(cell.distances, key=cell.rank):
            if name == PAPER:
                continue
            found = cell.found(name)
            mean = number(float(found.mean())) if len(found) else ""
            lines.append([*place, name, _success(cell, name), mean, f"{cell.passes[name]:.0f}"])
        lines += [[*place, name, "error", "", ""] for name in cell.errors]
    header = ["model", "norm", "budget", "attack", "success", "mean of fooled", "passes spent"]
    return _table(header, lines)
