"""The catalogue of attacks: look one up by its name, and prepare it for a norm and a budget.

`pdpgd.attacks.roster` has its rows. Importing the catalogue loads neither torch nor any attack: the class that a row
points at is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdpgd.attacks.info import AttackInfo, Library, PaperSetup, Settings
from pdpgd.attacks.roster import ATTACKS
from pdpgd.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from pdpgd.attacks.base import Attack

__all__ = ["ATTACKS", "AttackInfo", "Library", "Settings", "info_of", "paper_settings", "prepared"]


def info_of(name: str, norm: str | None = None) -> AttackInfo:
    """Look up an attack.

    Args:
        name: Name of the attack.
        norm: Name of a norm that it must support; None to look up the attack alone.

    Returns:
        The row of the attack in the catalogue.

    Raises:
        UnknownNameError: If no attack has that name, or if the norm is not registered and the attack supports every
            registered norm.
        InvalidInputError: If the attack does not support the norm.

    Example:
        >>> info_of("fab", "l1").citation
        'Croce & Hein 2020, arXiv:1907.02044'
    """
    if name not in ATTACKS:
        raise UnknownNameError("attack", name, ATTACKS)
    info = ATTACKS[name]
    if norm is not None and not info.can_do(norm):
        raise InvalidInputError(f"attack {name}: expected one of the norms {', '.join(info.norms)}, got {norm!r}")
    return info


def prepared(
    name: str, norm: str, *, budget: int | None = None, settings: Settings | None = None, max_batch: int
) -> Attack:
    """Prepare an attack for one norm, within a budget, with settings of its own, or both.

    The paper's attacks spend half of a budget as gradients, and judge single points with a few forward passes on top;
    `auto` never exceeds the budget; `pdpgd.baselines` documents how each baseline spends it.

    Args:
        name: Name of the attack; `pdpgd attacks` lists them.
        norm: Name of the norm.
        budget: Maximum number of forward plus backward passes per sample; None leaves the defaults of the attack.
        settings: Settings by the names of the attack's fields. They take precedence over those that follow from the
            budget.
        max_batch: Maximum number of samples attacked together, which bounds the memory.

    Returns:
        The attack, a callable of the `Attack` shape.

    Raises:
        UnknownNameError: If no attack has that name.
        InvalidInputError: If the attack does not support the norm, the budget is not a positive integer, or the attack
            does not have or accept one of the settings.
        MissingExtraError: If the library that provides the attack is not installed.

    Example:
        >>> attack = prepared("pdpgd", "l1", budget=50, max_batch=256)
        >>> result = attack(model, images, labels, norm="l1")
        >>> result.backwards.max().item()
        25
    """
    info = info_of(name, norm)
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 1):
        raise InvalidInputError(f"budget: expected an integer >= 1, got {budget!r}")
    try:
        return info.prepare(norm, budget=budget, settings=settings or {}, max_batch=max_batch)
    except TypeError as error:  # a setting of another type than the attack takes
        raise InvalidInputError(
            f"attack {name}: expected settings that it has, got {dict(settings or {})} ({error})"
        ) from error


def paper_settings(name: str, dataset: str, norm: str, model_kind: str, *, restarts: int = 1) -> dict[str, Any]:
    """Return the paper's settings of an attack, without those that it selected from a grid.

    `AttackInfo.combinations` lists the settings that were selected from a grid.

    Args:
        name: Name of the attack.
        dataset: "mnist", "cifar10" or "restricted-imagenet".
        norm: Name of the norm.
        model_kind: "plain", "linf-at" or "l2-at".
        restarts: Number of restarts, on which the settings of the paper's own attacks depend.

    Returns:
        Settings for `prepared`.

    Raises:
        UnknownNameError: If no attack has that name.
        InvalidInputError: If the attack does not support the norm, or the paper has no settings for it.

    Example:
        >>> paper_settings("deepfool", "mnist", "l2", "plain")
        {'steps': 100, 'overshoot': 0.02}
    """
    info = info_of(name, norm)
    if not info.in_paper:
        raise InvalidInputError(f"attack {name}: expected one that the paper has settings for; give a budget instead")
    return dict(info.load().paper(PaperSetup(dataset=dataset, norm=norm, model_kind=model_kind, restarts=restarts)))
