"""Check that the records of a run are the same bits on every engine, however often it is killed.

    python benchmarks/identical_bits.py

The same `pdpgd evaluate` of a shipped net: undisturbed; killed (SIGKILL) ten times at random moments and started again;
with two processes; on Ray with two workers; on Ray with worker processes killed while they work. The checksum is of all
records/*.parquet and examples/*.npz. Three minutes or so on two cores, in which nobody may edit the package: a worker
that is started later would do its chunks with other code.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Of three kills, one comes within so many seconds of the start; the others after a chunk more was written.
EARLY = 4.0
WORKERS_KILLED = 2


@dataclass(frozen=True)
class Repetition:
    name: str
    checksum: str
    kills: int
    seconds: float


class Command:
    """The command `pdpgd evaluate` on one net and some images, with any output directory."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.arguments = [
            *("evaluate", options.model, options.data, "--json", "--threads", "1"),
            *("--limit", str(options.images), "--budget", str(options.budget), "--chunk-size", str(options.chunk_size)),
        ]
        self.chunks = -(-options.images // options.chunk_size)

    def start(self, folder: Path, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pdpgd", *self.arguments, "--out", str(folder), *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # The undisturbed run is to differ from the others in nothing but what its name says.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def finished(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"the command failed with {process.returncode}:\n{said}")


def checksum(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("records/*.parquet"), *folder.glob("examples/*.npz")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def receipts(folder: Path) -> int:
    return len(list(folder.glob("receipts/chunk-*.json")))


def written(folder: Path, chunks: int) -> Callable[[], bool]:
    return lambda: receipts(folder) >= chunks


def past(moment: float) -> Callable[[], bool]:
    return lambda: time.monotonic() > moment


def wait(process: subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Wait for a condition; return False if the process ends first."""
    while process.poll() is None:
        if happened():
            return True
        time.sleep(0.002)
    return False


def undisturbed(command: Command, folder: Path, *more: str) -> int:
    finished(command.start(folder, *more))
    return 0


def killed(command: Command, folder: Path, *, times: int, draw: random.Random, chunk_seconds: float) -> int:
    """Kill the run and start it again, several times, then let it finish; return how often it was killed."""
    kills = 0
    for turn in range(times):
        before, process = receipts(folder), command.start(folder)
        if turn % 3 == 0:
            alive = wait(process, past(time.monotonic() + draw.uniform(0, EARLY)))
        else:
            alive = wait(process, written(folder, before + 1))
            time.sleep(draw.uniform(0, chunk_seconds))
        if not alive or process.poll() is not None:
            finished(process)
            return kills
        process.kill()
        process.communicate()
        kills += 1
    finished(command.start(folder))
    return kills


def robbed_of_workers(command: Command, folder: Path, *more: str, times: int) -> int:
    """Kill a busy Ray worker each time another fifth of the chunks is done; Ray repeats its job."""
    process = command.start(folder, *more)
    kills = 0
    while kills < times:
        due = (kills + 1) * command.chunks // 5
        if not wait(process, written(folder, due)):
            break
        for worker in ray_workers(process.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
            kills += 1
    finished(process)
    return kills


def ray_workers(above: int) -> list[int]:
    """Find the descendants of this process that execute a Ray task, by their title."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::") and b"_in_worker" in title and beneath(int(path.parent.name), above):
            found.append(int(path.parent.name))
    return sorted(found)


def beneath(process: int, above: int) -> bool:
    while process > 1:
        if process == above:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mnist-plain")
    parser.add_argument("--data", default="mnist-1000")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--chunk-size", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which the run is killed")
    options = parser.parse_args()
    command, draw = Command(options), random.Random(options.seed)
    repetitions: list[Repetition] = []

    def seen(name: str, run: Callable[[Path], int]) -> Repetition:
        folder, begin = Path(scratch) / name.replace(" ", "-"), time.perf_counter()
        kills = run(folder)
        repetition = Repetition(name, checksum(folder), kills, time.perf_counter() - begin)
        repetitions.append(repetition)
        print(
            f"{repetition.name:24} {repetition.checksum[:32]:34} {repetition.kills:5} {repetition.seconds:8.1f}",
            flush=True,
        )
        return repetition

    local, ray = ("--workers", "2"), ("--engine", "ray", "--workers", "2")
    print(f"{'run':24} {'sha256':34} {'kills':>5} {'seconds':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        first = seen("one process", lambda folder: undisturbed(command, folder))
        chunk_seconds = first.seconds / command.chunks
        seen(
            "killed and resumed",
            lambda folder: killed(command, folder, times=options.kills, draw=draw, chunk_seconds=chunk_seconds),
        )
        seen("two processes", lambda folder: undisturbed(command, folder, *local))
        seen("ray", lambda folder: undisturbed(command, folder, *ray))
        seen("ray, workers killed", lambda folder: robbed_of_workers(command, folder, *ray, times=WORKERS_KILLED))
    identical = len({repetition.checksum for repetition in repetitions}) == 1
    fewer = [repetition.name for repetition in repetitions if "killed" in repetition.name and repetition.kills == 0]
    if fewer:
        print(f"never killed, it ended too soon: {', '.join(fewer)}")
    print("identical" if identical else "NOT identical")
    return int(not identical or bool(fewer))


if __name__ == "__main__":
    raise SystemExit(main())
