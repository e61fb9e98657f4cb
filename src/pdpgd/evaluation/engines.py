"""Engines that execute jobs: in this process, or in several processes of this machine, and malloc tuned for them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Protocol

from pdpgd.classifier import Model
from pdpgd.errors import EngineError, InvalidInputError, PdpgdError, UnknownNameError
from pdpgd.evaluation.guard import Fingerprint, Guard
from pdpgd.evaluation.job import Job, Progress, run_job
from pdpgd.evaluation.model_handle import ModelHandle
from pdpgd.runs.stats import JobResult

ENGINES = ("local", "ray")
MALLOC_OPTIONS = {
    -3: 32 * 2**20,  # M_MMAP_THRESHOLD: larger blocks are mapped one by one; this is the maximum of glibc
    -1: 2**30,  # M_TRIM_THRESHOLD: freed memory that is not returned to the system
    -2: 64 * 2**20,  # M_TOP_PAD: memory that is requested from the system at once
}
"""Options of glibc's mallopt and their values, in bytes."""


@dataclass(frozen=True)
class Failure:
    """Why a job failed; unlike some exceptions, it can be sent between processes."""

    message: str
    wrong_call: bool
    """Whether the call was invalid, rather than the model or the attack at fault."""


Result = JobResult | Failure
Handles = Mapping[str, ModelHandle]
"""The models of the jobs, by the name that a job has for its own."""


class Engine(AbstractContextManager["Engine"], Protocol):
    """Executes jobs, in any order and any number of them at once."""

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        """Yield the name of each job with its result, as jobs complete."""
        ...


def check_engine(name: str, workers: int | None, address: str | None) -> None:
    """Raise InvalidInputError unless there is such an engine, and it takes these options."""
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if workers is not None and (type(workers) is not int or workers < 1):
        raise InvalidInputError(f"workers: expected an integer >= 1, got {workers!r}")
    if name == "local" and address is not None:
        raise InvalidInputError(f"address: expected none with the engine local, got {address!r}")


def engine_of(
    name: str,
    handles: Handles,
    *,
    device: str,
    threads: int,
    workers: int | None,
    address: str | None,
    progress: Progress | None,
) -> Engine:
    """Create an engine; only the one in this process reports the progress within a job."""
    if name == "ray":
        from pdpgd.evaluation.ray_engine import RayEngine

        return RayEngine(handles, device=device, threads=threads, workers=workers, address=address)
    return InProcess(handles, device, progress) if workers in (None, 1) else Processes(handles, device, workers)


def keep_freed_memory() -> None:
    """Tune glibc malloc to keep freed memory: attacks reallocate tensors every step.

    Mapping memory and faulting it in took a fifth of the time of an evaluation of a small net. Call this only in a
    process of our own. It does nothing where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for option, value in MALLOC_OPTIONS.items():
        mallopt(option, value)


def load_in_worker(handle: ModelHandle, device: str) -> Model | Failure:
    """Load a model in a worker, where an exception could not be distinguished from the death of the worker."""
    keep_freed_memory()
    try:
        return handle.load(device)
    except PdpgdError as error:
        return Failure(str(error), isinstance(error, InvalidInputError))


class Worker:
    """Executes jobs one by one. It holds one model at a time, the last one used: jobs of a model follow one another."""

    def __init__(
        self,
        handles: Handles,
        device: str,
        load: Callable[[ModelHandle, str], Model | Failure] = load_in_worker,
        progress: Progress | None = None,
    ) -> None:
        self._handles, self._device, self._load, self._progress = handles, device, load, progress
        self._name: str | None = None
        self._model: Model | Failure | None = None
        hooks: Fingerprint = {}
        self._guards = {name: Guard(hooks) for name in handles}

    def run(self, job: Job) -> Result:
        """Execute a job on its model, which is loaded again if an earlier attack has changed it."""
        guard = self._guards[job.model]
        if self._name != job.model or self._model is None or guard.changed:
            self._model = None  # freed before the next one is loaded
            self._name, self._model = job.model, self._load(self._handles[job.model], self._device)
            guard.renew()
        return result_or_failure(job, self._model, guard, self._progress)


def result_or_failure(
    job: Job, model: Model | Failure, guard: Guard | None = None, progress: Progress | None = None
) -> Result:
    """Execute a job and return its error as a value, so that a chunk that fails does not stop the others."""
    if isinstance(model, Failure):
        return model
    try:
        return run_job(job, model, guard=guard, progress=progress)
    except PdpgdError as error:
        return Failure(str(error), isinstance(error, InvalidInputError))


def as_completed(
    submit: Callable[[Job], Future[Result]], jobs: Iterable[Job], *, at_once: int
) -> Iterator[tuple[str, Result]]:
    """Submit jobs and yield their results as they complete.

    Args:
        submit: Starts a job.
        jobs: The jobs, created when needed.
        at_once: Maximum number of jobs under way, each of which holds its images in memory.

    Yields:
        Name and result of each job.
    """
    waiting = iter(jobs)
    running: dict[Future[Result], str] = {}
    while True:
        while len(running) < at_once and (job := next(waiting, None)) is not None:
            running[submit(job)] = job.name
        if not running:
            return
        done = wait(running, return_when=FIRST_COMPLETED).done
        # Lost jobs raise, and come last, so that the results of the others are stored.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            yield running.pop(future), future.result()


class InProcess:
    """Executes one job after the other in this process."""

    def __init__(self, handles: Handles, device: str, progress: Progress | None) -> None:
        self._worker = Worker(handles, device, lambda handle, device: handle.load(device), progress)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        """Yield the name of each job with its result."""
        for job in jobs:
            yield job.name, self._worker.run(job)


class Processes:
    """Executes jobs in several processes of this machine, each of which loads the models itself."""

    def __init__(self, handles: Handles, device: str, workers: int) -> None:
        self._workers = workers
        self._others = multiprocessing.active_children()
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare_worker,
            initargs=(dict(handles), device),
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            for process in multiprocessing.active_children():
                if process not in self._others:
                    process.terminate()

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        """Yield the name of each job with its result, as jobs complete; raise EngineError if a process dies."""
        try:
            yield from as_completed(self._submit, jobs, at_once=2 * self._workers)
        except BrokenProcessPool as error:
            raise EngineError(
                "a worker process died (out of memory, or killed); no finished work is lost: "
                "start the same command again, with fewer workers if memory was short"
            ) from error

    def _submit(self, job: Job) -> Future[Result]:
        # The pool starts its workers here.
        with _ctrl_c_blocked():
            return self._pool.submit(_in_worker, job)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT, also in processes that are started meanwhile: it would kill them while they import modules."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: Worker | None = None


def _prepare_worker(handles: Handles, device: str) -> None:
    global _worker
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker = Worker(handles, device)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _in_worker(job: Job) -> Result:
    assert _worker is not None
    return _worker.run(job)
