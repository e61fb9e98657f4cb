"""The solver beside the public attacks: same images, same passes, one run.

    make bench-peers

The peers run at their authors' settings (the shared `peers.py`), ours as `pdpgd.auto` with nothing but a budget. Every
returned point is judged again by the shared harness. Finished rows are kept in `--out`, so a run that was stopped goes
on; a row of ours counts only for the source code that made it. `--table` writes the report of docs/peers.md.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import pdpgd
import peers_report
import shared_zoo
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model
from source_code import fingerprint

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
Row = dict[str, Any]

NORMS = ("linf", "l2", "l1", "l0")
MNIST_NETS = (*shared_zoo.MODELS, "mnist-plain", "mnist-linf-at", "mnist-l2-at")
BUDGETS = (200, 1000)
# Nets with misleading gradients, where the paper's attack has ten restarts and a fine-tuning: 11,000 passes.
MISLEADING = ("mnist-linf-at", "cifar10-linf-at")
PAPER = peers_report.PAPER
SEED = 0


@dataclass(frozen=True)
class Cell:
    """One model and norm at one budget, and who plays there."""

    model: str
    norm: str
    budget: int
    with_peers: bool


def cells(models: list[str], norms: list[str], budgets: list[int]) -> Iterator[Cell]:
    for model in models:
        for norm in norms:
            for budget in budgets:
                # What the paper's attack is held against on CIFAR-10 is the larger budget alone.
                if model in MNIST_NETS or budget == max(BUDGETS):
                    yield Cell(model, norm, budget, with_peers=model in MNIST_NETS)


def papers_attack(model: str, norm: str) -> Attack:
    """The authors' rates, with the departures of our defaults: smaller on most nets than what they released."""
    dataset = "cifar10" if model.startswith("cifar10") else "mnist"
    config: Any = replace(pdpgd.paper_config(dataset, norm, "linf-at", restarts=10), keras_adam=False)
    config = config if norm == "l2" else replace(config, project_first=True)
    attack: Any = pdpgd.pdgd if norm == "l2" else pdpgd.pdpgd
    return lambda net, inputs, labels: attack(net, inputs, labels, norm=norm, seed=SEED, config=config).adversarials


def ours(norm: str, budget: int) -> Attack:
    return lambda net, inputs, labels: pdpgd.auto(net, inputs, labels, norm=norm, seed=SEED, budget=budget).adversarials


def contestants(cell: Cell, *, rivals: bool) -> dict[str, Attack]:
    """Our solver comes last, so that it can be measured again beside the rows that are kept."""
    attacks: dict[str, Attack] = {}
    if cell.with_peers and rivals:
        attacks |= shared_zoo.load("peers").advlib(cell.budget // 2)[cell.norm]
    if cell.model in MISLEADING and cell.budget == max(BUDGETS) and rivals:
        attacks[PAPER] = papers_attack(cell.model, cell.norm)
    return attacks | {peers_report.OURS: ours(cell.norm, cell.budget)}


def subject(name: str, first: int, last: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A net and those of its images that it gets right."""
    zoo = shared_zoo.load("zoo")
    model = zoo.load(name) if name in shared_zoo.MODELS else load_model(name).requires_grad_(False)
    if name.startswith("cifar10"):
        inputs, labels = load_data("cifar10").batch(torch.arange(first, last))
    else:
        inputs, labels = zoo.mnist(first, last)
    with torch.no_grad():
        right = model(inputs).argmax(1) == labels
    return model, inputs[right], labels[right]


def measure(attack: Attack, model: nn.Module, inputs: Tensor, labels: Tensor, norm: str) -> Row:
    torch.manual_seed(SEED)  # the peers draw from the global state
    result = shared_zoo.load("harness").measure(attack, model, inputs, labels, norm)
    return {
        "distances": result["norms"].tolist(),
        "passes": result["forwards"] + result["backwards"],
        "seconds": result["seconds"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MNIST_NETS, "cifar10-linf-at"])
    parser.add_argument("--norms", nargs="+", default=list(NORMS))
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS))
    parser.add_argument("--samples", nargs=2, type=int, default=[0, 100])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("ours", "rivals"), help="measure these alone, and leave the rest for later")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/peers.json"), help="finished rows")
    parser.add_argument("--table", type=pathlib.Path, help="a Markdown file for the report")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = json.loads(options.out.read_text()) if options.out.exists() else {}
    code = fingerprint()

    for cell in cells(options.models, options.norms, options.budgets):
        model, inputs, labels = subject(cell.model, *options.samples)
        for name, attack in contestants(cell, rivals=options.only != "ours").items():
            mine = name == peers_report.OURS
            key = " | ".join((cell.model, cell.norm, str(cell.budget), name))
            kept = rows.get(key)
            if (mine and options.only == "rivals") or (kept and (not mine or kept["code"] == code)):
                continue
            row = measure(attack, model, inputs, labels, cell.norm)
            rows[key] = {**vars(cell), "attack": name, "code": code, **row}
            options.out.write_text(json.dumps(rows, indent=0))
            print(
                key,
                peers_report.summary(row["distances"]),
                f"{row['passes']:.0f} passes {row['seconds']:.0f} s",
                flush=True,
            )

    report = peers_report.report(list(rows.values()), options.samples)
    print(report)
    if options.table:
        options.table.write_text(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
