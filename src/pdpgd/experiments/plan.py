"""The runs that an experiment consists of, planned before anything is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pdpgd.attacks import catalogue
from pdpgd.evaluation.attack_call import DEFAULT_BUDGET
from pdpgd.experiments.entries import DatasetSpec, ExperimentAttack, ModelSpec
from pdpgd.experiments.results import Role
from pdpgd.experiments.spec import ExperimentSpec
from pdpgd.runs.spec import AttackSpec


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One attack in one norm on one model, for one cell of the results."""

    role: Role
    dataset: DatasetSpec
    model: ModelSpec
    norm: str
    attack: AttackSpec
    radii: tuple[float, ...]
    """Radii at which robust accuracy is reported."""
    to_tune: bool = False
    """Whether the settings of the attack still have to be selected from the paper's grid."""
    gradients: int | None = None
    """Number of gradient queries, in the figure over queries."""
    penalty: float | None = None
    """Initial penalty C, in the figure over queries."""

    @property
    def title(self) -> str:
        """The run in words, for progress and messages."""
        extra = "" if self.gradients is None else f" with {self.gradients} gradients"
        extra += "" if self.penalty is None else f", C = {self.penalty:g}"
        return f"{self.dataset.name} {self.model.name} {self.norm} {self.attack.label}{extra}"

    def choices(self) -> list[dict[str, Any]]:
        """Return the settings in the paper's grid for the attack and the norm."""
        return catalogue.info_of(self.attack.name).combinations(self.norm)

    def candidates(self) -> list[PlannedRun]:
        """Return a run for each choice of settings, with the attack's default number of restarts."""
        return [
            replace(self, attack=replace(self.attack, settings={**self.attack.settings, **choice}, restarts=None))
            for choice in self.choices()
        ]


def planned_runs(spec: ExperimentSpec) -> list[PlannedRun]:
    """Return all runs of an experiment, model by model: a worker keeps only one model loaded."""
    return [
        run
        for dataset in spec.datasets
        for model in dataset.models
        for part in (_table_runs, _restart_runs, _query_runs)
        for run in part(spec, dataset, model)
    ]


def _table_runs(spec: ExperimentSpec, dataset: DatasetSpec, model: ModelSpec) -> Iterator[PlannedRun]:
    for norm in spec.norms:
        for attack in spec.attacks:
            for restarts in attack.restarts if _supports(attack, norm) else ():
                yield _planned(spec, dataset, model, norm, attack, restarts)


def _restart_runs(spec: ExperimentSpec, dataset: DatasetSpec, model: ModelSpec) -> Iterator[PlannedRun]:
    figure = spec.restarts_figure
    if figure is None:
        return
    for norm in spec.norms:
        for name in figure.attacks:
            attack = spec.attack(name)
            for restarts in figure.restarts if _supports(attack, norm) else ():
                yield replace(_planned(spec, dataset, model, norm, attack, restarts), role="restarts")


def _query_runs(spec: ExperimentSpec, dataset: DatasetSpec, model: ModelSpec) -> Iterator[PlannedRun]:
    """Yield the runs of the figure over queries: no random start, one restart, no fine-tuning.

    PGD divides its gradients among the radii.
    """
    figure = spec.queries_figure
    if figure is None:
        return
    for norm in spec.norms:
        radii = dataset.radii_of(model, norm)
        planned = partial(PlannedRun, role="queries", dataset=dataset, model=model, norm=norm, radii=radii)
        for gradients in figure.gradients:
            settings = {
                "steps": max(1, gradients // len(radii)),
                "from_input": True,
                "radii": list(radii),
            }
            yield planned(attack=AttackSpec(name="pgd", restarts=1, settings=settings), gradients=gradients)
            for penalty in figure.penalties:
                settings = {
                    **_paper_settings(dataset, model, norm),
                    "steps": gradients,
                    "finetune_steps": 0,
                    "start_radius": 0.0,
                    "penalty": penalty,
                }
                yield planned(
                    attack=AttackSpec(name="pdpgd", restarts=1, settings=settings), gradients=gradients, penalty=penalty
                )


def _paper_settings(dataset: DatasetSpec, model: ModelSpec, norm: str) -> dict[str, Any]:
    """Return the settings of PDPGD in the paper, without the number of restarts."""
    settings = catalogue.paper_settings("pdpgd", dataset.like or "mnist", norm, model.like or "plain")
    return {name: value for name, value in settings.items() if name != "restarts"}


def _supports(attack: ExperimentAttack, norm: str) -> bool:
    return norm in (attack.norms or (norm,)) and catalogue.info_of(attack.name).can_do(norm)


def _planned(
    spec: ExperimentSpec,
    dataset: DatasetSpec,
    model: ModelSpec,
    norm: str,
    attack: ExperimentAttack,
    restarts: int | None,
) -> PlannedRun:
    """Plan a run of the tables: give the attack the paper's settings or a budget, and its radii."""
    info, radii = catalogue.info_of(attack.name), dataset.radii_of(model, norm)
    asked = attack.with_restarts(restarts)
    settings: dict[str, Any] = {}
    budget = asked.budget
    if budget is None and spec.preset is not None and info.in_paper:
        assert dataset.like is not None
        assert model.like is not None
        settings = catalogue.paper_settings(attack.name, dataset.like, norm, model.like, restarts=restarts or 1)
        settings.pop("restarts", None)
    elif budget is None:
        budget = DEFAULT_BUDGET if spec.budget is None else spec.budget
    settings |= asked.settings
    if info.is_ball:
        settings["radii"] = list(radii)
    return PlannedRun(
        role="table",
        dataset=dataset,
        model=model,
        norm=norm,
        attack=replace(asked, budget=budget, settings=settings),
        radii=radii,
        to_tune=spec.tune > 0 and budget is None and bool(info.combinations(norm)),
    )
