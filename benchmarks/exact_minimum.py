"""`auto` beside the exact minimum on small ReLU nets.

    make bench-exact

The script trains each net itself, on embedded MNIST images from 100 on, and attacks the first correctly classified ones
before them. `relu_programs` finds the exact minimum by mixed-integer programming, from the distance that `auto` reached
downwards. Everything is computed in float64. Finished rows are kept in `--out`, so a run that was stopped goes on:
exact distances for the weights that they belong to, those of `auto` for the source code that made them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pdpgd
from pdpgd.data.loading import load_data
from relu_programs import NORMS, Exact, ReluNet, exact_minimum
from source_code import fingerprint

BUDGETS = (200, 1000)
SEED = 0
TRAIN_FROM = 100
# Within this share of the exact distance an attack counts as exact.
EXACT = 1e-3

Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A trained net with the images to attack."""

    name: str
    model: nn.Sequential
    inputs: Tensor
    labels: Tensor

    @property
    def key(self) -> str:
        """Identify the net by its name and its weights, which another processor may train to other last bits."""
        digest = hashlib.sha256()
        for value in self.model.state_dict().values():
            digest.update(value.numpy().tobytes())
        return f"{self.name} {digest.hexdigest()[:8]}"


def images(side: int) -> tuple[Tensor, Tensor]:
    """Return the embedded images in float64, averaged over squares of pixels if they are to be smaller."""
    inputs, labels = load_data("mnist-1000").batch(range(1000))
    return F.avg_pool2d(inputs.double(), 28 // side), labels


def train(widths: list[int], side: int, seed: int, inputs: Tensor, labels: Tensor) -> nn.Sequential:
    """Train a dense ReLU net with Adam and a little weight decay."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in zip([side * side, *widths], widths, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 10)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    for _ in range(60):
        for batch in torch.randperm(len(inputs)).view(-1, 100):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(inputs[batch]), labels[batch]))
            optimizer.step()
    return model.requires_grad_(False).eval()


def subject(net: str, side: int, seed: int, count: int) -> Subject:
    """Train a net, written as its widths ("12-12"), and pick the first images that it classifies correctly."""
    inputs, labels = images(side)
    model = train([int(width) for width in net.split("-")], side, seed, inputs[TRAIN_FROM:], labels[TRAIN_FROM:])
    inputs, labels = inputs[:TRAIN_FROM], labels[:TRAIN_FROM]
    correct = (model(inputs).argmax(1) == labels).nonzero().flatten()[:count]
    name = f"{net} at {side}x{side}" + (f", seed {seed}" if seed else "")
    return Subject(name, model, inputs[correct], labels[correct])


class Rows:
    """Finished rows in a JSON file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, key: str, make: Callable[[], Row]) -> Row:
        """Return a row, and make it first if there is none."""
        if key not in self.rows:
            self.rows[key] = make()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rows, indent=0))
        return self.rows[key]


def attack(this: Subject, norm: str, budget: int) -> Row:
    result = pdpgd.auto(this.model, this.inputs, this.labels, norm=norm, budget=budget, seed=SEED)
    return {"distances": result.distances.tolist()}


def solve(this: Subject, number: int, norm: str, *, within: float, seconds: float) -> Row:
    """Return the exact minimum of one image."""
    exact: Exact = exact_minimum(
        ReluNet.of(this.model),
        this.inputs[number].flatten().numpy(),
        int(this.labels[number]),
        norm,
        within=within,
        seconds=seconds,
    )
    return {"distance": exact.distance, "bound": exact.bound, "seconds": exact.seconds}


def line(this: Subject, norm: str, attacked: dict[int, list[float]], exact: list[Row]) -> str:
    """Write one row of the table: per budget the ratio of the means, how many images are exact, the largest ratio."""
    # A later version of the attack may reach what the solver, given less time, did not.
    reached = [min(row["distance"], *values) for row, *values in zip(exact, *attacked.values(), strict=True)]
    open_gaps = sum(row["bound"] < (1 - EXACT / 10) * row["distance"] for row in exact)
    cells = []
    for distances in attacked.values():
        ratios = [far / near for far, near in zip(distances, reached, strict=True)]
        ratio = statistics.mean(distances) / statistics.mean(reached)
        cells.append(f"{ratio:.4f} | {sum(r <= 1 + EXACT for r in ratios)} of {len(ratios)} | {max(ratios):.3f}")
    seconds = sum(row["seconds"] for row in exact)
    return (
        f"| {this.name} | {norm} | {statistics.mean(reached):.4f} | {' | '.join(cells)} | {seconds:.0f} | {open_gaps} |"
    )


def measure(this: Subject, norm: str, rows: Rows, source: str, *, seconds: float) -> str:
    """Attack and solve, unless that was done before, and return the row of the table."""
    key = f"{this.key} {norm} {len(this.labels)}"
    attacked: dict[int, list[float]] = {}
    for budget in BUDGETS:
        row = rows.get(f"auto {budget} {source} {key}", partial(attack, this, norm, budget))
        attacked[budget] = row["distances"]
    exact = [
        rows.get(f"exact {number} {key}", partial(solve, this, number, norm, within=far, seconds=seconds))
        for number, far in enumerate(attacked[max(BUDGETS)])
    ]
    return line(this, norm, attacked, exact)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=["20", "12-12"], help="widths of the hidden layers (%(default)s)")
    parser.add_argument("--norms", nargs="+", default=list(NORMS), choices=NORMS)
    parser.add_argument("--side", type=int, default=28, choices=[7, 14, 28], help="pixels per side (%(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of the training (%(default)s)")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of the solver per image and class")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/exact.json"), help="finished rows")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, source = Rows(options.out), fingerprint()
    budgets = " | ".join(f"ratio, {budget} passes | exact within 0.1 % | largest ratio" for budget in BUDGETS)
    table = [f"| net | norm | exact mean | {budgets} | seconds of the solver | not proved |"]
    table.append("| --- " * (5 + 3 * len(BUDGETS)) + "|")
    for net, seed in product(options.nets, options.seeds):
        this = subject(net, options.side, seed, options.images)
        for norm in options.norms:
            table.append(measure(this, norm, rows, source, seconds=options.seconds))
            print(table[-1], flush=True)
    # Whole at the end: HiGHS may print lines of its own between the rows.
    print("", *table, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
