from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from pdpgd import Comparison, Evaluation, write_report
from pdpgd.errors import InvalidInputError
from pdpgd.report.page import script_json

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "img", "input", "br", "link"}


class Outline(HTMLParser):
    """The text that a reader sees, the headings, the ids, and what is loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.scripts = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        self.scripts += tag == "script"
        self.ids += [str(found["id"])] if "id" in found else []
        self.addresses += [str(found[name]) for name in ("src", "href", "action") if name in found]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def make(*sources: Evaluation | Comparison, **how: object) -> str:
        place = write_report(list(sources), tmp_path / "report.html", **how)  # type: ignore[arg-type]  # as asked
        return place.read_text()

    return make


def test_a_page_says_first_what_fools_half_of_the_images(
    write: Callable[..., str], changed: Callable[..., Evaluation]
) -> None:
    page = Outline(write(changed(distances={"linf": 0.031, "l0": np.inf})))
    text = " ".join(" ".join(page.text).split())
    assert "Half of the correctly classified images are fooled by a perturbation of size 0.031 or less (linf)." in text
    assert (
        "For most of the correctly classified images no adversarial example was found: 14 of 14 were not fooled (l0)."
        in text
    )
    assert text.index("Half of the correctly classified") < text.index("Clean accuracy") < text.index("Wilson")


@pytest.mark.parametrize("kind", ["run", "two runs", "comparison", "nothing fooled", "nothing right"])
def test_a_page_is_whole_and_loads_nothing(
    kind: str,
    write: Callable[..., str],
    evaluation: Evaluation,
    comparison: Comparison,
    changed: Callable[..., Evaluation],
) -> None:
    sources = {
        "run": [evaluation],
        "two runs": [evaluation, changed(model={"source": "other"})],
        "comparison": [comparison],
        "nothing fooled": [changed(distances={"linf": np.inf, "l0": np.inf})],
        "nothing right": [changed(distances={"linf": 0.0, "l0": 0.0})],
    }[kind]
    text = write(*sources)
    page = Outline(text)
    assert not page.open, "every element is closed"
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith(("#", "data:image/png")) for address in page.addresses)
    assert {address[1:] for address in page.addresses if address[0] == "#"} <= set(page.ids)
    assert "default-src 'none'" in text
    assert page.headings[0] == 1
    assert all(later - before <= 1 for before, later in zip(page.headings, page.headings[1:], strict=False))
    assert page.headings.count(1) == 1
    assert len(text) < 15e6


def test_everything_from_users_is_text(write: Callable[..., str], changed: Callable[..., Evaluation]) -> None:
    names = [f"{EVIL}{place}" for place in range(5)]
    run = changed(model={"source": EVIL}, data={"name": EVIL, "classes": names})
    other = changed(model={"source": f'"><img src=x onerror=alert(1)>{EVIL}'})
    page = write(run, other, title=None)
    assert EVIL not in page
    assert "<img src=x" not in page
    assert html.escape(EVIL) in page
    outline = Outline(page)
    assert outline.scripts == 5
    assert any(EVIL in text for text in outline.text)


def test_a_title_is_taken_and_escaped(write: Callable[..., str], evaluation: Evaluation) -> None:
    page = write(evaluation, title="Mine & <yours>")
    assert "<title>Mine &amp; &lt;yours&gt;</title>" in page


def test_json_inside_a_script_cannot_end_it() -> None:
    value = {"a": f"</script>{EVIL}<!-- \u2028\u2029 &amp;"}
    text = script_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_the_gallery_is_left_out_where_it_is_not_wanted(write: Callable[..., str], evaluation: Evaluation) -> None:
    page = write(evaluation, gallery=0)
    assert "<img" not in page
    assert "No pictures were requested." in page


def test_wrong_calls_are_refused(evaluation: Evaluation, tmp_path: Path) -> None:
    for count in (-1, 1.5, True):
        with pytest.raises(InvalidInputError, match="gallery: expected an integer of at least 0"):
            write_report(evaluation, tmp_path / "a.html", gallery=count)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidInputError, match="expected a file that can be written, got an error"):
        write_report(evaluation, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="expected a file that can be written, got an error"):
        write_report(evaluation, tmp_path / "file" / "report.html")


def test_without_a_place_it_is_written_here(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_report(evaluation).resolve() == tmp_path / "report.html"


def test_a_comparison_is_not_called_more_trusted_than_was_looked(
    write: Callable[..., str], comparison: Comparison, evaluation: Evaluation
) -> None:
    page = write(comparison)
    assert "not checked: the checks of the model alone raised no alarm" in page
    assert "trusted" not in headline_of(page)
    assert "the checks of the model alone" not in write(evaluation)
    rows = comparison.as_json()["l2"]["attacks"]
    assert {row["reliability"] for row in rows if row["failure"] is None} == {"not checked"}


def headline_of(page: str) -> str:
    """The reliability verdict at the top of the page."""
    start = page.index("<strong>Reliability")
    return page[start : page.index("</p>", start)]
