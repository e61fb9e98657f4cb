"""What `auto` costs beside the model: its time over that of the same passes on the bare model.

    make bench-cost

`pdpgd.auto` is called from Python as a user does, with one thread and an untuned allocator. One call is recorded: the
points of each forward pass, and how many backward passes follow it. Exactly these passes are then made on the bare
model, in turns with the attack, and the figure is the median of the ratios. The last column has the passes made on the
inputs instead: a max-pooling takes longer on noisy images than on clean ones. Times are those of the processor, not of
the clock, so that other programs disturb them little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import pdpgd
import shared_zoo
from pdpgd.models.loading import load_model

NORMS = ("linf", "l2", "l1", "l0")
SMALL = "small CIFAR-10 net"
# Largest acceptable ratio per net, and in l0.
LIMITS = {
    "lenet5_cln": (1.15, 1.25),
    "cifar10-plain": (1.15, 1.25),
    SMALL: (1.6, 1.6),
    "efficientnet_lite0": (1.05, 1.05),
}
IMAGES = {"efficientnet_lite0": 4}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)

    over = False
    print("| net | norm | batch | bare s | auto s | auto / bare | wanted | auto / bare on the inputs |")
    print("|---|---|---|---|---|---|---|---|")
    for net in options.nets:
        model, inputs, labels = subject(net)
        for norm in options.norms:

            def attack(through: Callable[[Tensor], Tensor]) -> None:
                pdpgd.auto(through, inputs, labels, norm=norm, budget=options.budget)  # noqa: B023 (called at once)

            recorded = Recorded(model)
            attack(recorded)
            calls = recorded.calls
            clean = [Call(inputs[: len(call.points)], call.backwards) for call in calls]
            works = (lambda: replay(model, calls), lambda: attack(model), lambda: replay(model, clean))  # noqa: B023
            times = [[seconds(work) for work in works] for _ in range(options.repeats)]
            ratio, on_inputs = (statistics.median(each[1] / each[which] for each in times) for which in (0, 2))
            bare, ours, _ = (statistics.median(column) for column in zip(*times, strict=True))
            limit = LIMITS[net][norm == "l0"]
            over |= ratio > limit
            figures = f"{bare:.2f} | {ours:.2f} | {ratio:.3f} | {limit} | {on_inputs:.3f}"
            print(f"| {net} | {norm} | {len(inputs)} | {figures} |", flush=True)
    print("over the limit" if over else "within the limits")
    return int(over)


@dataclass
class Call:
    """The points of a forward pass, and the number of backward passes that follow it."""

    points: Tensor
    backwards: int = 0


class Recorded(nn.Module):
    """Wraps a model and notes its calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.training = model, False
        self.calls: list[Call] = []

    def forward(self, inputs: Tensor) -> Tensor:
        call = Call(inputs.detach().clone())
        self.calls.append(call)
        logits: Tensor = self.model(inputs)

        def count(_: Tensor) -> None:
            call.backwards += 1

        if logits.requires_grad:
            logits.register_hook(count)  # type: ignore[no-untyped-call]  # torch does not type it
        return logits


def replay(model: nn.Module, calls: list[Call]) -> None:
    """Make the recorded passes on the bare model."""
    for call in calls:
        if call.backwards == 0:
            with torch.no_grad():
                model(call.points)
            continue
        leaf = call.points.detach().requires_grad_()
        total = model(leaf).sum()
        for left in reversed(range(call.backwards)):
            torch.autograd.grad(total, leaf, retain_graph=left > 0)


def seconds(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def subject(net: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A net and its images."""
    zoo, count = shared_zoo.load("zoo"), IMAGES.get(net, 100)
    if net == SMALL:
        return small_net(*zoo.images("cifar10", 0, 400)), *zoo.images("cifar10", 0, count)
    if net == "cifar10-plain":
        return load_model(net).requires_grad_(False), *zoo.images("cifar10", 0, count)
    return zoo.load(net), *zoo.images(zoo.data_of(net), 0, count)


def small_net(inputs: Tensor, labels: Tensor, *, epochs: int = 20) -> nn.Module:
    """A net with two convolutions and a dense layer, trained on the images that it is attacked on.

    Its time is what matters here, and that it gives the attack something to do.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(2048, 100), nn.ReLU(), nn.Linear(100, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(inputs)).view(-1, 50):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(inputs[part]), labels[part]))
            optimizer.step()
    return model.eval().requires_grad_(False)


if __name__ == "__main__":
    raise SystemExit(main())
