"""The cost of an attack step relative to a bare forward + backward pass of the same batch.

    make bench

Each figure is the median of five ratios; the two sides of a ratio are timed alternately in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

import pdpgd
import shared_zoo
from pdpgd import AttackResult, Observation, PDGDConfig, PDPGDConfig

Attack = Callable[..., AttackResult]

# Largest acceptable ratio per norm, for the attack with the exact prox and for auto.
LIMITS = {"linf": 1.25, "l2": 1.15, "l1": 1.15, "l0": 1.15}
AUTO_LIMITS = {"linf": 1.4, "l2": 1.25, "l1": 1.25, "l0": 1.25}


def attacks(norm: str, steps: int) -> dict[str, Attack]:
    """Return the paper's attack for a norm, with the exact prox and with the paper's inner loop."""
    if norm == "l2":
        return {"pdgd": partial(pdpgd.pdgd, config=PDGDConfig(steps=steps, finetune_steps=0))}
    exact = PDPGDConfig(steps=steps, finetune_steps=0)
    return {
        "pdpgd, exact prox": partial(pdpgd.pdpgd, config=exact),
        "pdpgd, paper's loop": partial(pdpgd.pdpgd, config=replace(exact, prox="released")),
    }


def bare_pass(model: nn.Module, inputs: Tensor, times: int) -> float:
    """Return the seconds of one forward + backward pass to the inputs."""
    begin = time.perf_counter()
    for _ in range(times):
        leaf = inputs.detach().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)
    return (time.perf_counter() - begin) / times


def attack_step(attack: Attack, model: nn.Module, inputs: Tensor, labels: Tensor, norm: str) -> float:
    """Return the seconds per iteration without the first one: there is exactly one between two calls of the hook."""
    stamps: list[float] = []

    def stamp(_: Observation) -> None:
        stamps.append(time.perf_counter())

    attack(model, inputs, labels, norm=norm, observe=stamp)
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def auto_step(model: nn.Module, inputs: Tensor, labels: Tensor, norm: str, steps: int) -> float:
    """Return the seconds per two passes of auto, including all overhead of the call."""
    begin = time.perf_counter()
    result = pdpgd.auto(model, inputs, labels, norm=norm, budget=2 * steps)
    return 2 * (time.perf_counter() - begin) / float((result.forwards + result.backwards).float().mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30, help="iterations in a timed block")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    zoo = shared_zoo.load("zoo")

    failed = False
    print(f"{'model':14} {'norm':5} {'attack':20} {'bare ms':>8} {'step ms':>8} {'ratio':>6} {'limit':>6}")
    for name in shared_zoo.MODELS:
        model = zoo.load(name)
        inputs, labels = zoo.mnist(0, options.images)
        correct = model(inputs).argmax(1) == labels
        inputs, labels = inputs[correct], labels[correct]
        bare_pass(model, inputs, options.steps)  # warm up the caches
        for norm in LIMITS:
            sides: dict[str, Callable[[], float]] = {
                attack_name: partial(attack_step, attack, model, inputs, labels, norm)
                for attack_name, attack in attacks(norm, options.steps).items()
            }
            sides["auto"] = partial(auto_step, model, inputs, labels, norm, 2 * options.steps)
            for attack_name, side in sides.items():
                limit = (AUTO_LIMITS if attack_name == "auto" else LIMITS)[norm]
                pairs = [(bare_pass(model, inputs, options.steps), side()) for _ in range(options.repeats)]
                ratio = statistics.median(step / bare for bare, step in pairs)
                bare, step = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
                failed |= ratio > limit and "loop" not in attack_name
                print(
                    f"{name:14} {norm:5} {attack_name:20} {bare:8.2f} {step:8.2f} {ratio:6.3f} {limit:6.2f}", flush=True
                )
    print("over the limit" if failed else "within the limits")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
