"""Running an experiment: every cell of its results is a run of `evaluate`, and one engine executes all of them.

DIR/spec.toml       the spec of the experiment
DIR/jobs/ID         the run of a cell; ID is a checksum of everything that its bits depend on, so that runs are reused
                    when the spec grows, and when two figures need the same run
DIR/results.json    the results
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pdpgd import _moved
from pdpgd.attacks import catalogue
from pdpgd.errors import AttackError, InvalidInputError, MissingExtraError, PdpgdError, UnfinishedError
from pdpgd.evaluation import provenance
from pdpgd.evaluation.compare import selected
from pdpgd.evaluation.engines import check_engine, engine_of
from pdpgd.evaluation.evaluate import check_device, run_spec
from pdpgd.evaluation.scheduler import Run, execute
from pdpgd.experiments.gathering import CostCache, Outcome, cell_of, results_of
from pdpgd.experiments.inputs import load_inputs
from pdpgd.experiments.iteration_cost import countable, measure_cost
from pdpgd.experiments.plan import PlannedRun, planned_runs
from pdpgd.experiments.results import FILE, JOBS, SPEC, IterationCost, Results
from pdpgd.experiments.spec import ExperimentSpec
from pdpgd.files import check_file, locked, output_path, replace_file
from pdpgd.progress import ProgressListener
from pdpgd.runs.disk_store import DiskStore

ID_LENGTH = 16
COSTS = f"{JOBS}/iteration_costs.json"
# Number of samples with which the passes of an iteration are counted.
COUNTED_ON = 4

TuningKey = tuple[str, str, str, str]
"""Data set, model, norm and attack."""


@dataclass(frozen=True)
class Execution:
    """The engine that executes the runs of an experiment."""

    engine: str
    workers: int | None
    """Number of chunks processed at once."""
    address: str | None
    """Address of an existing Ray cluster."""


class Experiment:
    """An experiment in its directory, with the models and data of its spec loaded.

    Args:
        spec: Spec of the experiment, from `load_spec` or `parse_spec`.
        folder: Directory of the results.
        device: Device to run on; by default a GPU if there is one.
        data_dir: Directory that contains the data sets; by default they are searched for, then downloaded.
        trust_model_code: Consent to run the code that the files of the models contain (see `load_model`). The spec
            cannot give it: its entries `trust_model_code` only say which models need it.
        progress: Listener that is told how far the experiment has come.

    Raises:
        PdpgdError: Models or data cannot be loaded, or an attack cannot do what the spec asks for.

    Example:
        >>> from pdpgd.experiments.spec import load_spec
        >>> experiment = Experiment(load_spec("experiment.toml"), "runs/experiment")
        >>> results = experiment.run(workers=1)
        >>> [cell.label for cell in results.cells]
        ['auto', 'pdpgd']
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        folder: str | Path,
        *,
        device: str | None = None,
        data_dir: str | None = None,
        trust_model_code: bool = False,
        progress: ProgressListener | None = None,
    ) -> None:
        self.spec, self.folder = spec, output_path(folder)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_device(self.device)
        self.listener = progress or ProgressListener()
        self._inputs = load_inputs(spec, device=self.device, data_dir=data_dir, trust_model_code=trust_model_code)
        self._planned = planned_runs(spec)
        for planned in self._planned:
            self._check(planned)

    def run(self, *, engine: str = "local", workers: int | None = None, address: str | None = None) -> Results:
        """Execute the runs that are not finished yet, and write the results.

        Args:
            engine: "local" or "ray".
            workers: Number of chunks processed at once. Default: the number of cores divided by the threads per chunk;
                1 on a GPU; on Ray as many as the cluster has room for.
            address: Address of an existing Ray cluster.

        Returns:
            The results, which are also written to results.json. An attack that fails becomes a cell with the reason.

        Raises:
            InvalidInputError: The engine is unknown, or the directory belongs to something else.
            StorageError: The directory cannot be written.
        """
        check_engine(engine, workers, address)
        if engine == "local" and workers is None:
            # Processes that share one GPU would slow each other down.
            workers = max(1, (os.cpu_count() or 1) // self.spec.threads) if self.device == "cpu" else 1
        self._check_folder()
        for name in (SPEC, FILE):
            check_file(self.folder / name)
        with locked(self.folder):
            replace_file(self.folder / SPEC, self.spec.text.encode())
            execution = Execution(engine, workers, address)
            self._run_candidates(execution)
            selection = self._selected_settings()
            tuned = [_with_selected(planned, selection) for planned in self._planned]
            runs = self._runs(tuned, held_out=False)
            self._execute("attacks", runs, execution)
            results = self._results(tuned, runs)
            replace_file(self.folder / FILE, results.to_json().encode())
        return results

    def status(self) -> list[tuple[PlannedRun, str]]:
        """Return how far every run has come.

        Returns:
            The planned runs, each with "done", "in progress", "to do", "to tune" if its settings still have to be
            selected, or the reason why it cannot be run.
        """
        found: list[tuple[PlannedRun, str]] = []
        selection = self._selected_settings()
        for planned in self._planned:
            if planned.to_tune and _tuning_key(planned) not in selection:
                found.append((planned, "to tune"))
                continue
            try:
                run = self._run(_with_selected(planned, selection), held_out=False)
            except MissingExtraError as error:
                found.append((planned, str(error)))
                continue
            found.append((planned, self._state(run)))
        return found

    def stale(self) -> list[Path]:
        """Return the directories of runs that the spec does not ask for, or no longer."""
        place = self.folder / JOBS
        if not place.is_dir():
            return []
        selection = self._selected_settings()
        wanted: set[str] = set()
        for planned in self._planned:
            if planned.to_tune:
                wanted |= set(self._runs(planned.candidates(), held_out=True))
            if not planned.to_tune or _tuning_key(planned) in selection:
                wanted |= set(self._runs([_with_selected(planned, selection)], held_out=False))
        return sorted(path for path in place.iterdir() if is_job(path) and path.name not in wanted)

    def _check(self, planned: PlannedRun) -> None:
        """Refuse, before anything runs, what an attack cannot do; a missing library becomes a failed cell instead."""
        try:
            self._run(planned, held_out=False)
        except MissingExtraError:
            pass
        except InvalidInputError as error:
            raise InvalidInputError(f"{planned.title}: {error}") from error

    def _run(self, planned: PlannedRun, *, held_out: bool) -> Run:
        """Return the run of a cell, on the reported or on the held-out samples, without starting it."""
        inputs = self._inputs[planned.dataset.name]
        model = inputs.models[planned.model.name]
        data = inputs.held_out if held_out else inputs.reported
        assert data is not None
        spec = run_spec(
            model.identity,
            data.identity,
            planned.attack,
            norms=(planned.norm,),
            seed=self.spec.seed,
            chunk_size=self.spec.chunk_size,
            batch_size=self.spec.batch_size,
            threads=self.spec.threads,
            device=self.device,
            checks=False,
        )
        name = spec.digest()[:ID_LENGTH]
        store = DiskStore(self.folder / JOBS / name)
        return Run(spec, model.handle, planned.attack, data.samples, store, _NotesOnly(self.listener), name)

    def _runs(self, wanted: Iterable[PlannedRun], *, held_out: bool) -> dict[str, tuple[Run, PlannedRun]]:
        """Return the runs by id, each one once; runs whose library is missing are left out."""
        runs: dict[str, tuple[Run, PlannedRun]] = {}
        for planned in wanted:
            try:
                run = self._run(planned, held_out=held_out)
            except MissingExtraError:
                continue
            runs.setdefault(run.name, (run, planned))
        return runs

    def _execute(self, stage: str, runs: Mapping[str, tuple[Run, PlannedRun]], execution: Execution) -> None:
        """Execute the runs that are not finished."""
        pending = []
        for run, _ in runs.values():
            run.open()
            if run.pending():
                pending.append(run)
        self.listener.started(stage, len(runs), len(runs) - len(pending))
        if not pending:
            return
        for run in pending:
            run.store.log_start(provenance.start(**asdict(execution)))
        workforce = engine_of(
            execution.engine,
            {run.model: run.handle for run in pending},
            device=self.device,
            threads=self.spec.threads,
            workers=execution.workers,
            address=execution.address,
            progress=None,
        )
        try:
            with workforce as engine:
                execute(pending, engine, on_finished=lambda run: self.listener.advanced(1, runs[run.name][1].title))
        except KeyboardInterrupt:
            done = sum(not run.pending() for run, _ in runs.values())
            raise KeyboardInterrupt(
                f"stopped; {done} of {len(runs)} runs are finished and stored in {self.folder}: start the same command "
                "again to resume"
            ) from None

    def _to_tune(self) -> dict[TuningKey, PlannedRun]:
        """Return one planned run for each selection of settings."""
        found: dict[TuningKey, PlannedRun] = {}
        for planned in self._planned:
            if planned.to_tune:
                found.setdefault(_tuning_key(planned), planned)
        return found

    def _run_candidates(self, execution: Execution) -> None:
        """Run all choices of settings on the held-out samples."""
        candidates = [each for planned in self._to_tune().values() for each in planned.candidates()]
        if candidates:
            self._execute("selecting settings", self._runs(candidates, held_out=True), execution)

    def _selected_settings(self) -> dict[TuningKey, dict[str, Any]]:
        """Select settings where the runs of all choices are finished."""
        selection = {}
        for key, planned in self._to_tune().items():
            try:
                runs = [self._run(candidate, held_out=True) for candidate in planned.candidates()]
                for run in runs:
                    run.open_if_started()
                if all(not run.pending() for run in runs):
                    evaluations = [run.evaluation() for run in runs]
                    settings = planned.attack.settings
                    selection[key] = selected(planned.norm, settings, planned.choices(), evaluations)
            except (MissingExtraError, AttackError, UnfinishedError):
                continue  # the cell itself reports the reason
        return selection

    def _state(self, run: Run) -> str:
        """Return how far a run has come, in words."""
        if not (self.folder / JOBS / run.name).is_dir():
            return "to do"
        run.open_if_started()
        return "in progress" if run.pending() else "done"

    def _results(self, tuned: Sequence[PlannedRun], runs: Mapping[str, tuple[Run, PlannedRun]]) -> Results:
        """Summarize the runs; those that failed become cells with the reason."""
        outcomes: dict[str, Outcome] = {}
        for name, (run, _) in runs.items():
            try:
                outcomes[name] = run.evaluation()
            except PdpgdError as error:
                outcomes[name] = str(error)
        cells = []
        for planned in tuned:
            try:
                name = self._run(planned, held_out=False).name
            except MissingExtraError as error:
                cells.append(cell_of(planned, "", str(error)))
                continue
            cells.append(cell_of(planned, name, outcomes[name]))
        samples = {name: len(inputs.reported.samples) for name, inputs in self._inputs.items()}
        environment = {
            "device": self.device,
            "processor": provenance.processor(),
            "threads of a run": str(self.spec.threads),
            "seed": str(self.spec.seed),
        }
        return results_of(self.spec, cells, outcomes, samples=samples, costs=self._costs(), environment=environment)

    def _costs(self) -> list[IterationCost]:
        """Measure the cost of an iteration of each attack on the first model, unless it was measured before."""
        if not self.spec.iteration_cost:
            return []
        dataset = self.spec.datasets[0]
        inputs = self._inputs[dataset.name]
        model = inputs.models[dataset.models[0].name]
        first_norms: dict[str, str] = {}
        for attack in self.spec.attacks:
            for norm in self.spec.norms:
                if attack.name in countable() and catalogue.info_of(attack.name).can_do(norm):
                    first_norms.setdefault(attack.name, norm)
        cache = CostCache(self.folder / COSTS, {"model": model.identity["sha256"], **provenance.made_with()})
        if missing := [pair for pair in first_norms.items() if pair not in cache]:
            self.listener.started("counting passes", len(first_norms), len(first_norms) - len(missing))
            loaded = model.handle.load(self.device)
            samples = inputs.reported.samples
            images, labels = samples.batch(torch.arange(min(COUNTED_ON, len(samples))))
            for name, norm in missing:
                try:
                    cache.add(measure_cost(name, norm, loaded, images.to(self.device), labels.to(self.device)))
                except PdpgdError as error:
                    self.listener.noted(f"cost of an iteration of {name}: {error}")
                self.listener.advanced(1, name)
        return [cache[pair] for pair in first_norms.items() if pair in cache]

    def _check_folder(self) -> None:
        """Refuse a directory that contains other files and is not that of an experiment."""
        if self.folder.is_dir() and not (self.folder / SPEC).exists():
            others = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
            if others:
                raise InvalidInputError(
                    f"{self.folder}: expected a new directory or that of an experiment, got one with "
                    f"{', '.join(others[:3])} and no {SPEC}; choose another directory"
                )


class _NotesOnly(ProgressListener):
    """Passes on messages to the user, but not the progress within a run."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def noted(self, message: str) -> None:
        self._listener.noted(message)


def is_job(path: Path) -> bool:
    """Return whether this is the directory of a run of an experiment."""
    name = path.name
    return len(name) == ID_LENGTH and set(name) <= set("0123456789abcdef") and (path / "spec.json").exists()


def clean(folder: str | Path, jobs: Iterable[Path]) -> int:
    """Delete the directories of runs, and return the number of bytes that this frees."""
    place, freed = Path(folder).expanduser(), 0
    with locked(place):
        for job in jobs:
            freed += sum(path.stat().st_size for path in job.rglob("*") if path.is_file())
            shutil.rmtree(job)
    return freed


def _with_selected(planned: PlannedRun, selection: Mapping[TuningKey, Mapping[str, Any]]) -> PlannedRun:
    """Return the planned run with the selected settings, if they are selected."""
    if not planned.to_tune:
        return planned
    settings = selection.get(_tuning_key(planned), planned.attack.settings)
    return replace(planned, attack=replace(planned.attack, settings=settings))


def _tuning_key(planned: PlannedRun) -> TuningKey:
    """Identify a selection of settings: cells that differ only in the number of restarts share it."""
    return planned.dataset.name, planned.model.name, planned.norm, planned.attack.name


def __getattr__(name: str) -> object:
    return _moved.attribute(__name__, name)
