"""The entries of an experiment's spec: data sets, models, attacks and figures, each read from its table of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pdpgd.attacks import catalogue
from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.experiments.toml import TomlTable
from pdpgd.models.normalization import POOLS
from pdpgd.norms import norm_of
from pdpgd.paper import MODEL_KINDS, PAPER_RADII, START_RADIUS
from pdpgd.runs.spec import AttackSpec


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model to attack on a data set."""

    name: str
    source: str
    """Name or path of the model (see `load_model`)."""
    like: str | None
    """Kind of model in the paper (plain, linf-at or l2-at) whose radii and settings apply."""
    weights: str | None = None
    mean: str | None = None
    std: str | None = None
    pool: str | None = None
    """Name of the groups of classes that the logits are pooled over."""
    trust_model_code: bool = False
    """Whether loading the model runs code from its file. The spec only declares it: the user has to consent."""

    @classmethod
    def read(cls, where: str, name: str, entry: object) -> ModelSpec:
        """Read a model from its entry, which is a source or a table, at the place `where` of the file."""
        table = TomlTable(where, {"source": entry} if isinstance(entry, str) else entry)
        model = cls(
            name=name,
            source=table.string("source"),
            like=table.optional("like", str) or (name if name in MODEL_KINDS else None),
            weights=table.optional("weights", str),
            mean=table.optional("mean", str),
            std=table.optional("std", str),
            pool=table.optional("pool", str),
            trust_model_code=table.flag("trust_model_code", False) | table.flag("trust_pickle", False),
        )
        table.end()
        if model.like is not None and model.like not in MODEL_KINDS:
            raise UnknownNameError(f"kind of model in {where}.like", model.like, MODEL_KINDS)
        if model.pool is not None and model.pool not in POOLS:
            raise UnknownNameError(f"pool in {where}.pool", model.pool, POOLS)
        return model


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A data set of the experiment, with the models that are attacked on it."""

    name: str
    source: str
    """Name or path of the data set (see `load_data`)."""
    like: str | None
    """Data set of the paper whose radii and settings apply."""
    limit: int | None
    """Number of samples, taken from the start; None for all."""
    models: tuple[ModelSpec, ...]
    radii: Mapping[str, Mapping[str, tuple[float, ...]]]
    """Radii by model and norm, where they differ from those of the paper."""

    def radii_of(self, model: ModelSpec, norm: str) -> tuple[float, ...]:
        """Return the radii at which robust accuracy is reported."""
        given = self.radii.get(model.name, {}).get(norm, ())
        return given or PAPER_RADII.get((self.like or "", norm, model.like or ""), ())

    @classmethod
    def read(cls, table: TomlTable) -> DatasetSpec:
        """Read a data set from its table."""
        source = table.string("source")
        given = table.optional("models", dict) or {}
        models = tuple(ModelSpec.read(f"{table.where}.models.{name}", name, entry) for name, entry in given.items())
        radii = {each.name: _radii(each) for each in table.tables_by_name("radii")}
        dataset = cls(
            name=table.name,
            source=source,
            like=table.optional("like", str),
            limit=table.optional("limit", int),
            models=models,
            radii=radii,
        )
        table.end()
        if dataset.like is not None and dataset.like not in START_RADIUS:
            raise UnknownNameError(f"data set of the paper in {table.where}.like", dataset.like, START_RADIUS)
        if dataset.limit is not None and dataset.limit < 1:
            raise InvalidInputError(f"{table.where}.limit: expected an integer >= 1, got {dataset.limit}")
        if not models:
            raise InvalidInputError(f"{table.where}.models: expected at least one, got none")
        for name in radii:
            if name not in given:
                raise UnknownNameError(f"model in {table.where}.radii", name, given)
        return dataset


@dataclass(frozen=True, kw_only=True)
class ExperimentAttack:
    """An attack of the experiment, which is run in several norms and with several numbers of restarts."""

    name: str
    restarts: tuple[int | None, ...]
    """Numbers of restarts, one run each; None for the default of the attack."""
    norms: tuple[str, ...] | None
    """None for all norms of the experiment that the attack supports."""
    budget: int | None
    """None for the preset of the experiment or its common budget."""
    settings: Mapping[str, Any]
    """Settings that override those of the preset or of the budget."""

    def with_restarts(self, restarts: int | None) -> AttackSpec:
        """Return the attack with a number of restarts, as the file describes it: without the preset."""
        return AttackSpec(name=self.name, budget=self.budget, restarts=restarts, settings=self.settings)

    @classmethod
    def read(cls, table: TomlTable) -> ExperimentAttack:
        """Read an attack from its table."""
        name = table.string("name")
        restarts = table.list_of("restarts", int)
        norms = table.list_of("norms", str)
        attack = cls(
            name=name,
            restarts=(None,) if restarts is None else tuple(restarts),
            norms=None if norms is None else tuple(norms),
            budget=table.optional("budget", int),
            settings=table.optional("settings", dict) or {},
        )
        table.end()
        info = catalogue.info_of(name)
        for norm in attack.norms or ():
            if not info.can_do(norm):
                raise InvalidInputError(
                    f"{table.where}.norms: expected {', '.join(info.norms)} for {name}, got {norm!r}"
                )
        if any(count is not None and count < 1 for count in attack.restarts) or repeats(attack.restarts):
            raise InvalidInputError(f"{table.where}.restarts: expected different integers >= 1, got {restarts}")
        return attack


@dataclass(frozen=True, kw_only=True)
class RestartsFigure:
    """A figure of the mean distance against the number of restarts."""

    attacks: tuple[str, ...]
    restarts: tuple[int, ...]

    @classmethod
    def read(cls, table: TomlTable) -> RestartsFigure | None:
        """Read the figure from its table; None if the table is empty."""
        if not table.entries:
            return None
        figure = cls(
            attacks=tuple(table.strings("attacks")),
            restarts=tuple(sorted(table.list_of("restarts", int) or (1, 10, 100))),
        )
        table.end()
        return figure


@dataclass(frozen=True, kw_only=True)
class QueriesFigure:
    """A figure of the mean robust accuracy against the number of gradient queries.

    PGD attacks at one radius after another; PDPGD is run with several initial penalties.
    """

    gradients: tuple[int, ...]
    penalties: tuple[float, ...]

    @classmethod
    def read(cls, table: TomlTable) -> QueriesFigure | None:
        """Read the figure from its table; None if the table is empty."""
        if not table.entries:
            return None
        gradients = tuple(sorted(table.list_of("gradients", int) or ()))
        penalties = tuple(float(value) for value in table.list_of("penalties", (int, float)) or (0.1, 1.0, 10.0))
        table.end()
        if not gradients or gradients[0] < 5 or min(penalties) <= 0:
            raise InvalidInputError(
                f"{table.where}: expected gradients of at least 5 and penalties above 0, got {gradients} and "
                f"{penalties}"
            )
        return cls(gradients=gradients, penalties=penalties)


def _radii(table: TomlTable) -> dict[str, tuple[float, ...]]:
    """Read the radii of a model, by norm and in ascending order."""
    found = {}
    for norm in list(table.entries):
        norm_of(norm)
        values = tuple(sorted(float(value) for value in table.list_of(norm, (int, float)) or ()))
        if not 0 < values[0] <= values[-1] < float("inf"):
            raise InvalidInputError(f"{table.place(norm)}: expected numbers above 0, got {values}")
        found[norm] = values
    return found


def repeats(values: Iterable[Any]) -> bool:
    """Return whether a value occurs more than once."""
    listed = list(values)
    return len(set(listed)) < len(listed)
