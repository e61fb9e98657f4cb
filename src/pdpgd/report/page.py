"""A page that opens from disk: one file, nothing fetched, everything from users escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdpgd.errors import InvalidInputError, PdpgdError
from pdpgd.extras import need
from pdpgd.files import check_file, output_path, replace_file, shortened

if TYPE_CHECKING:
    from pdpgd.evaluation.comparison import Comparison
    from pdpgd.evaluation.result import Evaluation
    from pdpgd.report.contents import Contents

    Source = str | Path | Evaluation | Comparison

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
    from pdpgd.report.contents import contents_of
    from pdpgd.report.sources import subject_of

    if type(gallery) is not int or gallery < 0:
        raise InvalidInputError(f"gallery: expected an integer of at least 0, got {gallery!r}")
    given = None if out is None else output_path(out)
    subject = subject_of(sources)
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
