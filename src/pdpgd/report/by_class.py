"""Which classes are weak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pdpgd.evaluation import metrics
from pdpgd.report import charts, sheets, wording
from pdpgd.report.charts import Line
from pdpgd.report.gallery import class_name
from pdpgd.report.radii import Marks
from pdpgd.report.sections import Figure, Part, Section
from pdpgd.report.sheets import Sheet
from pdpgd.report.sources import Source

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
        parts.append(Part(heading, tuple(figures), tuple(tables), folded="The numbers, class by class"))
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
