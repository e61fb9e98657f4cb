"""The page of an experiment: its models as comparisons, its summary, and the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import PdpgdError
from pdpgd.experiments.results import FILE, JOBS, Cell, DatasetInfo, Results, load_results
from pdpgd.report import charts, wording
from pdpgd.report.charts import Line
from pdpgd.report.figures import ALONE, Panel, over_queries, over_restarts, partly_fooled
from pdpgd.report.inputs import ReportedModel, ReportInputs, model_of_comparison
from pdpgd.report.paper_tables import tables
from pdpgd.report.provenance import Provenance, starts_of
from pdpgd.report.sections import Figure, Section, SectionPart
from pdpgd.report.table import FORMATS, Table, TableCell, table_of, text_cell
from pdpgd.report.wording import OURS
from pdpgd.runs import metrics
from pdpgd.runs.comparison import Comparison, Row
from pdpgd.runs.result import load_evaluation
from pdpgd.runs.spec import AttackSpec

EFFECTS = {"restarts": "effect of restarts", "queries": "effect of the number of gradients"}


def read_experiment(folder: Path) -> ReportInputs:
    """Read an experiment: each model of each data set is a comparison of the attacks whose runs are present."""
    results = load_results(folder)
    models: list[ReportedModel] = []
    failures: list[str] = []
    missing = 0
    for dataset in results.datasets:
        for name in dataset.models:
            cells = results.of("table", dataset=dataset.name, model=name)
            present = [cell for cell in cells if cell.failure or (folder / JOBS / cell.id).is_dir()]
            missing += len(cells) - len(present)
            rows = [_row(folder, cell) for cell in present]
            failures += [
                f"{dataset.name} {name}, {row.label} ({row.norm}): {row.failure}" for row in rows if row.failure
            ]
            radii = {cell.norm: cell.radii for cell in present if cell.radii}
            model = model_of_comparison(Comparison(tuple(rows), radii, folder), f"{dataset.name} {name}", OURS)
            if model is not None:
                models.append(model)
    return ReportInputs(
        tuple(models), results, folder, tuple(failures), _on_missing_runs(missing, len(results.of("table")))
    )


def _on_missing_runs(missing: int, runs: int) -> str:
    """A note on runs that are not in the directory; empty if all are."""
    if not missing:
        return ""
    which = "The runs of this experiment" if missing == runs else f"{missing:,} of the {runs:,} runs of this experiment"
    return (
        f"{which} are not in its directory. Their numbers come from {FILE}; their curves, pictures and checks are not "
        "shown. To compute them again, repeat the command of the experiment or use pdpgd experiment run DIR."
    )


def sentences(results: Results) -> list[str]:
    """One sentence per data set and norm on which attack leaves the lowest robust accuracy."""
    return [text for dataset in results.datasets for norm in results.norms if (text := _best(results, dataset, norm))]


def tables_section(results: Results) -> Section:
    """The section with the paper's tables."""
    shown = tuple(_with_downloads(table) for table in tables(results))
    lead = (
        "The tables of the paper for this experiment, with the paper's numbers in brackets where it has any. Each can "
        "be saved as CSV, Markdown or LaTeX."
    )
    return Section("tables", "The paper's tables", lead, (SectionPart("", tables=shown),))


def _with_downloads(table: Table) -> Table:
    files = {ending: render(table) for ending, render in FORMATS.items()}
    return replace(table, name=f"paper-{table.name}", downloads=files)


def effects_section(results: Results) -> Section | None:
    """The section on the effect of restarts and of the number of gradients; None if the experiment has neither."""
    parts = []
    drawn: list[Panel] = []
    for number, dataset in enumerate(results.datasets):
        for what, panels, across, up in (
            ("restarts", over_restarts(results, dataset.name), "restarts", "mean distance ({})"),
            ("queries", over_queries(results, dataset.name), "gradients", "mean robust accuracy (%)"),
        ):
            names = list(dict.fromkeys(name for panel in panels.values() for name in panel.lines))
            figures = [
                _panel_figure(f"{what}-{number}-{place}", f"{norm}, {model}", panel, names, (across, up.format(norm)))
                for place, ((norm, model), panel) in enumerate(panels.items())
            ]
            drawn.extend(panels.values())
            if figures:
                parts.append(SectionPart(f"{dataset.name}: {EFFECTS[what]}", figures=tuple(figures)))
    lead = (
        "Mean distance by number of restarts; and robust accuracy, averaged over the radii, by number of gradients per "
        "sample, with a single start at the input. PGD divides its gradients among the radii, and does not attack "
        "samples again that it fooled at a smaller radius."
    )
    common, alone = partly_fooled(drawn)
    lead += " Open marker: the run did not fool every correctly classified sample." if common else ""
    lead += f" {ALONE}" if alone else ""
    return Section("efforts", "Restarts and gradients", lead, tuple(parts)) if parts else None


def _panel_figure(identity: str, title: str, panel: Panel, names: Sequence[str], axes: tuple[str, str]) -> Figure:
    if not panel.lines:
        return Figure(identity, title, panel.description, None)
    lines = [Line(name, names.index(name), points) for name, points in panel.lines.items()]
    most = max(point.x for points in panel.lines.values() for point in points)
    last = [
        f"{name}: {point.y:.4g}{point.part and f' (over {point.part})'}"
        for name, points in panel.lines.items()
        for point in points
        if point.x == most
    ]
    text = f"With {most:g} {axes[0]}, {'; '.join(last)}."
    return Figure(identity, title, f"{text} {panel.description}".strip(), charts.points(lines, *axes))


def provenance_of_experiment(inputs: ReportInputs) -> Provenance:
    """The provenance of an experiment."""
    results = inputs.experiment
    assert results is not None
    command, starts = starts_of([run.folder for model in inputs.models for run in model.runs][:1])
    facts = [(name, str(value)) for name, value in results.made_with.items()]
    for dataset in results.datasets:
        models = ", ".join(f"{name} ({model.described})" for name, model in dataset.models.items())
        facts.append((dataset.name, f"{dataset.samples:,} samples of {dataset.source}; {models}"))
    facts.append(("directory", str(inputs.folder)))
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
        # Only attacks that finished on every model are compared.
        if set(mine) == set(models):
            found[label] = np.concatenate([mine[model] for model in models])
    if not found:
        return ""
    statistics = metrics.compared(found, families={label: label.partition(":")[0] for label in found})
    order = sorted(statistics, key=lambda label: statistics[label].mean_accuracy)
    least = wording.share(statistics[order[0]].mean_accuracy)
    # Accuracies that are displayed alike count as equal.
    first = [label for label in order if wording.share(statistics[label].mean_accuracy) == least]
    verb = "leaves" if len(first) == 1 else "leave"
    times = wording.listed([str(statistics[label].times_best) for label in first])
    text = (
        f"{dataset.name}, {norm}: {wording.listed(first)} {verb} the lowest robust accuracy, {least} on average over "
        f"{wording.count(len(models), 'model')}, best in {times} of {len(found[order[0]])} cells"
    )
    others = order[len(first) :]
    if not others:
        return f"{text}."
    return f"{text}; {others[0]} follows with {wording.share(statistics[others[0]].mean_accuracy)}."


def _costs(cells: Sequence[Cell]) -> Table:
    rows = [
        [
            *(text_cell(text) for text in (cell.dataset, cell.model, cell.norm, cell.label)),
            TableCell(round(passes := cell.forwards + cell.backwards, 1), shown=f"{passes:,.0f}"),
            TableCell(round(cell.seconds, 3), shown=f"{cell.seconds:,.1f}"),
            text_cell(cell.role),
            text_cell(cell.id),
        ]
        for cell in cells
    ]
    headings = ("data", "model", "norm", "attack", "passes per sample", "seconds", "used for", "run")
    return table_of("cost-0", "Cost of each run", headings, rows)
