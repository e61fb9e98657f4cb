"""An experiment from its spec to its results: each cell a run of `evaluate`, all of them by one engine.

DIR/spec.toml       what was asked
DIR/jobs/ID         the run of a cell; its name is a checksum of all that its bits depend on, so a spec that grows, or
                    two figures that need the same run, find what is there
DIR/results.json    the numbers
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
from pdpgd.experiments.inputs import read_subjects
from pdpgd.experiments.iteration_cost import countable, measured
from pdpgd.experiments.plan import Ask, asks
from pdpgd.experiments.results import FILE, JOBS, SPEC, IterationCost, Results
from pdpgd.experiments.spec import ExperimentSpec
from pdpgd.files import check_file, locked, output_path, replace_file
from pdpgd.progress import ProgressListener
from pdpgd.runs.disk_store import DiskStore
from pdpgd.runs.spec import AttackSpec

ID_LENGTH = 16
COSTS = f"{JOBS}/iteration_costs.json"
# Samples with which the passes of an iteration are counted.
COUNTED_ON = 4

TuningKey = tuple[str, str, str, str]
"""Data set, model, norm and attack."""


class Experiment:
    """A spec, a directory, and the models and data that the spec names.

    Args:
        spec: What is asked, from `load_spec` or `parse_spec`.
        folder: Directory of the results.
        device: Device to run on; a GPU if there is one.
        data_dir: Directory that the data sets lie in.
        trust_model_code: Consent to run the code that the files of the models hold (see `load_model`). The spec
            cannot give it: its entries `trust_model_code` say which models need it.
        progress: Listener that is told how far the experiment has come.
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
        self._subjects = read_subjects(spec, device=self.device, data_dir=data_dir, trust_model_code=trust_model_code)
        self._asks = asks(spec)
        for ask in self._asks:
            self._check(ask)

    def run(self, *, engine: str = "local", workers: int | None = None, address: str | None = None) -> Results:
        """Do what is not done yet, and sum up."""
        check_engine(engine, workers, address)
        if engine == "local" and workers is None:
            # Processes that share one GPU would be in each other's way.
            workers = max(1, (os.cpu_count() or 1) // self.spec.threads) if self.device == "cpu" else 1
        self._refuse_strangers()
        for name in (SPEC, FILE):
            check_file(self.folder / name)
        with locked(self.folder):
            replace_file(self.folder / SPEC, self.spec.text.encode())
            how = {"engine": engine, "workers": workers, "address": address}
            chosen = self._tuned(how)
            final = [self._settled(ask, chosen) for ask in self._asks]
            runs = self._runs(final, apart=False)
            self._carry_out("attacks", runs, how)
            results = self._results(final, runs)
            replace_file(self.folder / FILE, results.to_json().encode())
        return results

    def status(self) -> list[tuple[Ask, str]]:
        """Every cell with "done", "begun", "to do", why it cannot be, or that its settings wait to be selected."""
        found: list[tuple[Ask, str]] = []
        chosen = self._tuned(None)
        for ask in self._asks:
            if ask.tuned and _tuning_key(ask) not in chosen:
                found.append((ask, "settings to select"))
                continue
            final = self._settled(ask, chosen)
            try:
                run = self._run(final, apart=False)
            except MissingExtraError as error:
                found.append((ask, str(error)))
                continue
            found.append((ask, self._state(run)))
        return found

    def stale(self) -> list[Path]:
        """Runs in the directory that the spec does not ask for."""
        place = self.folder / JOBS
        if not place.is_dir():
            return []
        chosen = self._tuned(None)
        wanted: set[str] = set()
        for ask in self._asks:
            if ask.tuned:
                wanted |= set(self._runs(self._trials(ask), apart=True))
            if not ask.tuned or _tuning_key(ask) in chosen:
                wanted |= set(self._runs([self._settled(ask, chosen)], apart=False))
        return sorted(path for path in place.iterdir() if is_job(path) and path.name not in wanted)

    def _check(self, ask: Ask) -> None:
        """Refuse, before anything runs, what an attack cannot do; if its library is missing, its row will say so."""
        try:
            self._run(ask, apart=False)
        except MissingExtraError:
            pass
        except InvalidInputError as error:
            raise InvalidInputError(f"{ask.title}: {error}") from error

    def _run(self, ask: Ask, *, apart: bool) -> Run:
        subjects = self._subjects[ask.dataset.name]
        handle, identity = subjects.models[ask.model.name]
        attack = AttackSpec(name=ask.attack, budget=ask.budget, restarts=ask.restarts, settings=ask.settings)
        spec = run_spec(
            identity,
            subjects.apart_identity if apart else subjects.identity,
            attack,
            norms=(ask.norm,),
            seed=self.spec.seed,
            chunk_size=self.spec.chunk_size,
            batch_size=self.spec.batch_size,
            threads=self.spec.threads,
            device=self.device,
            checks=False,
        )
        name = spec.digest()[:ID_LENGTH]
        samples = subjects.samples
        if apart:
            assert subjects.apart is not None
            samples = subjects.apart
        return Run(spec, handle, attack, samples, DiskStore(self.folder / JOBS / name), _Notes(self), name)

    def _runs(self, wanted: Iterable[Ask], *, apart: bool) -> dict[str, tuple[Run, Ask]]:
        """By id, each once; those whose library is missing are left out."""
        runs: dict[str, tuple[Run, Ask]] = {}
        for ask in wanted:
            try:
                run = self._run(ask, apart=apart)
            except MissingExtraError:
                continue
            runs.setdefault(run.name, (run, ask))
        return runs

    def _carry_out(self, stage: str, runs: Mapping[str, tuple[Run, Ask]], how: Mapping[str, Any]) -> None:
        pending = []
        for run, _ in runs.values():
            run.open()
            if run.pending():
                pending.append(run)
        self.listener.started(stage, len(runs), len(runs) - len(pending))
        if not pending:
            return
        for run in pending:
            run.store.log_start(provenance.start(**how))
        subjects = {run.model: run.handle for run in pending}
        workforce = engine_of(
            how["engine"],
            subjects,
            device=self.device,
            threads=self.spec.threads,
            workers=how["workers"],
            address=how["address"],
            progress=None,
        )
        try:
            with workforce as working:
                execute(pending, working, on_finished=lambda run: self.listener.advanced(1, runs[run.name][1].title))
        except KeyboardInterrupt:
            done = sum(not run.pending() for run, _ in runs.values())
            raise KeyboardInterrupt(
                f"stopped; {done} of {len(runs)} runs are kept in {self.folder}: start the same command again to go on"
            ) from None

    def _trials(self, ask: Ask) -> list[Ask]:
        return [replace(ask, settings={**ask.settings, **choice}, restarts=None) for choice in ask.choices()]

    def _tuned(self, how: Mapping[str, Any] | None) -> dict[TuningKey, dict[str, Any]]:
        """The settings that were selected, by what they are for; without `how`, of those whose trials are all done."""
        to_tune: dict[TuningKey, Ask] = {}
        for ask in self._asks:
            if ask.tuned:
                to_tune.setdefault(_tuning_key(ask), ask)
        trials = {key: self._trials(ask) for key, ask in to_tune.items()}
        if how is not None and trials:
            everyone = [trial for each in trials.values() for trial in each]
            self._carry_out("selecting settings", self._runs(everyone, apart=True), how)
        chosen = {}
        for key, ask in to_tune.items():
            try:
                runs = [self._run(trial, apart=True) for trial in trials[key]]
                for run in runs:
                    run.open_if_started()
                if all(not run.pending() for run in runs):
                    outcomes = [run.evaluation() for run in runs]
                    chosen[key] = selected(ask.norm, ask.settings, ask.choices(), outcomes)
            except (MissingExtraError, AttackError, UnfinishedError):
                continue  # the cell itself says so
        return chosen

    def _settled(self, ask: Ask, chosen: Mapping[TuningKey, Mapping[str, Any]]) -> Ask:
        return replace(ask, settings=chosen.get(_tuning_key(ask), ask.settings)) if ask.tuned else ask

    def _state(self, run: Run) -> str:
        if not (self.folder / JOBS / run.name).is_dir():
            return "to do"
        run.open_if_started()
        return "begun" if run.pending() else "done"

    def _results(self, final: Sequence[Ask], runs: Mapping[str, tuple[Run, Ask]]) -> Results:
        outcomes: dict[str, Outcome] = {}
        for name, (run, _) in runs.items():
            try:
                outcomes[name] = run.evaluation()
            except PdpgdError as error:
                outcomes[name] = str(error)
        cells = []
        for ask in final:
            try:
                name = self._run(ask, apart=False).name
            except MissingExtraError as error:
                cells.append(cell_of(ask, "", str(error)))
                continue
            cells.append(cell_of(ask, name, outcomes[name]))
        samples = {name: len(subjects.samples) for name, subjects in self._subjects.items()}
        facts = {
            "device": self.device,
            "processor": provenance.processor(),
            "threads of a run": str(self.spec.threads),
            "seed": str(self.spec.seed),
        }
        return results_of(self.spec, cells, outcomes, samples=samples, costs=self._costs(), facts=facts)

    def _costs(self) -> list[IterationCost]:
        """Of an iteration of each attack, on the first model; counted once and kept."""
        if not self.spec.iteration_cost:
            return []
        dataset = self.spec.datasets[0]
        subjects = self._subjects[dataset.name]
        subject, identity = subjects.models[dataset.models[0].name]
        wanted = [
            (attack.name, norm)
            for attack in self.spec.attacks
            for norm in self.spec.norms
            if attack.name in countable() and catalogue.info_of(attack.name).can_do(norm)
        ]
        kept = CostCache(self.folder / COSTS, {"model": identity["sha256"], **provenance.made_with()})
        first: dict[str, str] = {}
        for name, norm in wanted:
            first.setdefault(name, norm)
        if missing := [pair for pair in first.items() if pair not in kept]:
            self.listener.started("counting passes", len(first), len(first) - len(missing))
            model = subject.load(self.device)
            inputs, labels = subjects.samples.batch(torch.arange(min(COUNTED_ON, len(subjects.samples))))
            for name, norm in missing:
                try:
                    kept.add(measured(name, norm, model, inputs.to(self.device), labels.to(self.device)))
                except PdpgdError as error:
                    self.listener.noted(f"cost of an iteration of {name}: {error}")
                self.listener.advanced(1, name)
        return [kept[pair] for pair in first.items() if pair in kept]

    def _refuse_strangers(self) -> None:
        """A directory that holds other things is not an experiment's."""
        if self.folder.is_dir() and not (self.folder / SPEC).exists():
            strangers = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
            if strangers:
                raise InvalidInputError(
                    f"{self.folder}: expected a new directory or that of an experiment, got one with "
                    f"{', '.join(strangers[:3])} and no {SPEC}"
                )


class _Notes(ProgressListener):
    """Passes on what the user should know."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def noted(self, message: str) -> None:
        self._experiment.listener.noted(message)


def is_job(path: Path) -> bool:
    """Whether it is a run's directory as an experiment names them."""
    name = path.name
    return len(name) == ID_LENGTH and set(name) <= set("0123456789abcdef") and (path / "spec.json").exists()


def clean(folder: str | Path, jobs: Iterable[Path]) -> int:
    """Take these runs away; return how many bytes they had."""
    place, freed = Path(folder).expanduser(), 0
    with locked(place):
        for job in jobs:
            freed += sum(path.stat().st_size for path in job.rglob("*") if path.is_file())
            shutil.rmtree(job)
    return freed


def _tuning_key(ask: Ask) -> TuningKey:
    """The same for the cells that share the selection: those with more restarts have the settings of one."""
    return ask.dataset.name, ask.model.name, ask.norm, ask.attack


def __getattr__(name: str) -> object:
    return _moved.attribute(__name__, name)
