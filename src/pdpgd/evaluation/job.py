"""Jobs: samples of a run with instructions, and their execution, whose result does not depend on the worker."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pdpgd.classifier import Model
from pdpgd.errors import ModelError
from pdpgd.evaluation import provenance
from pdpgd.evaluation.chunk import ChunkRun
from pdpgd.evaluation.guard import Guard
from pdpgd.evaluation.sanity import preflight
from pdpgd.random import STREAMS, seeded_globally
from pdpgd.runs.spec import AttackSpec, JobKind, RunSpec
from pdpgd.runs.stats import JobResult, Passes

Progress = Callable[[float], None]
"""Called with the share of the job that is done."""


@dataclass(frozen=True)
class Job:
    """Samples of a run with the instructions for a worker."""

    name: str
    """Unique among the jobs of an engine."""
    kind: JobKind
    """Whether the samples are attacked and recorded, attacked from a second start, or used to check the model."""
    spec: RunSpec
    attack: AttackSpec
    inputs: Tensor
    labels: Tensor
    indices: Tensor
    """Positions of the samples in the data set."""
    model: str = ""
    """Name of the model among those of the engine."""
    random_parameters: int | None = None
    """Number of parameters of that model that are drawn at random when it is built; None if unknown."""


def run_job(job: Job, model: Model, *, guard: Guard | None = None, progress: Progress | None = None) -> JobResult:
    """Execute a job; where memory runs out, with half the batch size.

    Args:
        job: The job.
        model: The model, on any device.
        guard: Knows the model from earlier jobs and refuses one that an attack has changed.
        progress: Called with the share of the job that is done.

    Returns:
        The result, with the stats of this execution.
    """
    guard = guard or Guard()
    spec, batch_size = job.spec, min(job.spec.batch_size, len(job.inputs))
    # Cloned: a tensor created under torch.inference_mode() takes no gradient.
    with torch.inference_mode(False):
        job = replace(job, inputs=job.inputs.to(spec.device).clone(), labels=job.labels.to(spec.device).clone())
    begin = time.perf_counter()
    while True:
        try:
            with _deterministic(spec):
                # Seeded apart from the job, whose bits must not depend on whether the model is fresh.
                with seeded_globally(spec.seed):
                    probes = guard.begin(model, job.inputs[:batch_size])
                with seeded_globally(spec.seed, int(job.indices[0]), STREAMS[job.kind]):
                    result = _attempt(job, model, guard, batch_size, progress)
            break
        except Exception as error:
            if batch_size == 1 or not _out_of_memory(error):
                if isinstance(error, ModelError):
                    guard.end(model)  # if the model was changed, that is the error to report
                guard.note_changes(model)
                raise
        # Outside the handler, where the error no longer holds on to the tensors that filled the memory.
        batch_size //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    forwards = result.stats.forwards
    stats = replace(
        result.stats,
        forwards=Passes(forwards.attacks, forwards.checks + probes),
        seconds=time.perf_counter() - begin,
        batch_size=batch_size,
        halved=batch_size < min(spec.batch_size, len(job.inputs)),
        machine=_machine(spec.device),
    )
    return replace(result, stats=stats)


def _attempt(job: Job, model: Model, guard: Guard, batch_size: int, progress: Progress | None) -> JobResult:
    seed = job.spec.seed
    if job.kind == "preflight":
        stats = preflight(
            model,
            job.inputs,
            job.labels,
            batch_size=batch_size,
            seed=seed,
            random_parameters=job.random_parameters,
        )
        guard.end(model)
        return JobResult(stats)
    # The second start repeats the attacks with another seed, to measure how much restarts would still gain.
    second = job.kind == "second start"
    chunk = ChunkRun(job, model, batch_size=batch_size, seed=seed + second, progress=None if second else progress)
    result = chunk.result(checks=job.spec.checks and not second, examples=not second)
    guard.end(model, chunk.drift)
    return result


@contextmanager
def _deterministic(spec: RunSpec) -> Iterator[None]:
    """Fix everything that the order of sums depends on, and enable gradients; restore it afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        with (
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
            torch.autocast(torch.device(spec.device).type, enabled=False),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            yield
    finally:
        torch.set_num_threads(threads)


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
            return True
        error = error.__cause__
    return False


def _machine(device: str) -> dict[str, str]:
    machine = {"platform": platform.platform(), "processor": provenance.processor()}
    if device.startswith("cuda"):
        machine["gpu"] = torch.cuda.get_device_name(device)
    return machine
