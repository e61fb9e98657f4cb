"""How the run time of `auto` grows with the number of samples, the size of the inputs and the budget.

    make bench-auto

On a small convolutional net with random weights; each line shows the seconds and the exponent of the power law that
fits them. The attack's own time is the rest after subtracting as many bare passes, timed alternately with the calls.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import pdpgd

NORMS = ("linf", "l2", "l1", "l0")
SIZES = ((1, 28), (3, 32), (3, 64), (3, 224))


def small_net(channels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)),
    ).eval()


def bare(net: nn.Module, inputs: Tensor, passes: int) -> float:
    """Return the seconds that a number of forward plus backward passes take, two per round."""
    begin = time.perf_counter()
    for _ in range(passes // 2):
        leaf = inputs.detach().requires_grad_()
        torch.autograd.grad(net(leaf).sum(), leaf)
    return time.perf_counter() - begin


def seconds(channels: int, side: int, *, samples: int, budget: int, norm: str) -> tuple[float, float]:
    """Return the seconds of a call, and those without the model's passes."""
    net = small_net(channels)
    inputs = torch.rand(samples, channels, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = net(inputs).argmax(1)
    bare(net, inputs[:100], 4)
    begin = time.perf_counter()
    result = pdpgd.auto(net, inputs, labels, norm=norm, budget=budget, max_batch=100)
    whole = time.perf_counter() - begin
    rounds = int((result.forwards + result.backwards).float().mean())
    alone = sum(bare(net, inputs[first : first + 100], rounds) for first in range(0, samples, 100))
    return whole, whole - alone


def exponent(work: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms."""
    x, y = ([math.log(max(value, 1e-9)) for value in values] for values in (work, times))
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def line(what: str, norm: str, work: Sequence[float], measured: Sequence[tuple[float, float]]) -> str:
    whole, own = zip(*measured, strict=True)
    shown = "  ".join(f"{a:6.2f} ({b:5.2f})" for a, b in measured)
    return f"{what:22} {norm:5} {shown}  exponent {exponent(work, whole):5.2f} ({exponent(work, own):5.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("seconds of a call, in brackets without the model's passes")
    for norm in NORMS:
        counts = (100, 300, 1000)
        measured = [seconds(1, 28, samples=count, budget=100, norm=norm) for count in counts]
        print(line("samples 100 300 1000", norm, counts, measured), flush=True)
    for norm in NORMS:
        dimensions = [channels * side**2 for channels, side in SIZES]
        measured = [seconds(channels, side, samples=50, budget=100, norm=norm) for channels, side in SIZES]
        print(line("inputs 28 32 64 224", norm, dimensions, measured), flush=True)
    for norm in NORMS:
        budgets = (200, 400, 800)
        measured = [seconds(1, 28, samples=100, budget=budget, norm=norm) for budget in budgets]
        print(line("budget 200 400 800", norm, budgets, measured), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
