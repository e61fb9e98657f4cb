"""The sections with charts: robust accuracy, distances and convergence, and the radii that they mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.errors import InvalidInputError
from pdpgd.paper import PAPER_RADII, paper_case
from pdpgd.report import charts, wording
from pdpgd.report.charts import Chart, Line
from pdpgd.report.inputs import ExamplesByRun, ReportedModel, ReportInputs, Series
from pdpgd.report.table import Table, TableCell, share_cell, table_of, text_cell
from pdpgd.runs import metrics
from pdpgd.runs.metrics import wilson

# Default radii: those within which these shares of the correctly classified samples are fooled.
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class MarkedRadii:
    """The radii of a norm at which a page reports robust accuracy, in increasing order."""

    radii: tuple[float, ...]
    origin: str
    """Where they come from, to complete the sentence "The dotted lines mark ..."."""

    @property
    def middle(self) -> float:
        """The radius of the headline."""
        return self.radii[len(self.radii) // 2]


def marked_radii(inputs: ReportInputs, given: Mapping[str, Sequence[float]]) -> dict[str, MarkedRadii]:
    """Choose the radii of each norm: given, else of the comparison, else asked about, else the paper's, else quantiles.

    Args:
        inputs: What the page reports on.
        given: Radii that the user asked for, by norm.

    Returns:
        The radii by norm, without norms in which no sample was fooled.

    Raises:
        InvalidInputError: A norm is not one of the report, or a radius is not a positive number.
    """
    check_radii(given, inputs.norms)
    return {norm: marks for norm in inputs.norms if (marks := _radii_of(inputs, norm, given.get(norm, ()))).radii}


def check_radii(given: Mapping[str, Sequence[float]], norms: Sequence[str]) -> None:
    """Refuse radii of unknown norms and radii that are not positive numbers."""
    for norm, radii in given.items():
        if norm not in norms:
            raise InvalidInputError(f"radii: expected norms of the report, {', '.join(norms)}, got {norm!r}")
        if not all(isinstance(radius, int | float) and 0 < radius < np.inf for radius in radii):
            raise InvalidInputError(f"radii: expected numbers above 0, got {', '.join(map(str, radii))} for {norm}")


def _radii_of(inputs: ReportInputs, norm: str, given: Sequence[float]) -> MarkedRadii:
    if given:
        return MarkedRadii(tuple(sorted({float(radius) for radius in given})), "the requested radii")
    models = [model for model in inputs.models if norm in model.norms]
    compared = {tuple(model.comparison.radii.get(norm, ())) for model in models if model.comparison is not None}
    if len(compared) == 1 and all(model.comparison is not None for model in models):
        return MarkedRadii(compared.pop(), "the radii of the comparison")
    asked = {radii for model in models for run in model.runs if (radii := run.spec.only_radii.get(norm, ()))}
    if asked:
        return MarkedRadii(tuple(sorted(set[float]().union(*asked))), "the radii that the run asked about")
    papers = {_radii_of_paper(model, norm) for model in models}
    if len(papers) == 1 and (radii := papers.pop()):
        return MarkedRadii(radii, "the paper's radii for this kind of model")
    everything = np.concatenate([model.distances(norm) for model in models])
    found = {float(f"{metrics.quantile(everything, share):.2g}") for share in QUANTILES}
    shares = wording.listed([f"{100 * share:.0f}" for share in QUANTILES])
    return MarkedRadii(
        tuple(sorted(filter(np.isfinite, found))),
        f"the radii within which {shares}% of the correctly classified samples are fooled",
    )


def _radii_of_paper(model: ReportedModel, norm: str) -> tuple[float, ...]:
    """The paper's radii, if the names of model and data identify the model of the paper that it resembles."""
    spec = model.evaluation.spec
    case = paper_case(str(spec.model["source"]), str(spec.data["name"]))
    return () if case is None else PAPER_RADII.get((case[0], norm, case[1]), ())


# Steps of all curves of a page together, and the fewest and the most of one curve.
STEPS, FEWEST, MOST = 120_000, 100, 2000


_BOXES = (
    "Boxes span the quartiles of the fooled samples, whiskers 90% of them. A star marks attacks that did not fool all "
    "samples: their boxes cover only the easier ones."
)


@dataclass(frozen=True)
class Figure:
    """A chart of the page with its description."""

    id: str
    title: str
    description: str
    """What the chart shows: displayed below it and read by screen readers."""
    chart: Chart | None
    """None if there is nothing to draw; the description then says why."""

    @property
    def height(self) -> int | None:
        """The height in pixels, if it is not that of all charts."""
        return None if self.chart is None else self.chart["layout"].get("height")


@dataclass(frozen=True)
class SectionPart:
    """Charts and tables under one heading; without a heading if the section has only one part."""

    heading: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: str = ""
    """Label under which the tables are collapsed; empty if they are shown."""


@dataclass(frozen=True)
class Section:
    """A section of the page. Its id is the anchor that links refer to."""

    id: str
    heading: str
    lead: str
    parts: tuple[SectionPart, ...]


@dataclass(frozen=True)
class ChartGroup:
    """Series that share charts: all runs, or the attacks of a comparison."""

    label: str
    series: tuple[Series, ...]
    marks: Mapping[str, MarkedRadii]

    @property
    def norms(self) -> tuple[str, ...]:
        """Norms of the group."""
        return tuple(dict.fromkeys(norm for series in self.series for norm in series.runs))

    def of(self, norm: str) -> list[Series]:
        """The series that have results in a norm."""
        return [series for series in self.series if norm in series.runs]

    def lines(self, norm: str) -> list[Line]:
        """The distances of each series. A series has the same color in all norms."""
        return [
            Line(series.label, place, series.distances(norm))
            for place, series in enumerate(self.series)
            if norm in series.runs
        ]

    def radii(self, norm: str) -> tuple[float, ...]:
        """The marked radii of a norm."""
        return self.marks[norm].radii if norm in self.marks else ()


def groups_of(
    inputs: ReportInputs, marks: Mapping[str, MarkedRadii], given: Mapping[str, Sequence[float]]
) -> list[ChartGroup]:
    """Group the series into charts: one group for all runs, and one per comparison."""
    runs = [model for model in inputs.models if model.comparison is None]
    groups = [ChartGroup("Runs", tuple(series for model in runs for series in model.series), marks)] if runs else []
    for model in inputs.models:
        if model.comparison is not None:
            own = {
                norm: MarkedRadii(tuple(radii), "the radii of the comparison")
                for norm, radii in model.comparison.radii.items()
                if radii and not given.get(norm)
            }
            groups.append(ChartGroup(model.label, model.series, {**marks, **own}))
    return groups


def curves(groups: Sequence[ChartGroup]) -> Section:
    """The section with robust accuracy over the radius."""
    total = sum(len(group.of(norm)) for group in groups for norm in group.norms)
    steps = min(MOST, max(FEWEST, STEPS // max(1, total)))
    parts = []
    for number, group in enumerate(groups):
        figures = []
        for norm in group.norms:
            lines = group.lines(norm)
            chart = charts.curves(lines, norm, group.radii(norm), steps=steps)
            figures.append(Figure(f"curve-{number}-{norm}", norm, _describe_curves(lines, norm, group), chart))
        few = len(group.series) <= charts.BANDS
        table = _accuracies_at_marks(group, number) if few and group.marks else None
        parts.append(SectionPart(_heading(group, groups), tuple(figures), (table,) if table else ()))
    bands = "Bands are 95% Wilson intervals. " if any(len(group.series) <= charts.BANDS for group in groups) else ""
    lead = (
        "Share of all samples that are correctly classified and for which no adversarial example was found within the "
        "radius. It starts at the clean accuracy, and stays above 0 if some samples were not fooled. It is an upper "
        f"bound: a stronger attack can only lower it. {bands}{_origins(groups)}"
    )
    return Section("curves", "Robust accuracy", lead, tuple(parts))


def distances(groups: Sequence[ChartGroup]) -> Section:
    """The section with the distribution of the distances."""
    parts = []
    for number, group in enumerate(groups):
        figures = []
        for norm in group.norms:
            lines = group.lines(norm)
            chart = (charts.histogram if len(lines) <= charts.BANDS else charts.boxes)(lines, norm)
            figures.append(Figure(f"distance-{number}-{norm}", norm, _describe_distances(lines, norm), chart))
        parts.append(SectionPart(_heading(group, groups), tuple(figures)))
    lead = (
        "Size of the smallest adversarial perturbation found for each sample. The text below each chart counts the "
        "samples that were misclassified before the attack and those that were not fooled."
    )
    return Section("distances", "Distances", lead, tuple(parts))


def convergence(groups: Sequence[ChartGroup], examples: ExamplesByRun) -> Section:
    """The section with the smallest distance found so far, against the passes spent."""
    parts = []
    for number, group in enumerate(groups):
        figures = []
        for norm in group.norms:
            lines, without = [], []
            for place, series in enumerate(group.series):
                trace = examples.of(series.runs[norm]).traces[norm] if norm in series.runs else None
                if trace is not None:
                    lines.append(Line(series.label, place, trace))
                elif norm in series.runs:
                    without.append(series.label)
            figures.append(_convergence_figure(f"course-{number}-{norm}", norm, lines, without))
        parts.append(SectionPart(_heading(group, groups), tuple(figures)))
    lead = (
        "Smallest distance found so far by the attack in each norm, against the number of forward + backward passes "
        "per sample. If a curve still falls at its end, a larger budget would find smaller perturbations."
    )
    return Section("courses", "Convergence", lead, tuple(parts))


def _convergence_figure(id: str, norm: str, lines: list[Line], without: list[str]) -> Figure:
    chart = charts.convergence(lines, norm) if lines else None
    text = "The attack never fooled half of the samples." if lines else ""
    if chart is not None:
        text = "Median over the attacked samples, from the point where half of them are fooled."
        text += " The band spans the quartiles." if len(lines) <= charts.BANDS else ""
    if without:
        who = f"{wording.listed(without)} {'do' if len(without) > 1 else 'does'}" if lines else "The attack does"
        text = f"{text} {who} not record the distance by number of passes.".strip()
    return Figure(id, norm, text, chart)


def _origins(groups: Sequence[ChartGroup]) -> str:
    """Where the marked radii come from."""
    norms: dict[str, list[str]] = {}
    for group in groups:
        for norm in group.norms:
            if norm in group.marks and norm not in norms.setdefault(group.marks[norm].origin, []):
                norms[group.marks[norm].origin].append(norm)
    if len(norms) <= 1:
        return "".join(f"Dotted lines mark {origin}." for origin in norms)
    return f"Dotted lines mark {'; '.join(f'in {wording.listed(each)} {origin}' for origin, each in norms.items())}."


def _accuracies_at_marks(group: ChartGroup, number: int) -> Table:
    several = len(group.series) > 1
    rows = []
    for norm in group.norms:
        for radius in group.radii(norm):
            for line in group.lines(norm):
                share = metrics.robust_accuracy(line.values, radius)
                low, high = wilson(share, len(line.values))
                cells = [share_cell(share), share_cell(float(low)), share_cell(float(high))]
                label = [text_cell(line.label)] if several else []
                at = TableCell(radius, shown=wording.size(radius, norm))
                rows.append([text_cell(norm), at, *label, *cells])
    what = "attack" if group.series[0].own else "model"
    headings = ("norm", "radius", *((what,) if several else ()), "robust accuracy", "95% from", "to")
    return table_of(f"marked-{number}", "Robust accuracy at the marked radii", headings, rows)


def _heading(group: ChartGroup, groups: Sequence[ChartGroup]) -> str:
    return group.label if len(groups) > 1 else ""


def _describe_curves(lines: Sequence[Line], norm: str, group: ChartGroup) -> str:
    radii = group.radii(norm)
    if len(lines) == 1:
        found = lines[0].values
        marked = [f"{wording.share(metrics.robust_accuracy(found, r))} at {wording.size(r, norm)}" for r in radii]
        return f"{', '.join([f'{wording.share(float((found > 0).mean()))} clean', *marked])}."
    radius = group.marks[norm].middle if radii else 0.0
    shares = sorted((metrics.robust_accuracy(line.values, radius), line.label) for line in lines)
    text = (
        f"At {wording.size(radius, norm)}: {', '.join(f'{label} {wording.share(share)}' for share, label in shares)}."
    )
    end = charts.end_of(lines, radii)
    if any((line.values[np.isfinite(line.values)] > end).any() for line in lines):
        text += f" The axis ends at {end:.3g}; curves of weaker attacks extend beyond it."
    return text


def _describe_distances(lines: Sequence[Line], norm: str) -> str:
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
            text = f"{who}{middle}{wrong:,} misclassified before the attack, {unfooled:,} not fooled."
            sentences.append(text if who else text[0].upper() + text[1:])
    return " ".join(sentences)
