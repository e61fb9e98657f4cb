"""Scheduling the jobs of runs: which are pending, in which order they are executed, and what follows from failures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from pdpgd.attacks import catalogue
from pdpgd.data.dataset import Samples
from pdpgd.errors import AttackError, InvalidInputError, ModelError, NoGradientError, PdpgdError, UnfinishedError
from pdpgd.evaluation.attack_call import needs_gradients
from pdpgd.evaluation.engines import Engine, Failure
from pdpgd.evaluation.job import Job
from pdpgd.evaluation.model_handle import ModelHandle
from pdpgd.evaluation.sanity import check_labels
from pdpgd.files import digest_of
from pdpgd.progress import ProgressListener
from pdpgd.runs import reliability
from pdpgd.runs.result import Evaluation, assemble, memory_note
from pdpgd.runs.spec import PREFLIGHT, AttackSpec, RunSpec, chunks_of, jobs_of, kind_of
from pdpgd.runs.stats import JobResult, PreflightStats
from pdpgd.runs.store import Store

FAILURES_SHOWN = 5


class Run:
    """The jobs of one run and their state.

    One engine may execute the jobs of several runs; the `name` of a run then distinguishes its jobs from the others.
    """

    def __init__(
        self,
        spec: RunSpec,
        handle: ModelHandle,
        attack: AttackSpec,
        samples: Samples,
        store: Store,
        listener: ProgressListener,
        name: str = "",
    ) -> None:
        self.spec, self.handle, self.attack, self.samples = spec, handle, attack, samples
        self.store, self.listener, self.name = store, listener, name
        self.error: PdpgdError | None = None
        """Why the model cannot be attacked, according to the preflight."""
        self._jobs = jobs_of(spec)
        self._done: set[str] = set()
        self._failures: dict[str, Failure] = {}
        self._notes_passed_on = 0
        self._reported = 0.0
        self._current: range | None = None

    def open(self) -> None:
        """Find out which jobs are done already; raise if the store belongs to another run."""
        self.store.open(self.spec)
        self._done = {name for name in self._jobs if self.store.has(name)}
        self._pass_on_notes()

    def open_if_started(self) -> None:
        """Do the same for a run that may never have been started, without starting it."""
        if self.store.spec() is not None:
            self.open()

    def pending(self) -> list[str]:
        """Return the names of the jobs that are not done."""
        return [name for name in self._jobs if name not in self._done]

    def start(self) -> None:
        """Report to the listener that the run starts."""
        chunks = chunks_of(self._jobs)
        done = sum(len(self._jobs[name]) for name in chunks if name in self._done)
        self.listener.started("evaluating", len(self.samples), done)

    def preflight_job(self) -> Iterator[Job]:
        """Yield the preflight, unless it is done."""
        yield from self._create([PREFLIGHT])

    def preflight_stats(self) -> PreflightStats:
        """Return the measurements of the preflight, which is done."""
        measured = self.store.result(PREFLIGHT).stats.preflight
        assert measured is not None
        return measured

    def check_preflight(self) -> None:
        """Set `error` if the preflight shows that the model cannot be attacked."""
        if PREFLIGHT in self._failures:
            failed = self._failures[PREFLIGHT]
            self.error = (InvalidInputError if failed.wrong_call else ModelError)(failed.message)
            return
        measured = self.preflight_stats()
        try:
            check_labels(self.samples.labels, measured.classes)
        except InvalidInputError as error:
            self.error = error
            return
        # None in runs that were started before this was measured.
        if needs_gradients(self.attack) and measured.gradient_path is False:
            self.error = NoGradientError(_no_gradient(self.attack.name))
            return
        self.listener.checked(reliability.model_checks(measured, draws=self.spec.draws))

    def other_jobs(self) -> Iterator[Job]:
        """Yield all other pending jobs; they may be executed in any order."""
        if self.error is None:
            yield from self._create([name for name in self._jobs if name != PREFLIGHT])

    def finish(self, name: str, result: JobResult | Failure) -> None:
        """Store the result of a job, or note why it failed."""
        if isinstance(result, Failure):
            self._failures[name] = result
            return
        try:
            self.store.save(name, result)
        except AttackError as error:
            self._failures[name] = Failure(str(error), wrong_call=False)
            return
        self._done.add(name)
        if result.stats.halved:
            self.listener.noted(memory_note(name, result.stats))
        if kind_of(name) == "chunk":
            reported = self._reported if self._current == self._jobs[name] else 0.0
            self.listener.advanced(len(self._jobs[name]) - reported)
            self._reported = 0.0
            self._current = None
        self._pass_on_notes()

    def progress(self, share: float) -> None:
        """Report the progress of the job that is executed in this process."""
        if self._current is not None:
            advance = share * len(self._current) - self._reported
            self._reported += advance
            self.listener.advanced(advance)

    def state(self) -> str:
        """Say how many chunks are stored, and where."""
        chunks = chunks_of(self._jobs)
        done = sum(name in self._done for name in chunks)
        where = "" if self.store.folder is None else f" in {self.store.folder}"
        return f"{done} of {len(chunks)} chunks are stored{where}"

    def evaluation(self) -> Evaluation:
        """Return the results of the run; raise the error that prevented them."""
        if self.error is not None:
            raise self.error
        if self._failures:
            raise UnfinishedError(self._failure_report())
        evaluation = assemble(self.spec, self.store)
        self.store.write_summary(evaluation.as_json())
        return evaluation

    def preflight_key(self) -> str:
        """Return a checksum that runs share if their preflights would measure the same."""
        spec = self.spec.as_json()
        parts = {name: spec[name] for name in ("model", "data", "seed", "batch_size", "threads", "device", "made_with")}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def model(self) -> str:
        """Name of the model for the engine: models of the same weights may differ in normalization or pooling."""
        return digest_of(self.spec.model) if self.name else ""

    def _create(self, names: Iterable[str]) -> Iterator[Job]:
        for name in names:
            if name in self._done:
                continue
            rows = torch.tensor(self._jobs[name])
            images, labels = self.samples.batch(rows)
            kind = kind_of(name)
            self._current, self._reported = self._jobs[name] if kind == "chunk" else None, 0.0
            yield Job(
                name=f"{self.name}/{name}" if self.name else name,
                kind=kind,
                spec=self.spec,
                attack=self.attack,
                inputs=images,
                labels=labels,
                indices=rows,
                model=self.model,
                random_parameters=self.handle.random_parameters,
            )

    def _pass_on_notes(self) -> None:
        notes = self.store.notes
        for message in notes[self._notes_passed_on :]:
            self.listener.noted(message)
        self._notes_passed_on = len(notes)

    def _failure_report(self) -> str:
        lines = "".join(
            f"\n  {name} (samples {self._jobs[name][0]} to {self._jobs[name][-1]}): {failure.message}"
            for name, failure in list(self._failures.items())[:FAILURES_SHOWN]
        )
        return (
            f"{len(self._failures)} jobs failed:{lines}\n{self.state()}; start the same command again to try the others"
        )


def execute(runs: Sequence[Run], engine: Engine, *, on_finished: Callable[[Run], None] = lambda run: None) -> None:
    """Execute all pending jobs of the runs, preflights first.

    A job that fails is noted by its run; the others continue.

    Args:
        runs: Runs that were opened.
        engine: Executes the jobs.
        on_finished: Called with each run that has no job left.
    """
    by_name = {run.name: run for run in runs}
    same_preflight: dict[str, list[Run]] = {}
    for run in runs:
        run.start()
        same_preflight.setdefault(run.preflight_key(), []).append(run)
    for name, result in engine.results(job for group in same_preflight.values() for job in group[0].preflight_job()):
        for run in same_preflight[_run_of(by_name, name).preflight_key()]:
            if PREFLIGHT in run.pending():
                run.finish(PREFLIGHT, result)
    for group in same_preflight.values():
        for run in group:
            _borrow_preflight(run, group)
            run.check_preflight()
    left = {run.name: len(run.pending()) for run in runs}
    for name, result in engine.results(job for run in runs for job in run.other_jobs()):
        run = _run_of(by_name, name)
        run.finish(name.rpartition("/")[2], result)
        left[run.name] -= 1
        if left[run.name] == 0:
            on_finished(run)


def _run_of(by_name: Mapping[str, Run], job: str) -> Run:
    return by_name[job.rpartition("/")[0]]


def _borrow_preflight(run: Run, group: Sequence[Run]) -> None:
    """Copy the preflight of another run of the group to one that was added later."""
    if PREFLIGHT in run.pending() and (done := [other for other in group if PREFLIGHT not in other.pending()]):
        run.finish(PREFLIGHT, JobResult(done[0].store.result(PREFLIGHT).stats))


def _no_gradient(attack: str) -> str:
    free = ", ".join(name for name, entry in catalogue.ATTACKS.items() if not entry.needs_gradients)
    return (
        f"the model: expected a gradient of its logits with respect to its inputs, which the attack {attack} follows, "
        "got logits without an autograd graph to them; remove torch.no_grad, torch.inference_mode, NumPy and "
        f"quantized layers from the model, or use an attack that needs no gradient ({free}) or a function of your own"
    )
