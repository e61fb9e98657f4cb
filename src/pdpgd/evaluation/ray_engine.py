"""Jobs as tasks of a Ray cluster: one that exists, or one of this machine's own. The only place that imports ray."""

from __future__ import annotations

import pickle
import socket
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from pdpgd.errors import EngineError, InvalidInputError, need
from pdpgd.evaluation.engines import Handles, Models, Result, completed
from pdpgd.evaluation.job import Job

# Ray does a task again when its worker or its machine is lost.
RETRIES = 5
# Seconds to wait for a cluster's port to answer. Ray itself waits for minutes, and ends the process then.
PATIENCE = 10.0


class RayEngine:
    """Each task asks for `threads` CPUs, and for a GPU if the run is on one; Ray finds the place."""

    def __init__(
        self, handles: Handles, *, device: str, threads: int, workers: int | None, address: str | None
    ) -> None:
        self._ray: Any = need("ray", extra="ray", purpose="the engine ray")
        on_gpu = device.startswith("cuda")
        self._begun = not self._ray.is_initialized()
        try:
            if address is not None:
                _knock(address)
                self._ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
            elif self._begun:
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
        # The workers of a cluster outlive a run: the next one's model may differ by its code alone.
        self._run = uuid.uuid4().hex
        try:
            self._handles = self._ray.put(dict(handles))
        except UNSENDABLE as error:
            self.__exit__(None, None, None)
            raise _unsendable("model", error) from error
        self._task = self._ray.remote(num_cpus=threads, num_gpus=1 if on_gpu else 0, max_retries=RETRIES)(_in_worker)
        self._device = device

    def _room(self, resource: str, each: int) -> int:
        """How many tasks the cluster has room for at once, at least one: it may grow."""
        return max(1, int(self._ray.cluster_resources().get(resource, 0)) // each)

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun:
            self._ray.shutdown()

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        try:
            yield from completed(self._submit, jobs, at_once=self._at_once)
        except self._ray.exceptions.RayTaskError as error:
            raise EngineError(
                f"ray: a worker could not take its job ({_first_line(error.cause)}); it must be able to import all "
                "that the model and the attack are made of"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"ray: a job was lost {RETRIES + 1} times ({type(error).__name__}: {error}); nothing that was done is "
                "lost: start the same command again"
            ) from error

    def _submit(self, job: Job) -> Future[Result]:
        try:
            task = self._task.remote(job, self._handles, self._device, self._run)
        except UNSENDABLE as error:
            raise _unsendable("attack", error) from error
        future: Future[Result] = task.future()
        return future


# What pickling raises.
UNSENDABLE = (pickle.PicklingError, AttributeError, TypeError)


def _unsendable(what: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{what}: expected one that can be sent to other processes, got {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    """Ray puts whole tracebacks in its messages."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _knock(address: str) -> None:
    """Raise OSError if nobody answers at "host:port" or "ray://host:port"; "auto" and the like are Ray's to resolve."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


_models: dict[str, Models] = {}


def _in_worker(job: Job, handles: Handles, device: str, run: str) -> Result:
    """A worker process serves many tasks of a run: the model is loaded once."""
    if run not in _models:
        _models.clear()
        _models[run] = Models(handles, device)
    return _models[run].do(job)
