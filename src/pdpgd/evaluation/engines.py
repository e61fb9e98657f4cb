"""Memory that is freed and asked for again a thousand times a second had better not go back to the system between."""

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

# glibc's malloc.h: what the numbers are to mallopt.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST = 32 * 2**20
"""Blocks from this size on are mapped by themselves, the most that glibc takes."""
KEPT = 2**30
TAKEN_AT_ONCE = 64 * 2**20


def keep_freed_memory() -> None:
    """For a process of our own: an attack makes and frees its tensors in every step.

    Mapping the memory and faulting it in took a fifth of an evaluation of a small net. Does nothing where the C library
    is not glibc.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, TAKEN_AT_ONCE)):
        mallopt(option, value)


ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Failure:
    """A job that failed, and why; it travels between processes where an exception may not."""

    message: str
    wrong_call: bool
    """Whether it is the caller's to put right, not the model's."""


Result = JobResult | Failure
Handles = Mapping[str, ModelHandle]
"""The models that jobs are for, by the name that a job has for its own."""


class Engine(AbstractContextManager["Engine"], Protocol):
    """Does jobs, in any order and as many at once as it likes; gives back each with what came of it."""

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]: ...


def check_engine(name: str, workers: int | None, address: str | None) -> None:
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
    if name == "ray":
        from pdpgd.evaluation.ray_engine import RayEngine

        return RayEngine(handles, device=device, threads=threads, workers=workers, address=address)
    return InProcess(handles, device, progress) if workers in (None, 1) else Processes(handles, device, workers)


def loaded(handle: ModelHandle, device: str) -> Model | Failure:
    """For a worker, whose errors while it gets ready would not be told from its death."""
    keep_freed_memory()
    try:
        return handle.load(device)
    except PdpgdError as error:
        return Failure(str(error), isinstance(error, InvalidInputError))


class Models:
    """A worker's: one at a time, the last that was asked for. Jobs for one model come together."""

    def __init__(
        self,
        handles: Handles,
        device: str,
        load: Callable[[ModelHandle, str], Model | Failure] = loaded,
        progress: Progress | None = None,
    ) -> None:
        self._handles, self._device, self._load, self._progress = handles, device, load, progress
        self._name: str | None = None
        self._model: Model | Failure | None = None
        everywhere: Fingerprint = {}
        self._guards = {name: Guard(everywhere) for name in handles}

    def do(self, job: Job) -> Result:
        """Do the job on its model; one that an attack has changed is loaded anew for the next job."""
        guard = self._guards[job.model]
        if self._name != job.model or self._model is None or guard.changed:
            self._model = None  # before the next one is there
            self._name, self._model = job.model, self._load(self._handles[job.model], self._device)
            guard.renew()
        return attempted(job, self._model, guard, self._progress)


def attempted(job: Job, model: Model | Failure, guard: Guard | None = None, progress: Progress | None = None) -> Result:
    """The outcome, or the error as a value: one chunk that fails does not take the others with it."""
    if isinstance(model, Failure):
        return model
    try:
        return run_job(job, model, guard=guard, progress=progress)
    except PdpgdError as error:
        return Failure(str(error), isinstance(error, InvalidInputError))


def completed(
    submit: Callable[[Job], Future[Result]], jobs: Iterable[Job], *, at_once: int
) -> Iterator[tuple[str, Result]]:
    """Keep `at_once` jobs under way, and no more: each carries its images with it."""
    waiting = iter(jobs)
    running: dict[Future[Result], str] = {}
    while True:
        while len(running) < at_once and (job := next(waiting, None)) is not None:
            running[submit(job)] = job.name
        if not running:
            return
        done = wait(running, return_when=FIRST_COMPLETED).done
        # Those that are lost come last: what was done beside them is to be kept.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            yield running.pop(future), future.result()


class InProcess:
    """One job after the other, here."""

    def __init__(self, handles: Handles, device: str, progress: Progress | None) -> None:
        self._models = Models(handles, device, lambda handle, device: handle.load(device), progress)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        for job in jobs:
            yield job.name, self._models.do(job)


class Processes:
    """Processes of this machine, each with models of its own."""

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
        try:
            yield from completed(self._submit, jobs, at_once=2 * self._workers)
        except BrokenProcessPool as error:
            raise EngineError(
                "a worker process died (out of memory, or killed); no finished work is lost: "
                "start the same command again, with fewer workers if memory was short"
            ) from error

    def _submit(self, job: Job) -> Future[Result]:
        # The pool starts its workers here.
        with _ctrl_c_waits():
            return self._pool.submit(_in_worker, job)


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """A process that is started meanwhile does not know Ctrl-C at all: it would die of it while it still imports."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_models: Models | None = None


def _prepare_worker(handles: Handles, device: str) -> None:
    global _models
    # Ctrl-C goes to the whole group of processes: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _models = Models(handles, device)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _in_worker(job: Job) -> Result:
    assert _models is not None
    return _models.do(job)
