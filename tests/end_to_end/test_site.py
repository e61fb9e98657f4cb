"""The documentation as a site: it builds without a warning, and its pages need neither a network nor a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import pdpgd
from support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
REMOTE = re.compile(r"(?:https?:)?//")
# What a browser fetches by itself when it shows a page.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "link": "href"}


@dataclass
class Page(HTMLParser):
    """The addresses and the anchors of a page."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if FETCHED.get(tag) in values:
            self.fetched.append(values[FETCHED[tag]])


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, and what its building said."""
    site = tmp_path_factory.mktemp("documentation") / "site"
    outcome = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        # Material's advertisement of its successor.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    said = outcome.stdout + outcome.stderr
    assert outcome.returncode == 0, said
    return site, said


@pytest.fixture(scope="module")
def pages(build: tuple[Path, str]) -> dict[Path, Page]:
    site, _ = build
    # 404.html is shown at any address, so it has addresses from the root of a server.
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_the_site_builds_without_a_warning(build: tuple[Path, str]) -> None:
    site, said = build
    assert (site / "index.html").exists()
    assert not re.search(r"warning|error", said, flags=re.IGNORECASE), said


def test_every_markdown_page_became_one(pages: dict[Path, Page], build: tuple[Path, str]) -> None:
    docs = ROOT / "docs"
    expected = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    assert {path.relative_to(build[0]) for path in pages} == expected


def test_no_page_loads_anything_from_the_network(pages: dict[Path, Page]) -> None:
    remote = {(page.path.name, address) for page in pages.values() for address in page.fetched if REMOTE.match(address)}
    assert not remote


def test_no_style_loads_anything_from_the_network(build: tuple[Path, str]) -> None:
    for sheet in build[0].rglob("*.css"):
        found = re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\"')]*", sheet.read_text())
        assert not found, f"{sheet.name}: {found}"


def test_every_link_and_file_inside_the_site_is_there(pages: dict[Path, Page]) -> None:
    lost = []
    for page in pages.values():
        for address in (*page.links, *page.fetched):
            if re.match(r"[a-z]+:|//", address):
                continue
            file, anchor = urldefrag(address)
            target = (page.path.parent / unquote(file)).resolve() if file else page.path
            if not target.is_file():
                lost.append(f"{page.path.name} -> {address}")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                lost.append(f"{page.path.name} -> {address}: no such anchor")
    assert not lost


def test_every_public_name_is_in_the_api(pages: dict[Path, Page]) -> None:
    anchors = set().union(*(page.anchors for page in pages.values() if page.path.parent.name == "api"))
    homes = {name: f"pdpgd.{home}.{name}" for name, home in pdpgd._PUBLIC.items()}
    assert set(homes) == set(pdpgd.__all__)
    missing = {name for name, anchor in homes.items() if anchor not in anchors}
    assert not missing, f"docs/api: add `::: {', '.join(homes[name] for name in sorted(missing))}`"


def test_every_formula_became_mathml(pages: dict[Path, Page], build: tuple[Path, str]) -> None:
    site, _ = build
    for name in ("maths", "howto/my_norm"):
        text = (ROOT / "docs" / f"{name}.md").read_text()
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        shown = (site / f"{name}.html").read_text()
        assert shown.count("<math ") == len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", text, flags=re.DOTALL))
        assert "\\" not in re.sub(r"<(pre|code|script)\b.*?</\1>", "", shown, flags=re.DOTALL)
