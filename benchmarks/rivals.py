"""Compare the baselines on images of MNIST: success, mean distance, passes and seconds of each.

    make bench-rivals

The twelve baselines of the paper run with its settings, shortened where two cores would need hours; a second
implementation in another library follows its first. Later attacks, and ours, have 1000 passes. Attacks within a radius
search over the radius. Every point is judged again here. Finished rows are stored in `--out`, so an interrupted run
resumes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

import torch
from torch import Tensor, nn

import shared_zoo
from pdpgd.attacks.catalogue import ATTACKS, paper_settings, prepared
from pdpgd.classifier import Counted
from pdpgd.models.loading import load_model
from pdpgd.norms import norm_of

NORMS = ("linf", "l2", "l1", "l0")
TWELVE = (
    *("bb", "cw", "corner-search", "ddn", "deepfool", "daa"),
    *("ead", "fab", "jsma", "one-pixel", "pgd", "sparsefool"),
)
BUDGET = 1000
# Departures from the paper's settings, to save time: the paper runs 1000 steps of B&B, 9 x 10,000 of C&W and EAD,
# 10,000 of DDN, 500 of PGD and DAA at each of five radii, and 400 x 100 candidates of One-Pixel.
CUT: dict[str, dict[str, Any]] = {
    "bb": {"steps": 200},
    "cw": {"steps": 200},
    "ddn": {"steps": 1000},
    "daa": {"steps": 50, "evaluations": 10},
    "ead": {"steps": 100},
    "one-pixel": {"population": 100, "generations": 10, "evaluations": 8},
    "pgd": {"steps": 50, "evaluations": 10},
}
# Second implementations, with the same settings as far as the library has them.
SECOND: dict[str, dict[str, Any]] = {
    "cw@adv-lib": {"binary_search_steps": 9, "steps": 200, "stepsize": 0.01, "initial_const": 0.01},
    "ddn@foolbox": {"steps": 1000},
    "deepfool@foolbox": {"steps": 100, "overshoot": 0.02},
    "deepfool@art": {"steps": 100, "overshoot": 0.02},
    "ead@art": {"binary_search_steps": 9, "steps": 100, "initial_stepsize": 0.01, "initial_const": 0.01},
    "jsma@art": {"gamma": 1.0, "theta": 1.0},
    "one-pixel@art": {"steps": 2, "evaluations": 8},
    "pgd@adv-lib": {"steps": 50, "evaluations": 10},
}
Row = dict[str, Any]


def settings_of(name: str, norm: str) -> dict[str, Any] | None:
    """Return the settings of an attack; None if it has a budget instead."""
    if name in TWELVE:
        return {**paper_settings(name, "mnist", norm, "plain"), **CUT.get(name, {})}
    return SECOND.get(name)


def measure(name: str, norm: str, model: nn.Module, inputs: Tensor, labels: Tensor) -> Row:
    """Run an attack, judge its points again, and return the row of the table."""
    settings, counted = settings_of(name, norm), Counted(model)
    budget = BUDGET if settings is None else None
    attack = prepared(name, norm, budget=budget, settings=settings, max_batch=100)
    begin = time.perf_counter()
    result = attack(counted, inputs, labels, norm=norm)
    seconds = time.perf_counter() - begin
    points = result.adversarials
    with torch.no_grad():
        fooled = (model(points).argmax(1) != labels) & ((points >= 0) & (points <= 1)).flatten(1).all(1)
    size = norm_of(norm).size(points.double() - inputs.double())
    return {
        "attack": name,
        "norm": norm,
        "settings": f"{BUDGET} passes" if settings is None else _described(settings),
        "samples": len(labels),
        "found": int(fooled.sum()),
        "claimed": int(result.found.sum()),
        "broken": len(result.faults),
        "mean": float(size[fooled].mean()) if bool(fooled.any()) else None,
        "median": float(size[fooled].median()) if bool(fooled.any()) else None,
        "passes": (counted.forwards + counted.backwards) / len(labels),
        "seconds": seconds,
    }


def _described(settings: dict[str, Any]) -> str:
    """Describe settings in one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def names_of(norm: str) -> list[str]:
    """List the attacks for a norm: ours, the twelve, each followed by its second implementations, and the others."""
    able = [name for name, info in ATTACKS.items() if info.can_do(norm) and name != "auto-shared"]
    order = [name for name in able if name in ("auto", "pdpgd")]
    for name in TWELVE:
        order += [other for other in able if other.partition("@")[0] == name]
    return order + [name for name in able if name not in order and name != "pdgd"]


def table(rows: list[Row]) -> str:
    """Format rows as a Markdown table."""
    lines = [
        "| norm | attack | settings | success | mean | median | passes | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        distances = [f"{row[name]:.4g}" if row[name] is not None else "-" for name in ("mean", "median")]
        broken = f" ({row['broken']} broke)" if row["broken"] else ""
        cells = (
            *(row["norm"], row["attack"], row["settings"], f"{row['found']}/{row['samples']}{broken}"),
            *distances,
            *(f"{row['passes']:,.0f}", f"{row['seconds']:.1f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="lenet5_cln", help="a shared model, or a net shipped with the package (%(default)s)"
    )
    parser.add_argument("--norms", nargs="+", default=list(NORMS))
    parser.add_argument("--attacks", nargs="+", help="names of attacks (default: all)")
    parser.add_argument("--samples", nargs=2, type=int, default=[0, 50])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/rivals.json"), help="file of finished rows (%(default)s)"
    )
    parser.add_argument("--table", type=pathlib.Path, help="Markdown file to write the table to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    zoo = shared_zoo.load("zoo")
    shared = options.model in shared_zoo.MODELS
    model = zoo.load(options.model) if shared else load_model(options.model).requires_grad_(False)
    inputs, labels = zoo.mnist(*options.samples)
    with torch.no_grad():
        correct = model(inputs).argmax(1) == labels
    inputs, labels = inputs[correct], labels[correct]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = json.loads(options.out.read_text()) if options.out.exists() else {}
    wanted = []
    for norm in options.norms:
        for name in names_of(norm):
            if options.attacks and name not in options.attacks:
                continue
            key = f"{options.model} | {options.samples} | {norm} | {name}"
            wanted.append(key)
            if key not in rows:
                rows[key] = measure(name, norm, model, inputs, labels)
                options.out.write_text(json.dumps(rows, indent=0))
                print(table([rows[key]]).splitlines()[-1], flush=True)
    text = table([rows[key] for key in wanted])
    print(text)
    if options.table:
        options.table.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
