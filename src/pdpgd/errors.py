"""Errors, who is at fault for them, and optional libraries that are imported when they are used."""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterable
from types import ModuleType

# Errors name at most so many samples.
SAMPLES_NAMED = 8

# What a user's model, attack or data may raise. SystemExit is among them because, let through, it would end the process
# with the exit code of its choice and without a result. Ctrl-C is not: it is the user's own.
FOREIGN_ERRORS = (Exception, SystemExit)


class PdpgdError(Exception):
    """The parent of every error this package raises on purpose."""


class InvalidInputError(PdpgdError, ValueError):
    """The call is wrong: the message says what was expected and what came."""


class UnknownNameError(InvalidInputError):
    """A name that is not in the list; the message suggests the nearest one."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
        suggestion = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind}: expected one of {', '.join(names)}, got {name!r}{suggestion}")


class ModelError(PdpgdError, RuntimeError):
    """The model failed on inputs that were in order, or answered with something that is not logits."""


class NoGradientError(ModelError):
    """The model gives logits but no gradient with respect to its inputs, and the attack follows gradients."""


class SubjectError(PdpgdError, ValueError):
    """A file of data or weights that is missing, broken, or not what it was said to be."""


class AttackError(PdpgdError, RuntimeError):
    """An attack that gave back something that is not points."""


class ModelChangedError(AttackError):
    """The model is no longer the one that was loaded: an attack left hooks in it, or changed its weights."""


class StorageError(PdpgdError, OSError):
    """A run's directory that cannot be read or written; the message says what was kept and what to do."""


class EngineError(PdpgdError, RuntimeError):
    """Workers that cannot be had, or were lost; what was done is kept."""


class UnfinishedError(PdpgdError, RuntimeError):
    """A run of which some chunks failed; the others are kept."""


class MissingExtraError(PdpgdError, ImportError):
    """A feature whose optional library is not installed."""


class PdpgdWarning(UserWarning):
    """The run goes on, but its result may not mean what the user thinks."""


def named(samples: list[int]) -> str:
    """These samples as an error names them: the first few, and how many more there are."""
    more = f" and {len(samples) - SAMPLES_NAMED} more" if len(samples) > SAMPLES_NAMED else ""
    return f"{samples[:SAMPLES_NAMED]}{more}"


def expect_setting(config: object, name: str, what: str, holds: bool) -> None:
    """Refuse the setting `name` of a config unless it `holds` what is expected of it."""
    if not holds:
        raise InvalidInputError(f"{type(config).__name__}.{name}: expected {what}, got {getattr(config, name)!r}")


def warn_user(message: str) -> None:
    """Warn at the line of the user's own code that led here, however deep in this package or in torch we are."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("pdpgd", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PdpgdWarning, stacklevel=level)


def need(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, which the extra `extra` of this package brings; `purpose` says what it is needed for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} needs {module}: pip install 'pdpgd[{extra}]' ({error})") from error
