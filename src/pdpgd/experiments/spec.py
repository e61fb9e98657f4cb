"""What an experiment is, from a TOML file: data sets x models x norms x attacks x restarts, and the figures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdpgd.attacks import catalogue
from pdpgd.errors import InvalidInputError, UnknownNameError, expect_setting
from pdpgd.evaluation.compare import PRESETS
from pdpgd.experiments.toml import TomlTable, read_toml, write_toml
from pdpgd.models.normalization import POOLS
from pdpgd.norms import norm_of
from pdpgd.paper import MODEL_KINDS, PAPER_NORMS, PAPER_RADII, START_RADIUS
from pdpgd.runs.spec import AttackSpec

SHIPPED = Path(__file__).parent / "specs"
"""Where the files that come with the package are."""


@dataclass(frozen=True, kw_only=True)
class ModelAsk:
    """A model of a data set."""

    name: str
    source: str
    like: str | None
    """The paper's kind of model whose thresholds and settings it gets."""
    weights: str | None = None
    mean: str | None = None
    std: str | None = None
    pool: str | None = None
    """Groups of classes that its logits are pooled over."""
    trust_model_code: bool = False
    """Whether its file runs code: whoever runs the experiment must consent to that, the spec cannot."""


@dataclass(frozen=True, kw_only=True)
class DatasetAsk:
    name: str
    source: str
    like: str | None
    limit: int | None
    models: tuple[ModelAsk, ...]
    radii: Mapping[str, Mapping[str, tuple[float, ...]]]
    """By model and norm, where they are not the paper's."""

    def radii_of(self, model: ModelAsk, norm: str) -> tuple[float, ...]:
        """At which robust accuracy is reported."""
        given = self.radii.get(model.name, {}).get(norm, ())
        return given or PAPER_RADII.get((self.like or "", norm, model.like or ""), ())


@dataclass(frozen=True, kw_only=True)
class AttackAsk:
    name: str
    restarts: tuple[int | None, ...]
    """Runs with each of these; None: as many as the attack has by itself."""
    norms: tuple[str, ...] | None
    """None: all of the experiment's that it can do."""
    budget: int | None
    settings: Mapping[str, Any]
    """Over those of the preset or of the budget."""


@dataclass(frozen=True, kw_only=True)
class RestartsFigure:
    """Mean distance against the number of restarts."""

    attacks: tuple[str, ...]
    restarts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class QueriesFigure:
    """Mean robust accuracy against gradient queries: PGD at the thresholds in turn, ours with some first penalties."""

    gradients: tuple[int, ...]
    penalties: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec:
    """All that is asked."""

    title: str
    about: str = ""
    norms: tuple[str, ...]
    datasets: tuple[DatasetAsk, ...]
    attacks: tuple[AttackAsk, ...]
    preset: str | None = None
    budget: int | None = None
    """Forward + backward passes of the attacks that the preset has no settings for."""
    tune: int = 0
    """On how many samples, behind the reported ones, settings are selected from the paper's grids; 0: on none."""
    examples: str | None = None
    """The attack, as NAME or NAME:RESTARTS, whose points are shown."""
    restarts_figure: RestartsFigure | None = None
    queries_figure: QueriesFigure | None = None
    iteration_cost: bool = True
    seed: int = 0
    chunk_size: int = 100
    batch_size: int = 100
    threads: int = 1
    text: str = field(default="", compare=False)
    """The file it is from, or one that says the same."""

    def __post_init__(self) -> None:
        for name in ("chunk_size", "batch_size", "threads"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", type(value) is int and value >= 1)
        for name in ("seed", "tune"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 0", type(value) is int and value >= 0)

    def attack(self, name: str) -> AttackAsk:
        return next(attack for attack in self.attacks if attack.name == name)


def shipped() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def load_spec(source: str | Path) -> ExperimentSpec:
    """From a file, or by the name of one that comes with the package."""
    path = Path(source).expanduser()
    if not os.path.exists(path) and path.parent == Path():
        inside = SHIPPED / f"{path.name.removesuffix('.toml')}.toml"
        if not os.path.exists(inside):
            raise UnknownNameError("experiment, and no file of that name", str(source), shipped())
        path = inside
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path}: expected the spec of an experiment, got an error: {error}") from error
    try:
        return parse_spec(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from error


def parse_spec(text: str) -> ExperimentSpec:
    top = TomlTable("", read_toml(text))
    norms = tuple(top.strings("norms"))
    run, figures = top.table("run"), top.table("figures")
    spec = ExperimentSpec(
        title=top.string("title"),
        about=top.string("about", ""),
        norms=norms,
        datasets=tuple(_dataset(each) for each in top.tables_by_name("datasets")),
        attacks=tuple(_attack(each) for each in top.tables("attacks")),
        preset=top.optional("preset", str),
        budget=top.optional("budget", int),
        tune=top.integer("tune", 0),
        examples=figures.optional("examples", str),
        restarts_figure=_restarts_figure(figures.table("restarts")),
        queries_figure=_queries_figure(figures.table("queries")),
        iteration_cost=top.flag("iteration_cost", True),
        seed=run.integer("seed", 0),
        chunk_size=run.integer("chunk_size", 100),
        batch_size=run.integer("batch_size", 100),
        threads=run.integer("threads", 1),
        text=text,
    )
    for part in (run, figures, top):
        part.end()
    _check(spec)
    return spec


def changed(
    spec: ExperimentSpec,
    *,
    limit: int | None = None,
    models: Mapping[str, str] | None = None,
    without: Iterable[str] = (),
) -> ExperimentSpec:
    """With another number of samples, other models, by name, in the place of its own, or without some of them.

    The text of the spec says so too.
    """
    known = sorted({model.name for dataset in spec.datasets for model in dataset.models})
    left_out = list(without)
    for name in [*(models or {}), *left_out]:
        if name not in known:
            raise UnknownNameError("model of the experiment", name, known)
    if limit is None and not models and not left_out:
        return spec
    document = read_toml(spec.text)
    for dataset in document["datasets"].values():
        if limit is not None:
            dataset["limit"] = limit
        for name, source in (models or {}).items():
            if name in dataset["models"]:
                dataset["models"][name] = _with_source(dataset["models"][name], source)
        for name in left_out:
            dataset["models"].pop(name, None)
            dataset.get("radii", {}).pop(name, None)
    return parse_spec(write_toml(document))


def _with_source(entry: str | Mapping[str, Any], source: str) -> dict[str, Any]:
    """Weights, normalization and the need of consent were those of the other model; the pool is that of the data."""
    kept = {} if isinstance(entry, str) else {name: entry[name] for name in ("like", "pool") if name in entry}
    return {"source": source, **kept}


def _dataset(table: TomlTable) -> DatasetAsk:
    source = table.string("source")
    given = table.optional("models", dict) or {}
    models = tuple(_model(f"{table.where}.models.{name}", name, entry) for name, entry in given.items())
    radii = {each.name: _radii(each) for each in table.tables_by_name("radii")}
    dataset = DatasetAsk(
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


def _model(where: str, name: str, entry: object) -> ModelAsk:
    table = TomlTable(where, {"source": entry} if isinstance(entry, str) else entry)
    model = ModelAsk(
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


def _radii(table: TomlTable) -> dict[str, tuple[float, ...]]:
    found = {}
    for norm in list(table.entries):
        norm_of(norm)
        values = tuple(sorted(float(value) for value in table.list_of(norm, (int, float)) or ()))
        if not 0 < values[0] <= values[-1] < float("inf"):
            raise InvalidInputError(f"{table.place(norm)}: expected numbers above 0, got {values}")
        found[norm] = values
    return found


def _attack(table: TomlTable) -> AttackAsk:
    name = table.string("name")
    restarts = table.list_of("restarts", int)
    norms = table.list_of("norms", str)
    attack = AttackAsk(
        name=name,
        restarts=(None,) if restarts is None else tuple(restarts),
        norms=None if norms is None else tuple(norms),
        budget=table.optional("budget", int),
        settings=table.optional("settings", dict) or {},
    )
    table.end()
    entry = catalogue.info_of(name)
    for norm in attack.norms or ():
        if not entry.can_do(norm):
            raise InvalidInputError(f"{table.where}.norms: expected {', '.join(entry.norms)} for {name}, got {norm!r}")
    if any(count is not None and count < 1 for count in attack.restarts) or _repeats(attack.restarts):
        raise InvalidInputError(f"{table.where}.restarts: expected different integers >= 1, got {restarts}")
    return attack


def _restarts_figure(table: TomlTable) -> RestartsFigure | None:
    if not table.entries:
        return None
    figure = RestartsFigure(
        attacks=tuple(table.strings("attacks")), restarts=tuple(sorted(table.list_of("restarts", int) or (1, 10, 100)))
    )
    table.end()
    return figure


def _queries_figure(table: TomlTable) -> QueriesFigure | None:
    if not table.entries:
        return None
    gradients = tuple(sorted(table.list_of("gradients", int) or ()))
    penalties = tuple(float(value) for value in table.list_of("penalties", (int, float)) or (0.1, 1.0, 10.0))
    table.end()
    if not gradients or gradients[0] < 5 or min(penalties) <= 0:
        raise InvalidInputError(
            f"{table.where}: expected gradients, 5 or more, and penalties above 0, got {gradients} and {penalties}"
        )
    return QueriesFigure(gradients=gradients, penalties=penalties)


def _check(spec: ExperimentSpec) -> None:
    """What no single table can be blamed for."""
    for norm in spec.norms:
        norm_of(norm)
    names = [attack.name for attack in spec.attacks]
    for what, values in (("norms", spec.norms), ("attacks", names)):
        if not values or _repeats(values):
            raise InvalidInputError(
                f"{what}: expected at least one, and each one once, got {', '.join(values) or 'none'}"
            )
    if not spec.datasets:
        raise InvalidInputError("datasets: expected at least one, got none")
    if spec.preset is not None and spec.preset not in PRESETS:
        raise UnknownNameError("preset", spec.preset, PRESETS)
    for dataset in spec.datasets:
        for model in dataset.models:
            if spec.preset is not None and (dataset.like is None or model.like is None):
                raise InvalidInputError(
                    f"datasets.{dataset.name}: expected `like` of the data set and of model {model.name}, to know "
                    "which of the paper's settings to take, got none"
                )
            for norm in spec.norms:
                if not dataset.radii_of(model, norm):
                    raise InvalidInputError(
                        f"datasets.{dataset.name}.radii.{model.name}.{norm}: expected radii, for the paper has none, "
                        "got none"
                    )
    figure = spec.restarts_figure
    for name in () if figure is None else figure.attacks:
        if name not in names:
            raise UnknownNameError("attack of the experiment in figures.restarts.attacks", name, names)
    if spec.queries_figure is not None and not set(spec.norms) <= set(PAPER_NORMS):
        raise InvalidInputError(f"figures.queries: expected norms among {', '.join(PAPER_NORMS)}, got {spec.norms}")
    if spec.examples is not None:
        shown = AttackSpec.parse(spec.examples)
        catalogue.info_of(shown.name)
        if shown.name not in names or shown.restarts not in spec.attack(shown.name).restarts:
            raise InvalidInputError(f"figures.examples: expected an attack of the experiment, got {spec.examples!r}")


def _repeats(values: Iterable[Any]) -> bool:
    listed = list(values)
    return len(set(listed)) < len(listed)
