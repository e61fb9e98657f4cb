"""Adapters to the models of other libraries: their protocol, and what they share.

There is one file per library, which is imported when one of its models is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch import nn

from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, LoadError, PdpgdError
from pdpgd.models import programs
from pdpgd.models.normalization import Normalization

# Number of similar names that an error suggests: a library has about a thousand.
SUGGESTIONS = 3


class Adapter(Protocol):
    """Protocol of a module that loads the models of one library."""

    def build(self, name: str, *, weights: Path | None, trust_model_code: bool) -> nn.Module:
        """Build a model with the weights of a file, or with those that the library downloads."""
        ...

    def own_normalization(self, name: str, model: nn.Module) -> Normalization | None:
        """Return the normalization of its inputs in training; None if the model does it itself or has none."""
        ...


@contextmanager
def loading(source: str, *, trust_model_code: bool) -> Iterator[None]:
    """Stop pickles that are not trusted while the library loads a model, and name the model in errors."""
    try:
        with programs.unpickling(trusted=trust_model_code):
            yield
    except PdpgdError:
        raise
    except FOREIGN_ERRORS as error:  # no network, no weights, a checkpoint that does not fit: each has its own class
        refused = None if trust_model_code else programs.refused_in(error)
        if refused is not None:
            raise programs.refusal(source, refused) from error
        raise LoadError(f"{source}: expected a model, got {type(error).__name__}: {error}") from error


def unknown(kind: str, name: str, known: Iterable[str], *, listed_by: str) -> InvalidInputError:
    """Return the error for a name that a library does not have, with similar names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=SUGGESTIONS, cutoff=0.5)
    suggestion = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InvalidInputError(
        f"unknown {kind}: expected one of the {len(names)} in {listed_by}, got {name!r}{suggestion}"
    )
