"""The tables of runs and comparisons: what `evaluate` and `compare` print, norm by norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pdpgd.report import charts, sheets, wording
from pdpgd.report.charts import Line
from pdpgd.report.gallery import class_name
from pdpgd.report.inputs import ReportInputs, Source
from pdpgd.report.sections import Figure, Marks, Section, SectionPart
from pdpgd.report.sheets import Sheet
from pdpgd.runs import metrics, records

LEAD = (
    "Means and medians are of distances: the mean of the fooled samples, the median of all that were right, with those "
    f"that were not fooled beyond all others. {metrics.PARTIAL}: not all were fooled, and the mean is not comparable "
    "with one over all."
)


def numbers(subject: ReportInputs) -> Section:
    parts = []
    runs = [source for source in subject.sources if source.comparison is None]
    if runs:
        parts.append(SectionPart("", sheets=(_run_numbers(runs),)))
    for number, source in enumerate(source for source in subject.sources if source.comparison is not None):
        tables = tuple(
            table for norm in source.norms for table in _comparison_numbers(source, norm, f"{number}-{norm}")
        )
        parts.append(SectionPart(source.label if len(subject.sources) > 1 else "", sheets=tables))
    return Section("numbers", "The numbers", LEAD, tuple(parts))


def _run_numbers(sources: Sequence[Source]) -> Sheet:
    rows = []
    for source in sources:
        found = source.evaluation.as_json()["norms"]
        for norm in source.norms:
            numbers, counts = found[norm], found[norm]["counts"]
            sizes = (numbers[name] for name in ("median", "median_8bit"))
            rows.append(
                [
                    *([sheets.words(source.label)] if len(sources) > 1 else []),
                    sheets.words(norm),
                    *(sheets.number(counts[name]) for name in records.STATUSES),
                    sheets.mean(numbers["mean"], norm, whole=source.evaluation.whole(norm)),
                    *(sheets.distance(np.nan if size is None else size, norm) for size in sizes),
                    sheets.number(numbers["fragile"]),
                ]
            )
    first = ("model",) if len(sources) > 1 else ()
    headings = (*first, "norm", *records.STATUSES, "mean", "median", "median at 8 bits", "fragile")
    return sheets.sheet("run-numbers", "The least change that fools the model, by norm", headings, rows)


def _comparison_numbers(source: Source, norm: str, id: str) -> list[Sheet]:
    comparison = source.comparison
    assert comparison is not None
    statistics, accuracies = comparison.statistics(norm), comparison.accuracies(norm)
    numbers = {row["attack"]: row for row in comparison.as_json()[norm]["attacks"]}
    partial = {row.label for row in comparison.of(norm) if row.partial}
    rows = []
    for label, mine in statistics.items():
        found = numbers[label]
        rows.append(
            [
                sheets.words(label),
                sheets.share(found["fooled"] / max(1, found["right"])),
                sheets.mean(found["mean_distance"], norm, whole=label not in partial),
                sheets.share(mine.mean_accuracy),
                sheets.number(mine.times_best),
                sheets.Cell(f"{100 * mine.mean_gap:.2f}", mine.mean_gap),
                sheets.Cell(f"{100 * mine.max_gap:.2f}", mine.max_gap),
                sheets.number(found["broken"]),
                sheets.number(round(found["passes"])),
                sheets.Cell(f"{found['seconds']:.1f}", found["seconds"]),
            ]
        )
    headings = ("attack", "fooled", "mean", "robust acc.", "best", "mean gap", "max gap", "broke", "passes", "seconds")
    about = (
        "Robust accuracy: the mean over the radii; best: at how many of them no rival leaves less; gaps: to the least "
        "that any leaves, in percentage points; passes: of a sample that was right."
    )
    radii = comparison.radii[norm]
    at = sheets.sheet(
        f"accuracies-{id}",
        f"Robust accuracy at a radius of, {norm}",
        ("attack", *(wording.size(radius, norm) for radius in radii)),
        [[sheets.words(label), *map(sheets.share, shares)] for label, shares in accuracies.items()],
    )
    scored = replace(sheets.sheet(f"attacks-{id}", f"The attacks in {norm}", headings, rows), about=about)
    return [scored, at] if rows else []


# A chart has no room for more classes: the weakest and the strongest are in it.
CLASSES = 30


def classes(
    sources: Sequence[Source], marks: Mapping[str, Marks], own: Mapping[str, Mapping[str, Marks]] | None = None
) -> Section:
    """By class, the least that any attack of a source found. `own`: radii that a source has for itself."""
    own = own or {}
    parts = []
    together = [list(sources)] if not own else [[source] for source in sources]
    for number, some in enumerate(together):
        figures, tables = [], []
        for norm in dict.fromkeys(norm for source in some for norm in source.norms):
            mine = own.get(some[0].label, marks).get(norm) or marks.get(norm)
            radii = mine.radii if mine else ()
            figure, table = _by_class([s for s in some if norm in s.norms], norm, radii, f"{number}-{norm}")
            figures.append(figure)
            tables.append(table)
        heading = some[0].label if len(together) > 1 else ""
        parts.append(SectionPart(heading, tuple(figures), tuple(tables), folded="The numbers, class by class"))
    lead = "Which classes are weak: the median distance of the samples that were right, and robust accuracy by class."
    return Section("classes", "By class", lead, tuple(parts))


def _by_class(sources: list[Source], norm: str, radii: tuple[float, ...], id: str) -> tuple[Figure, Sheet]:
    rows = []
    medians: dict[str, dict[int, float]] = {}
    for source in sources:
        found, labels = source.distances(norm), source.evaluation.column("label", source.evaluation.norms[0])
        medians[source.label] = {}
        for label in np.unique(labels).tolist():
            mine = found[labels == label]
            median = metrics.quantile(mine, 0.5)
            medians[source.label][label] = median
            rows.append(
                [
                    *([sheets.words(source.label)] if len(sources) > 1 else []),
                    sheets.words(class_name(source.classes, label)),
                    sheets.number(len(mine)),
                    sheets.share(float((mine > 0).mean())),
                    *(sheets.share(metrics.robust_accuracy(mine, radius)) for radius in radii),
                    sheets.distance(median, norm),
                ]
            )
    first = medians[sources[0].label]
    order = sorted(first, key=lambda label: (np.isnan(first[label]), first[label], label))
    shown = order if len(order) <= CLASSES else [*order[: CLASSES // 2], *order[-CLASSES // 2 :]]
    names = [class_name(sources[0].classes, label) for label in sorted(shown)]
    lines = [
        Line(source.label, place, np.array([medians[source.label].get(label, np.nan) for label in sorted(shown)]))
        for place, source in enumerate(sources)
    ]
    says = f"Weakest: class {class_name(sources[0].classes, order[0])} with {wording.size(first[order[0]], norm)}; "
    says += f"strongest: {class_name(sources[0].classes, order[-1])} with {wording.size(first[order[-1]], norm)}"
    says += f" ({sources[0].label})." if len(sources) > 1 else "."
    if len(shown) < len(order):
        says += f" The {CLASSES // 2} weakest and the {CLASSES // 2} strongest of {len(order)} are shown."
    headings = (
        *(("model",) if len(sources) > 1 else ()),
        *("class", "samples", "clean"),
        *(f"at {wording.size(radius, norm)}" for radius in radii),
        "median distance",
    )
    table = sheets.sheet(f"class-{id}", f"By class, {norm}: robust accuracy and median distance", headings, rows)
    return Figure(f"class-chart-{id}", norm, says, charts.classes(names, lines, norm)), table
