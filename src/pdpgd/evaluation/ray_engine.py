"""Jobs as tasks of a Ray cluster: one that exists, or one of this machine's own. The only place that imports ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from pdpgd.classifier import Model
from pdpgd.errors import EngineError
from pdpgd.evaluation.engines import Result, attempted, completed
from pdpgd.evaluation.jobs import Job
from pdpgd.evaluation.subject import Subject
from pdpgd.extras import need

# Ray does a task again when its worker or its machine is lost.
RETRIES = 5


class RayEngine:
    """Each task asks for `threads` CPUs, and for a GPU if the run is on one; Ray finds the place."""

    def __init__(self, subject: Subject, *, device: str, threads: int, workers: int, address: str | None) -> None:
        self._ray: Any = need("ray", extra="ray", purpose="the engine ray")
        on_gpu = device.startswith("cuda")
        self._begun = not self._ray.is_initialized()
        try:
            if address is not None:
                self._ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
            elif self._begun:
                self._ray.init(
                    num_cpus=workers * threads,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(f"ray: expected a cluster at {address or 'this machine'}, got none ({error})") from error
        self._workers = workers
        self._subject = self._ray.put(subject)
        self._task = self._ray.remote(num_cpus=threads, num_gpus=1 if on_gpu else 0, max_retries=RETRIES)(_in_worker)
        self._device = device

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun:
            self._ray.shutdown()

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Result]]:
        try:
            yield from completed(self._submit, jobs, at_once=2 * self._workers)
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"ray: a job was lost {RETRIES + 1} times ({type(error).__name__}: {error}); nothing that was done is "
                "lost: start the same command again"
            ) from error

    def _submit(self, job: Job) -> Future[Result]:
        future: Future[Result] = self._task.remote(job, self._subject, self._device).future()
        return future


_models: dict[tuple[str, str], Model] = {}


def _in_worker(job: Job, subject: Subject, device: str) -> Result:
    """A worker process serves many tasks: the model is loaded once."""
    key = (job.spec.digest(), device)
    if key not in _models:
        _models.clear()
        _models[key] = subject.load(device)
    return attempted(job, _models[key])
