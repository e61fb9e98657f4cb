"""What each part of `auto` is worth: the mean distance without it over that with it, at an equal budget.

    make bench-auto

Measured on the images that the solver was tuned on, with the shipped MNIST nets. A part is taken out by giving its
passes to the others; a ratio above 1 says that it helps.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import pdpgd
from pdpgd.attacks import catalogue, descent
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model

NORMS = ("linf", "l2", "l1", "l0")
NETS = ("mnist-plain", "mnist-linf-at", "mnist-l2-at")
SEEDS = (0, 1)
# The module; `pdpgd.attacks.auto` is also the name of the function in it.
auto = sys.modules[pdpgd.auto.__module__]

Change = tuple[Any, str, Any]
"""A module or class, a name in it, and the value it gets."""


def _tactics(change: Callable[[descent.Tactic], descent.Tactic]) -> list[Change]:
    """The same plan with every tactic changed."""
    # CLASS is known by identity, and stays so.
    new = {tactic: change(tactic) for tactic in {*auto.FIRST, *auto.THEN, descent.POLISH}}
    plans = [(auto, plan, tuple(new[tactic] for tactic in getattr(auto, plan))) for plan in ("FIRST", "THEN")]
    return [*plans, (auto, "CLASS", new[descent.CLASS]), (auto, "POLISH", new[descent.POLISH])]


def _instead(old: descent.Tactic, new: descent.Tactic) -> list[Change]:
    return _tactics(lambda tactic: new if tactic is old else tactic)


def _styles(**settings: Any) -> list[Change]:
    return _tactics(
        lambda tactic: replace(
            tactic, style=replace(tactic.style, **settings), counting=replace(tactic.counting, **settings)
        )
    )


def parts() -> dict[str, list[Change]]:
    """Each part by its name, and what takes it out."""
    return {
        "chosen classes": [(auto._Campaign, "_rank", lambda campaign, samples: None)],
        "steady descents (far ones instead)": _instead(descent.STEADY, descent.FAR),
        "far descents (steady ones instead)": _instead(descent.FAR, descent.STEADY),
        "near descents (far ones instead)": _instead(descent.NEAR, descent.FAR),
        "hops (steady, far and near ones instead)": [(auto, "THEN", (descent.STEADY, descent.FAR, descent.NEAR))],
        "short descents (twice as long ones instead)": [(auto, "STEPS", 2 * auto.STEPS)],
        "memory of the slope": _styles(memory=0.0),
        "trust that adapts": _styles(adaptive=False),
        "overshoot": _styles(overshoot=0.0),
        "polish": [(auto, "POLISH_SHARE", 0.0)],
        "start in l1 (l0 only)": _tactics(lambda tactic: replace(tactic, relaxed=0.0)),
        "pruning (l0 only)": [(auto, "PRUNING", 0), (auto, "prune", lambda *_, **__: None)],
    }


@contextmanager
def changed(changes: list[Change]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def mean(net: nn.Module, inputs: Tensor, labels: Tensor, norm: str, attack: Any) -> float:
    """Over the seeds as well: where gradients mislead, one of them is off by a hundredth."""
    return statistics.mean(float(attack(net, inputs, labels, norm=norm, seed=s).distances.mean()) for s in SEEDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=400)
    parser.add_argument("--samples", nargs=2, type=int, default=[900, 1000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", type=pathlib.Path, help="a Markdown file for the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    nets = {}
    for name in NETS:
        net = load_model(name).requires_grad_(False)
        inputs, labels = load_data("mnist-1000").batch(torch.arange(*options.samples))
        right = net(inputs).argmax(1) == labels
        nets[name] = (net, inputs[right], labels[right])

    def ours(norm: str) -> Any:
        return catalogue.prepared("auto", norm, budget=options.budget, max_batch=256)

    whole = {(name, norm): mean(*nets[name], norm, ours(norm)) for name in NETS for norm in NORMS}
    lines = [
        "| without | " + " | ".join(NORMS) + " | larger in |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    for part, changes in {**parts(), "all of it: the paper's attack": []}.items():
        cells, worse, count = [], 0, 0
        for norm in NORMS:
            if "l0 only" in part and norm != "l0":
                cells.append("")
                continue
            ratios = []
            for name in NETS:
                with changed(changes):
                    paper = catalogue.prepared("pdpgd", norm, budget=options.budget, max_batch=256)
                    value = mean(*nets[name], norm, ours(norm) if changes else paper)
                ratios.append(value / whole[name, norm])
            count += len(ratios)
            worse += sum(ratio > 1 for ratio in ratios)
            cells.append(" / ".join(f"{ratio:.3f}" if math.isfinite(ratio) else "not all" for ratio in ratios))
        lines.append(f"| {part} | " + " | ".join(cells) + f" | {worse} of {count} |")
        print(lines[-1], flush=True)
    if options.table:
        first, last = options.samples
        heading = (
            "# What each part of auto is worth\n\nWritten by `make bench-auto`. "
            f"Mean distance without a part over that with it, {options.budget} passes, images {first} to {last - 1}, "
            f"seeds {SEEDS}; " + " / ".join(NETS) + ".\n\n"
        )
        options.table.write_text(heading + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
