"""The sections with the numbers: the tables that `evaluate` and `compare` print, and the results by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pdpgd.report import charts, wording
from pdpgd.report.charts import Line
from pdpgd.report.gallery import class_name
from pdpgd.report.inputs import ReportedModel, ReportInputs
from pdpgd.report.sections import Figure, MarkedRadii, Section, SectionPart
from pdpgd.report.table import (
    Table,
    TableCell,
    distance_cell,
    mean_cell,
    number_cell,
    share_cell,
    table_of,
    text_cell,
)
from pdpgd.runs import metrics, records
from pdpgd.runs.summary import norm_summary

LEAD = (
    "Means and medians are of distances: the mean over the fooled samples, the median over all correctly classified "
    "ones, where samples that were not fooled count as farther than all others. "
    f"{metrics.PARTIAL}: not all samples were fooled, so the mean is not comparable with a mean over all of them."
)


def numbers(inputs: ReportInputs) -> Section:
    """The section with the tables of runs and comparisons."""
    parts = []
    runs = [model for model in inputs.models if model.comparison is None]
    if runs:
        parts.append(SectionPart("", tables=(_run_numbers(runs),)))
    for number, model in enumerate(model for model in inputs.models if model.comparison is not None):
        tables = tuple(table for norm in model.norms for table in _comparison_numbers(model, norm, f"{number}-{norm}"))
        parts.append(SectionPart(model.label if len(inputs.models) > 1 else "", tables=tables))
    return Section("numbers", "Numbers", LEAD, tuple(parts))


def _run_numbers(models: Sequence[ReportedModel]) -> Table:
    rows = []
    for model in models:
        for norm in model.norms:
            numbers = norm_summary(model.evaluation, norm)
            sizes = (numbers.median, numbers.median_8bit)
            rows.append(
                [
                    *([text_cell(model.label)] if len(models) > 1 else []),
                    text_cell(norm),
                    *(number_cell(numbers.counts[name]) for name in records.STATUSES),
                    mean_cell(numbers.mean, norm, whole=model.evaluation.fooled_all(norm)),
                    *(distance_cell(np.nan if size is None else size, norm) for size in sizes),
                    number_cell(numbers.fragile),
                ]
            )
    first = ("model",) if len(models) > 1 else ()
    headings = (*first, "norm", *records.STATUSES, "mean", "median", "median at 8 bits", "fragile")
    return table_of(
        "run-numbers", "Samples by outcome, and size of the smallest perturbations, by norm", headings, rows
    )


def _comparison_numbers(model: ReportedModel, norm: str, id: str) -> list[Table]:
    comparison = model.comparison
    assert comparison is not None
    statistics, accuracies = comparison.statistics(norm), comparison.accuracies(norm)
    rows = []
    for row in comparison.of(norm):
        mine, seconds = statistics[row.label], row.seconds()
        rows.append(
            [
                text_cell(row.label),
                share_cell(row.fooled / max(1, row.correct)),
                mean_cell(row.mean_distance, norm, whole=row.fooled_all or not row.searched),
                share_cell(mine.mean_accuracy),
                number_cell(mine.times_best),
                TableCell(mine.mean_gap, shown=f"{100 * mine.mean_gap:.2f}"),
                TableCell(mine.max_gap, shown=f"{100 * mine.max_gap:.2f}"),
                number_cell(row.broken),
                number_cell(round(row.passes())),
                TableCell(seconds, shown=f"{seconds:.1f}"),
            ]
        )
    if not rows:
        return []
    headings = ("attack", "fooled", "mean", "robust acc.", "best", "mean gap", "max gap", "errors", "passes", "seconds")
    caption = (
        "Robust accuracy: mean over the radii. Best: number of radii at which no rival leaves a lower robust accuracy. "
        "Gaps: to the lowest robust accuracy that any attack leaves, in percentage points. Errors: samples on which "
        "the attack raised an error. Passes: per correctly classified sample."
    )
    at_radii = table_of(
        f"accuracies-{id}",
        f"Robust accuracy by radius, {norm}",
        ("attack", *(wording.size(radius, norm) for radius in comparison.radii[norm])),
        [[text_cell(label), *map(share_cell, shares)] for label, shares in accuracies.items()],
    )
    return [table_of(f"attacks-{id}", f"Attacks in {norm}", headings, rows, caption=caption), at_radii]


# Most classes in a chart: of more, the weakest and the strongest are shown.
CLASSES = 30


def classes(
    models: Sequence[ReportedModel],
    marks: Mapping[str, MarkedRadii],
    own: Mapping[str, Mapping[str, MarkedRadii]] | None = None,
) -> Section:
    """The section with the results by class, from the smallest distances that any attack on a model found.

    Args:
        models: The models.
        marks: Radii by norm.
        own: Radii by norm of each model, by its label; charts then show one model each.

    Returns:
        The section.
    """
    own = own or {}
    parts = []
    together = [list(models)] if not own else [[model] for model in models]
    for number, some in enumerate(together):
        figures, tables = [], []
        for norm in dict.fromkeys(norm for model in some for norm in model.norms):
            mine = own.get(some[0].label, marks).get(norm) or marks.get(norm)
            radii = mine.radii if mine else ()
            figure, table = _by_class([model for model in some if norm in model.norms], norm, radii, f"{number}-{norm}")
            figures.append(figure)
            tables.append(table)
        heading = some[0].label if len(together) > 1 else ""
        parts.append(SectionPart(heading, tuple(figures), tuple(tables), folded="Numbers by class"))
    lead = "Median distance of the correctly classified samples, and robust accuracy, for each class."
    return Section("classes", "By class", lead, tuple(parts))


def _by_class(models: list[ReportedModel], norm: str, radii: tuple[float, ...], id: str) -> tuple[Figure, Table]:
    rows = []
    medians: dict[str, dict[int, float]] = {}
    for model in models:
        found, labels = model.distances(norm), model.evaluation.column("label", model.evaluation.norms[0])
        medians[model.label] = {}
        for label in np.unique(labels).tolist():
            mine = found[labels == label]
            median = metrics.quantile(mine, 0.5)
            medians[model.label][label] = median
            rows.append(
                [
                    *([text_cell(model.label)] if len(models) > 1 else []),
                    text_cell(class_name(model.classes, label)),
                    number_cell(len(mine)),
                    share_cell(float((mine > 0).mean())),
                    *(share_cell(metrics.robust_accuracy(mine, radius)) for radius in radii),
                    distance_cell(median, norm),
                ]
            )
    headings = (
        *(("model",) if len(models) > 1 else ()),
        *("class", "samples", "clean accuracy"),
        *(f"at {wording.size(radius, norm)}" for radius in radii),
        "median distance",
    )
    table = table_of(f"class-{id}", f"Robust accuracy and median distance by class, {norm}", headings, rows)
    return _class_figure(models, medians, norm, id), table


def _class_figure(
    models: list[ReportedModel], medians: Mapping[str, Mapping[int, float]], norm: str, id: str
) -> Figure:
    names, first = models[0].classes, medians[models[0].label]
    order = sorted(first, key=lambda label: (np.isnan(first[label]), first[label], label))
    shown = sorted(order if len(order) <= CLASSES else [*order[: CLASSES // 2], *order[-CLASSES // 2 :]])
    lines = [
        Line(model.label, place, np.array([medians[model.label].get(label, np.nan) for label in shown]))
        for place, model in enumerate(models)
    ]
    weakest, strongest = (f"{class_name(names, at)} ({wording.size(first[at], norm)})" for at in (order[0], order[-1]))
    text = f"Least robust class: {weakest}; most robust: {strongest}"
    text += f" (on {models[0].label})." if len(models) > 1 else "."
    if len(shown) < len(order):
        text += f" The chart shows the {CLASSES // 2} least and the {CLASSES // 2} most robust of {len(order)} classes."
    chart = charts.classes([class_name(names, label) for label in shown], lines, norm)
    return Figure(f"class-chart-{id}", norm, text, chart)
