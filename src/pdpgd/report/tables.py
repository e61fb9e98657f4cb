"""The paper's tables from the results of an experiment, with the paper's own numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pdpgd.catalogue import ATTACKS
from pdpgd.evaluation.metrics import PARTIAL, Statistics, compared
from pdpgd.experiments import published
from pdpgd.experiments.results import DatasetInfo, Results
from pdpgd.files import make_folder, output_path, replace_file
from pdpgd.report.cells import Row, Runs, bracketed, emphasised, images, percent, runs_of, with_digits
from pdpgd.report.cost_tables import iteration_costs, running_times
from pdpgd.report.names import file_stem, norm_name, radius_name
from pdpgd.report.table import FORMATS, Item, Table, markdown_text, to_markdown

INDEX = "tables.md"


def tables(results: Results) -> list[Table]:
    """Table I, the running times, Table II, Table III, and the complete tables; what has no rows is not there."""
    made = [
        iteration_costs(results.iteration_costs),
        *(running_times(results, dataset) for dataset in results.datasets),
        *(_comparison(results, dataset) for dataset in results.datasets),
        *(_distances(results, dataset) for dataset in results.datasets),
        *(_complete(results, dataset, norm) for dataset in results.datasets for norm in results.norms),
    ]
    return _distinct([table for table in made if table.rows])


def write_tables(results: Results, folder: str | Path) -> list[Path]:
    """Each as Markdown, LaTeX and CSV, and all of them in tables.md; returns the files."""
    folder = output_path(folder)
    make_folder(folder)
    made = tables(results)
    texts = {f"{table.name}.{ending}": write(table) for table in made for ending, write in FORMATS.items()}
    title, about = markdown_text(results.title), markdown_text(results.about)
    texts[INDEX] = "\n".join([f"# {title}\n{about}\n", *map(to_markdown, made)])
    for name, text in texts.items():
        replace_file(folder / name, text.encode())
    return [folder / name for name in texts]


def _comparison(results: Results, dataset: DatasetInfo) -> Table:
    """Table II."""
    rows: list[Row] = []
    notes: list[str] = []
    for norm in results.norms:
        attacks = runs_of(results, dataset, norm)
        values = {label: runs.accuracies() for label, runs in attacks.items()}
        places = list(dict.fromkeys(place for own in values.values() for place in own))
        whole = {label: own for label, own in values.items() if own.keys() == set(places)} if places else {}
        notes += [_left_out(runs) for label, runs in attacks.items() if label not in whole]
        if not whole:
            continue
        statistics = compared(
            {label: np.array([own[place] for place in places]) for label, own in whole.items()},
            families={label: attacks[label].first.attack for label in whole},
        )
        group = []
        for label, own in statistics.items():
            cell = attacks[label].first
            paper = published.summary(dataset.like, norm, cell.attack, cell.restarts)
            group.append((Item(norm_name(norm)), Item(attacks[label].name), *_statistics(own, paper)))
        rows += emphasised(group, (min, max, min, min), first=2)
    return Table(
        name=f"table-2-{file_stem(dataset.name)}",
        title=f"Attacks on {dataset.name} (the paper's Table II)",
        caption=f"Over all models and radii, {images(dataset)}: mean robust accuracy (%); in how many cells no other "
        "attack leaves less (the same attack with other restarts is no other); mean and largest gap to the best "
        "(percentage points). Best in bold." + bracketed(rows, "the paper's, among its own attacks on its own models"),
        headings=("norm", "attack", "mean robust accuracy", "times best", "mean gap", "max gap"),
        rows=tuple(rows),
        grouped=True,
        notes=tuple(notes),
    )


def _left_out(runs: Runs) -> str:
    why = runs.why() or "it was not run on all models and radii"
    return f"{runs.name} is left out in {norm_name(runs.norm)}: {why}."


def _statistics(own: Statistics, paper: Statistics | None) -> Row:
    if paper is None:
        nothing = Statistics(0.0, 0, 0.0, 0.0)
        return tuple(replace(item, paper=None) for item in _statistics(own, nothing))
    return (
        percent(own.mean_accuracy, paper.mean_accuracy, 2),
        Item(float(own.times_best), paper=float(paper.times_best)),
        percent(own.mean_gap, paper.mean_gap, 2),
        percent(own.max_gap, paper.max_gap, 1),
    )


def _distances(results: Results, dataset: DatasetInfo) -> Table:
    """Table III."""
    models = list(dataset.models)
    rows: list[Row] = []
    notes: list[str] = []
    for norm in results.norms:
        attacks = [runs for runs in runs_of(results, dataset, norm).values() if not _within_radii(runs)]
        group = [
            (Item(norm_name(norm)), Item(runs.name), *(_distance(runs, dataset, model) for model in models))
            for runs in attacks
        ]
        partly = [{2 + models.index(model) for model in runs.unfooled()} for runs in attacks]
        rows += emphasised(with_digits(group, first=2), [min] * len(models), first=2, barred=partly)
        notes += [note for runs in attacks for note in (*runs.failures(), *runs.misses())]
    return Table(
        name=f"table-3-{file_stem(dataset.name)}",
        title=f"Mean distance on {dataset.name} (the paper's Table III)",
        caption=f"The mean size of the perturbations, over the samples that were right and were fooled, of "
        f"{images(dataset)}; {norm_name('l0')} counts pixels. Attacks that were run within radii have none. Best in "
        f"bold, among those that fooled all.{_partly(rows)}" + bracketed(rows, "the paper's, on its own models"),
        headings=("norm", "attack", *models),
        rows=tuple(rows),
        grouped=True,
        notes=tuple(notes),
    )


def _within_radii(runs: Runs) -> bool:
    is_ball = runs.first.attack in ATTACKS and ATTACKS[runs.first.attack].is_ball
    return is_ball and all(cell.mean_distance is None for cell in runs.cells.values())


def _distance(runs: Runs, dataset: DatasetInfo, model: str) -> Item:
    cell, kind = runs.cells.get(model), dataset.models[model].like
    paper = published.mean_norm(dataset.like, runs.norm, kind, runs.first.attack, runs.first.restarts)
    printed = 0 if paper is None or paper.is_integer() else len(repr(paper).partition(".")[2])
    if cell is None:
        return Item(None, paper=paper, paper_digits=printed)
    return Item(cell.mean_distance, paper=paper, paper_digits=printed, part="" if cell.whole else cell.part)


def _partly(rows: Sequence[Row]) -> str:
    """What a star means, if there is one."""
    if not any(item.part for row in rows for item in row):
        return ""
    return (
        f" {PARTIAL}: not all were fooled, and the mean over those that were is not comparable with one over all; the "
        "notes say how many."
    )


def _complete(results: Results, dataset: DatasetInfo, norm: str) -> Table:
    """Of the supplement."""
    attacks = list(runs_of(results, dataset, norm).values())
    radii: dict[str, set[float]] = {model: set() for model in dataset.models}
    for cell in results.of("table", dataset=dataset.name, norm=norm):
        radii[cell.model].update(cell.radii)
    places = [(model, radius) for model, own in radii.items() for radius in sorted(own)]
    rows: list[Row] = []
    for runs in attacks:
        left, cell = runs.accuracies(), runs.first
        row = [Item(runs.name)]
        for model, radius in places:
            kind = dataset.models[model].like
            paper = published.robust_accuracy(dataset.like, norm, kind, radius, cell.attack, cell.restarts)
            row.append(percent(left.get((model, radius)), paper, 1))
        rows.append(tuple(row))
    return Table(
        name=f"complete-{file_stem(dataset.name)}-{file_stem(norm)}",
        title=f"Robust accuracy on {dataset.name}, {norm_name(norm)}",
        caption=f"In per cent of {images(dataset)}, at each radius of each model; less is better for the attack. "
        f"{_clean(dataset)}Best in bold." + bracketed(rows, "the paper's, on its own models"),
        headings=("attack", *(radius_name(radius) for _, radius in places)),
        spans=(("", 1), *((model, len(own)) for model, own in radii.items() if own)),
        rows=tuple(emphasised(rows, [min] * len(places), first=1)),
        notes=tuple(note for runs in attacks for note in (*runs.failures(), *runs.breaks())),
    )


def _clean(dataset: DatasetInfo) -> str:
    known = {name: model.clean_accuracy for name, model in dataset.models.items()}
    told = [f"{name} {100 * share:.1f} %" for name, share in known.items() if share is not None]
    return f"Right before the attack: {', '.join(told)}. " if told else ""


def _distinct(made: Sequence[Table]) -> list[Table]:
    """Names of data sets may differ in nothing but what a file's name leaves out."""
    seen: dict[str, int] = {}
    distinct = []
    for table in made:
        seen[table.name.lower()] = count = seen.get(table.name.lower(), 0) + 1
        distinct.append(table if count == 1 else replace(table, name=f"{table.name}-{count}"))
    return distinct
