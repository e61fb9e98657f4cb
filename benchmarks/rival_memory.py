"""Peak memory of CornerSearch and JSMA on one image of 3 x 224 x 224, torch itself included.

    python benchmarks/rival_memory.py [--forwards 1000] [--steps 10]

Each attack runs in a process of its own. Without the options, CornerSearch tries every change of one pixel (401408
points) and JSMA moves on until a class is reached.
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
# Three quarters of it pay for every change of one pixel, 8 corners each of 224 x 224.
EVERY_CHANGE = 535_211
NAMES = ("corner-search", "jsma")


def small_net() -> nn.Module:
    """Ten classes, from seeded weights; no random state is touched."""
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
    return CornerSearch(forwards=forwards) if name == "corner-search" else JSMA(steps=steps)


def run(name: str, forwards: int | None, steps: int | None) -> dict[str, float | str]:
    """Attack the image here, and tell what this process came to."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forwards", type=int, default=EVERY_CHANGE, help="the most forward passes of CornerSearch")
    parser.add_argument("--steps", type=int, help="the most iterations of JSMA")
    parser.add_argument("--here", choices=NAMES, help="run this one in this process, and answer in JSON")
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(run(chosen.here, chosen.forwards, chosen.steps)))
        return 0
    within = True
    for name in NAMES:
        outcome = subprocess.run(
            [sys.executable, __file__, "--here", name, *sys.argv[1:]], capture_output=True, text=True, check=True
        )
        told = json.loads(outcome.stdout)
        within &= told["GiB"] < LIMIT
        print(
            f"{name}: {told['GiB']:.2f} GiB (limit {LIMIT}), {told['seconds']:.1f} s, "
            f"{told['forwards']} forward passes, {told['pixels']:g} pixels"
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
