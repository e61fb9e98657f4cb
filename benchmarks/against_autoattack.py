"""Robust accuracy by `auto` and by AutoAttack at the usual radii, with the passes of both, on the same images.

    make bench-autoattack

AutoAttack is the standard version of pyautoattack. `auto` has 200 and 2000 passes. Every returned point is judged again
by the shared harness, which also counts the passes. Finished rows are kept in `--out`, so a run that was stopped goes
on; a row of ours counts only for the source code that made it, one of AutoAttack for the version of the library.
`--table` writes the report of docs/autoattack.md.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pdpgd
import shared_zoo
from pdpgd.attacks.catalogue import prepared
from pdpgd.attacks.info import PYAUTOATTACK
from pdpgd.runs.metrics import withstood
from source_code import fingerprint

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
Row = dict[str, Any]

SHIPPED = ("mnist-plain", "mnist-linf-at", "mnist-l2-at", "cifar10-plain", "cifar10-linf-at", "cifar10-l2-at")
RADII = {"mnist": {"linf": 0.3, "l2": 2.0}, "cifar10": {"linf": 8 / 255, "l2": 0.5}}
BUDGETS = (200, 2000)
AUTOATTACK = "AutoAttack"
SEED = 0


@dataclass(frozen=True)
class Cell:
    """One model and norm, at the usual radius, on a range of images."""

    model: str
    norm: str
    radius: float
    first: int
    last: int

    @classmethod
    def of(cls, model: str, norm: str, samples: list[int]) -> Cell:
        return cls(model, norm, RADII[data_of(model)][norm], *samples)


def data_of(model: str) -> str:
    return "cifar10" if model.startswith("cifar") else "mnist"


def ours(cell: Cell, budget: int) -> Attack:
    """`auto` at the radius, or as a minimum-norm attack where it does not take a radius."""
    aimed = {"radius": cell.radius} if "radius" in inspect.signature(pdpgd.auto).parameters else {}
    call: dict[str, Any] = {"norm": cell.norm, "seed": SEED, "budget": budget, **aimed}
    return lambda net, inputs, labels: pdpgd.auto(net, inputs, labels, **call).adversarials


def theirs(cell: Cell) -> Attack:
    """The standard version of AutoAttack; all samples are attacked together."""
    attack = prepared("autoattack", cell.norm, settings={"radii": [cell.radius]}, max_batch=10_000)
    return lambda net, inputs, labels: attack(net, inputs, labels, norm=cell.norm, seed=SEED).adversarials


def attacks_of(cell: Cell, only: str | None) -> Iterator[tuple[str, str, Attack]]:
    """The name of each attack, the code that a row of it was made by, and the attack."""
    if only != "autoattack":
        for budget in BUDGETS:
            yield f"auto, {budget} passes", fingerprint(), ours(cell, budget)
    if only != "ours":
        yield AUTOATTACK, f"pyautoattack {PYAUTOATTACK.version()}", theirs(cell)


def measure(attack: Attack, cell: Cell, model: nn.Module, inputs: Tensor, labels: Tensor) -> Row:
    result = shared_zoo.load("harness").measure(attack, model, inputs, labels, cell.norm)
    return {
        "distances": result["norms"].tolist(),
        "images": cell.last - cell.first,
        "forwards": result["forwards"],
        "backwards": result["backwards"],
        "seconds": result["seconds"],
    }


def robust(row: Row) -> int:
    """Return the number of images that are correctly classified and withstand the attack at the radius."""
    return int(withstood(np.array(row["distances"]), row["radius"]).sum())


def passes(row: Row) -> float:
    """Return the forward plus backward passes per correctly classified sample."""
    return float(row["forwards"] + row["backwards"])


def report(rows: list[Row]) -> str:
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "norm", "radius", "first", "last"))
        cells.setdefault(key, {})[row["attack"]] = row
    small, large = (f"auto, {budget} passes" for budget in BUDGETS)
    complete = [cell for cell in cells.values() if {small, large, AUTOATTACK} <= set(cell)]
    over = {name: [robust(cell[name]) - robust(cell[AUTOATTACK]) for cell in complete] for name in (small, large)}
    ratio = [passes(cell[AUTOATTACK]) / passes(cell[small]) for cell in complete]
    lines = [
        "# auto and AutoAttack at a radius",
        "",
        "Written by `make bench-autoattack`. Robust accuracy: the share of all images that are correctly classified",
        "and stay so at the radius. Passes: forward plus backward, per correctly classified sample. AutoAttack is the",
        "standard version; a sample that one of its parts has fooled is not attacked by the next. Every adversarial",
        f"example is judged again. Seed {SEED}.",
        "",
    ]
    if complete:
        lines += [
            f"- {large}: robust accuracy above that of AutoAttack in {sum(gap > 0 for gap in over[large])} of "
            f"{len(complete)} cells, below it in {sum(gap < 0 for gap in over[large])}.",
            f"- {small}: more than one sample above AutoAttack in {sum(gap > 1 for gap in over[small])} of "
            f"{len(complete)} cells, one sample above in {sum(gap == 1 for gap in over[small])}, below in "
            f"{sum(gap < 0 for gap in over[small])}.",
            f"- AutoAttack spends {min(ratio):.1f} to {max(ratio):.1f} times the passes of {small}, "
            f"{float(np.median(ratio)):.1f} times in the median cell.",
            "",
        ]
    names = [small, large, AUTOATTACK]
    lines += [
        f"| model | norm | radius | images | correct | {' | '.join(names)} | passes: {' | passes: '.join(names)} |",
        f"|{'---|' * (5 + 2 * len(names))}",
    ]
    lines += [line(cell, names) for cell in cells.values()]
    return "\n".join([*lines, "", *differences(complete, large), ""])


def line(cell: dict[str, Row], names: list[str]) -> str:
    first = next(iter(cell.values()))
    radius = f"{round(first['radius'] * 255)}/255" if first["radius"] < 0.1 else f"{first['radius']:g}"
    shares = [f"{robust(cell[name]) / first['images']:.1%}" if name in cell else "" for name in names]
    spent = [f"{passes(cell[name]):,.0f}" if name in cell else "" for name in names]
    correct = f"{len(first['distances']) / first['images']:.1%}"
    head = (first["model"], first["norm"], radius, f"{first['first']}-{first['last'] - 1}", correct)
    return f"| {' | '.join((*head, *shares, *spent))} |"


def differences(complete: list[dict[str, Row]], ours: str) -> list[str]:
    """Name the samples that only one of the two attacks has fooled at the radius."""
    lines = []
    for cell in complete:
        mine, other = (
            ~withstood(np.array(cell[name]["distances"]), cell[name]["radius"]) for name in (ours, AUTOATTACK)
        )
        if (mine != other).any():
            row = cell[ours]
            lines.append(
                f"- {row['model']}, {row['norm']}: {int((mine & ~other).sum())} samples fooled by {ours} only, "
                f"{int((other & ~mine).sum())} by AutoAttack only."
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*SHIPPED, *shared_zoo.MODELS])
    parser.add_argument("--norms", nargs="+", default=["linf", "l2"])
    parser.add_argument("--samples", nargs=2, type=int, default=[0, 100])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--only", choices=("ours", "autoattack"), help="measure these alone, and leave the rest for later"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/autoattack.json"), help="finished rows")
    parser.add_argument("--table", type=pathlib.Path, help="a Markdown file for the report")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = json.loads(options.out.read_text()) if options.out.exists() else {}

    for cell in (Cell.of(model, norm, options.samples) for model in options.models for norm in options.norms):
        model, inputs, labels = shared_zoo.net_and_images(cell.model, data_of(cell.model), cell.first, cell.last)
        for name, code, attack in attacks_of(cell, options.only):
            key = " | ".join((cell.model, cell.norm, f"{cell.first}-{cell.last}", name))
            if rows.get(key, {}).get("code") == code:
                continue
            row = {**asdict(cell), "attack": name, "code": code, **measure(attack, cell, model, inputs, labels)}
            rows[key] = row
            options.out.write_text(json.dumps(rows, indent=0))
            found = f"{robust(row)} of {row['images']} robust, {passes(row):,.0f} passes, {row['seconds']:.0f} s"
            print(key, found, sep=": ", flush=True)

    page = report(list(rows.values()))
    print(page)
    if options.table:
        options.table.write_text(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
