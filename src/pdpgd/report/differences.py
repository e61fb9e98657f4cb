"""Two models, or two versions of one, side by side: which withstands more, how surely, and which samples changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.report import charts, sheets, wording
from pdpgd.report.gallery import class_name
from pdpgd.report.inputs import Source
from pdpgd.report.sections import Figure, Marks, Section, SectionPart
from pdpgd.report.sheets import Cell, Sheet
from pdpgd.runs import metrics
from pdpgd.runs.metrics import Interval, difference, median_change

# Samples that a table of changes names, a norm: as many that got worse as got better.
NAMED = 15
# A distance has changed if it did by this share: less is luck.
CLEARLY = 0.01


@dataclass(frozen=True)
class Pair:
    """The first source, which all others are held against, and another one."""

    first: Source
    second: Source

    @property
    def paired(self) -> bool:
        """Whether both are on the same samples, to the bit."""
        data = [source.evaluation.spec.data["sha256"] for source in (self.first, self.second)]
        return bool(data[0] == data[1])

    @property
    def norms(self) -> tuple[str, ...]:
        return tuple(norm for norm in self.first.norms if norm in self.second.norms)

    def at(self, norm: str, radius: float) -> Interval:
        withstood = [metrics.withstood(source.distances(norm), radius) for source in (self.first, self.second)]
        return difference(withstood[0], withstood[1], paired=self.paired)

    @property
    def how(self) -> str:
        if self.paired:
            return f"paired on the same {self.first.evaluation.samples:,} samples"
        return "unpaired, since the samples are not the same"


def pairs_of(sources: Sequence[Source]) -> list[Pair]:
    return [Pair(sources[0], other) for other in sources[1:]]


def verdicts(pairs: Sequence[Pair], marks: Mapping[str, Marks]) -> list[str]:
    """A sentence a pair and norm, at the middle one of the marked radii."""
    sentences = []
    for pair in pairs:
        if not pair.norms:
            sentences.append(f"{pair.second.label} and {pair.first.label} have no norm in common.")
        for norm in pair.norms:
            if norm not in marks:
                sentences.append(f"In {norm}, neither {pair.first.label} nor {pair.second.label} was fooled at all.")
                continue
            radius = marks[norm].middle
            found = pair.at(norm, radius)
            shares = [
                wording.share(metrics.robust_accuracy(source.distances(norm), radius))
                for source in (pair.second, pair.first)
            ]
            first, second = pair.first.label, pair.second.label
            who = f"no clear difference between {second} and {first}"
            if found.clear:
                who = f"{second} withstands {'more' if found.value > 0 else 'less'} than {first}"
            sentences.append(
                f"In {norm}, {who}: {shares[0]} against {shares[1]} at {wording.change(radius, norm)}, "
                f"{wording.points(found.value)} points (95% interval {_range(found)}, {pair.how})."
            )
    return sentences


def section(pairs: Sequence[Pair], marks: Mapping[str, Marks]) -> Section:
    parts = []
    for number, pair in enumerate(pairs):
        tables = [table for table in (_accuracies(pair, marks, number), _medians(pair, number)) if table is not None]
        parts.append(SectionPart(f"{pair.second.label} against {pair.first.label}", sheets=tuple(tables)))
        if pair.paired and pair.norms:
            figures = tuple(_scatter(pair, norm, number) for norm in pair.norms)
            changed = [table for norm in pair.norms if (table := _changed(pair, norm, number)) is not None]
            parts.append(SectionPart("", figures, tuple(changed), folded="The samples that changed most"))
    unpaired = [pair for pair in pairs if not pair.paired]
    lead = (
        "Intervals of shares are Newcombe's 95%, from Wilson's; those of medians are of a bootstrap of 1,000 draws. "
        "Each is for itself: of many, some miss by chance."
    )
    if unpaired:
        lead += " Where the samples are not the same, they are unpaired, and no sample can be said to have changed."
    return Section("differences", "Differences", lead, tuple(parts))


def _accuracies(pair: Pair, marks: Mapping[str, Marks], number: int) -> Sheet | None:
    rows = []
    for norm in pair.norms:
        first, second = pair.first.distances(norm), pair.second.distances(norm)
        for radius in (0.0, *(marks[norm].radii if norm in marks else ())):
            found = pair.at(norm, radius)
            shares = [metrics.robust_accuracy(each, radius) for each in (first, second)]
            moved: list[Cell] = []
            if pair.paired:
                before, after = metrics.withstood(first, radius), metrics.withstood(second, radius)
                moved = [sheets.number(int((~before & after).sum())), sheets.number(int((before & ~after).sum()))]
            at = Cell("clean" if radius == 0 else wording.size(radius, norm), radius)
            changed = Cell(wording.points(found.value), round(found.value, 6))
            verdict = "more" if found.low > 0 else "less" if found.high < 0 else "unclear"
            rows.append(
                [
                    sheets.words(norm),
                    at,
                    *map(sheets.share, shares),
                    changed,
                    *_ends(found),
                    *moved,
                    sheets.words(verdict),
                ]
            )
    counts = ("gained", "lost") if pair.paired else ()
    headings = ("norm", "radius", pair.first.label, pair.second.label, "points", "from", "to", *counts, "withstands")
    caption = f"Robust accuracy of {pair.second.label} against {pair.first.label}, {pair.how}"
    return sheets.sheet(f"difference-{number}", caption, headings, rows) if rows else None


def _medians(pair: Pair, number: int) -> Sheet | None:
    rows = []
    for norm in pair.norms:
        first, second = pair.first.distances(norm), pair.second.distances(norm)
        found = median_change(first, second, paired=pair.paired)
        medians = [sheets.distance(metrics.quantile(each, 0.5), norm) for each in (first, second)]
        blank = Cell(wording.NOTHING, None)
        moved = [blank] * 3 if found is None else [_signed(each) for each in (found.value, found.low, found.high)]
        rows.append([sheets.words(norm), *medians, *moved])
    headings = ("norm", pair.first.label, pair.second.label, "change", "from", "to")
    who = "samples that both have right" if pair.paired else "right samples of each"
    caption = f"Median distance; the change is over the {who}"
    return sheets.sheet(f"median-{number}", caption, headings, rows) if rows else None


def _scatter(pair: Pair, norm: str, number: int) -> Figure:
    first, second = pair.first.distances(norm), pair.second.distances(norm)
    samples = pair.first.runs[0].column("sample", pair.first.runs[0].norms[0])
    chart = charts.changes(pair.first.label, pair.second.label, (first, second), samples)
    worse, better = _moved(first, second)
    says = (
        f"{better.sum():,} samples withstand more in {pair.second.label}, {worse.sum():,} less, "
        f"{len(first) - int(worse.sum()) - int(better.sum()):,} the same within 1%. Drawn are those that were fooled "
        "in both; above the dotted line, more is withstood."
    )
    return Figure(f"change-{number}-{norm}", norm, says, chart)


def _changed(pair: Pair, norm: str, number: int) -> Sheet | None:
    """The samples that changed most."""
    first, second = pair.first.distances(norm), pair.second.distances(norm)
    run = pair.first.runs[0]
    samples, labels = (run.column(name, run.norms[0]) for name in ("sample", "label"))
    worse, better = _moved(first, second)
    # By the share of the larger one, so that what is from 0 or to inf comes first; then by the plain difference.
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(worse, second / first - 1, np.where(better, 1 - first / second, 0.0))
    order = np.argsort(gain, kind="stable").tolist()
    chosen = [*order[: min(NAMED, int(worse.sum()))], *order[::-1][: min(NAMED, int(better.sum()))]]
    rows = []
    for row in chosen:
        rows.append(
            [
                sheets.number(int(samples[row]), str(samples[row])),
                sheets.words(class_name(pair.first.classes, int(labels[row]))),
                _at(first[row], norm),
                _at(second[row], norm),
                sheets.words("worse" if worse[row] else "better"),
            ]
        )
    caption = f"Samples that changed most, {norm}: {worse.sum():,} got worse and {better.sum():,} better in all"
    headings = ("sample", "class", pair.first.label, pair.second.label, "got")
    return sheets.sheet(f"changed-{number}-{norm}", caption, headings, rows) if rows else None


def _moved(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which samples need clearly less, and which clearly more."""
    return second < (1 - CLEARLY) * first, first < (1 - CLEARLY) * second


def _at(distance: float, norm: str) -> Cell:
    return Cell("wrong", 0.0) if distance == 0 else sheets.distance(float(distance), norm)


def _signed(value: float) -> Cell:
    return Cell(wording.signed(value), float(f"{value:.6g}"))


def _ends(found: Interval) -> list[Cell]:
    return [Cell(wording.points(end), round(end, 6)) for end in (found.low, found.high)]


def _range(found: Interval) -> str:
    return f"{wording.points(found.low)} to {wording.points(found.high)}"
