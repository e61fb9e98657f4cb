"""The tables of runs and comparisons: what `evaluate` and `compare` print, norm by norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pdpgd.evaluation import metrics, records
from pdpgd.report import sheets, wording
from pdpgd.report.sections import Part, Section
from pdpgd.report.sheets import Sheet
from pdpgd.report.sources import Source, Subject

LEAD = (
    "Means and medians are of distances: the mean of the fooled samples, the median of all that were right, with those "
    f"that were not fooled beyond all others. {metrics.PARTIAL}: not all were fooled, and the mean is not comparable "
    "with one over all."
)


def numbers(subject: Subject) -> Section:
    parts = []
    runs = [source for source in subject.sources if source.comparison is None]
    if runs:
        parts.append(Part("", sheets=(_run_numbers(runs),)))
    for number, source in enumerate(source for source in subject.sources if source.comparison is not None):
        tables = tuple(
            table for norm in source.norms for table in _comparison_numbers(source, norm, f"{number}-{norm}")
        )
        parts.append(Part(source.label if len(subject.sources) > 1 else "", sheets=tables))
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
