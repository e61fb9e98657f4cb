"""A run that is stopped or killed loses no finished chunk, and is resumed with the same bits."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from pdpgd.errors import StorageError
from pdpgd.evaluation.evaluate import evaluate
from support.bad_models import Spoiling
from support.models import random_affine
from support.patience import PATIENCE

SAMPLES, SPOILT = 72, 70
"""The preflight uses the first 64 samples; the model hangs on a later one, in the last of three chunks."""

PROGRAM = """
import pickle, signal, sys
from pathlib import Path
from pdpgd.evaluation.evaluate import evaluate

if __name__ == "__main__":
    # A shell lets what it starts in the background ignore Ctrl-C, and that is handed down.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    evaluate(**pickle.loads(Path(sys.argv[1]).read_bytes()))
"""


@contextmanager
def started(call: dict[str, Any], notes: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the call in a process that leads its own process group."""
    notes.write_bytes(pickle.dumps(call))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(notes)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended by itself: {process.stderr.read() if process.stderr else ''}")
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def receipts(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "receipts").glob("chunk-*.json")}


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for part in ("records", "examples") for path in (folder / part).iterdir()}


def children(parent: int) -> set[int]:
    """Return the descendants of a process."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if above == parent:
            found |= {int(path.parent.name)} | children(int(path.parent.name))
    return found


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def call(generator: Generator, tmp_path: Path) -> dict[str, Any]:
    """Return a run that hangs in its last chunk as long as there is a file `hold`."""
    slope = random_affine(generator, features=16, classes=5)
    points = torch.rand(SAMPLES, 1, 4, 4, generator=generator)
    (tmp_path / "hold").touch()
    return {
        "model": Spoiling(slope, points[SPOILT], tmp_path / "hold", "hang"),
        "data": (points, slope.labels(points)),
        "norms": ("linf", "l2"),
        "budget": 4,
        "chunk_size": 24,
        "threads": 1,
        "out": tmp_path / "run",
    }


def goes_on_to_the_same_bits(call: dict[str, Any], tmp_path: Path) -> None:
    stored = results(tmp_path / "run")
    (tmp_path / "hold").unlink(missing_ok=True)
    assert evaluate(**{**call, "workers": 1}).notes == ()
    evaluate(**{**call, "workers": 1, "out": tmp_path / "undisturbed"})
    assert results(tmp_path / "run") == results(tmp_path / "undisturbed")
    assert stored.items() <= results(tmp_path / "run").items()


def test_a_run_of_a_shipped_net_that_is_killed_twice_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    call: dict[str, Any] = {
        "model": "mnist-plain",
        "data": "mnist-1000",
        "limit": 16,
        "norms": ("linf", "l2"),
        "budget": 20,
        "chunk_size": 2,
        "threads": 1,
        "out": tmp_path / "run",
    }
    done: set[str] = set()
    for _ in range(2):
        with started(call, tmp_path / "call") as process:
            until(lambda: receipts(tmp_path / "run") > done, process)  # noqa: B023  # called in this turn only
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert done < receipts(tmp_path / "run")
        done = receipts(tmp_path / "run")
    assert len(done) < 8
    goes_on_to_the_same_bits(call, tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_is_done_and_leaves_no_process_behind(
    workers: int, call: dict[str, Any], tmp_path: Path
) -> None:
    with started({**call, "workers": workers}, tmp_path / "call") as process:
        until(lambda: len(receipts(tmp_path / "run")) == 2, process)
        with pytest.raises(StorageError, match="another run is using this directory"):
            evaluate(**call)
        helpers = children(process.pid)
        assert len(helpers) >= (workers if workers > 1 else 0)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        until(lambda: all(map(gone, helpers)))
    assert process.returncode == -signal.SIGINT
    assert f"KeyboardInterrupt: stopped; 2 of 3 chunks are stored in {tmp_path / 'run'}" in said
    assert said.count("Traceback") == 1
    assert receipts(tmp_path / "run") == {"chunk-00000", "chunk-00001"}
    goes_on_to_the_same_bits(call, tmp_path)


def test_workers_leave_when_their_parent_is_killed(call: dict[str, Any], tmp_path: Path) -> None:
    with started({**call, "workers": 2}, tmp_path / "call") as process:
        until(lambda: len(receipts(tmp_path / "run")) == 2, process)
        helpers = children(process.pid)
        assert len(helpers) >= 2
        process.kill()
        process.wait()
        until(lambda: all(map(gone, helpers)))
    goes_on_to_the_same_bits(call, tmp_path)


def test_a_file_that_cannot_be_written_stops_the_run_and_spoils_nothing(call: dict[str, Any], tmp_path: Path) -> None:
    """Simulate a full disk, where no small one can be mounted."""
    with started(call, tmp_path / "call") as process:
        until(lambda: len(receipts(tmp_path / "run")) == 2, process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        (tmp_path / "hold").unlink()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    last = said.strip().splitlines()[-1]
    assert last.startswith("pdpgd.errors.StorageError")
    assert "File too large" in last
    assert "no finished work is lost (2 chunks): free some space, and start the same command again" in last
    assert receipts(tmp_path / "run") == {"chunk-00000", "chunk-00001"}
    goes_on_to_the_same_bits(call, tmp_path)
