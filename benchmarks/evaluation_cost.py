"""Cost of an evaluation beyond the passes of the model: time relative to bare passes, and peak memory.

Runs `pdpgd evaluate` on a shipped net, start of the program and writing of the results included, and the same number of
bare forward and backward passes, half of them before and half after it, by as many processes with as many threads. The
ratio is given over all passes of the run, and over those of its attacks alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from pdpgd.data.loading import load_data
from pdpgd.models.loading import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mnist-linf-at")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--attack", default="pdpgd")
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()

    # As many as the attacks will make, in batches: what the run counts decides how they are weighed.
    passes = options.limit * (options.budget // 2) * 4 // options.batch_size
    before = bare(options, passes // 2)
    seconds, memory, numbers = evaluated(options)
    after = bare(options, passes // 2)
    forward, both = ((first + second) / 2 for first, second in zip(before, after, strict=True))
    print(f"{options.workers} processes with {options.threads} threads, batches of {options.batch_size}")
    print(f"forward {1e3 * forward:.2f} ms a batch, forward and backward {1e3 * both:.2f} ms", end=" ")
    print(f"({1e3 * before[1]:.2f} before the run, {1e3 * after[1]:.2f} after it)")
    print(f"pdpgd evaluate: {seconds:.1f} s, peak memory {memory:.2f} GiB in all its processes")
    for name, who in (("all passes of the run", ("attacks", "checks")), ("passes of the attacks", ("attacks",))):
        forwards, backwards = (sum(numbers[kind][each] for each in who) for kind in ("forwards", "backwards"))
        cost = (backwards * both + (forwards - backwards) * forward) / options.batch_size
        print(f"{name}: {forwards:,} forward, {backwards:,} backward, bare {cost:.1f} s: ratio {seconds / cost:.3f}")


def bare(options: argparse.Namespace, passes: int) -> tuple[float, float]:
    """Measure the seconds of a forward pass, and of a forward plus backward pass, with all processes busy."""
    share = max(1, passes // options.workers)
    work = partial(_passes, options.model, options.batch_size, options.threads, share)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        times = list(pool.map(work, range(options.workers)))
    forward, both = (sum(column) / len(column) / options.workers for column in zip(*times, strict=True))
    return forward, both


def _passes(name: str, batch_size: int, threads: int, repeats: int, _: int) -> tuple[float, float]:
    torch.set_num_threads(threads)
    model = load_model(name)
    images, _labels = load_data("mnist-1000").batch(torch.arange(batch_size))

    def both() -> None:
        leaf = images.clone().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)

    def forward() -> None:
        with torch.no_grad():
            model(images)

    def seconds(what: Any, repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            what()
        return (time.perf_counter() - begin) / repeats

    seconds(both, 10)
    return seconds(forward, max(10, repeats // 10)), seconds(both, repeats)


def evaluated(options: argparse.Namespace) -> tuple[float, float, dict[str, dict[str, int]]]:
    """Run an evaluation; return seconds, peak memory in GiB, and the numbers of the run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pdpgd", "evaluate", options.model, "mnist-1000", "--json"]
        for name in ("limit", "attack", "budget", "batch_size", "threads", "workers"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        begin = time.perf_counter()
        process = subprocess.Popen([*command, "--out", f"{folder}/run"], stdout=subprocess.PIPE, text=True)
        peak = Peak(process.pid)
        said, _ = process.communicate()
        seconds = time.perf_counter() - begin
        if process.returncode:
            raise SystemExit(process.returncode)
        return seconds, peak.stop(), json.loads(said)


class Peak:
    """Measures the peak memory of a process and its descendants, ten times per second."""

    def __init__(self, process: int) -> None:
        self._process, self._most, self._ended = process, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._most

    def _measure(self) -> None:
        while not self._ended.wait(0.1):
            self._most = max(self._most, sum(_resident(each) for each in _family(self._process)))


def _family(process: int) -> list[int]:
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [process, *(member for child in children for member in _family(int(child)))]


def _resident(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
