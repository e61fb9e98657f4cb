"""An experiment's part of a page: its models as comparisons, its summary, and the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import PdpgdError
from pdpgd.experiments.results import FILE, JOBS, Cell, DatasetInfo, Results, load_results
from pdpgd.report import charts, sheets, wording
from pdpgd.report.charts import Line
from pdpgd.report.figures import ALONE, Panel, over_queries, over_restarts, partly_fooled
from pdpgd.report.inputs import ReportInputs, Source, source_of_comparison
from pdpgd.report.paper_tables import tables
from pdpgd.report.provenance import Provenance, starts_of
from pdpgd.report.sections import Figure, Section, SectionPart
from pdpgd.report.sheets import Sheet
from pdpgd.report.table import FORMATS, Item, Table
from pdpgd.report.wording import OURS
from pdpgd.runs import metrics
from pdpgd.runs.comparison import Comparison, Row
from pdpgd.runs.result import load_evaluation
from pdpgd.runs.spec import AttackSpec

WORTH = {"restarts": "what restarts are worth", "queries": "what gradients are worth"}


def read(folder: Path) -> ReportInputs:
    """Every model of every data set is a comparison of the attacks on it, of those runs that are there."""
    results = load_results(folder)
    sources: list[Source] = []
    failures: list[str] = []
    missing = 0
    for dataset in results.datasets:
        for model in dataset.models:
            cells = results.of("table", dataset=dataset.name, model=model)
            there = [cell for cell in cells if cell.failure or (folder / JOBS / cell.id).is_dir()]
            missing += len(cells) - len(there)
            rows = [_row(folder, cell) for cell in there]
            failures += [
                f"{dataset.name} {model}, {row.label} ({row.norm}): {row.failure}" for row in rows if row.failure
            ]
            radii = {cell.norm: cell.radii for cell in there if cell.radii}
            source = source_of_comparison(Comparison(tuple(rows), radii, folder), f"{dataset.name} {model}", OURS)
            if source is not None:
                sources.append(source)
    return ReportInputs(tuple(sources), results, folder, tuple(failures), _without(missing, len(results.of("table"))))


def _without(missing: int, runs: int) -> str:
    if not missing:
        return ""
    which = "The runs themselves" if missing == runs else f"{missing:,} of the {runs:,} runs themselves"
    return (
        f"{which} are not in this directory: the numbers here are those of its {FILE}, without the curves, pictures "
        "and checks of what is not there. The command that made them, or pdpgd experiment run DIR, makes them again."
    )


def sentences(results: Results) -> list[str]:
    """Which attack leaves the least, for every data set and norm."""
    return [text for dataset in results.datasets for norm in results.norms if (text := _best(results, dataset, norm))]


def section(results: Results) -> Section:
    made = tuple(_sheet(table) for table in tables(results))
    lead = (
        "As the paper has them, with its own numbers in brackets where it has any. Each can be saved as CSV, Markdown "
    )
    return Section("tables", "The paper's tables", f"{lead}or LaTeX.", (SectionPart("", sheets=made),))


def efforts(results: Results) -> Section | None:
    """What more restarts and more gradients are worth; None if the experiment did not ask."""
    parts = []
    marked: list[Panel] = []
    for number, dataset in enumerate(results.datasets):
        for what, panels, across, up in (
            ("restarts", over_restarts(results, dataset.name), "restarts", "mean distance ({})"),
            ("queries", over_queries(results, dataset.name), "gradients", "mean robust accuracy (%)"),
        ):
            names = list(dict.fromkeys(name for panel in panels.values() for name in panel.lines))
            figures = [
                _effort(f"{what}-{number}-{place}", f"{norm}, {model}", panel, names, (across, up.format(norm)))
                for place, ((norm, model), panel) in enumerate(panels.items())
            ]
            marked.extend(panels.values())
            if figures:
                parts.append(SectionPart(f"{dataset.name}: {WORTH[what]}", figures=tuple(figures)))
    lead = (
        "Mean distance, by how many starts an attack has; and robust accuracy, averaged over the radii, by how many "
        "gradients it has, from the input and with one start: PGD shares them among the radii, and what it fools at "
        "one it does not attack again."
    )
    common, alone = partly_fooled(marked)
    lead += " Open marker: the run did not fool every correctly classified sample." if common else ""
    lead += f" {ALONE}" if alone else ""
    return Section("efforts", "Restarts and gradients", lead, tuple(parts)) if parts else None


def _effort(identity: str, title: str, panel: Panel, names: Sequence[str], axes: tuple[str, str]) -> Figure:
    if not panel.lines:
        return Figure(identity, title, panel.says, None)
    drawn = [Line(name, names.index(name), points) for name, points in panel.lines.items()]
    most = max(point.x for points in panel.lines.values() for point in points)
    last = [
        f"{name}: {point.y:.4g}{point.part and f' (over {point.part})'}"
        for name, points in panel.lines.items()
        for point in points
        if point.x == most
    ]
    says = f"With {most:g} {axes[0]}, {'; '.join(last)}."
    return Figure(identity, title, f"{says} {panel.says}".strip(), charts.points(drawn, *axes))


def making(subject: ReportInputs) -> Provenance:
    results = subject.experiment
    assert results is not None
    command, starts = starts_of([run.folder for source in subject.sources for run in source.runs][:1])
    facts = [(name, str(value)) for name, value in results.made_with.items()]
    for dataset in results.datasets:
        models = ", ".join(f"{name} ({model.described})" for name, model in dataset.models.items())
        facts.append((dataset.name, f"{dataset.samples:,} samples of {dataset.source}; {models}"))
    facts.append(("directory", str(subject.folder)))
    return Provenance(results.title, command, tuple(facts), starts, _costs(results.cells))


def _row(folder: Path, cell: Cell) -> Row:
    attack = AttackSpec(name=cell.attack, restarts=cell.restarts)
    if cell.failure is not None:
        return Row(attack, cell.norm, None, cell.failure)
    try:
        return Row(attack, cell.norm, load_evaluation(folder / JOBS / cell.id), None)
    except PdpgdError as error:
        return Row(attack, cell.norm, None, f"its run cannot be shown: {error}")


def _best(results: Results, dataset: DatasetInfo, norm: str) -> str:
    cells = [cell for cell in results.of("table", dataset=dataset.name, norm=norm) if cell.robust_accuracy]
    models = list(dict.fromkeys(cell.model for cell in cells))
    found: dict[str, NDArray[np.float64]] = {}
    for label in dict.fromkeys(cell.label for cell in cells):
        mine = {cell.model: cell.robust_accuracy for cell in cells if cell.label == label}
        # Compared are those that came to an end on every model.
        if set(mine) == set(models):
            found[label] = np.concatenate([mine[model] for model in models])
    if not found:
        return ""
    statistics = metrics.compared(found, families={label: label.partition(":")[0] for label in found})
    order = sorted(statistics, key=lambda label: statistics[label].mean_accuracy)
    least = wording.share(statistics[order[0]].mean_accuracy)
    # What reads the same is the same.
    first = [label for label in order if wording.share(statistics[label].mean_accuracy) == least]
    verb = "leaves" if len(first) == 1 else "leave"
    times = wording.listed([str(statistics[label].times_best) for label in first])
    text = (
        f"{dataset.name}, {norm}: {wording.listed(first)} {verb} the least robust accuracy, {least} on average over "
        f"{wording.count(len(models), 'model')}, best in {times} of {len(found[order[0]])} cells"
    )
    others = order[len(first) :]
    if not others:
        return f"{text}."
    return f"{text}; {others[0]} follows with {wording.share(statistics[others[0]].mean_accuracy)}."


def _sheet(table: Table) -> Sheet:
    rows = [[_cell(item) for item in row] for row in table.rows]
    return replace(
        sheets.sheet(f"paper-{table.name}", table.title, table.columns, rows),
        about=" ".join((table.caption, *table.notes)),
        downloads={ending: write(table) for ending, write in FORMATS.items()},
    )


def _cell(item: Item) -> sheets.Cell:
    text = f"{item.text} ({item.paper_text})" if item.paper_text else item.text
    if isinstance(item.value, str):
        return sheets.words(text)
    return sheets.Cell(text, None if item.value is None else float(item.value), strong=item.bold)


def _costs(cells: Sequence[Cell]) -> Sheet:
    rows = [
        [
            *(sheets.words(text) for text in (cell.dataset, cell.model, cell.norm, cell.label)),
            sheets.Cell(f"{cell.forwards + cell.backwards:,.0f}", round(cell.forwards + cell.backwards, 1)),
            sheets.Cell(f"{cell.seconds:,.1f}", round(cell.seconds, 3)),
            sheets.words(cell.role),
            sheets.words(cell.id),
        ]
        for cell in cells
    ]
    headings = ("data", "model", "norm", "attack", "passes a sample", "seconds", "for", "run")
    return sheets.sheet("cost-0", "What every run cost", headings, rows)
