"""All that a page says, in its order; the template only lays it out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdpgd.errors import InvalidInputError, PdpgdError, need
from pdpgd.files import check_file, output_path, replace_file, shortened
from pdpgd.report import differences, provenance, scores, sections, summary
from pdpgd.report.charts import Spec
from pdpgd.report.gallery import Gallery, gallery_of, rows_of
from pdpgd.report.inputs import ReportInputs, Shelf
from pdpgd.report.provenance import Provenance, RunChecks
from pdpgd.report.sections import Section, marks_of
from pdpgd.report.sheets import Sheet
from pdpgd.report.summary import Fact, TrustNote

if TYPE_CHECKING:
    from pdpgd.experiments.results import Results
if TYPE_CHECKING:
    from pdpgd.runs.comparison import Comparison
    from pdpgd.runs.result import Evaluation

    Source = str | Path | Evaluation | Comparison


@dataclass(frozen=True)
class Contents:
    title: str
    about: str
    verdicts: tuple[str, ...]
    """Of a side-by-side page, the differences: before all else."""
    sentences: tuple[str, ...]
    facts: tuple[Fact, ...]
    trust: tuple[TrustNote, ...]
    overview: Sheet | None
    failures: tuple[str, ...]
    missing: str
    before: tuple[Section, ...]
    """The gallery."""
    gallery: Gallery
    after: tuple[Section, ...]
    trials: tuple[RunChecks, ...]
    makings: tuple[Provenance, ...]

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
    subject: ReportInputs, *, radii: Mapping[str, Sequence[float]], pictures: int, title: str | None
) -> Contents:
    if subject.experiment is not None:
        return _of_experiment(subject, subject.experiment, radii=radii, pictures=pictures, title=title)
    marks = marks_of(subject, radii)
    shelf = _shelf(subject, pictures)
    groups = sections.groups_of(subject, marks, radii)
    pairs = differences.pairs_of(subject.sources) if subject.side_by_side else []
    several = len(subject.sources) > 1
    return Contents(
        title=title or summary.title_of(subject),
        about="",
        verdicts=tuple(differences.verdicts(pairs, marks)),
        sentences=tuple(summary.sentences_of(subject)),
        facts=() if several else tuple(summary.facts_of(subject.sources[0])),
        trust=tuple(summary.trust_of(source) for source in subject.sources),
        overview=summary.overview(subject.sources, "What is held against each other") if several else None,
        failures=subject.failures,
        missing=subject.missing,
        before=(
            *([differences.section(pairs, marks)] if pairs else []),
            sections.curves(groups),
            sections.distances(groups),
            sections.courses(groups, shelf),
        ),
        gallery=gallery_of(subject.sources, shelf) if pictures else NO_PICTURES,
        after=(scores.classes(subject.sources, marks), scores.numbers(subject)),
        trials=tuple(provenance.checks_of(source) for source in subject.sources),
        makings=tuple(provenance.provenance_of(source, number) for number, source in enumerate(subject.sources)),
    )


def _of_experiment(
    subject: ReportInputs, results: Results, *, radii: Mapping[str, Sequence[float]], pictures: int, title: str | None
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
        trust=tuple(summary.trust_of(source) for source in subject.sources),
        overview=summary.overview(subject.sources, "The models") if subject.sources else None,
        failures=subject.failures,
        missing=subject.missing,
        before=(experiment.section(results), *([worth] if worth else []), *drawn),
        gallery=gallery_of(subject.sources, shelf) if pictures else NO_PICTURES,
        after=(scores.classes(subject.sources, marks, own),) if groups else (),
        trials=tuple(provenance.checks_of(source) for source in subject.sources),
        makings=(experiment.making(subject),),
    )


def _shelf(subject: ReportInputs, pictures: int) -> Shelf:
    return Shelf((run for source in subject.sources for run in source.runs), rows_of(subject.sources, pictures))


TEMPLATES = Path(__file__).parent / "templates"
NAME = "report.html"
PICTURES = 40


def write_report(
    sources: Source | Sequence[Source],
    out: str | Path | None = None,
    *,
    radii: Mapping[str, Sequence[float]] | None = None,
    gallery: int = PICTURES,
    title: str | None = None,
) -> Path:
    """Write one page on runs, comparisons or an experiment, and return where it is.

    A source is a directory of `evaluate`, of `compare` or of an experiment, or what the first two gave back. Several
    are held against the first one. `radii` are where robust accuracy is read off, by norm; `gallery` is the most
    samples a norm that pictures are shown of. Without `out`, it is report.html in the directory of the only source,
    or here.
    """
    from pdpgd.report.inputs import inputs_of

    if type(gallery) is not int or gallery < 0:
        raise InvalidInputError(f"gallery: expected an integer of at least 0, got {gallery!r}")
    given = None if out is None else output_path(out)
    subject = inputs_of(sources)
    place = given or (subject.folder or Path()) / NAME
    with _writing(place):
        check_file(place)
    page = render(contents_of(subject, radii=radii or {}, pictures=gallery, title=title))
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, page.encode())
    return place


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, PdpgdError) as error:
        raise InvalidInputError(
            f"{shortened(str(place))}: expected a file that can be written, got an error ({error}); "
            "take another one (--out)"
        ) from error


def render(contents: Contents) -> str:
    jinja = need("jinja2", extra="report", purpose="a report")
    plotly = need("plotly.offline", extra="report", purpose="a report")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["script_json"] = script_json
    page: str = environment.get_template("page.html").render(
        page=contents,
        style=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script="\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS),
        plotly=_inside_script(plotly.get_plotlyjs()),
    )
    return page


SCRIPTS = ("theme.js", "charts.js", "tables.js", "gallery.js")


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element, whatever strings are in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _inside_script(program: str) -> str:
    """A program that does not end its script element too early."""
    return program.replace("</script", "<\\/script").replace("<!--", "<\\!--")
