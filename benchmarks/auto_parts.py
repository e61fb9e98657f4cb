"""Ablation of `auto`: the mean distance without a part divided by that with it, at an equal budget.

    make bench-auto

Measured with the shipped MNIST nets on the images that `auto` was tuned on. A part is removed by giving its passes to
the others; a ratio above 1 means that the part helps.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd import auto
from pdpgd.attacks import catalogue
from pdpgd.attacks.auto_config import NEAR, STEADY, AutoConfig, Tactic
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model

NORMS = ("linf", "l2", "l1", "l0")
NETS = ("mnist-plain", "mnist-linf-at", "mnist-l2-at")
SEEDS = (0, 1)
WHOLE = AutoConfig()


def _tactics(change: Callable[[Tactic], Tactic]) -> AutoConfig:
    """Change every tactic."""
    first, then = (tuple(change(tactic) for tactic in tactics) for tactics in (WHOLE.first, WHOLE.then))
    return replace(WHOLE, first=first, then=then, polish=change(WHOLE.polish))


def _instead(old: Tactic, new: Tactic) -> AutoConfig:
    """Replace one tactic by another."""
    return _tactics(lambda tactic: new if tactic == old else tactic)


def _styles(**settings: Any) -> AutoConfig:
    """Change the styles of every tactic."""
    return _tactics(
        lambda tactic: replace(
            tactic, style=replace(tactic.style, **settings), counting=replace(tactic.counting, **settings)
        )
    )


def parts() -> dict[str, AutoConfig]:
    """Return each part by name, with the config that removes it."""
    return {
        "chosen classes": replace(WHOLE, rank_from=sys.maxsize),
        "steady descents (far descents instead)": _instead(STEADY, FAR),
        "far descents (steady descents instead)": _instead(FAR, STEADY),
        "near descents (far descents instead)": _instead(NEAR, FAR),
        "hops (steady, far and near descents instead)": replace(WHOLE, then=(STEADY, FAR, NEAR)),
        "short descents (twice the length instead)": replace(WHOLE, min_descent_steps=2 * WHOLE.min_descent_steps),
        "running mean of the gradient": _styles(memory=0.0),
        "adaptive trust": _styles(adaptive=False),
        "overshoot": _styles(overshoot=0.0),
        "polish": replace(WHOLE, polish_share=0.0),
        "start in l1 (l0 only)": _tactics(lambda tactic: replace(tactic, relaxed=0.0)),
        "pruning (l0 only)": replace(WHOLE, pruning_passes=0),
    }


def mean(net: nn.Module, inputs: Tensor, labels: Tensor, norm: str, attack: Any) -> float:
    """Return the mean distance over samples and seeds: where gradients mislead, one seed is off by a hundredth."""
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
        correct = net(inputs).argmax(1) == labels
        nets[name] = (net, inputs[correct], labels[correct])

    ours = partial(auto, budget=options.budget)
    whole = {(name, norm): mean(*nets[name], norm, ours) for name in NETS for norm in NORMS}
    lines = [
        "| without | " + " | ".join(NORMS) + " | larger in |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    for part, config in {**parts(), "everything: the paper's attack instead": None}.items():
        cells, worse, count = [], 0, 0
        for norm in NORMS:
            if "l0 only" in part and norm != "l0":
                cells.append("")
                continue
            paper = catalogue.prepared("pdpgd", norm, budget=options.budget, max_batch=256)
            attack = paper if config is None else partial(ours, config=config)
            ratios = [mean(*nets[name], norm, attack) / whole[name, norm] for name in NETS]
            count += len(ratios)
            worse += sum(ratio > 1 for ratio in ratios)
            cells.append(" / ".join(f"{ratio:.3f}" if math.isfinite(ratio) else "not all" for ratio in ratios))
        lines.append(f"| {part} | " + " | ".join(cells) + f" | {worse} of {count} |")
        print(lines[-1], flush=True)
    if options.table:
        first, last = options.samples
        heading = (
            "# What each part of auto contributes\n\nWritten by `make bench-auto`. Mean distance without a part, "
            f"relative to that of the complete attack: {options.budget} passes, images {first} to {last - 1}, mean "
            f"over seeds {' and '.join(map(str, SEEDS))}. Each cell shows {' / '.join(NETS)}. A ratio above 1 means "
            "that the part helps; the last column counts these.\n\n"
        )
        options.table.write_text(heading + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
