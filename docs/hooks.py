"""What the site does to its pages: formulas become MathML, which browsers draw without a script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# From a page to a file of the repository that is not a page: there is nothing to link to in the site.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:scripts|src|benchmarks|tests)/[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(r"\1", markdown)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_as_mathml, content)


def _as_mathml(match: re.Match[str]) -> str:
    display = "block" if match.group(1) == "div" else "inline"
    return convert(html.unescape(match.group(2)).strip(), display=display)
