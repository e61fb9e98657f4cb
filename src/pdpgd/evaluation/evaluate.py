"""A run from beginning to end: what is asked, cut into jobs, done by an engine, kept by a store, summed up."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from pdpgd.attacks.base import AttackResult
from pdpgd.classifier import Model
from pdpgd.errors import InvalidInputError, StorageError, UnfinishedError
from pdpgd.evaluation import provenance
from pdpgd.evaluation.bound_attack import BoundAttack
from pdpgd.evaluation.engines import check_engine, engine_of
from pdpgd.evaluation.job import jobs_of
from pdpgd.evaluation.model_handle import LiveModel, ModelHandle, handle_of, identity_of, samples_of
from pdpgd.evaluation.scheduler import Run, assembled, carry_out
from pdpgd.files import output_path
from pdpgd.models.normalization import NormalizationChoice
from pdpgd.progress import ProgressListener
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import RunSpec
from pdpgd.runs.store import DiskStore, MemoryStore, Store

NORMS = ("linf", "l2", "l1", "l0")
Attack = str | Callable[..., AttackResult]


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
    normalisation: NormalizationChoice = None,
    pool: str | None = None,
    trust_model_code: bool = False,
    trust_pickle: bool = False,
    data_dir: str | None = None,
    progress: ProgressListener | None = None,
) -> Evaluation:
    """Measure how little must change before the model is wrong, for every sample and norm.

    Args:
        model: A name or path (see `load_model`), or your own module, which is called as it is.
        data: A name, a path, a torch data set or loader, or a pair (images, labels).
        norms: The norms to attack in, in this order: adversarial examples of one seed the next.
        attack: The name of an attack in the catalogue, or a function in the shape of `pdpgd.Attack`.
        budget: Maximum number of forward plus backward passes per sample and norm; 1000 if neither this nor
            `settings` are given.
        settings: Settings of the attack, over those that the budget implies.
        checks: Run the cheap attacks, the second starts and the rounding to 8 bits besides the attack. Without them,
            the adversarial examples of the attack are verified and nothing more.
        limit: Evaluate the first `limit` samples.
        out: Directory that results are written to as they come; the same call resumes a run that was stopped.
        seed: Random seed for attack initialization.
        chunk_size: Number of samples that are attacked and written together.
        batch_size: Maximum number of rows that the model gets at once.
        threads: CPU threads per chunk. Like `device`, part of what the bits of the results depend on: if not given,
            a resumed run keeps what it was begun with.
        device: Device to run on.
        engine: "local" or "ray".
        workers: Number of chunks processed at once: 1 if not given, on Ray as many as the cluster has room for.
        address: Address of an existing Ray cluster.
        weights: A file of weights to load into the model.
        normalisation: The normalization to put inside the model.
        pool: The name of groups of classes that the logits are pooled over (see `load_model`).
        trust_model_code: Consent to run the code that the file of the model or of its weights holds (see
            `load_model`).
        trust_pickle: Alias of `trust_model_code`.
        data_dir: Directory that the data set lies in.
        progress: Listener that is told how far the run has come.

    Returns:
        The verified distances of every sample in every norm, with the reliability report.
    """
    store: Store = MemoryStore() if out is None else DiskStore(output_path(out))
    subject = handle_of(
        model,
        weights=weights,
        normalisation=normalisation,
        pool=pool,
        trust_model_code=trust_model_code or trust_pickle,
    )
    samples = samples_of(data, limit=limit, root=data_dir)
    contestant = bound_attack(attack, budget, settings or {})
    check_engine(engine, workers, address)
    there = store.spec()
    spec = spec_of(
        subject.identity(),
        identity_of(samples),
        contestant,
        norms=[norms] if isinstance(norms, str) else norms,
        checks=checks,
        seed=seed,
        chunk_size=chunk_size,
        batch_size=batch_size,
        threads=_threads(engine, workers, there) if threads is None else threads,
        device=device or (there.device if there else device_of(subject)),
    )
    if engine == "local":
        check_device(spec.device)
        _check_travel(subject, contestant, workers or 1)
    run = Run(spec, subject, contestant, samples, store, progress or ProgressListener())
    with store.alone() if isinstance(store, DiskStore) else nullcontext():
        run.open()
        if run.pending():
            store.begin(provenance.start(engine=engine, workers=workers, address=address))
            with engine_of(
                engine,
                {run.model: run.subject},
                device=spec.device,
                threads=spec.threads,
                workers=workers,
                address=address,
                progress=run.progress,
            ) as workforce:
                try:
                    carry_out([run], workforce)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(f"stopped; {run.kept()}: start the same command again to go on") from None
        return run.evaluation()


def spec_of(
    model: Mapping[str, Any], data: Mapping[str, Any], contestant: BoundAttack, *, norms: Sequence[str], **how: Any
) -> RunSpec:
    """What is asked of a run on these, by their identities; refuses what the attack cannot do."""
    spec = RunSpec(
        model=model,
        data=data,
        norms=tuple(norms),
        attack=contestant.name,
        budget=contestant.budget,
        settings=contestant.settings,
        made_with=provenance.made_with(contestant.library),
        **how,
    )
    contestant.check(spec.norms, spec.batch_size)
    return spec


def load_evaluation(folder: str | Path) -> Evaluation:
    """The results of a run that was finished."""
    store = DiskStore(Path(folder).expanduser())
    spec = store.spec()
    if spec is None:
        raise StorageError(f"{store.folder}: expected the directory of a run, got one without spec.json")
    count = int(spec.data["samples"])
    faults = [f"{name} is {fault}" for name in jobs_of(spec, count) if (fault := store.fault(name))]
    if faults:
        raise UnfinishedError(
            f"{store.folder}: expected a finished run, got one where {', '.join(faults[:3])}; "
            "start the command that made it again"
        )
    return assembled(spec, store, count)


def bound_attack(attack: Attack, budget: int | None, settings: Mapping[str, Any]) -> BoundAttack:
    if isinstance(attack, str):
        return BoundAttack(attack, 1000 if budget is None and not settings else budget, settings=settings)
    if not callable(attack):
        raise InvalidInputError(f"attack: expected a name or a function, got {type(attack).__name__}")
    if budget is not None or settings:
        raise InvalidInputError("budget, settings: expected none with an attack of your own, which has its own")
    function = getattr(attack, "func", attack)
    return BoundAttack(getattr(function, "__qualname__", type(attack).__qualname__), None, attack)


def _threads(engine: str, workers: int | None, there: RunSpec | None) -> int:
    """The cores of this machine, shared among the workers; on a cluster, one a chunk."""
    if there is not None:
        return there.threads
    return 1 if engine == "ray" else max(1, torch.get_num_threads() // (workers or 1))


def device_of(subject: ModelHandle) -> str:
    return subject.device() or ("cuda" if torch.cuda.is_available() else "cpu")


def check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(f"device: expected one that torch has here, got {device!r} ({error})") from error


def _check_travel(subject: ModelHandle, contestant: BoundAttack, workers: int) -> None:
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
