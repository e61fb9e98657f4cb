"""How the API pages read docstrings: a section `Example:` is shown as code.

Griffe knows the title `Examples:` only, and would show `Example:` as a box of running text.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

TITLE = re.compile(r"^Example:$", re.MULTILINE)


class SingularExample(Extension):
    """Renames the section in every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = TITLE.sub("Examples:", obj.docstring.value)
