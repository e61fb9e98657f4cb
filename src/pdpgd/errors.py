"""Errors and warnings of this package, old names that still work, and optional libraries that are imported on use."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import ParamSpec, TypeVar

from pdpgd import _moved

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Maximum number of samples that an error message lists.
SAMPLES_NAMED = 8

# Exceptions that a user's model, attack or data set may raise. SystemExit is one of them: if it were let through, it
# would end the process with an exit code of its own and without a result. KeyboardInterrupt (Ctrl-C) is not: it comes
# from the user.
FOREIGN_ERRORS = (Exception, SystemExit)


class PdpgdError(Exception):
    """Base class of all errors that this package raises on purpose.

    Example:
        >>> try:
        ...     pdpgd.load_data("mnist-100")
        ... except pdpgd.PdpgdError as error:
        ...     print(error)
        unknown data set (and no such path): expected one of ..., got 'mnist-100'; did you mean 'mnist-1000'?
    """


class InvalidInputError(PdpgdError, ValueError):
    """Raised for a wrong call; the message says what was expected and what was given.

    Example:
        >>> pdpgd.auto(model, images, labels, norm="l2", budget=0)
        Traceback (most recent call last):
            ...
        pdpgd.errors.InvalidInputError: budget: expected an integer >= 1, got 0
    """


class UnknownNameError(InvalidInputError):
    """Raised for a name that is not in a list of known names; the message suggests the closest one.

    Args:
        kind: What the name stands for, such as "norm" or "data set".
        name: The name that was given.
        known: The names that are accepted.

    Example:
        >>> pdpgd.auto(model, images, labels, norm="l3")
        Traceback (most recent call last):
            ...
        pdpgd.errors.UnknownNameError: unknown norm: expected one of l0, l1, l2, linf, got 'l3'; did you mean 'l2'?
    """

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
        suggestion = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind}: expected one of {', '.join(names)}, got {name!r}{suggestion}")


class ModelError(PdpgdError, RuntimeError):
    """Raised when a model fails on valid inputs, or returns something that is not logits.

    Example:
        >>> pdpgd.auto(lambda images: images, images, labels, norm="l2")
        Traceback (most recent call last):
            ...
        pdpgd.errors.ModelError: expected logits of shape (4, classes >= 2), got (4, 1, 28, 28)
    """


class NoGradientError(ModelError):
    """Raised when a gradient-based attack meets a model without a gradient with respect to its inputs.

    Example:
        >>> pdpgd.auto(lambda images: model(images).detach(), images, labels, norm="l2")
        Traceback (most recent call last):
            ...
        pdpgd.errors.NoGradientError: expected logits that depend on the inputs, got a graph that does not reach them
    """


class LoadError(PdpgdError, ValueError):
    """Raised for a file of data or weights that is missing, damaged, or not what it was said to be.

    Example:
        >>> pdpgd.load_data("missing.npz")
        Traceback (most recent call last):
            ...
        pdpgd.errors.LoadError: missing.npz: expected an .npz file or a folder of images, got nothing of that name
    """


class AttackError(PdpgdError, RuntimeError):
    """Raised when an attack returns something that is not a batch of adversarial examples.

    Example:
        An evaluation reports it for every chunk of samples on which the attack failed:

        >>> def broken(model, images, labels, *, norm):
        ...     return images
        >>> pdpgd.evaluate(model, (images, labels), norms=["l2"], attack=broken)
        Traceback (most recent call last):
            ...
        pdpgd.errors.UnfinishedError: ... jobs failed:
          chunk-00000 (samples 0 to 3): attack broken: expected a result with the tensors adversarials and found...
    """


class ModelChangedError(AttackError):
    """Raised when the model is no longer the one that was loaded: an attack left hooks in it or changed its weights.

    Example:
        An evaluation reports it for every chunk of samples on which it happened:

        >>> def careless(counted_model, images, labels, *, norm):
        ...     model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
        ...     return pdpgd.auto(counted_model, images, labels, norm=norm, budget=20)
        >>> pdpgd.evaluate(model, (images, labels), norms=["l2"], attack=careless)
        Traceback (most recent call last):
            ...
        pdpgd.errors.UnfinishedError: ... jobs failed:
          chunk-00000 (samples 0 to 3): expected the model as it was loaded, got one with other hooks of 0...
    """


class StorageError(PdpgdError, OSError):
    """Raised when the directory of a run cannot be read or written; the message says what was saved and what to do.

    Example:
        >>> pdpgd.load_evaluation("photos")
        Traceback (most recent call last):
            ...
        pdpgd.errors.StorageError: photos: expected the directory of a run, got one without spec.json
    """


class EngineError(PdpgdError, RuntimeError):
    """Raised when workers cannot be started or are lost; finished chunks stay saved.

    Example:
        >>> from functools import partial
        >>> evaluate = partial(pdpgd.evaluate, norms=["linf", "l2"], limit=20, budget=50, out="runs/mnist")
        >>> try:
        ...     evaluation = evaluate("mnist-plain", "mnist-1000", workers=4)
        ... except EngineError:  # a worker ran out of memory: continue with one
        ...     evaluation = evaluate("mnist-plain", "mnist-1000", workers=1)
        >>> evaluation.samples
        20
    """


class UnfinishedError(PdpgdError, RuntimeError):
    """Raised for a run in which some chunks failed; the other chunks stay saved.

    Example:
        >>> pdpgd.load_evaluation("runs/stopped")
        Traceback (most recent call last):
            ...
        pdpgd.errors.UnfinishedError: runs/stopped: expected a finished run, got one where chunk-00000 is ...
    """


class MissingExtraError(PdpgdError, ImportError):
    """Raised when a feature needs an optional library that is not installed; the message names the extra.

    Example:
        >>> try:
        ...     page = pdpgd.write_report("runs/mnist")
        ... except MissingExtraError as error:
        ...     print(error)  # says what to install
    """


class PdpgdWarning(UserWarning):
    """Warns that the run continues, but that its result may not mean what the user expects.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", pdpgd.PdpgdWarning)
        >>> pdpgd.auto(model.train(), images, labels, norm="l2")
        Traceback (most recent call last):
            ...
        pdpgd.errors.PdpgdWarning: the model is in train mode: ...; call model.eval() first
    """


def named(samples: list[int]) -> str:
    """Format sample numbers for an error message: the first few, and how many more there are."""
    more = f" and {len(samples) - SAMPLES_NAMED} more" if len(samples) > SAMPLES_NAMED else ""
    return f"{samples[:SAMPLES_NAMED]}{more}"


def expect_setting(config: object, name: str, what: str, holds: bool) -> None:
    """Raise InvalidInputError for the setting `name` of a config unless the expectation `what` holds."""
    if not holds:
        raise InvalidInputError(f"{type(config).__name__}.{name}: expected {what}, got {getattr(config, name)!r}")


def warn_user(message: str, category: type[Warning] = PdpgdWarning) -> None:
    """Issue a warning that points to the user's own line of code, however deep in this package or in torch we are."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("pdpgd", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def need(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional library.

    Args:
        module: Name of the module to import.
        extra: The extra of this package that installs it.
        purpose: What the library is needed for, for the error message.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: The module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} needs {module}: pip install 'pdpgd[{extra}]' ({error})") from error


def renamed_keyword(old: str, new: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function that still accepts the old name of a keyword argument, with a DeprecationWarning.

    Args:
        old: Former name of the keyword.
        new: Its name today.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def accepting(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
            if old in keywords:
                if new in keywords:
                    raise InvalidInputError(f"{new}: expected it once, got {old}= as well, which is its former name")
                warn_user(f"{function.__name__}({old}=...) is deprecated: write {new}=", DeprecationWarning)
                keywords[new] = keywords.pop(old)
            return function(*args, **keywords)

        return accepting

    return decorate


def __getattr__(name: str) -> object:
    return _moved.attribute(__name__, name)
