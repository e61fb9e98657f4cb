"""Compare our Square with that of pyautoattack, and our Sparse-RS with CornerSearch, at equal queries.

    python benchmarks/gradient_free.py square --model mnist-plain
    python benchmarks/gradient_free.py sparse-rs --model mnist-plain

The table shows how many of the images withstand an attack, for each seed; the fewer, the stronger the attack. The
images are the first that the model classifies correctly. "rescaled" stretches the schedule of pyautoattack to the
queries, as ours does in linf; "fixed" is the schedule that AutoAttack runs. Every point is judged again here.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import shared_zoo
from pdpgd.attacks.catalogue import prepared
from pdpgd.classifier import Counted
from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model
from pdpgd.norms import norm_of

RADII = {
    "mnist-plain": {"linf": 0.1, "l2": 1.5, "l1": 8.0},
    "mnist-linf-at": {"linf": 0.32, "l2": 2.0, "l1": 8.0},
    "cifar10-plain": {"linf": 2 / 255, "l2": 0.3, "l1": 5.0},
}
PIXELS = (10, 15, 20)
Run = Callable[[nn.Module, Tensor, Tensor, int], Tensor]
"""(model, inputs, labels, seed) -> points."""


def correctly_classified(model: nn.Module, data: str, *, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the first images from a position on that the model classifies correctly."""
    last = first + 2 * count
    inputs, labels = (
        load_data(data).batch(range(first, last))
        if data != "cifar10"
        else shared_zoo.load("zoo").images(data, first, last)
    )
    with torch.no_grad():
        right = model(inputs).argmax(1) == labels
    return inputs[right][:count], labels[right][:count]


def withstand(model: nn.Module, points: Tensor, inputs: Tensor, labels: Tensor, norm: str, radius: float) -> int:
    """Count the samples without an adversarial example within radius and box."""
    with torch.no_grad():
        fooled = model(points).argmax(1) != labels
    inside = norm_of(norm).size(points.double() - inputs.double()) <= radius * (1 + 1e-5)
    in_box = ((points >= 0) & (points <= 1)).flatten(1).all(1)
    return int((~(fooled & inside & in_box)).sum())


def ours(attack: str, norm: str, radius: float, queries: int) -> Run:
    """Return an attack of the catalogue within a radius."""
    ready = prepared(attack, norm, settings={"radii": [radius], "queries": queries}, max_batch=256)
    return lambda model, inputs, labels, seed: ready(model, inputs, labels, norm=norm, seed=seed).adversarials


def square_of_autoattack(norm: str, radius: float, queries: int, *, rescaled: bool) -> Run:
    """Return the Square of pyautoattack; beside its queries it judges a random start."""

    def run(model: nn.Module, inputs: Tensor, labels: Tensor, seed: int) -> Tensor:
        settings: dict[str, Any] = {"norm": norm.capitalize(), "eps": radius, "n_queries": queries - 1, "seed": seed}
        attack = importlib.import_module("pyautoattack.square").SquareAttack(
            model, **settings, resc_schedule=rescaled, device=inputs.device
        )
        points: Tensor = attack.perturb(inputs, labels)
        return points

    return run


def corner_search(queries: int) -> Run:
    """Return CornerSearch within a budget; it minimizes the number of pixels."""
    ready = prepared("corner-search", "l0", budget=queries, max_batch=256)
    return lambda model, inputs, labels, seed: ready(model, inputs, labels, norm="l0", seed=seed).adversarials


def show(
    label: str,
    queries: int,
    run: Run,
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    norm: str,
    radii: tuple[float, ...],
    seeds: int,
) -> None:
    """Print one row per radius: who withstands, for each seed, with passes per sample and seconds per seed."""
    counted, begin = Counted(model), time.perf_counter()
    points = [run(counted, *data, seed) for seed in range(seeds)]
    seconds, passes = (time.perf_counter() - begin) / seeds, counted.forwards / seeds / len(data[1])
    for radius in radii:
        left = [withstand(model, found, *data, norm, radius) for found in points]
        mean = sum(left) / seeds
        print(
            f"| {norm} | {radius:.3g} | {queries} | {label} | {mean:.1f} | {left} | {passes:.0f} | {seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", choices=("square", "sparse-rs"))
    parser.add_argument("--model", default="mnist-plain", choices=tuple(RADII))
    parser.add_argument("--data", help="default: the images shipped for the model")
    parser.add_argument("--first", type=int, default=0, help="first image")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--queries", type=int, nargs="+", default=[500, 1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--norms", nargs="+", default=["linf", "l2", "l1"])
    parser.add_argument("--without-reference", action="store_true")
    given = parser.parse_args()
    model = load_model(given.model)
    data = correctly_classified(model, given.data or _images_of(given.model), first=given.first, count=given.images)
    print(f"{given.model}, {len(data[1])} correctly classified images, {torch.get_num_threads()} threads\n")
    print("| norm | radius | queries | attack | withstand | per seed | passes | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for queries in given.queries:
        if given.attack == "sparse-rs":
            show("CornerSearch", queries, corner_search(queries), model, data, "l0", PIXELS, given.seeds)
            for pixels in PIXELS:
                show(
                    "Sparse-RS",
                    queries,
                    ours("sparse-rs", "l0", pixels, queries),
                    model,
                    data,
                    "l0",
                    (pixels,),
                    given.seeds,
                )
            continue
        for norm in given.norms:
            radius = RADII[given.model][norm]
            show("Square", queries, ours("square", norm, radius, queries), model, data, norm, (radius,), given.seeds)
            for name in () if given.without_reference else ("fixed", "rescaled"):
                run = square_of_autoattack(norm, radius, queries, rescaled=name == "rescaled")
                show(f"pyautoattack, {name}", queries, run, model, data, norm, (radius,), given.seeds)


def _images_of(model: str) -> str:
    return "cifar10" if model.startswith("cifar10") else "mnist-1000"


if __name__ == "__main__":
    main()
