"""A run from beginning to end: what is asked, cut into jobs, done by an engine, kept by a store, summed up."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from pdpgd.attacks.contract import AttackResult
from pdpgd.classifier import Model
from pdpgd.errors import InvalidInputError, ModelError, StorageError, UnfinishedError
from pdpgd.evaluation import provenance, records, reliability
from pdpgd.evaluation.contestants import Contestant
from pdpgd.evaluation.engines import Failure, check_engine, engine_of
from pdpgd.evaluation.jobs import Job, Kind
from pdpgd.evaluation.preflight import check_labels
from pdpgd.evaluation.reliability import Check, Reliability
from pdpgd.evaluation.result import Evaluation
from pdpgd.evaluation.spec import Spec
from pdpgd.evaluation.store import DiskStore, MemoryStore, Store
from pdpgd.evaluation.subject import LiveModel, Subject, identity_of, samples_of, subject_of
from pdpgd.subjects import Samples
from pdpgd.subjects.normalise import NormalisationChoice

NORMS = ("linf", "l2", "l1", "l0")
PREFLIGHT, SECOND_START = "preflight", "second-start"
LOOKED_AT = 64
"""Samples that the model is looked at with before the run."""
SECOND_STARTS = (8, 64)
"""Least and most samples that are attacked from another start, a thirtieth of all between them."""

Attack = str | Callable[..., AttackResult]


class Watcher:
    """Told what goes on; does nothing with it. A progress bar is one that does."""

    def begun(self, samples: int, done: int) -> None:
        """The run has so many samples, and so many of them are done."""

    def looked(self, checks: Sequence[Check]) -> None:
        """What the model shows before it is attacked."""

    def moved(self, samples: float) -> None:
        """So many more samples are done; the parts of one that is under way count."""

    def noted(self, message: str) -> None:
        """Something the user should know."""


def evaluate(
    model: str | Model,
    data: Any,
    *,
    norms: Sequence[str] = NORMS,
    attack: Attack = "auto",
    budget: int | None = None,
    settings: Mapping[str, Any] | None = None,
    checks: bool = True,
    limit: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    chunk_size: int = 100,
    batch_size: int = 100,
    threads: int | None = None,
    device: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    weights: str | None = None,
    normalisation: NormalisationChoice = None,
    trust_pickle: bool = False,
    data_dir: str | None = None,
    watcher: Watcher | None = None,
) -> Evaluation:
    """How little must change before the model is wrong, for every sample and norm.

    `model` is a name or path (see `load_model`) or your own module, called as it is. `data` is a name, a path, a torch
    data set or loader, or a pair (images, labels); `limit` takes the first ones. `attack` is a name of the catalogue,
    with `budget` forward + backward passes a sample and norm (1000 if neither that nor `settings` are given), or a
    function in the shape of `pdpgd.Attack`. Without `checks` the attack is run and its points are judged, and no more:
    no cheap attacks beside it, no second starts, no rounding to 8 bits.

    `workers` is how many chunks are done at once: 1 if not given, on Ray all that the cluster has room for.

    With `out`, the results are written to that directory as they come, and the same call goes on where it was stopped.
    `threads` (of each chunk) and `device` are part of what the bits depend on: where they are not given, a run that
    goes on keeps those it was begun with.
    """
    watcher = watcher or Watcher()
    subject = subject_of(model, weights=weights, normalisation=normalisation, trust_pickle=trust_pickle)
    samples = samples_of(data, limit=limit, root=data_dir)
    contestant = _contestant(attack, budget, settings or {})
    store: Store = MemoryStore() if out is None else DiskStore(Path(out).expanduser())
    check_engine(engine, workers, address)
    there = store.spec()
    spec = Spec(
        model=subject.identity(),
        data=identity_of(samples),
        norms=tuple([norms] if isinstance(norms, str) else norms),
        attack=contestant.name,
        budget=contestant.budget,
        seed=seed,
        chunk_size=chunk_size,
        batch_size=batch_size,
        threads=_threads(engine, workers, there) if threads is None else threads,
        device=device or (there.device if there else _device(subject)),
        made_with=provenance.made_with(contestant.library),
        settings=contestant.settings,
        checks=checks,
    )
    contestant.check(spec.norms, batch_size)
    if engine == "local":
        _check_device(spec.device)
        _check_travel(subject, contestant, workers or 1)
    with store.alone() if isinstance(store, DiskStore) else nullcontext():
        store.open(spec)
        run = _Run(spec, contestant, samples, store, watcher)
        if run.pending():
            store.begin(provenance.start(engine=engine, workers=workers, address=address))
            with engine_of(
                engine,
                subject,
                device=spec.device,
                threads=spec.threads,
                workers=workers,
                address=address,
                progress=run.progress,
            ) as workforce:
                run.carry_out(workforce.results)
        evaluation = _assembled(spec, store, len(samples))
        store.sum_up(evaluation.as_json())
        return evaluation


def load_evaluation(folder: str | Path) -> Evaluation:
    """The results of a run that was finished."""
    store = DiskStore(Path(folder).expanduser())
    spec = store.spec()
    if spec is None:
        raise StorageError(f"{store.folder}: expected the directory of a run, got one without spec.json")
    count = int(spec.data["samples"])
    faults = [f"{name} is {fault}" for name in _jobs_of(spec, count) if (fault := store.fault(name))]
    if faults:
        raise UnfinishedError(
            f"{store.folder}: expected a finished run, got one where {', '.join(faults[:3])}; "
            "start the command that made it again"
        )
    return _assembled(spec, store, count)


class _Run:
    """The jobs of a run, and how far they have come."""

    def __init__(self, spec: Spec, contestant: Contestant, samples: Samples, store: Store, watcher: Watcher) -> None:
        self.spec, self.contestant, self.samples, self.store, self.watcher = spec, contestant, samples, store, watcher
        self._jobs = _jobs_of(spec, len(samples))
        self._done = {name for name in self._jobs if store.has(name)}
        self._told = 0
        self._part = 0.0
        self._under_way: range | None = None
        self._tell()

    def pending(self) -> list[str]:
        return [name for name in self._jobs if name not in self._done]

    def carry_out(self, results: Callable[[Iterable[Job]], Iterator[tuple[str, Any]]]) -> None:
        """The look at the model first, then everything else, in whatever order it gets done."""
        chunks = _chunks(self._jobs)
        last = [SECOND_START] if SECOND_START in self._jobs else []
        self.watcher.begun(len(self.samples), sum(len(self._jobs[name]) for name in chunks if name in self._done))
        failures: dict[str, Failure] = {}
        try:
            for batch in ([PREFLIGHT], [*chunks, *last]):
                for name, result in results(self._made(name for name in batch if name not in self._done)):
                    if isinstance(result, Failure):
                        failures[name] = result
                    else:
                        self._keep(name, result)
                if PREFLIGHT in failures:
                    failed = failures[PREFLIGHT]
                    raise (InvalidInputError if failed.wrong_call else ModelError)(failed.message)
                if batch == [PREFLIGHT]:
                    look = self.store.outcome(PREFLIGHT).facts
                    check_labels(self.samples.labels, look["classes"])
                    self.watcher.looked(reliability.before(look))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {self._kept()}: start the same command again to go on") from None
        if failures:
            raise UnfinishedError(self._told_of(failures))

    def progress(self, share: float) -> None:
        """Of the job that is under way in this process."""
        if self._under_way is not None:
            moved = share * len(self._under_way) - self._part
            self._part += moved
            self.watcher.moved(moved)

    def _made(self, names: Iterable[str]) -> Iterator[Job]:
        kinds: dict[str, Kind] = {PREFLIGHT: "preflight", SECOND_START: "second start"}
        for name in names:
            rows = torch.tensor(self._jobs[name])
            images, labels = self.samples.batch(rows)
            kind = kinds.get(name, "chunk")
            self._under_way, self._part = self._jobs[name] if kind == "chunk" else None, 0.0
            yield Job(name, kind, self.spec, self.contestant, images, labels, rows)

    def _keep(self, name: str, outcome: Any) -> None:
        self.store.keep(name, outcome)
        self._done.add(name)
        if outcome.facts["halved"]:
            self.watcher.noted(_told_of_memory(name, outcome.facts))
        if name not in (PREFLIGHT, SECOND_START):
            done = self._part if self._under_way == self._jobs[name] else 0.0
            self.watcher.moved(len(self._jobs[name]) - done)
            self._part = 0.0
            self._under_way = None
        self._tell()

    def _tell(self) -> None:
        notes = self.store.notes
        for message in notes[self._told :]:
            self.watcher.noted(message)
        self._told = len(notes)

    def _kept(self) -> str:
        chunks = _chunks(self._jobs)
        done = sum(name in self._done for name in chunks)
        where = f" in {self.store.folder}" if isinstance(self.store, DiskStore) else ""
        return f"{done} of {len(chunks)} chunks are kept{where}"

    def _told_of(self, failures: dict[str, Failure]) -> str:
        lines = "".join(
            f"\n  {name} (samples {self._jobs[name][0]} to {self._jobs[name][-1]}): {failure.message}"
            for name, failure in list(failures.items())[:5]
        )
        return f"{len(failures)} jobs failed:{lines}\n{self._kept()}; start the same command again to try the others"


def _jobs_of(spec: Spec, count: int) -> dict[str, range]:
    """The name of every job, and the samples it is on."""
    jobs = {PREFLIGHT: range(min(count, LOOKED_AT))}
    for number, first in enumerate(range(0, count, spec.chunk_size)):
        jobs[f"chunk-{number:05d}"] = range(first, min(first + spec.chunk_size, count))
    if spec.checks:
        least, most = SECOND_STARTS
        jobs[SECOND_START] = range(min(count, max(least, min(most, count // 30))))
    return jobs


def _chunks(jobs: Iterable[str]) -> list[str]:
    return [name for name in jobs if name not in (PREFLIGHT, SECOND_START)]


def _assembled(spec: Spec, store: Store, count: int) -> Evaluation:
    chunks = tuple(_chunks(_jobs_of(spec, count)))
    outcomes = [store.outcome(name) for name in chunks]
    columns = records.joined([outcome.columns for outcome in outcomes if outcome.columns is not None])
    facts = tuple(outcome.facts for outcome in outcomes)
    look = store.outcome(PREFLIGHT)
    checks, of_checks = reliability.before(look.facts), [look.facts]
    if spec.checks:
        second = store.outcome(SECOND_START)
        checks = (*checks, *reliability.after(columns, second.columns, facts))
        of_checks.append(second.facts)
    folder = store.folder if isinstance(store, DiskStore) else None
    halved = [_told_of_memory(name, fact) for name, fact in zip(chunks, facts, strict=True) if fact["halved"]]
    broken = [f"the attack broke on sample {where}: {why}" for fact in facts for where, why in _faults(fact).items()]
    return Evaluation(
        spec=spec,
        columns=columns,
        reliability=Reliability(checks),
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


def _told_of_memory(name: str, facts: Mapping[str, Any]) -> str:
    return (
        f"{name}: not enough memory for the batch; done in batches of {facts['batch_size']}, "
        "which may change the last bits"
    )


def _contestant(attack: Attack, budget: int | None, settings: Mapping[str, Any]) -> Contestant:
    if isinstance(attack, str):
        return Contestant(attack, 1000 if budget is None and not settings else budget, settings=settings)
    if not callable(attack):
        raise InvalidInputError(f"attack: expected a name or a function, got {type(attack).__name__}")
    if budget is not None or settings:
        raise InvalidInputError("budget, settings: expected none with an attack of your own, which has its own")
    function = getattr(attack, "func", attack)
    return Contestant(getattr(function, "__qualname__", type(attack).__qualname__), None, attack)


def _threads(engine: str, workers: int | None, there: Spec | None) -> int:
    """The cores of this machine, shared among the workers; on a cluster, one a chunk."""
    if there is not None:
        return there.threads
    return 1 if engine == "ray" else max(1, torch.get_num_threads() // (workers or 1))


def _device(subject: Subject) -> str:
    return subject.device() or ("cuda" if torch.cuda.is_available() else "cpu")


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(f"device: expected one that torch has here, got {device!r} ({error})") from error


def _check_travel(subject: Subject, contestant: Contestant, workers: int) -> None:
    """What is sent to other processes must survive it."""
    if workers == 1:
        return
    for what, thing in (("model", subject), ("attack", contestant)):
        if isinstance(subject, LiveModel) or what == "attack":
            try:
                pickle.dumps(thing)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise InvalidInputError(
                    f"{what}: expected one that can be sent to {workers} processes (by name, or defined in a module), "
                    f"got one that cannot be pickled ({error}); or take workers=1 or the engine ray"
                ) from error
