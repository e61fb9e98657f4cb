"""All that a page says, in its order; the template only lays it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdpgd.report import by_class, differences, headline, making, scores, sections
from pdpgd.report.charts import Spec
from pdpgd.report.gallery import Gallery, gallery_of, rows_of
from pdpgd.report.headline import Fact, Trust
from pdpgd.report.kept import Shelf
from pdpgd.report.making import Making, Trial
from pdpgd.report.radii import marks_of
from pdpgd.report.sections import Section
from pdpgd.report.sheets import Sheet
from pdpgd.report.sources import Subject

if TYPE_CHECKING:
    from pdpgd.experiments.results import Results


@dataclass(frozen=True)
class Contents:
    title: str
    about: str
    verdicts: tuple[str, ...]
    """Of a side-by-side page, the differences: before all else."""
    sentences: tuple[str, ...]
    facts: tuple[Fact, ...]
    trust: tuple[Trust, ...]
    overview: Sheet | None
    failures: tuple[str, ...]
    missing: str
    before: tuple[Section, ...]
    """The gallery."""
    gallery: Gallery
    after: tuple[Section, ...]
    trials: tuple[Trial, ...]
    makings: tuple[Making, ...]

    def charts(self) -> dict[str, Spec]:
        """By the id of their figure."""
        return {
            figure.id: figure.chart
            for section in (*self.before, *self.after)
            for part in section.parts
            for figure in part.figures
            if figure.chart is not None
        }

    def downloads(self) -> dict[str, Mapping[str, str]]:
        """The other forms of tables, by the id of the table."""
        every = [table for section in (*self.before, *self.after) for part in section.parts for table in part.sheets]
        return {table.id: table.downloads for table in every if table.downloads}


NO_PICTURES = Gallery((), ("No pictures were asked for.",))


def contents_of(
    subject: Subject, *, radii: Mapping[str, Sequence[float]], pictures: int, title: str | None
) -> Contents:
    if subject.experiment is not None:
        return _of_experiment(subject, subject.experiment, radii=radii, pictures=pictures, title=title)
    marks = marks_of(subject, radii)
    shelf = _shelf(subject, pictures)
    groups = sections.groups_of(subject, marks, radii)
    pairs = differences.pairs_of(subject.sources) if subject.side_by_side else []
    several = len(subject.sources) > 1
    return Contents(
        title=title or headline.title_of(subject),
        about="",
        verdicts=tuple(differences.verdicts(pairs, marks)),
        sentences=tuple(headline.sentences_of(subject)),
        facts=() if several else tuple(headline.facts_of(subject.sources[0])),
        trust=tuple(headline.trust_of(source) for source in subject.sources),
        overview=headline.overview(subject.sources, "What is held against each other") if several else None,
        failures=subject.failures,
        missing=subject.missing,
        before=(
            *([differences.section(pairs, marks)] if pairs else []),
            sections.curves(groups),
            sections.distances(groups),
            sections.courses(groups, shelf),
        ),
        gallery=gallery_of(subject.sources, shelf) if pictures else NO_PICTURES,
        after=(by_class.classes(subject.sources, marks), scores.numbers(subject)),
        trials=tuple(making.trial_of(source) for source in subject.sources),
        makings=tuple(making.making_of(source, number) for number, source in enumerate(subject.sources)),
    )


def _of_experiment(
    subject: Subject, results: Results, *, radii: Mapping[str, Sequence[float]], pictures: int, title: str | None
) -> Contents:
    """The tables come before the charts, which there are as far as the runs are there."""
    from pdpgd.report import experiment

    marks = marks_of(subject, radii)
    shelf = _shelf(subject, pictures)
    groups = sections.groups_of(subject, marks, radii)
    own = {group.label: group.marks for group in groups}
    worth = experiment.efforts(results)
    drawn = [sections.curves(groups), sections.distances(groups), sections.courses(groups, shelf)] if groups else []
    return Contents(
        title=title or results.title,
        about=results.about,
        verdicts=(),
        sentences=tuple(experiment.sentences(results)),
        facts=(),
        trust=tuple(headline.trust_of(source) for source in subject.sources),
        overview=headline.overview(subject.sources, "The models") if subject.sources else None,
        failures=subject.failures,
        missing=subject.missing,
        before=(experiment.section(results), *([worth] if worth else []), *drawn),
        gallery=gallery_of(subject.sources, shelf) if pictures else NO_PICTURES,
        after=(by_class.classes(subject.sources, marks, own),) if groups else (),
        trials=tuple(making.trial_of(source) for source in subject.sources),
        makings=(experiment.making(subject),),
    )


def _shelf(subject: Subject, pictures: int) -> Shelf:
    return Shelf((run for source in subject.sources for run in source.runs), rows_of(subject.sources, pictures))
