"""Measure `auto` behind first layers that hide gradients: mean distances relative to those of the bare net.

    python benchmarks/front_layers.py --samples 900 920

A ReLU, a hard tanh and a clamp are flat at the edge of the box; `detached` passes on the gradient of a random fifth of
the entries. Needs ../shared/bench for its images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import shared_zoo
from pdpgd import auto
from pdpgd.models.loading import load_model

NETS = ("mnist-plain", "mnist-linf-at", "cifar10-plain")
NORMS = ("linf", "l2", "l1", "l0")
EDGE, DETACHED = 1.03, 1.25
"""Bounds of the ratio behind layers that are flat at the edge, and behind the detached one."""


class Front(nn.Module):
    """A net behind a layer."""

    def __init__(self, layer: Callable[[Tensor], Tensor], net: nn.Module) -> None:
        super().__init__()
        self.layer, self.net = layer, net

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.net(self.layer(inputs))
        return logits


def detach_most(shape: torch.Size, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a layer that passes on the gradient of a fifth of the entries."""
    order = torch.randperm(shape.numel(), generator=torch.Generator().manual_seed(seed))
    mask = (order < shape.numel() // 5).view(shape)
    return lambda inputs: torch.where(mask, inputs, inputs.detach())


def main() -> None:
    """Print the table, and which ratios exceed their bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs=2, metavar=("FIRST", "LAST"), default=(0, 100))
    parser.add_argument("--nets", nargs="+", default=NETS)
    parser.add_argument("--budget", type=int, default=1000, help="passes behind layers that are flat at the edge")
    parser.add_argument("--detached", type=int, default=2000, help="passes behind the detached layer")
    parser.add_argument("--mask-seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = ["| net | first layer | passes | " + " | ".join(NORMS) + " |", "|---" * (3 + len(NORMS)) + "|"]
    misses = []
    for name in options.nets:
        net = load_model(name).eval().requires_grad_(False)
        inputs, labels = shared_zoo.load("zoo").images(name.split("-")[0], *options.samples)
        layers: dict[str, Callable[[Tensor], Tensor]] = {
            "ReLU": torch.relu,
            "hard tanh": nn.Hardtanh(0.0, 1.0),
            "clamp": lambda inputs: inputs.clamp(0.002, 0.998),
            "detached": detach_most(inputs.shape[1:], options.mask_seed),
        }
        bare: dict[tuple[str, int], float] = {}
        for front, layer in layers.items():
            budget, bound = (options.detached, DETACHED) if front == "detached" else (options.budget, EDGE)
            cells = []
            for norm in NORMS:
                if (norm, budget) not in bare:
                    bare[norm, budget] = float(auto(net, inputs, labels, norm=norm, budget=budget).distances.mean())
                found = auto(Front(layer, net).eval(), inputs, labels, norm=norm, budget=budget)
                ratio = float(found.distances.mean()) / bare[norm, budget]
                cells.append(f"{ratio:.3f}")
                if not ratio <= bound:
                    misses.append(f"{name}, {front}, {norm}: {ratio:.3f} > {bound}")
            lines.append(f"| {name} | {front} | {budget} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    text = "\n".join([*lines, "", "Misses: " + ("; ".join(misses) if misses else "none") + "."])
    print(text)
    if options.table is not None:
        options.table.write_text(text + "\n")


if __name__ == "__main__":
    main()
