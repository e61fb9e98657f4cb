"""Where on the curves a page reads robust accuracy off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.errors import InvalidInputError
from pdpgd.paper import PAPER_RADII, paper_case
from pdpgd.report import charts, sheets, wording
from pdpgd.report.charts import Line, Spec
from pdpgd.report.inputs import ReportInputs, Series, Shelf, Source
from pdpgd.report.sheets import Sheet
from pdpgd.runs import metrics
from pdpgd.runs.metrics import wilson

# Where nobody gives radii: those within which these shares of the right samples are fooled.
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Marks:
    """Radii of a norm, the smallest first."""

    radii: tuple[float, ...]
    origin: str
    """Whose they are: "the dotted lines mark ..."."""

    @property
    def middle(self) -> float:
        """The one that a headline is about."""
        return self.radii[len(self.radii) // 2]


def marks_of(subject: ReportInputs, given: Mapping[str, Sequence[float]]) -> dict[str, Marks]:
    """For every norm of the page that has any: asked for, else the comparison's, else the paper's, else quantiles."""
    check(given, subject.norms)
    return {norm: marks for norm in subject.norms if (marks := _marks(subject, norm, given.get(norm, ()))).radii}


def check(given: Mapping[str, Sequence[float]], norms: Sequence[str]) -> None:
    for norm, radii in given.items():
        if norm not in norms:
            raise InvalidInputError(f"radii: expected norms of the report, {', '.join(norms)}, got {norm!r}")
        if not all(isinstance(radius, int | float) and 0 < radius < np.inf for radius in radii):
            raise InvalidInputError(f"radii: expected numbers above 0, got {', '.join(map(str, radii))} for {norm}")


def _marks(subject: ReportInputs, norm: str, given: Sequence[float]) -> Marks:
    if given:
        return Marks(tuple(sorted({float(radius) for radius in given})), "the radii that were asked for")
    sources = [source for source in subject.sources if norm in source.norms]
    compared = {tuple(source.comparison.radii.get(norm, ())) for source in sources if source.comparison is not None}
    if len(compared) == 1 and all(source.comparison is not None for source in sources):
        return Marks(compared.pop(), "the radii of the comparison")
    papers = {_papers(source, norm) for source in sources}
    if len(papers) == 1 and (radii := papers.pop()):
        return Marks(radii, "the paper's radii for this net")
    everything = np.concatenate([source.distances(norm) for source in sources])
    found = {float(f"{metrics.quantile(everything, share):.2g}") for share in QUANTILES}
    shares = wording.listed([f"{100 * share:.0f}" for share in QUANTILES])
    return Marks(
        tuple(sorted(filter(np.isfinite, found))), f"the radii within which {shares}% of the right samples are fooled"
    )


def _papers(source: Source, norm: str) -> tuple[float, ...]:
    """The paper's radii, where the names of model and data say which net of the paper this one is like."""
    spec = source.evaluation.spec
    model, data = str(spec.model["source"]), str(spec.data["name"])
    case = paper_case(model, data)
    return () if case is None else PAPER_RADII.get((case[0], norm, case[1]), ())


# Steps of all curves of a page together, and the least and the most of one.
STEPS, FEWEST, MOST = 120_000, 100, 2000


_BOXES = (
    "Boxes are quartiles of the fooled samples, whiskers hold 90% of them. An attack with a star did not fool all: its "
    "box is of the easier ones."
)


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    says: str
    """What it shows, for those who do not see it, and under it for those who do."""
    chart: Spec | None
    """None: there is nothing to draw, and `says` says why."""

    @property
    def height(self) -> int | None:
        """In pixels, where it is not what all charts have."""
        return None if self.chart is None else self.chart["layout"].get("height")


@dataclass(frozen=True)
class SectionPart:
    """Charts and tables under one heading; no heading where a section has one part only."""

    heading: str
    figures: tuple[Figure, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    folded: str = ""
    """What the tables are called that are shown when asked for; empty: they are shown."""


@dataclass(frozen=True)
class Section:
    id: str
    heading: str
    lead: str
    parts: tuple[SectionPart, ...]


@dataclass(frozen=True)
class Group:
    """Series that are drawn together: all runs, or the attacks of a comparison."""

    label: str
    series: tuple[Series, ...]
    marks: Mapping[str, Marks]

    @property
    def norms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(norm for series in self.series for norm in series.runs))

    def of(self, norm: str) -> list[Series]:
        return [series for series in self.series if norm in series.runs]

    def lines(self, norm: str) -> list[Line]:
        """Their distances. A series has its colour in all norms."""
        return [
            Line(series.label, place, series.distances(norm))
            for place, series in enumerate(self.series)
            if norm in series.runs
        ]

    def radii(self, norm: str) -> tuple[float, ...]:
        return self.marks[norm].radii if norm in self.marks else ()


def groups_of(subject: ReportInputs, marks: Mapping[str, Marks], asked: Mapping[str, Sequence[float]]) -> list[Group]:
    runs = [source for source in subject.sources if source.comparison is None]
    groups = [Group("Runs", tuple(series for source in runs for series in source.series), marks)] if runs else []
    for source in subject.sources:
        if source.comparison is not None:
            own = {
                norm: Marks(tuple(radii), "the radii of the comparison")
                for norm, radii in source.comparison.radii.items()
                if radii and not asked.get(norm)
            }
            groups.append(Group(source.label, source.series, {**marks, **own}))
    return groups


def curves(groups: Sequence[Group]) -> Section:
    total = sum(len(group.of(norm)) for group in groups for norm in group.norms)
    steps = min(MOST, max(FEWEST, STEPS // max(1, total)))
    parts = []
    for number, group in enumerate(groups):
        figures = []
        for norm in group.norms:
            lines = group.lines(norm)
            chart = charts.curves(lines, norm, group.radii(norm), steps=steps)
            figures.append(Figure(f"curve-{number}-{norm}", norm, _curve_says(lines, norm, group), chart))
        few = len(group.series) <= charts.BANDS
        table = _marked(group, number) if few and group.marks else None
        parts.append(SectionPart(_heading(group, groups), tuple(figures), (table,) if table else ()))
    bands = (
        "The bands are Wilson's 95% intervals. " if any(len(group.series) <= charts.BANDS for group in groups) else ""
    )
    lead = (
        "The share of all samples that are right and that no change found within the radius fools: it begins at the "
        "clean accuracy, and does not reach 0 where samples were not fooled. An upper bound: a better attack can only "
        f"lower it. {bands}{_origins(groups)}"
    )
    return Section("curves", "Robust accuracy", lead, tuple(parts))


def distances(groups: Sequence[Group]) -> Section:
    parts = []
    for number, group in enumerate(groups):
        figures = []
        for norm in group.norms:
            lines = group.lines(norm)
            chart = (charts.histogram if len(lines) <= charts.BANDS else charts.boxes)(lines, norm)
            figures.append(Figure(f"distance-{number}-{norm}", norm, _distance_says(lines, norm), chart))
        parts.append(SectionPart(_heading(group, groups), tuple(figures)))
    lead = "The least change that fools the model, sample by sample. Samples that were wrong to begin with, and those "
    return Section("distances", "Distances", f"{lead}that were not fooled, are counted below each chart.", tuple(parts))


def courses(groups: Sequence[Group], shelf: Shelf) -> Section:
    parts = []
    for number, group in enumerate(groups):
        figures = []
        for norm in group.norms:
            told, silent = [], []
            for place, series in enumerate(group.series):
                trace = shelf.of(series.runs[norm]).traces[norm] if norm in series.runs else None
                if trace is not None:
                    told.append(Line(series.label, place, trace))
                elif norm in series.runs:
                    silent.append(series.label)
            figures.append(_course(f"course-{number}-{norm}", norm, told, silent))
        parts.append(SectionPart(_heading(group, groups), tuple(figures)))
    lead = (
        "How the distances came about: the best so far of the norm's own attack, against the forward + backward passes "
        "of a sample. A curve that still falls at its end says that more passes would find less."
    )
    return Section("courses", "Best so far, by passes", lead, tuple(parts))


def _course(id: str, norm: str, told: list[Line], silent: list[str]) -> Figure:
    chart = charts.courses(told, norm) if told else None
    says = "At no number of passes were half of the samples fooled." if told else ""
    if chart is not None:
        says = "The median of the attacked samples, from where half of them were fooled."
        says += " The band is from the lower to the upper quartile." if len(told) <= charts.BANDS else ""
    if silent:
        who = f"{wording.listed(silent)} {'do' if len(silent) > 1 else 'does'}" if told else "The attack does"
        says = f"{says} {who} not tell what was found with how many passes.".strip()
    return Figure(id, norm, says, chart)


def _origins(groups: Sequence[Group]) -> str:
    """Whose the marked radii are."""
    norms: dict[str, list[str]] = {}
    for group in groups:
        for norm in group.norms:
            if norm in group.marks and norm not in norms.setdefault(group.marks[norm].origin, []):
                norms[group.marks[norm].origin].append(norm)
    if len(norms) <= 1:
        return "".join(f"The dotted lines mark {origin}." for origin in norms)
    return (
        f"The dotted lines mark {'; '.join(f'in {wording.listed(each)} {origin}' for origin, each in norms.items())}."
    )


def _marked(group: Group, number: int) -> Sheet:
    several = len(group.series) > 1
    rows = []
    for norm in group.norms:
        for radius in group.radii(norm):
            for line in group.lines(norm):
                share = metrics.robust_accuracy(line.values, radius)
                low, high = wilson(share, len(line.values))
                cells = [sheets.share(share), sheets.share(float(low)), sheets.share(float(high))]
                who = [sheets.words(line.label)] if several else []
                rows.append([sheets.words(norm), sheets.Cell(wording.size(radius, norm), radius), *who, *cells])
    headings = ("norm", "radius", *(("model",) if several else ()), "robust accuracy", "95% from", "to")
    return sheets.sheet(f"marked-{number}", "Robust accuracy at the marked radii", headings, rows)


def _heading(group: Group, groups: Sequence[Group]) -> str:
    return group.label if len(groups) > 1 else ""


def _curve_says(lines: Sequence[Line], norm: str, group: Group) -> str:
    radii = group.radii(norm)
    if len(lines) == 1:
        found = lines[0].values
        marked = [f"{wording.share(metrics.robust_accuracy(found, r))} at {wording.size(r, norm)}" for r in radii]
        return f"{', '.join([f'{wording.share(float((found > 0).mean()))} clean', *marked])}."
    radius = group.marks[norm].middle if radii else 0.0
    shares = sorted((metrics.robust_accuracy(line.values, radius), line.label) for line in lines)
    says = (
        f"At {wording.size(radius, norm)}: {', '.join(f'{label} {wording.share(share)}' for share, label in shares)}."
    )
    end = charts.end_of(lines, radii)
    if any((line.values[np.isfinite(line.values)] > end).any() for line in lines):
        says += f" The axis ends at {end:.3g}; weaker attacks go on."
    return says


def _distance_says(lines: Sequence[Line], norm: str) -> str:
    many = len(lines) > charts.BANDS
    sentences = [_BOXES] if many else []
    for line in lines:
        wrong, unfooled = int((line.values == 0).sum()), int(np.isinf(line.values).sum())
        who = f"{line.label}: " if len(lines) > 1 else ""
        median = metrics.quantile(line.values, 0.5)
        if many and unfooled:
            sentences.append(f"{who}{unfooled:,} not fooled.")
        elif not many:
            middle = f"median {wording.size(median, norm)}; " if np.isfinite(median) else ""
            text = f"{who}{middle}{wrong:,} wrong to begin with, {unfooled:,} not fooled."
            sentences.append(text if who else text[0].upper() + text[1:])
    return " ".join(sentences)
