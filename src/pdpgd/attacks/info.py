"""What the catalogue knows about an attack, without loading the attack, its library or torch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from pdpgd.errors import MissingExtraError

if TYPE_CHECKING:
    from pdpgd.attacks.base import Attack
    from pdpgd.attacks.prepare import Preparable

Settings = Mapping[str, Any]
"""Settings of an attack by the names of its fields, with values that JSON can represent."""


@dataclass(frozen=True)
class Library:
    """A library that provides attacks.

    Attributes:
        name: Name of its distribution on PyPI.
        module: Name of the module to import.
        install: Command that installs it.
        short: Name used in tables.
    """

    name: str
    module: str
    install: str
    short: str

    def installed(self) -> bool:
        """Whether the library can be imported."""
        return importlib.util.find_spec(self.module) is not None

    def version(self) -> str | None:
        """Return the installed version, or None if the library is not installed."""
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return None


ADV_LIB = Library("adv-lib", "adv_lib", "pip install --no-deps adv-lib", "adv-lib")
FOOLBOX = Library("foolbox", "foolbox", "pip install 'pdpgd[foolbox]'", "Foolbox")
PYAUTOATTACK = Library("pyautoattack", "pyautoattack", "pip install 'pdpgd[autoattack]'", "pyautoattack")
ART = Library("adversarial-robustness-toolbox", "art", "pip install 'pdpgd[art]'", "ART")


@dataclass(frozen=True, kw_only=True)
class PaperSetup:
    """An experiment of the paper: what its settings of an attack depend on."""

    dataset: str
    norm: str
    model_kind: str
    """"plain", "linf-at" or "l2-at"."""
    restarts: int = 1


@dataclass(frozen=True, kw_only=True)
class AttackInfo:
    """One row of the catalogue: what is known about an attack before it is loaded.

    Adding an attack takes a class (see `pdpgd.attacks.prepare.Preparable`) and one such row.

    Attributes:
        name: Name of the attack; `NAME@LIBRARY` for a second implementation of an attack.
        norms: Names of the norms that it supports.
        about: Description in one line.
        citation: The publication.
        cost: Cost of an iteration in forward (f) and backward (b) passes, where k is the number of classes.
        factory: Where its class is, as "module:Class". It is imported when the attack is first used.
        kind: "minimum" for an attack that minimizes the perturbation, "ball" for one that searches within a radius. A
            "ball" attack accepts the setting `radii`, and searches over the radius without it.
        library: The library that provides it; None for an implementation in this package.
        targeted: Whether it supports target classes.
        needs_gradients: Whether it differentiates the model rather than only evaluating it.
        any_norm: Whether it supports every registered norm, not only `norms`.
        in_paper: Whether the paper has settings for it.

    Example:
        >>> from pdpgd.attacks.catalogue import info_of
        >>> info_of("ddn").norms
        ('l2',)
        >>> info_of("pgd").is_ball
        True
    """

    name: str
    norms: tuple[str, ...]
    about: str
    citation: str
    cost: str
    factory: str
    kind: Literal["minimum", "ball"] = "minimum"
    library: Library | None = None
    targeted: bool = True
    needs_gradients: bool = True
    any_norm: bool = False
    in_paper: bool = False

    @property
    def is_ball(self) -> bool:
        """Whether the attack searches within a radius."""
        return self.kind == "ball"

    def can_do(self, norm: str) -> bool:
        """Whether the attack supports a norm.

        Args:
            norm: Name of the norm.

        Returns:
            True if the attack supports it.

        Raises:
            UnknownNameError: If the attack supports every registered norm, and this one is not registered.
        """
        return norm in self.norms or (self.any_norm and _loaded("pdpgd.norms:norm_of")(norm) is not None)

    def combinations(self, norm: str) -> list[dict[str, Any]]:
        """List the settings that the paper selected from by grid search; empty if it selected nothing."""
        grid = self.load().paper_grid(norm) if self.in_paper else {}
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []

    def prepare(self, norm: str, *, budget: int | None, settings: Settings, max_batch: int) -> Attack:
        """Prepare the attack for a norm that it supports; see `pdpgd.attacks.catalogue.prepared`."""
        if self.library is not None and not self.library.installed():
            raise MissingExtraError(f"attack {self.name} needs {self.library.name}: {self.library.install}")
        return self.load().prepared(self, norm, budget=budget, settings=settings, max_batch=max_batch)

    def load(self) -> type[Preparable]:
        """Import the class of the attack; this loads torch, but no other library."""
        attack: type[Preparable] = _loaded(self.factory)
        return attack


def _loaded(path: str) -> Any:
    """Import what "module:name" names.

    An import statement would make the catalogue depend on torch, and the attacks depend on the baselines.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
