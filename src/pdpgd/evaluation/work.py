"""Doing a job. What comes of it depends on the job alone, not on who does it or when."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from pdpgd.classifier import Model
from pdpgd.errors import ModelError
from pdpgd.evaluation import provenance
from pdpgd.evaluation.chunk import ChunkRun
from pdpgd.evaluation.guard import Guard
from pdpgd.evaluation.job import Job, Outcome, Progress
from pdpgd.evaluation.sanity import preflight
from pdpgd.random import seeded_globally
from pdpgd.runs.spec import RunSpec


def carry_out(job: Job, model: Model, *, guard: Guard | None = None, progress: Progress | None = None) -> Outcome:
    """Do the job; where the memory does not suffice, with half the batch.

    `guard` knows the model from the jobs before, and refuses one that an attack has changed.
    """
    guard = guard or Guard()
    spec, batch_size = job.spec, min(job.spec.batch_size, len(job.inputs))
    # Cloned: a tensor made under torch.inference_mode() takes no gradient.
    with torch.inference_mode(False):
        job = replace(job, inputs=job.inputs.to(spec.device).clone(), labels=job.labels.to(spec.device).clone())
    begin = time.perf_counter()
    while True:
        try:
            with _settled(spec):
                # Seeded apart from the job, whose bits must not depend on whether the model is fresh.
                with seeded_globally(spec.seed):
                    probes = guard.begin(model, job.inputs[:batch_size])
                with seeded_globally(spec.seed, int(job.indices[0]), len(job.kind)):
                    outcome = _attempt(job, model, guard, batch_size, progress)
            break
        except Exception as error:
            if batch_size == 1 or not _out_of_memory(error):
                if isinstance(error, ModelError):
                    guard.end(model)  # a model that fails because it was changed is not at fault
                guard.look(model)
                raise
        # Out here, where the error no longer holds on to what filled the memory.
        batch_size //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    outcome.facts["forwards"]["checks"] += probes
    facts = {
        **outcome.facts,
        "seconds": time.perf_counter() - begin,
        "batch_size": batch_size,
        "halved": batch_size < min(spec.batch_size, len(job.inputs)),
        "machine": _machine(spec.device),
    }
    return Outcome(facts, outcome.columns, outcome.examples)


def _attempt(job: Job, model: Model, guard: Guard, batch_size: int, progress: Progress | None) -> Outcome:
    seed = job.spec.seed
    if job.kind == "preflight":
        look = preflight(model, job.inputs, job.labels, batch_size=batch_size, seed=seed)
        guard.end(model)
        return Outcome({**look, "random_parameters": job.random_parameters})
    # The second start is the attacks once more with another seed: what is there still to gain?
    second = job.kind == "second start"
    trial = ChunkRun(job, model, batch_size=batch_size, seed=seed + second, progress=None if second else progress)
    outcome = trial.outcome(checks=job.spec.checks and not second, examples=not second)
    guard.end(model, trial.moved)
    return outcome


@contextmanager
def _settled(spec: RunSpec) -> Iterator[None]:
    """Everything that the order of a sum depends on, set as the spec says, and put back; gradients are had."""
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
    facts = {"platform": platform.platform(), "processor": provenance.processor()}
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts
