"""What an evaluation costs beyond the model's own passes: time over bare passes, and peak memory.

Runs `pdpgd evaluate` on a shipped net, start of the program and writing of the results included, and times bare passes
before and after it. The ratio is given over all passes of the run, and over those of its attacks alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time

import torch

from pdpgd.subjects import load_data, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mnist-linf-at")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()

    model = load_model(options.model)
    images, _ = load_data("mnist-1000").batch(torch.arange(options.batch_size))
    torch.set_num_threads(options.threads)
    before = bare(model, images)
    seconds, facts = evaluated(options)
    after = bare(model, images)
    forward, both = ((first + second) / 2 for first, second in zip(before, after, strict=True))
    print(f"a pass of {len(images)}: forward {1e3 * forward:.1f} ms, forward and backward {1e3 * both:.1f} ms")
    print(f"  before the run {1e3 * before[1]:.1f} ms, after it {1e3 * after[1]:.1f} ms")

    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"pdpgd evaluate: {seconds:.1f} s, peak memory {memory:.2f} GiB")
    for name, who in (("all passes of the run", ("attacks", "checks")), ("passes of the attacks", ("attacks",))):
        forwards, backwards = (sum(facts[kind][each] for each in who) for kind in ("forwards", "backwards"))
        cost = (backwards * both + (forwards - backwards) * forward) / len(images)
        print(f"{name}: {forwards:,} forward, {backwards:,} backward, bare {cost:.1f} s: ratio {seconds / cost:.3f}")


def bare(model: torch.nn.Module, images: torch.Tensor, repeats: int = 60) -> tuple[float, float]:
    """Seconds of a forward pass, and of a forward and a backward pass."""
    for _ in range(5):
        passed(model, images)
    begin = time.perf_counter()
    for _ in range(repeats):
        passed(model, images)
    both = (time.perf_counter() - begin) / repeats
    begin = time.perf_counter()
    with torch.no_grad():
        for _ in range(repeats):
            model(images)
    return (time.perf_counter() - begin) / repeats, both


def passed(model: torch.nn.Module, images: torch.Tensor) -> None:
    leaf = images.clone().requires_grad_()
    torch.autograd.grad(model(leaf).sum(), leaf)


def evaluated(options: argparse.Namespace) -> tuple[float, dict[str, dict[str, int]]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pdpgd", "evaluate", options.model, "mnist-1000", "--json"]
        for name in ("limit", "budget", "batch_size", "threads"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        begin = time.perf_counter()
        done = subprocess.run([*command, "--out", f"{folder}/run"], capture_output=True, text=True, check=True)
        return time.perf_counter() - begin, json.loads(done.stdout)


if __name__ == "__main__":
    main()
