"""Evaluating a model: the public `evaluate`, and the run behind it, executed by an engine and stored."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pdpgd.attacks.base import AttackResult
from pdpgd.classifier import Model
from pdpgd.data.dataset import Samples
from pdpgd.errors import InvalidInputError, renamed_keyword
from pdpgd.evaluation import provenance
from pdpgd.evaluation.attack_call import at_radii, attack_spec, check_attack, library_of
from pdpgd.evaluation.engines import check_engine, engine_of
from pdpgd.evaluation.model_handle import DataSource, LiveModel, ModelHandle, handle_of, identity_of, samples_of
from pdpgd.evaluation.scheduler import Run, execute
from pdpgd.files import output_path
from pdpgd.models.normalization import NormalizationChoice
from pdpgd.norms import norm_of
from pdpgd.progress import ProgressListener
from pdpgd.runs.disk_store import DiskStore
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import AttackSpec, RunSpec
from pdpgd.runs.store import MemoryStore, Store

NORMS = ("linf", "l2", "l1", "l0")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the execution of a run, whatever it evaluates.

    Example:
        >>> RunOptions(workers=2, threads=1).engine
        'local'
    """

    seed: int = 0
    """Random seed for attack initialization."""
    chunk_size: int = 100
    """Number of samples that are attacked and written together."""
    batch_size: int = 100
    """Maximum number of rows per forward pass."""
    threads: int | None = None
    """CPU threads per chunk; None for those of the stored run, or the cores of this machine."""
    device: str | None = None
    """Device to run on; None for that of the stored run, or of the model."""
    engine: str = "local"
    """Engine that executes the jobs: "local" or "ray"."""
    workers: int | None = None
    """Number of chunks processed at once."""
    address: str | None = None
    """Address of an existing Ray cluster."""
    draws: int = 1
    """Number of draws of a randomized model that attacks average over; above 1, the referee judges by a vote."""


@renamed_keyword("normalisation", "normalization")
def evaluate(
    model: str | Model,
    data: DataSource,
    *,
    norms: Sequence[str] | None = None,
    attack: str | Callable[..., AttackResult] = "auto",
    budget: int | None = None,
    settings: Mapping[str, Any] | None = None,
    only_radii: Mapping[str, float | Sequence[float]] | None = None,
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
    normalization: NormalizationChoice = None,
    pool: str | None = None,
    trust_model_code: bool = False,
    trust_pickle: bool = False,
    data_dir: str | None = None,
    draws: int = 1,
    progress: ProgressListener | None = None,
) -> Evaluation:
    """Find the smallest adversarial perturbation of every sample in every norm, and verify it.

    Args:
        model: A name or path (see `load_model`), or your own module, which is called as it is.
        data: A name, a path, a torch data set or loader, or a pair (images, labels).
        norms: Norms to attack in this order: adversarial examples of one are warm starts for the next. None for those
            of `only_radii`, or for linf, l2, l1 and l0 without it.
        attack: The name of an attack in the catalogue, or a function in the shape of `pdpgd.Attack`.
        budget: Maximum number of forward plus backward passes per sample and norm; 1000 if neither this nor
            `settings` are given.
        settings: Settings of the attack that override those implied by the budget.
        only_radii: One or several radii for each norm, to ask only whether a sample is fooled within them. A sample
            that is fooled within the smallest radius costs no further passes, and distances are upper bounds. For the
            attacks "auto" and "auto-shared". None asks for the smallest distances.
        checks: Also run cheap attacks and second starts, and quantize adversarial examples to 8 bits. Without checks,
            the adversarial examples of the attack are only verified.
        limit: Evaluate the first `limit` samples.
        out: Directory that results are written to as they come; the same call resumes a run that was stopped.
        seed: Random seed for attack initialization.
        chunk_size: Number of samples that are attacked and written together.
        batch_size: Maximum number of rows that the model gets at once.
        threads: CPU threads per chunk. The last bits of the results depend on it, so that a resumed run uses those
            that it was started with by default.
        device: Device to run on; the same applies to it.
        engine: "local" or "ray".
        workers: Number of chunks processed at once: 1 if not given, on Ray as many as the cluster has room for.
        address: Address of an existing Ray cluster.
        weights: A file of weights to load into the model.
        normalization: The normalization to put inside the model.
        pool: The name of groups of classes that the logits are pooled over (see `load_model`).
        trust_model_code: Consent to run the code that the file of the model or of its weights holds (see
            `load_model`).
        trust_pickle: Alias of `trust_model_code`.
        data_dir: Directory that the data set lies in.
        draws: Number of draws of a randomized model: attacks see the mean of the logits over them, each draw counts as
            a pass, and the referee judges by a majority of draws that the attack has not seen. 1 for a model that is
            not randomized.
        progress: Listener that receives the progress of the run.

    Returns:
        The verified distances of every sample in every norm, with the reliability report.

    Raises:
        InvalidInputError: The call is wrong: the message says what was expected.
        ModelError: The model fails on valid inputs, or does not return logits.
        UnfinishedError: Some chunks failed; the others are stored, and the same call continues.

    Example:
        >>> evaluation = pdpgd.evaluate("mnist-plain", "mnist-1000", norms=["l2"], limit=10, budget=50)
        >>> evaluation.clean_accuracy
        1.0
        >>> evaluation.robust_accuracy(0.7, "l2")
        0.8
        >>> asked = pdpgd.evaluate("mnist-plain", "mnist-1000", limit=10, budget=50, only_radii={"l2": 0.7})
        >>> asked.robust_accuracy(0.7, "l2")
        0.8
    """
    options = RunOptions(
        seed=seed,
        chunk_size=chunk_size,
        batch_size=batch_size,
        threads=threads,
        device=device,
        engine=engine,
        workers=workers,
        address=address,
        draws=draws,
    )
    # Before the model is loaded: a wrong path is a wrong call.
    folder = None if out is None else output_path(out)
    chosen = _norms(norms, only_radii)
    spec = attack_spec(attack, budget, settings or {})
    if only_radii is not None:
        spec = at_radii(spec, only_radii, chosen)
    handle = handle_of(
        model,
        weights=weights,
        normalization=normalization,
        pool=pool,
        trust_model_code=trust_model_code or trust_pickle,
    )
    return run_evaluation(
        handle,
        samples_of(data, limit=limit, root=data_dir),
        spec,
        norms=chosen,
        checks=checks,
        options=options,
        folder=folder,
        progress=progress or ProgressListener(),
    )


def run_evaluation(
    handle: ModelHandle,
    samples: Samples,
    attack: AttackSpec,
    *,
    norms: tuple[str, ...],
    checks: bool,
    options: RunOptions,
    folder: Path | None,
    progress: ProgressListener,
) -> Evaluation:
    """Run an attack on samples that are loaded; the rest is as in `evaluate`."""
    store: Store = MemoryStore() if folder is None else DiskStore(folder)
    check_engine(options.engine, options.workers, options.address)
    stored = store.spec()
    spec = run_spec(
        handle.identity(),
        identity_of(samples),
        attack,
        norms=norms,
        checks=checks,
        seed=options.seed,
        chunk_size=options.chunk_size,
        batch_size=options.batch_size,
        threads=_threads(options, stored) if options.threads is None else options.threads,
        device=options.device or (stored.device if stored else device_of(handle)),
        draws=options.draws,
    )
    if options.engine == "local":
        check_device(spec.device)
        _check_pickles(handle, attack, options.workers or 1)
    run = Run(spec, handle, attack, samples, store, progress)
    with store.exclusive():
        run.open()
        if run.pending():
            store.log_start(provenance.start(engine=options.engine, workers=options.workers, address=options.address))
            with engine_of(
                options.engine,
                {run.model: handle},
                device=spec.device,
                threads=spec.threads,
                workers=options.workers,
                address=options.address,
                progress=run.progress,
            ) as engine:
                try:
                    execute([run], engine)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(
                        f"stopped; {run.state()}: start the same command again to continue"
                    ) from None
        return run.evaluation()


def run_spec(
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    attack: AttackSpec,
    *,
    norms: tuple[str, ...],
    checks: bool,
    seed: int,
    chunk_size: int,
    batch_size: int,
    threads: int,
    device: str,
    draws: int = 1,
) -> RunSpec:
    """Describe a run of an attack on a model and data, given by their identities.

    Raises:
        InvalidInputError: There is no such norm, or the attack cannot do what is asked.
    """
    for norm in norms:
        norm_of(norm)
    spec = RunSpec(
        model=model,
        data=data,
        norms=norms,
        attack=attack.name,
        budget=attack.budget,
        settings=attack.all_settings,
        made_with=provenance.made_with(library_of(attack)),
        checks=checks,
        seed=seed,
        chunk_size=chunk_size,
        batch_size=batch_size,
        threads=threads,
        device=device,
        draws=draws,
    )
    check_attack(attack, spec.norms, spec.batch_size, spec.draws)
    return spec


def device_of(handle: ModelHandle) -> str:
    """Return the device of a model, or the one to load it to: a GPU if there is one."""
    return handle.device() or ("cuda" if torch.cuda.is_available() else "cpu")


def check_device(device: str) -> None:
    """Raise InvalidInputError unless torch has this device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(f"device: expected one that torch has here, got {device!r} ({error})") from error


def _norms(norms: Sequence[str] | None, only_radii: Mapping[str, Any] | None) -> tuple[str, ...]:
    if norms is None:
        return tuple(only_radii) if isinstance(only_radii, Mapping) and only_radii else NORMS
    return (norms,) if isinstance(norms, str) else tuple(norms)


def _threads(options: RunOptions, stored: RunSpec | None) -> int:
    """Divide the cores of this machine among the workers; on a cluster, use one per chunk."""
    if stored is not None:
        return stored.threads
    return 1 if options.engine == "ray" else max(1, torch.get_num_threads() // (options.workers or 1))


def _check_pickles(handle: ModelHandle, attack: AttackSpec, workers: int) -> None:
    """Raise InvalidInputError unless model and attack can be sent to other processes."""
    if workers == 1:
        return
    for what, thing in (("model", handle), ("attack", attack)):
        if isinstance(handle, LiveModel) or what == "attack":
            try:
                pickle.dumps(thing)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise InvalidInputError(
                    f"{what}: expected one that can be sent to {workers} processes (by name, or defined in a module), "
                    f"got one that cannot be pickled ({error}); or take workers=1 or the engine ray"
                ) from error
