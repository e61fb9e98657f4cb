"""Optional libraries: loaded when they are used, with a word on how to get them where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from pdpgd.errors import MissingExtraError


def need(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, which the extra `extra` of this package brings; `purpose` says what it is needed for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} needs {module}: pip install 'pdpgd[{extra}]' ({error})") from error
