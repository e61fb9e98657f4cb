"""The solver beside the public attacks: same images, same passes.

    make bench-peers

The peers run at their authors' settings (the shared `peers.py`), ours as `pdpgd.auto` with nothing but a budget. Every
returned point is judged again by the shared harness. Finished rows are kept in `--out`, so a run that was stopped goes
on. A row counts for the versions that made it: a row of ours for the source code of the package, a row of a peer for
the version of adv-lib. An attack that raised an error has a row, too; delete its line to run it again. `--table` writes
the report of docs/peers.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

import pdpgd
import peers_report
import shared_zoo
from pdpgd.files import replace_file
from peers_report import OURS, PAPER, Plan, Row
from source_code import fingerprint

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
Key = tuple[str, str, int, str, str]

ROWS = pathlib.Path(__file__).parent / "rows" / "peers.json"
NORMS = ("linf", "l2", "l1", "l0")


@dataclass(frozen=True)
class Images:
    """What is measured on a data set: images from a position to another, and budgets."""

    first: int
    last: int
    budgets: tuple[int, ...]


IMAGES = {
    "mnist": Images(0, 100, (200, 1000)),
    "cifar10": Images(0, 100, (200, 1000)),
    "imagenet": Images(0, 20, (200,)),
}
# In the order of measuring; those without a hyphen were trained by others.
DATA = {
    **dict.fromkeys(("mnist-plain", "mnist-linf-at", "mnist-l2-at", "lenet5_cln", "smallcnn_ddn"), "mnist"),
    "efficientnet_lite0": "imagenet",
    **dict.fromkeys(("cifar10-plain", "cifar10-linf-at", "cifar10-l2-at", "cifar_resnet20"), "cifar10"),
}
# Nets with misleading gradients, where the paper's attack has ten restarts and a fine-tuning: 11,000 passes.
MISLEADING = ("mnist-linf-at", "cifar10-linf-at")
RESTARTS_BESIDE = 1000
SEED = 0


def plans(options: argparse.Namespace) -> Iterator[Plan]:
    """The cells that were asked for."""
    for model in options.models:
        data = DATA[model]
        first, last = options.samples or (IMAGES[data].first, IMAGES[data].last)
        for norm in options.norms:
            for budget in options.budgets or IMAGES[data].budgets:
                plan = Plan(data, model, norm, budget, first, last)
                yield replace(plan, attacks=tuple(contestants(plan, restarts=options.with_restarts)))


def contestants(plan: Plan, *, restarts: bool) -> dict[str, Attack]:
    """Our solver comes last, so that it can be measured again beside the rows that are kept."""
    # A gradient step of the peers is one forward and one backward pass.
    attacks: dict[str, Attack] = dict(shared_zoo.load("peers").advlib(plan.budget // 2, plan.data)[plan.norm])
    if restarts and plan.model in MISLEADING and plan.budget == RESTARTS_BESIDE:
        attacks[PAPER] = papers_attack(plan.data, plan.norm)
    return attacks | {OURS: ours(plan.norm, plan.budget)}


def papers_attack(data: str, norm: str) -> Attack:
    """The authors' rates, with the departures of our defaults: smaller on most nets than what they released."""
    config: Any = replace(pdpgd.paper_config(data, norm, "linf-at", restarts=10), keras_adam=False)
    config = config if norm == "l2" else replace(config, project_first=True)
    attack: Any = pdpgd.pdgd if norm == "l2" else pdpgd.pdpgd
    return lambda net, inputs, labels: attack(net, inputs, labels, norm=norm, seed=SEED, config=config).adversarials


def ours(norm: str, budget: int) -> Attack:
    return lambda net, inputs, labels: pdpgd.auto(net, inputs, labels, norm=norm, seed=SEED, budget=budget).adversarials


@functools.cache
def made_by(*, own: bool) -> dict[str, str]:
    """The versions that a row counts for. The build of torch (+cpu) is left out."""
    code = {"pdpgd": fingerprint()} if own else {"adv-lib": version("adv-lib")}
    return {**code, "torch": torch.__version__.split("+")[0]}


def is_current(row: Row) -> bool:
    return bool(row["made_by"] == made_by(own=row["attack"] in (OURS, PAPER)))


def key_of(row: Row) -> Key:
    """What a row is about. Rows are stored in the order of their keys, whatever the order of measuring."""
    return (row["model"], row["norm"], row["budget"], row["images"], row["attack"])


def read_rows(path: pathlib.Path) -> dict[Key, Row]:
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    return {key_of(row): row for row in rows}


def keep(path: pathlib.Path, row: Row) -> None:
    """Add a row to those of the file, which another run may have extended meanwhile; one row per line."""
    rows = {**read_rows(path), key_of(row): row}
    lines = (json.dumps(rows[key], separators=(",", ":"), allow_nan=False) for key in sorted(rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())


@functools.lru_cache(maxsize=1)
def subject(name: str, first: int, last: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A net and those of its images that it classifies correctly."""
    return shared_zoo.net_and_images(name, DATA[name], first, last)


def measure(plan: Plan, name: str, attack: Attack) -> Row:
    """A row: the distances, null where nothing was found, or the error that the attack raised."""
    model, inputs, labels = subject(plan.model, plan.first, plan.last)
    row = {**plan.about(name), "made_by": made_by(own=name in (OURS, PAPER))}
    torch.manual_seed(SEED)  # the peers draw from the global state
    try:
        result = shared_zoo.load("harness").measure(attack, model, inputs, labels, plan.norm)
    except Exception as error:
        return {**row, "error": f"{type(error).__name__}: {error}"}
    return {
        **row,
        "passes": round(result["forwards"] + result["backwards"], 1),
        "seconds": round(result["seconds"], 1),
        "distances": [float(f"{d:.6g}") if math.isfinite(d) else None for d in result["norms"].tolist()],
    }


def run(plan: Plan, options: argparse.Namespace) -> None:
    """Measure the attacks of a cell that have no current row."""
    for name, attack in contestants(plan, restarts=options.with_restarts).items():
        if options.only in ("report", "rivals" if name == OURS else "ours"):
            continue
        kept = read_rows(options.out).get(key_of(plan.about(name)))
        if kept and is_current(kept):
            continue
        row = measure(plan, name, attack)
        keep(options.out, row)
        print(" | ".join(map(str, key_of(row))), peers_report.summary(row), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=DATA, default=list(DATA), metavar="MODEL")
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--budgets", nargs="+", type=int, help="default: 200 and 1000, on ImageNet 200 alone")
    parser.add_argument("--samples", nargs=2, type=int, help="default: 0 100, on ImageNet 0 20")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("ours", "rivals", "report"), help="measure these alone, or nothing (report)")
    parser.add_argument("--with-restarts", action="store_true", help="also run the paper's attack with ten restarts")
    parser.add_argument("--out", type=pathlib.Path, default=ROWS, help="finished rows")
    parser.add_argument("--table", type=pathlib.Path, help="a Markdown file for the report on these models and norms")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    planned = list(plans(options))
    for plan in planned:
        run(plan, options)

    rows = [row for row in read_rows(options.out).values() if is_current(row)]
    report = peers_report.report(rows, planned, seed=SEED)
    print(report)
    if options.table:
        options.table.write_text(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
