"""The engine that executes jobs as tasks of a Ray cluster, existing or local; the only module that imports ray."""

from __future__ import annotations

import pickle
import socket
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from pdpgd.errors import EngineError, InvalidInputError, need
from pdpgd.evaluation.engines import Handles, Result, Worker, as_completed
from pdpgd.evaluation.job import Job

RETRIES = 5
"""Number of times that Ray repeats a task whose worker or machine is lost."""
PATIENCE = 10.0
"""Seconds to wait for the port of a cluster. Ray itself waits for minutes, and then ends the process."""
UNSENDABLE = (pickle.PicklingError, AttributeError, TypeError)
"""Errors of pickling."""


class RayEngine:
    """Executes jobs as Ray tasks, each with `threads` CPUs, and with a GPU if the run uses one."""

    def __init__(
        self, handles: Handles, *, device: str, threads: int, workers: int | None, address: str | None
    ) -> None:
        self._ray: Any = need("ray", extra="ray", purpose="the engine ray")
        on_gpu = device.startswith("cuda")
        self._started = not self._ray.is_initialized()
        try:
            if address is not None:
                _check_port(address)
                self._ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
            elif self._started:
                self._ray.init(
                    num_cpus=None if workers is None else workers * threads,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineError(f"ray: expected a cluster at {address or 'this machine'}, got none ({error})") from error
        self._at_once = workers or 2 * self._room("GPU" if on_gpu else "CPU", 1 if on_gpu else threads)
        # Workers of a cluster outlive a run, and the model of the next run may differ in its code only.
        self._run = uuid.uuid4().hex
        try:
            self._handles = self._ray.put(dict(handles))
        except UNSENDABLE as error:
            self.__exit__(None, None, None)
            raise _unsendable("model", error) from error
        self._task = self._ray.remote(num_cpus=threads, num_gpus=1 if on_gpu else 0, max_retries=RETRIES)(_in_worker)
        self._device = device

    def _room(self, resource: str, each: int) -> int:
        """Return how many tasks the cluster can run at once; at least one, since it may grow."""
        return max(1, int(self._ray.cluster_resources().get(resource, 0)) // each)

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            self._ray.shutdown()

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        """Yield the name of each job with its result, as jobs complete; raise EngineError if one is lost for good."""
        try:
            yield from as_completed(self._submit, jobs, at_once=self._at_once)
        except self._ray.exceptions.RayTaskError as error:
            raise EngineError(
                f"ray: a worker could not load its job ({_first_line(error.cause)}); it must be able to import "
                "all modules of the model and the attack"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"ray: a job was lost {RETRIES + 1} times ({type(error).__name__}: {error}); no finished work is "
                "lost: start the same command again"
            ) from error

    def _submit(self, job: Job) -> Future[Result]:
        try:
            task = self._task.remote(job, self._handles, self._device, self._run)
        except UNSENDABLE as error:
            raise _unsendable("attack", error) from error
        future: Future[Result] = task.future()
        return future


def _unsendable(what: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{what}: expected one that can be sent to other processes, got {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, whose message may be a whole traceback in Ray."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_port(address: str) -> None:
    """Raise OSError if "host:port" or "ray://host:port" does not answer; Ray resolves "auto" and the like itself."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


_workers: dict[str, Worker] = {}


def _in_worker(job: Job, handles: Handles, device: str, run: str) -> Result:
    """Execute a job in a worker process, which loads a model once for many tasks of a run."""
    if run not in _workers:
        _workers.clear()
        _workers[run] = Worker(handles, device)
    return _workers[run].run(job)
