"""The spec of an experiment, read from a TOML file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdpgd.attacks import catalogue
from pdpgd.errors import InvalidInputError, UnknownNameError, expect_setting
from pdpgd.evaluation.compare import PRESETS
from pdpgd.experiments.entries import DatasetSpec, ExperimentAttack, QueriesFigure, RestartsFigure, repeats
from pdpgd.experiments.toml import TomlTable, read_toml, write_toml
from pdpgd.norms import norm_of
from pdpgd.paper import PAPER_NORMS
from pdpgd.runs.spec import AttackSpec

SHIPPED = Path(__file__).parent / "specs"
"""Directory of the specs that are shipped with the package."""


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec:
    """An experiment, as `load_spec` and `parse_spec` read it.

    Args:
        title: Title of the tables, the figures and the report.
        about: Paragraph about the experiment, for the report.
        norms: Norms in which every attack that supports them is run.
        datasets: Data sets with their models and radii.
        attacks: Attacks with their numbers of restarts.
        preset: "paper" for the settings that the paper ran each attack with; None for the budget.
        budget: Maximum number of forward plus backward passes per sample, for attacks that the preset has no settings
            for.
        tune: Number of held-out samples on which settings are selected from the paper's grids; 0 for no selection.
        examples: Attack, as NAME or NAME:RESTARTS, whose adversarial examples are shown in a figure.
        restarts_figure: Figure over the number of restarts, if there is one.
        queries_figure: Figure over the number of gradient queries, if there is one.
        iteration_cost: Whether the cost of an iteration of each attack is measured.
        seed: Random seed for attack initialization.
        chunk_size: Number of samples that are attacked and written together.
        batch_size: Maximum number of rows per forward pass.
        threads: CPU threads per chunk.
        text: Text of the TOML file, or of an equivalent one.

    Raises:
        InvalidInputError: One of the integers is out of its range.

    Example:
        >>> load_spec("paper-mnist-small").norms
        ('linf', 'l2', 'l1', 'l0')
    """

    title: str
    about: str = ""
    norms: tuple[str, ...]
    datasets: tuple[DatasetSpec, ...]
    attacks: tuple[ExperimentAttack, ...]
    preset: str | None = None
    budget: int | None = None
    tune: int = 0
    examples: str | None = None
    restarts_figure: RestartsFigure | None = None
    queries_figure: QueriesFigure | None = None
    iteration_cost: bool = True
    seed: int = 0
    chunk_size: int = 100
    batch_size: int = 100
    threads: int = 1
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("chunk_size", "batch_size", "threads"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", type(value) is int and value >= 1)
        for name in ("seed", "tune"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 0", type(value) is int and value >= 0)

    def attack(self, name: str) -> ExperimentAttack:
        """Return the attack of this name."""
        return next(attack for attack in self.attacks if attack.name == name)


def shipped() -> tuple[str, ...]:
    """Return the names of the specs that are shipped with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def load_spec(source: str | Path) -> ExperimentSpec:
    """Read the spec of an experiment.

    Args:
        source: Path of a TOML file, or the name of a spec that is shipped with the package.

    Returns:
        The spec, checked except for what only the models and the data can show.

    Raises:
        UnknownNameError: There is neither a file nor a shipped spec of this name.
        InvalidInputError: The file cannot be read, or is not the spec of an experiment.

    Example:
        >>> [dataset.name for dataset in load_spec("paper-mnist-small").datasets]
        ['mnist']
    """
    path = Path(source).expanduser()
    if not os.path.exists(path) and path.parent == Path():
        inside = SHIPPED / f"{path.name.removesuffix('.toml')}.toml"
        if not os.path.exists(inside):
            raise UnknownNameError("experiment (and there is no file of this name)", str(source), shipped())
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
    """Parse the spec of an experiment.

    Args:
        text: Content of a TOML file, as docs/experiments.md describes it.

    Returns:
        The spec, checked except for what only the models and the data can show.

    Raises:
        InvalidInputError: An entry is missing, unknown or wrong; the message says where.

    Example:
        >>> spec = parse_spec('''
        ... title = "one run"
        ... norms = ["l2"]
        ... budget = 50
        ... datasets.digits = { source = "mnist-1000", like = "mnist", models = { plain = "mnist-plain" } }
        ... attacks = [{ name = "auto" }]
        ... ''')
        >>> spec.budget
        50
    """
    top = TomlTable("", read_toml(text))
    norms = tuple(top.strings("norms"))
    run, figures = top.table("run"), top.table("figures")
    spec = ExperimentSpec(
        title=top.string("title"),
        about=top.string("about", ""),
        norms=norms,
        datasets=tuple(DatasetSpec.read(each) for each in top.tables_by_name("datasets")),
        attacks=tuple(ExperimentAttack.read(each) for each in top.tables("attacks")),
        preset=top.optional("preset", str),
        budget=top.optional("budget", int),
        tune=top.integer("tune", 0),
        examples=figures.optional("examples", str),
        restarts_figure=RestartsFigure.read(figures.table("restarts")),
        queries_figure=QueriesFigure.read(figures.table("queries")),
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
    """Return a spec with another number of samples, with other models, or without some of its models.

    Args:
        spec: The spec to start from; it is not modified.
        limit: Number of samples of every data set.
        models: Sources of models, by the name of the model in the spec that they replace. A replacement keeps the kind
            of model and the pool, but neither weights nor normalization.
        without: Names of models to leave out.

    Returns:
        The changed spec, with a text that describes it.

    Raises:
        UnknownNameError: The spec has no model of this name.
        InvalidInputError: The changed spec is not valid, for example because no model is left.

    Example:
        >>> changed(load_spec("paper-mnist-small"), limit=10).datasets[0].limit
        10
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
    """Replace the source of a model.

    Weights, normalization and the need for consent belong to the replaced model; the pool belongs to the data set.
    """
    common = {} if isinstance(entry, str) else {name: entry[name] for name in ("like", "pool") if name in entry}
    return {"source": source, **common}


def _check(spec: ExperimentSpec) -> None:
    """Check what depends on more than one table of the file."""
    for norm in spec.norms:
        norm_of(norm)
    names = [attack.name for attack in spec.attacks]
    for what, values in (("norms", spec.norms), ("attacks", names)):
        if not values or repeats(values):
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
                    f"datasets.{dataset.name}: expected `like` for the data set and for model {model.name}, which "
                    "selects the settings of the paper, got none"
                )
            for norm in spec.norms:
                if not dataset.radii_of(model, norm):
                    raise InvalidInputError(
                        f"datasets.{dataset.name}.radii.{model.name}.{norm}: expected radii, because the paper has "
                        "none for it, got none"
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
