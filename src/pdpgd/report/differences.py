"""Models side by side: which is more robust, how certain that is, and which samples changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.report import charts, wording
from pdpgd.report.gallery import class_name
from pdpgd.report.inputs import ReportedModel
from pdpgd.report.sections import Figure, MarkedRadii, Section, SectionPart
from pdpgd.report.table import Table, TableCell, distance_cell, number_cell, share_cell, table_of, text_cell
from pdpgd.runs import metrics
from pdpgd.runs.metrics import Interval, difference, median_change

# Most samples that the table of changes lists per norm, for those that got worse and those that got better.
NAMED = 15
# Relative change from which a distance counts as changed: smaller ones are due to chance.
CLEARLY = 0.01


@dataclass(frozen=True)
class ModelPair:
    """The first model, which is the reference, and another one."""

    first: ReportedModel
    second: ReportedModel

    @property
    def paired(self) -> bool:
        """Whether both were evaluated on the same samples, bit for bit."""
        data = [model.evaluation.spec.data["sha256"] for model in (self.first, self.second)]
        return bool(data[0] == data[1])

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms that both have."""
        return tuple(norm for norm in self.first.norms if norm in self.second.norms)

    def difference_at(self, norm: str, radius: float) -> Interval:
        """Robust accuracy of the second model minus that of the first."""
        withstood = [metrics.withstood(model.distances(norm), radius) for model in (self.first, self.second)]
        return difference(withstood[0], withstood[1], paired=self.paired)

    @property
    def how(self) -> str:
        """How the interval was computed, for a sentence."""
        if self.paired:
            return f"paired on the same {self.first.evaluation.samples:,} samples"
        return "unpaired, since the samples differ"


def pairs_of(models: Sequence[ReportedModel]) -> list[ModelPair]:
    """Pair each further model with the first one."""
    return [ModelPair(models[0], other) for other in models[1:]]


def verdicts(pairs: Sequence[ModelPair], marks: Mapping[str, MarkedRadii]) -> list[str]:
    """One sentence per pair and norm, at the middle of the marked radii."""
    sentences = []
    for pair in pairs:
        if not pair.norms:
            sentences.append(f"{pair.second.label} and {pair.first.label} have no norm in common.")
        for norm in pair.norms:
            if norm not in marks:
                sentences.append(
                    f"In {norm}, no sample was fooled on either {pair.first.label} or {pair.second.label}."
                )
                continue
            radius = marks[norm].middle
            found = pair.difference_at(norm, radius)
            shares = [
                wording.share(metrics.robust_accuracy(model.distances(norm), radius))
                for model in (pair.second, pair.first)
            ]
            first, second = pair.first.label, pair.second.label
            verdict = f"there is no significant difference between {second} and {first}"
            if found.clear:
                verdict = f"{second} is {'more' if found.value > 0 else 'less'} robust than {first}"
            sentences.append(
                f"In {norm}, {verdict}: robust accuracy {shares[0]} versus {shares[1]} at a radius of "
                f"{wording.size_in_words(radius, norm)}, {wording.points(found.value)} percentage points "
                f"(95% interval {_range(found)}, {pair.how})."
            )
    return sentences


def section(pairs: Sequence[ModelPair], marks: Mapping[str, MarkedRadii]) -> Section:
    """The section with the differences of all pairs."""
    parts = []
    for number, pair in enumerate(pairs):
        tables = [table for table in (_accuracies(pair, marks, number), _medians(pair, number)) if table is not None]
        parts.append(SectionPart(f"{pair.second.label} compared with {pair.first.label}", tables=tuple(tables)))
        if pair.paired and pair.norms:
            figures = tuple(_scatter(pair, norm, number) for norm in pair.norms)
            changed = [table for norm in pair.norms if (table := _changed(pair, norm, number)) is not None]
            parts.append(SectionPart("", figures, tuple(changed), folded="Samples that changed most"))
    unpaired = [pair for pair in pairs if not pair.paired]
    lead = (
        "Intervals of differences in robust accuracy are Newcombe's 95% intervals, based on Wilson's; those of medians "
        "are from a bootstrap with 1,000 draws. They are not corrected for multiple comparisons: among many, some miss "
        "the true value by chance."
    )
    if unpaired:
        lead += " Where the samples differ, the intervals are unpaired, and changes per sample are not shown."
    return Section("differences", "Differences", lead, tuple(parts))


def _accuracies(pair: ModelPair, marks: Mapping[str, MarkedRadii], number: int) -> Table | None:
    rows = []
    for norm in pair.norms:
        first, second = pair.first.distances(norm), pair.second.distances(norm)
        for radius in (0.0, *(marks[norm].radii if norm in marks else ())):
            found = pair.difference_at(norm, radius)
            shares = [metrics.robust_accuracy(each, radius) for each in (first, second)]
            moved: list[TableCell] = []
            if pair.paired:
                before, after = metrics.withstood(first, radius), metrics.withstood(second, radius)
                moved = [number_cell(int((~before & after).sum())), number_cell(int((before & ~after).sum()))]
            at = TableCell(radius, shown="clean" if radius == 0 else wording.size(radius, norm))
            changed = TableCell(round(found.value, 6), shown=wording.points(found.value))
            verdict = "higher" if found.low > 0 else "lower" if found.high < 0 else "not significant"
            rows.append(
                [
                    text_cell(norm),
                    at,
                    *map(share_cell, shares),
                    changed,
                    *_ends(found),
                    *moved,
                    text_cell(verdict),
                ]
            )
    counts = ("gained", "lost") if pair.paired else ()
    headings = ("norm", "radius", pair.first.label, pair.second.label, "points", "95% from", "to", *counts, "verdict")
    title = f"Robust accuracy of {pair.second.label} compared with {pair.first.label}, {pair.how}"
    return table_of(f"difference-{number}", title, headings, rows) if rows else None


def _medians(pair: ModelPair, number: int) -> Table | None:
    rows = []
    for norm in pair.norms:
        first, second = pair.first.distances(norm), pair.second.distances(norm)
        found = median_change(first, second, paired=pair.paired)
        medians = [distance_cell(metrics.quantile(each, 0.5), norm) for each in (first, second)]
        moved = (
            [TableCell(None)] * 3 if found is None else [_signed(each) for each in (found.value, found.low, found.high)]
        )
        rows.append([text_cell(norm), *medians, *moved])
    headings = ("norm", pair.first.label, pair.second.label, "change", "95% from", "to")
    which = "samples that both classify correctly" if pair.paired else "correctly classified samples of each model"
    title = f"Median distance; the change is over the {which}"
    return table_of(f"median-{number}", title, headings, rows) if rows else None


def _scatter(pair: ModelPair, norm: str, number: int) -> Figure:
    first, second = pair.first.distances(norm), pair.second.distances(norm)
    samples = pair.first.runs[0].column("sample", pair.first.runs[0].norms[0])
    chart = charts.changes(pair.first.label, pair.second.label, (first, second), samples)
    worse, better = _moved(first, second)
    text = (
        f"On {pair.second.label}, {better.sum():,} samples have a larger distance, {worse.sum():,} a smaller one, and "
        f"{len(first) - int(worse.sum()) - int(better.sum()):,} the same within 1%. Points are samples that were "
        f"fooled on both models; above the dotted line, {pair.second.label} is more robust."
    )
    return Figure(f"change-{number}-{norm}", norm, text, chart)


def _changed(pair: ModelPair, norm: str, number: int) -> Table | None:
    """The samples whose distance changed most."""
    first, second = pair.first.distances(norm), pair.second.distances(norm)
    run = pair.first.runs[0]
    samples, labels = (run.column(name, run.norms[0]) for name in ("sample", "label"))
    worse, better = _moved(first, second)
    # Relative to the larger distance, so that changes from 0 and to inf come first.
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(worse, second / first - 1, np.where(better, 1 - first / second, 0.0))
    order = np.argsort(gain, kind="stable").tolist()
    chosen = [*order[: min(NAMED, int(worse.sum()))], *order[::-1][: min(NAMED, int(better.sum()))]]
    rows = []
    for row in chosen:
        rows.append(
            [
                number_cell(int(samples[row]), str(samples[row])),
                text_cell(class_name(pair.first.classes, int(labels[row]))),
                _distance_or_wrong(first[row], norm),
                _distance_or_wrong(second[row], norm),
                text_cell("less robust" if worse[row] else "more robust"),
            ]
        )
    title = (
        f"Samples that changed most, {norm}: in total, {worse.sum():,} got less robust and {better.sum():,} more robust"
    )
    headings = ("sample", "class", pair.first.label, pair.second.label, "change")
    return table_of(f"changed-{number}-{norm}", title, headings, rows) if rows else None


def _moved(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which samples have a clearly smaller distance in the second model, and which a clearly larger one."""
    return second < (1 - CLEARLY) * first, first < (1 - CLEARLY) * second


def _distance_or_wrong(distance: float, norm: str) -> TableCell:
    return TableCell(0.0, shown="misclassified") if distance == 0 else distance_cell(float(distance), norm)


def _signed(value: float) -> TableCell:
    return TableCell(float(f"{value:.6g}"), shown=wording.signed(value))


def _ends(found: Interval) -> list[TableCell]:
    return [TableCell(round(end, 6), shown=wording.points(end)) for end in (found.low, found.high)]


def _range(found: Interval) -> str:
    return f"{wording.points(found.low)} to {wording.points(found.high)}"
