"""The page of a report: its contents in order, and the HTML file; the templates only lay the contents out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdpgd.errors import InvalidInputError, PdpgdError, need
from pdpgd.files import check_file, output_path, replace_file, shortened
from pdpgd.report import differences, experiment, provenance, scores, sections, summary
from pdpgd.report.charts import Chart
from pdpgd.report.gallery import Gallery, gallery_of, rows_of
from pdpgd.report.inputs import ExamplesByRun, ReportInputs, inputs_of
from pdpgd.report.provenance import Provenance, RunChecks
from pdpgd.report.sections import Section, marked_radii
from pdpgd.report.summary import Fact, TrustNote
from pdpgd.report.table import Table

if TYPE_CHECKING:
    from pdpgd.experiments.results import Results
    from pdpgd.runs.comparison import Comparison
    from pdpgd.runs.result import Evaluation

    Source = str | Path | Evaluation | Comparison


@dataclass(frozen=True)
class PageContents:
    """Everything that a page shows, in its order."""

    title: str
    about: str
    verdicts: tuple[str, ...]
    """Sentences on the differences between models; empty unless models are compared side by side."""
    sentences: tuple[str, ...]
    facts: tuple[Fact, ...]
    trust: tuple[TrustNote, ...]
    overview: Table | None
    failures: tuple[str, ...]
    missing: str
    before_gallery: tuple[Section, ...]
    gallery: Gallery
    after_gallery: tuple[Section, ...]
    checks: tuple[RunChecks, ...]
    provenances: tuple[Provenance, ...]

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections with charts and tables."""
        return (*self.before_gallery, *self.after_gallery)

    def charts(self) -> dict[str, Chart]:
        """The charts, by the id of their figure."""
        return {
            figure.id: figure.chart
            for section in self.sections
            for part in section.parts
            for figure in part.figures
            if figure.chart is not None
        }

    def downloads(self) -> dict[str, Mapping[str, str]]:
        """Texts of the files that can be saved, by the name of their table."""
        every = [table for section in self.sections for part in section.parts for table in part.tables]
        return {table.name: table.downloads for table in every if table.downloads}


NO_PICTURES = Gallery((), ("No pictures were requested.",))


def contents_of(
    inputs: ReportInputs, *, radii: Mapping[str, Sequence[float]], pictures: int, title: str | None
) -> PageContents:
    """Assemble the contents of a page.

    Args:
        inputs: What the page reports on.
        radii: Radii at which robust accuracy is reported, by norm; norms that are missing get default radii.
        pictures: Most samples per norm that the gallery shows.
        title: Title of the page; None for a default.

    Returns:
        The contents.
    """
    if inputs.experiment is not None:
        return _contents_of_experiment(inputs, inputs.experiment, radii=radii, pictures=pictures, title=title)
    marks = marked_radii(inputs, radii)
    examples = _examples(inputs, pictures)
    groups = sections.groups_of(inputs, marks, radii)
    pairs = differences.pairs_of(inputs.models) if inputs.side_by_side else []
    several = len(inputs.models) > 1
    return PageContents(
        title=title or summary.title_of(inputs),
        about="",
        verdicts=tuple(differences.verdicts(pairs, marks)),
        sentences=tuple(summary.sentences_of(inputs)),
        facts=() if several else tuple(summary.facts_of(inputs.models[0])),
        trust=tuple(summary.trust_of(model) for model in inputs.models),
        overview=summary.overview(inputs.models, "Compared models") if several else None,
        failures=inputs.failures,
        missing=inputs.missing,
        before_gallery=_noted(
            inputs,
            *([differences.section(pairs, marks)] if pairs else []),
            sections.curves(groups),
            sections.distances(groups),
            sections.convergence(groups, examples),
        ),
        gallery=gallery_of(inputs.models, examples) if pictures else NO_PICTURES,
        after_gallery=_noted(inputs, scores.classes(inputs.models, marks), scores.numbers(inputs)),
        checks=tuple(provenance.checks_of(model) for model in inputs.models),
        provenances=tuple(provenance.provenance_of(model, number) for number, model in enumerate(inputs.models)),
    )


def _noted(inputs: ReportInputs, *parts: Section) -> tuple[Section, ...]:
    """Say in each section what distances are, if a run asked about radii only."""
    if not inputs.only_radii:
        return parts
    note = "The run asked about radii only: distances are upper bounds, not the smallest."
    return tuple(replace(part, lead=f"{note} {part.lead}") for part in parts)


def _contents_of_experiment(
    inputs: ReportInputs, results: Results, *, radii: Mapping[str, Sequence[float]], pictures: int, title: str | None
) -> PageContents:
    """The paper's tables come first, then charts of the runs that are present."""
    marks = marked_radii(inputs, radii)
    examples = _examples(inputs, pictures)
    groups = sections.groups_of(inputs, marks, radii)
    own = {group.label: group.marks for group in groups}
    effects = experiment.effects_section(results)
    charts = (
        [sections.curves(groups), sections.distances(groups), sections.convergence(groups, examples)] if groups else []
    )
    return PageContents(
        title=title or results.title,
        about=results.about,
        verdicts=(),
        sentences=tuple(experiment.sentences(results)),
        facts=(),
        trust=tuple(summary.trust_of(model) for model in inputs.models),
        overview=summary.overview(inputs.models, "Models") if inputs.models else None,
        failures=inputs.failures,
        missing=inputs.missing,
        before_gallery=(experiment.tables_section(results), *([effects] if effects else []), *charts),
        gallery=gallery_of(inputs.models, examples) if pictures else NO_PICTURES,
        after_gallery=(scores.classes(inputs.models, marks, own),) if groups else (),
        checks=tuple(provenance.checks_of(model) for model in inputs.models),
        provenances=(experiment.provenance_of_experiment(inputs),),
    )


def _examples(inputs: ReportInputs, pictures: int) -> ExamplesByRun:
    return ExamplesByRun((run for model in inputs.models for run in model.runs), rows_of(inputs.models, pictures))


TEMPLATES = Path(__file__).parent / "templates"
# File name and largest number of pictures per norm, unless the user gives others.
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
    """Write one HTML page on runs, comparisons or an experiment.

    The page opens from disk in any browser and loads nothing from the network. Several sources are compared with the
    first one: which model is more robust, by how much, and how certain that is.

    Args:
        sources: A directory written by `evaluate`, `compare` or an experiment, or an `Evaluation` or `Comparison`; or a
            sequence of runs and comparisons. An experiment must be the only source.
        out: File to write. Default: `report.html` in the directory of the only source, else in the current directory.
        radii: Radii at which robust accuracy is reported, by norm. Default: those of the comparison, else the paper's
            for its kinds of models, else radii within which 10, 30, 50, 70 and 90% of the samples are fooled.
        gallery: Most samples per norm of which pictures are shown; 0 for no pictures.
        title: Title of the page. Default: one that names models and data.

    Returns:
        The path of the page.

    Raises:
        InvalidInputError: A source is not the directory of a run, a comparison or an experiment; a radius, its norm or
            `gallery` is invalid; or the page cannot be written.
        StorageError: A file of results is damaged.
        UnfinishedError: A run is not finished, or no attack of a comparison is.
        MissingExtraError: The libraries of the extra `report` are not installed.

    Example:
        >>> page = pdpgd.write_report(evaluation, "report.html", radii={"linf": [0.05, 0.1]})
        >>> page.name
        'report.html'
    """
    if type(gallery) is not int or gallery < 0:
        raise InvalidInputError(f"gallery: expected an integer of at least 0, got {gallery!r}")
    given = None if out is None else output_path(out)
    inputs = inputs_of(sources)
    place = given or (inputs.folder or Path()) / NAME
    with _writing(place):
        check_file(place)
    page = render(contents_of(inputs, radii=radii or {}, pictures=gallery, title=title))
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
            "choose another one (--out)"
        ) from error


def render(contents: PageContents) -> str:
    """Render the HTML of a page, with styles, scripts and Plotly inside."""
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
    """Encode as JSON that is safe inside a script element, whatever strings it contains."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _inside_script(program: str) -> str:
    """Escape a program so that it does not end its script element early."""
    return program.replace("</script", "<\\/script").replace("<!--", "<\\!--")
