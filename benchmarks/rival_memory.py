"""Measure the peak memory of CornerSearch and JSMA on one image of 3 x 224 x 224, including torch itself.

    python benchmarks/rival_memory.py [--forwards 1000] [--steps 10]

Each attack runs in its own process. Without the options, CornerSearch tries every single-pixel change (401408 points),
and JSMA runs until a class is reached.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import nn

from pdpgd.attacks.frame import Framed, Method
from pdpgd.baselines.corner_search import CornerSearch
from pdpgd.baselines.jsma import JSMA

LIMIT = 2.0  # GiB
# Three quarters of it pay for every single-pixel change: 8 corners for each of 224 x 224 pixels.
EVERY_CHANGE = 535_211
NAMES = ("corner-search", "jsma")


def small_net() -> nn.Module:
    """Create a net of ten classes with seeded weights, without changing the random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 8, stride=8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 4, stride=4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 49, 10),
        ).eval()


def method(name: str, forwards: int | None, steps: int | None) -> Method:
    """Create one of the two attacks."""
    return CornerSearch(forwards=forwards) if name == "corner-search" else JSMA(steps=steps)


def run(name: str, forwards: int | None, steps: int | None) -> dict[str, float | str]:
    """Attack the image in this process, and return its peak memory, time and result."""
    torch.set_num_threads(1)
    model = small_net()
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    label = model(image).argmax(1)
    attack = Framed(name, ("l0",), lambda classes: method(name, forwards, steps))
    begin = time.perf_counter()
    result = attack(model, image, label, norm="l0")
    return {
        "attack": name,
        "GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "seconds": time.perf_counter() - begin,
        "forwards": int(result.forwards),
        "pixels": float(result.distances),
    }


def main() -> int:
    """Run both attacks, and check their peak memory against the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--forwards",
        type=int,
        default=EVERY_CHANGE,
        help="maximum number of forward passes of CornerSearch (%(default)s)",
    )
    parser.add_argument("--steps", type=int, help="maximum number of iterations of JSMA")
    parser.add_argument("--here", choices=NAMES, help="run this attack in this process, and print JSON")
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(run(chosen.here, chosen.forwards, chosen.steps)))
        return 0
    within = True
    for name in NAMES:
        outcome = subprocess.run(
            [sys.executable, __file__, "--here", name, *sys.argv[1:]], capture_output=True, text=True, check=True
        )
        measured = json.loads(outcome.stdout)
        within &= measured["GiB"] < LIMIT
        print(
            f"{name}: {measured['GiB']:.2f} GiB (limit {LIMIT}), {measured['seconds']:.1f} s, "
            f"{measured['forwards']} forward passes, {measured['pixels']:g} pixels"
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
