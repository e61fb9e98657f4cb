"""The cells of an experiment, before anything is run: which attack, with what, on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdpgd.attacks import catalogue
from pdpgd.evaluation.attack_call import DEFAULT_BUDGET
from pdpgd.experiments.results import Role
from pdpgd.experiments.spec import AttackAsk, DatasetAsk, ExperimentSpec, ModelAsk


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is asked of one cell."""

    role: Role
    dataset: DatasetAsk
    model: ModelAsk
    norm: str
    attack: str
    restarts: int | None
    settings: Mapping[str, Any]
    """Without the restarts."""
    budget: int | None
    radii: tuple[float, ...]
    tuned: bool = False
    """Whether the settings are still to be selected from the paper's grid."""
    gradients: int | None = None
    penalty: float | None = None

    @property
    def label(self) -> str:
        return self.attack if self.restarts is None else f"{self.attack}:{self.restarts}"

    @property
    def title(self) -> str:
        """For people."""
        extra = "" if self.gradients is None else f" with {self.gradients} gradients"
        extra += "" if self.penalty is None else f", C = {self.penalty:g}"
        return f"{self.dataset.name} {self.model.name} {self.norm} {self.label}{extra}"

    @property
    def with_restarts(self) -> dict[str, Any]:
        """The settings as the attack gets them."""
        return dict(self.settings) if self.restarts is None else {**self.settings, "restarts": self.restarts}

    def choices(self) -> list[dict[str, Any]]:
        """The paper's grid."""
        return catalogue.info_of(self.attack).combinations(self.norm)


def asks(spec: ExperimentSpec) -> list[Ask]:
    """Every cell, model by model: a worker has one of them loaded."""
    return [
        ask
        for dataset in spec.datasets
        for model in dataset.models
        for part in (_of_tables, _of_restarts, _of_queries)
        for ask in part(spec, dataset, model)
    ]


def _of_tables(spec: ExperimentSpec, dataset: DatasetAsk, model: ModelAsk) -> Iterator[Ask]:
    for norm in spec.norms:
        for attack in spec.attacks:
            for restarts in attack.restarts if _can(attack, norm) else ():
                yield _ask(spec, dataset, model, norm, attack, restarts)


def _of_restarts(spec: ExperimentSpec, dataset: DatasetAsk, model: ModelAsk) -> Iterator[Ask]:
    figure = spec.restarts_figure
    if figure is None:
        return
    for norm in spec.norms:
        for name in figure.attacks:
            attack = spec.attack(name)
            for restarts in figure.restarts if _can(attack, norm) else ():
                yield replace(_ask(spec, dataset, model, norm, attack, restarts), role="restarts")


def _of_queries(spec: ExperimentSpec, dataset: DatasetAsk, model: ModelAsk) -> Iterator[Ask]:
    """No random start, no restarts, no fine-tuning; PGD's gradients are shared by the radii."""
    figure = spec.queries_figure
    if figure is None:
        return
    for norm in spec.norms:
        radii = dataset.radii_of(model, norm)
        common: dict[str, Any] = {
            "role": "queries",
            "dataset": dataset,
            "model": model,
            "norm": norm,
            "budget": None,
            "radii": radii,
        }
        for gradients in figure.gradients:
            settings = {
                "steps": max(1, gradients // len(radii)),
                "from_input": True,
                "radii": list(radii),
            }
            yield Ask(**common, attack="pgd", restarts=1, settings=settings, gradients=gradients)
            for penalty in figure.penalties:
                settings = {
                    **_ours(dataset, model, norm),
                    "steps": gradients,
                    "finetune_steps": 0,
                    "start_radius": 0.0,
                    "penalty": penalty,
                }
                yield Ask(**common, attack="pdpgd", restarts=1, settings=settings, gradients=gradients, penalty=penalty)


def _ours(dataset: DatasetAsk, model: ModelAsk, norm: str) -> dict[str, Any]:
    like = dataset.like or "mnist", model.like or "plain"
    return {
        name: value
        for name, value in catalogue.paper_settings("pdpgd", like[0], norm, like[1]).items()
        if name != "restarts"
    }


def _can(attack: AttackAsk, norm: str) -> bool:
    return norm in (attack.norms or (norm,)) and catalogue.info_of(attack.name).can_do(norm)


def _ask(
    spec: ExperimentSpec, dataset: DatasetAsk, model: ModelAsk, norm: str, attack: AttackAsk, restarts: int | None
) -> Ask:
    entry, radii = catalogue.info_of(attack.name), dataset.radii_of(model, norm)
    settings: dict[str, Any] = {}
    budget = attack.budget
    if budget is None and spec.preset is not None and entry.in_paper:
        assert dataset.like is not None
        assert model.like is not None
        settings = catalogue.paper_settings(attack.name, dataset.like, norm, model.like, restarts=restarts or 1)
        settings.pop("restarts", None)
    elif budget is None:
        budget = DEFAULT_BUDGET if spec.budget is None else spec.budget
    settings |= attack.settings
    if entry.is_ball:
        settings["radii"] = list(radii)
    return Ask(
        role="table",
        dataset=dataset,
        model=model,
        norm=norm,
        attack=attack.name,
        restarts=restarts,
        settings=settings,
        budget=budget,
        radii=radii,
        tuned=spec.tune > 0 and budget is None and bool(entry.combinations(norm)),
    )
