"""Ablation of `auto`: the mean distance without a part divided by that with it, at an equal budget.

    make bench-auto

Measured on images that `auto` was tuned on, with the shipped nets and one that others trained. A part is removed by
giving its passes to the others; a ratio above 1 means that the part helps. Parts that serve the question about a radius
are measured by the number of samples that withstand it. Finished rows are kept in `--out`, so a run that was stopped
goes on; a row counts for the source code that made it.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import shared_zoo
from pdpgd import auto
from pdpgd.attacks import catalogue
from pdpgd.attacks.auto_config import HOPPING, NEAR, STEADY, AutoConfig, BallRule, Tactic, TrustRule
from source_code import fingerprint

NORMS = ("linf", "l2", "l1", "l0")
NETS = {
    **dict.fromkeys(("mnist-plain", "mnist-linf-at", "mnist-l2-at"), "mnist"),
    **dict.fromkeys(("cifar10-plain", "cifar10-linf-at", "cifar_resnet20"), "cifar10"),
}
FIRST = {"mnist": 900, "cifar10": 300}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
RADII = {"mnist": {"linf": 0.3, "l2": 2.0}, "cifar10": {"linf": 8 / 255, "l2": 0.5}}
# Nets on which some samples withstand the usual radii.
HARD = ("mnist-linf-at", "mnist-l2-at", "cifar10-linf-at")
WHOLE = AutoConfig()
FAR = replace(NEAR, name="far", start="random")


@dataclass(frozen=True)
class Part:
    """A part of `auto`, the settings that remove it, and the norms in which it plays a role."""

    name: str
    without: AutoConfig | None
    """None: the paper's attack takes the place of `auto`."""
    norms: tuple[str, ...] = NORMS


def _tactics(change: Callable[[Tactic], Tactic]) -> AutoConfig:
    """Change every tactic."""
    first, then = (tuple(change(tactic) for tactic in tactics) for tactics in (WHOLE.first, WHOLE.then))
    start, hop, polish = (change(tactic) for tactic in (WHOLE.local_start, WHOLE.local_hop, WHOLE.polish))
    return replace(WHOLE, first=first, then=then, local_start=start, local_hop=hop, polish=polish)


def _instead(old: Tactic, new: Tactic) -> tuple[Tactic, ...]:
    """Return the first tactics with one of them replaced by another."""
    return tuple(new if tactic == old else tactic for tactic in WHOLE.first)


def _styles(**settings: Any) -> AutoConfig:
    """Change the styles of every tactic."""

    def change(tactic: Tactic) -> Tactic:
        sparse = None if tactic.sparse is None else replace(tactic.sparse, **settings)
        style, counting = (replace(style, **settings) for style in (tactic.style, tactic.counting))
        return replace(tactic, style=style, counting=counting, sparse=sparse)

    return _tactics(change)


PARTS = (
    Part("chosen classes", replace(WHOLE, rank_from=sys.maxsize)),
    Part("steady descents (near descents instead)", replace(WHOLE, first=_instead(STEADY, NEAR))),
    Part("near descents (steady descents instead)", replace(WHOLE, first=_instead(NEAR, STEADY))),
    Part("early hop (a far descent instead)", replace(WHOLE, first=_instead(HOPPING, FAR))),
    Part("hops (steady and near descents instead)", replace(WHOLE, first=_instead(HOPPING, FAR), then=(STEADY, NEAR))),
    Part(
        "staying near where random starts end far out",
        replace(WHOLE, far_limit=math.inf, random_limit=0.0, counting_random_limit=0.0),
    ),
    Part("short descents (twice the length instead)", replace(WHOLE, min_descent_steps=2 * WHOLE.min_descent_steps)),
    Part("longer descents where they progress", replace(WHOLE, extension_gain=0.999, extension_limit=1)),
    Part("running mean of the gradient", _styles(memory=0.0)),
    Part("adaptive trust", _styles(adaptive=False)),
    Part("smaller trust in l1", _tactics(lambda tactic: replace(tactic, sparse=None)), ("l1",)),
    Part("less trust in the start of l0", replace(WHOLE, relaxed_trust=TrustRule()), ("l0",)),
    Part("overshoot", _styles(overshoot=0.0)),
    Part("polish", replace(WHOLE, polish_share=0.0, counting_polish_share=0.0)),
    Part("start in l1", _tactics(lambda tactic: replace(tactic, relaxed=0.0)), ("l0",)),
    Part("pruning", replace(WHOLE, pruning_passes=0), ("l0",)),
    Part("everything: the paper's attack instead", None),
)
AT_A_RADIUS = (
    Part("nothing", WHOLE),
    Part("climbs inside the ball", replace(WHOLE, ball=BallRule(share=0.0))),
    Part("queries without gradients", replace(WHOLE, ball=BallRule(query_from=sys.maxsize))),
)


@dataclass
class Ablation:
    """Measures, and keeps what is measured."""

    options: argparse.Namespace
    rows: dict[str, float] = field(default_factory=dict)
    nets: dict[str, tuple[nn.Module, Tensor, Tensor]] = field(default_factory=dict)

    def net_and_images(self, name: str) -> tuple[nn.Module, Tensor, Tensor]:
        """Return a net and those of its images that it classifies correctly, loaded once."""
        if name not in self.nets:
            data = NETS[name]
            self.nets[name] = shared_zoo.net_and_images(name, data, FIRST[data], FIRST[data] + self.options.images)
        return self.nets[name]

    def row(self, part: str, net: str, norm: str, seed: int, budget: int, make: Callable[[], float]) -> float:
        """Return a number that is kept, and make it first if it is not."""
        key = " | ".join(map(str, (fingerprint(), part, net, norm, seed, budget, self.options.images)))
        if key not in self.rows:
            self.rows[key] = make()
            self.options.out.parent.mkdir(parents=True, exist_ok=True)
            self.options.out.write_text(json.dumps(self.rows, indent=0))
        return self.rows[key]

    def mean(self, part: str, config: AutoConfig | None, net: str, norm: str) -> float:
        """Return the mean distance over samples and seeds."""
        model, inputs, labels = self.net_and_images(net)
        budget = self.options.budget

        def measure(seed: int) -> float:
            if config is None:
                attack: Any = catalogue.prepared("pdpgd", norm, budget=budget, max_batch=256)
                return float(attack(model, inputs, labels, norm=norm, seed=seed).distances.mean())
            result = auto(model, inputs, labels, norm=norm, budget=budget, config=config, seed=seed)
            return float(result.distances.mean())

        return statistics.mean(
            self.row(part, net, norm, seed, budget, partial(measure, seed)) for seed in self.options.seeds
        )

    def robust(self, part: str, config: AutoConfig | None, net: str, norm: str) -> int:
        """Return how many samples withstand the usual radius, for the first seed."""
        model, inputs, labels = self.net_and_images(net)
        radius, seed, budget = RADII[NETS[net]][norm], self.options.seeds[0], self.options.radius_budget

        def measure() -> float:
            call: dict[str, Any] = {"norm": norm, "radius": radius, "seed": seed, "config": config}
            found = auto(model, inputs, labels, budget=budget, **call).fooled
            assert found is not None
            return int((~found).sum())

        return int(self.row(f"{part} at a radius", net, norm, seed, budget, measure))

    def distances(self) -> list[str]:
        """Return the table of the parts that make distances smaller."""
        nets = self.options.nets
        lines = [f"| without | {' | '.join(NORMS)} | larger in |", f"|{' --- |' * (2 + len(NORMS))}"]
        for part in PARTS:
            cells, worse, count = [], 0, 0
            for norm in NORMS:
                if norm not in part.norms:
                    cells.append("")
                    continue
                ratios = [
                    self.mean(part.name, part.without, net, norm) / self.mean("nothing", WHOLE, net, norm)
                    for net in nets
                ]
                count, worse = count + len(ratios), worse + sum(ratio > 1 for ratio in ratios)
                cells.append(" / ".join(f"{ratio:.3f}" if math.isfinite(ratio) else "not all" for ratio in ratios))
            lines.append(f"| {part.name} | {' | '.join(cells)} | {worse} of {count} |")
            print(lines[-1], flush=True)
        return lines

    def at_a_radius(self) -> list[str]:
        """Return the table of the parts that serve the question about a radius."""
        cells = [(net, norm) for net in self.options.nets if net in HARD for norm in ("linf", "l2")]
        if not cells:
            return ["None of the nets withstands the usual radii."]
        lines = [
            f"| without | {' | '.join(f'{net} {norm}' for net, norm in cells)} |",
            f"|{' --- |' * (1 + len(cells))}",
        ]
        for part in AT_A_RADIUS:
            counts = (str(self.robust(part.name, part.without, *cell)) for cell in cells)
            lines.append(f"| {part.name} | {' | '.join(counts)} |")
            print(lines[-1], flush=True)
        return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--radius-budget", type=int, default=2000, help="passes where a radius is asked about")
    parser.add_argument("--images", type=int, default=60, help="images per net (%(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/auto_parts.json"), help="finished rows")
    parser.add_argument("--table", type=pathlib.Path, help="a Markdown file for the tables")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ablation = Ablation(options, json.loads(options.out.read_text()) if options.out.exists() else {})
    distances, radii = ablation.distances(), ablation.at_a_radius()
    if options.table:
        spans = (f"{first} to {first + options.images - 1} of {TITLES[data]}" for data, first in FIRST.items())
        seeds = f"seed {options.seeds[0]}" if len(options.seeds) == 1 else f"seeds {options.seeds}".strip("[]")
        text = [
            "# What each part of auto contributes",
            "",
            "Written by `make bench-auto`, on images that `auto` was tuned on: " + ", ".join(spans) + ".",
            "",
            "## Distances",
            "",
            f"Mean distance without a part, relative to that of the complete attack: {options.budget} passes, {seeds}.",
            f"Each cell shows {' / '.join(options.nets)}. A ratio above 1 means that the part helps; the last column",
            "counts these.",
            "",
            *distances,
            "",
            "## At a radius",
            "",
            f"Samples that withstand the usual radius, {options.radius_budget} passes, seed {options.seeds[0]}. Fewer",
            "is better: a part helps where the number without it is larger than in the first line.",
            "",
            *radii,
            "",
        ]
        options.table.write_text("\n".join(text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
