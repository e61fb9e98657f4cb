"""A run under way: what it is cut into, how far it has come, and what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pdpgd import catalogue
from pdpgd.data.dataset import Samples
from pdpgd.errors import AttackError, InvalidInputError, ModelError, NoGradientError, PdpgdError, UnfinishedError
from pdpgd.evaluation.bound_attack import BoundAttack
from pdpgd.evaluation.engines import Engine, Failure, Result
from pdpgd.evaluation.job import PREFLIGHT, SECOND_START, Job, Outcome, chunks_of, jobs_of, kind_of
from pdpgd.evaluation.model_handle import ModelHandle
from pdpgd.evaluation.sanity import check_labels
from pdpgd.files import digest_of
from pdpgd.progress import ProgressListener
from pdpgd.runs import records, reliability
from pdpgd.runs.reliability import Reliability
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import RunSpec
from pdpgd.runs.store import DiskStore, Store


class Run:
    """The jobs of a run, and how far they have come.

    Several can be carried out by one engine; `name` then tells the jobs of one from those of another.
    """

    def __init__(
        self,
        spec: RunSpec,
        subject: ModelHandle,
        contestant: BoundAttack,
        samples: Samples,
        store: Store,
        progress: ProgressListener,
        name: str = "",
    ) -> None:
        self.spec, self.subject, self.contestant, self.samples = spec, subject, contestant, samples
        self.store, self.listener, self.name = store, progress, name
        self.error: PdpgdError | None = None
        """Why it cannot go on: the look at the model said so."""
        self._jobs = jobs_of(spec, len(samples))
        self._done: set[str] = set()
        self._failures: dict[str, Failure] = {}
        self._told = 0
        self._part = 0.0
        self._under_way: range | None = None

    def open(self) -> None:
        """Look up what is done already; refuse if the place holds another run."""
        self.store.open(self.spec)
        self._done = {name for name in self._jobs if self.store.has(name)}
        self._tell()

    def open_if_there(self) -> None:
        """The same, of a run that may never have been begun, and is not begun by this."""
        if self.store.spec() is not None:
            self.open()

    def pending(self) -> list[str]:
        return [name for name in self._jobs if name not in self._done]

    def begin(self) -> None:
        chunks = chunks_of(self._jobs)
        self.listener.started(
            "evaluating", len(self.samples), sum(len(self._jobs[name]) for name in chunks if name in self._done)
        )

    def first(self) -> Iterator[Job]:
        """The look at the model, before anything else."""
        yield from self._made([PREFLIGHT])

    def looked(self) -> None:
        """After `first`: is the model such that it can be attacked?"""
        if PREFLIGHT in self._failures:
            failed = self._failures[PREFLIGHT]
            self.error = (InvalidInputError if failed.wrong_call else ModelError)(failed.message)
            return
        look = self.store.outcome(PREFLIGHT).facts
        try:
            check_labels(self.samples.labels, look["classes"])
        except InvalidInputError as error:
            self.error = error
            return
        # Looks of runs that were begun before this was measured do not say.
        if self.contestant.needs_gradients and look.get("gradient_path") is False:
            self.error = NoGradientError(_told_of_no_gradient(self.contestant.name))
            return
        self.listener.checked(reliability.before(look))

    def rest(self) -> Iterator[Job]:
        """Everything else, in whatever order it gets done."""
        if self.error is None:
            yield from self._made([name for name in self._jobs if name != PREFLIGHT])

    def keep(self, name: str, result: Result) -> None:
        if isinstance(result, Failure):
            self._failures[name] = result
            return
        try:
            self.store.keep(name, result)
        except AttackError as error:
            self._failures[name] = Failure(str(error), wrong_call=False)
            return
        self._done.add(name)
        if result.facts["halved"]:
            self.listener.noted(_told_of_memory(name, result.facts))
        if kind_of(name) == "chunk":
            done = self._part if self._under_way == self._jobs[name] else 0.0
            self.listener.advanced(len(self._jobs[name]) - done)
            self._part = 0.0
            self._under_way = None
        self._tell()

    def progress(self, share: float) -> None:
        """Of the job that is under way in this process."""
        if self._under_way is not None:
            moved = share * len(self._under_way) - self._part
            self._part += moved
            self.listener.advanced(moved)

    def kept(self) -> str:
        chunks = chunks_of(self._jobs)
        done = sum(name in self._done for name in chunks)
        where = f" in {self.store.folder}" if isinstance(self.store, DiskStore) else ""
        return f"{done} of {len(chunks)} chunks are kept{where}"

    def evaluation(self) -> Evaluation:
        """What came of it; raises what kept it from coming to an end."""
        if self.error is not None:
            raise self.error
        if self._failures:
            raise UnfinishedError(self._told_of(self._failures))
        evaluation = assembled(self.spec, self.store, len(self.samples))
        self.store.sum_up(evaluation.as_json())
        return evaluation

    def look(self) -> str:
        """The same for runs whose look at the model would show the same."""
        spec = self.spec.as_json()
        parts = {name: spec[name] for name in ("model", "data", "seed", "batch_size", "threads", "device", "made_with")}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _made(self, names: Iterable[str]) -> Iterator[Job]:
        for name in names:
            if name in self._done:
                continue
            rows = torch.tensor(self._jobs[name])
            images, labels = self.samples.batch(rows)
            kind = kind_of(name)
            self._under_way, self._part = self._jobs[name] if kind == "chunk" else None, 0.0
            whole = f"{self.name}/{name}" if self.name else name
            yield Job(
                whole,
                kind,
                self.spec,
                self.contestant,
                images,
                labels,
                rows,
                self.model,
                self.subject.random_parameters,
            )

    @property
    def model(self) -> str:
        """What the engine calls it: models of the same weights may differ in normalization or pool."""
        return digest_of(self.spec.model) if self.name else ""

    def _tell(self) -> None:
        notes = self.store.notes
        for message in notes[self._told :]:
            self.listener.noted(message)
        self._told = len(notes)

    def _told_of(self, failures: dict[str, Failure]) -> str:
        lines = "".join(
            f"\n  {name} (samples {self._jobs[name][0]} to {self._jobs[name][-1]}): {failure.message}"
            for name, failure in list(failures.items())[:5]
        )
        return f"{len(failures)} jobs failed:{lines}\n{self.kept()}; start the same command again to try the others"


def carry_out(runs: Sequence[Run], engine: Engine, *, done: Callable[[Run], None] = lambda run: None) -> None:
    """Do all that is pending in them: the looks at the models first. `done` is told of each run that has no job left.

    What fails is kept by its run, and the others go on.
    """
    by_name = {run.name: run for run in runs}
    looks: dict[str, list[Run]] = {}
    for run in runs:
        run.begin()
        looks.setdefault(run.look(), []).append(run)
    for name, result in engine.results(job for alike in looks.values() for job in alike[0].first()):
        for run in looks[_run(by_name, name).look()]:
            if PREFLIGHT in run.pending():
                run.keep(PREFLIGHT, result)
    for alike in looks.values():
        for run in alike:
            _borrow_look(run, alike)
            run.looked()
    left = {run.name: len(run.pending()) for run in runs}
    for name, result in engine.results(job for run in runs for job in run.rest()):
        run = _run(by_name, name)
        run.keep(name.rpartition("/")[2], result)
        left[run.name] -= 1
        if left[run.name] == 0:
            done(run)


def _run(by_name: Mapping[str, Run], job: str) -> Run:
    return by_name[job.rpartition("/")[0]]


def _borrow_look(run: Run, alike: Sequence[Run]) -> None:
    """A run that was added to others takes their look at the model."""
    if PREFLIGHT in run.pending() and (there := [other for other in alike if PREFLIGHT not in other.pending()]):
        run.keep(PREFLIGHT, Outcome(there[0].store.outcome(PREFLIGHT).facts))


def assembled(spec: RunSpec, store: Store, count: int) -> Evaluation:
    """A run whose jobs are all done."""
    chunks = tuple(chunks_of(jobs_of(spec, count)))
    outcomes = [store.outcome(name) for name in chunks]
    columns = records.joined([outcome.columns for outcome in outcomes if outcome.columns is not None])
    facts = tuple(outcome.facts for outcome in outcomes)
    look = store.outcome(PREFLIGHT)
    checks, of_checks = reliability.before(look.facts), [look.facts]
    if spec.checks:
        second = store.outcome(SECOND_START)
        checks = (*checks, *reliability.after(columns, second.columns, facts, classes=look.facts["classes"]))
        of_checks.append(second.facts)
    folder = store.folder if isinstance(store, DiskStore) else None
    halved = [_told_of_memory(name, fact) for name, fact in zip(chunks, facts, strict=True) if fact["halved"]]
    broken = [f"the attack broke on sample {where}: {why}" for fact in facts for where, why in _faults(fact).items()]
    return Evaluation(
        spec=spec,
        columns=columns,
        reliability=Reliability(checks, checked=spec.checks),
        facts=facts,
        checks=tuple(of_checks),
        folder=folder,
        notes=(*store.notes, *halved, *broken),
        store=store,
        chunks=chunks,
    )


def _faults(fact: Mapping[str, Any]) -> Mapping[str, str]:
    faults: Mapping[str, str] = fact.get("faults", {})  # runs that were begun before they were kept have none
    return faults


def _told_of_no_gradient(attack: str) -> str:
    free = ", ".join(name for name, entry in catalogue.ATTACKS.items() if not entry.needs_gradients)
    return (
        f"the model: expected a gradient of its logits with respect to its inputs, which the attack {attack} follows, "
        "got logits that no graph connects with them; take torch.no_grad, torch.inference_mode, NumPy and quantized "
        f"layers out of the model, or take an attack that needs no gradient ({free}) or a function of your own"
    )


def _told_of_memory(name: str, facts: Mapping[str, Any]) -> str:
    return (
        f"{name}: not enough memory for the batch; done in batches of {facts['batch_size']}, "
        "which may change the last bits"
    )
