"""Model zoos of other libraries, one file each; a library is imported when one of its models is asked for."""

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

# A zoo has a thousand names: the nearest ones are listed.
SUGGESTIONS = 3


class Adapter(Protocol):
    """A module of this package that fetches the models of one library."""

    def build(self, name: str, *, weights: Path | None, trust_model_code: bool) -> nn.Module:
        """The model with its weights: those of the file, or those the library downloads."""
        ...

    def own_normalization(self, name: str, model: nn.Module) -> Normalization | None:
        """How its inputs were normalized in training; None if the model does that itself."""
        ...


@contextmanager
def loading(source: str, *, trust_model_code: bool) -> Iterator[None]:
    """While the library loads: no pickle runs unless trusted, and failures name the model."""
    try:
        with programs.unpickling(trusted=trust_model_code):
            yield
    except PdpgdError:
        raise
    except FOREIGN_ERRORS as error:  # no network, no weights, a checkpoint that does not fit: each in its own class
        refused = None if trust_model_code else programs.refused_in(error)
        if refused is not None:
            raise programs.refusal(source, refused) from error
        raise LoadError(f"{source}: expected a model, got {type(error).__name__}: {error}") from error


def unknown(kind: str, name: str, known: Iterable[str], *, listed_by: str) -> InvalidInputError:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=SUGGESTIONS, cutoff=0.5)
    suggestion = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InvalidInputError(
        f"unknown {kind}: expected one of the {len(names)} in {listed_by}, got {name!r}{suggestion}"
    )
