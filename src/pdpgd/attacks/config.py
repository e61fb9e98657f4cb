"""The settings of the attacks, each with its one default and its source.

"Authors" refers to the settings of the paper's released scripts for MNIST. Rates and radii are in units of the box's
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pdpgd.criteria import surrogate_by_name
from pdpgd.errors import InvalidInputError, UnknownNameError, expect_setting
from pdpgd.paper import MODEL_KINDS, PAPER_NORMS, START_RADIUS

PROXES = ("exact", "released")


@dataclass(frozen=True, kw_only=True)
class GameConfig:
    """Settings that PDGD and PDPGD share.

    Raises:
        InvalidInputError: A setting is outside of its range.
        UnknownNameError: There is no surrogate of that name.

    Example:
        >>> config = pdpgd.PDPGDConfig(steps=200, finetune_steps=200, restarts=10)
        >>> isinstance(config, GameConfig)
        True
    """

    steps: int = 500
    """Iterations per start; one forward and one backward pass each. Authors, and the paper's "Parameters"."""
    primal_rate: float = 1.0
    """Adam's initial rate. Authors: 1.0 on MNIST, picked from {1, 0.1, 0.01}."""
    primal_decay: float = 0.01
    """Final primal rate as a share of the initial one, by exponential decay. The paper's "Parameters"."""
    dual_rate: float = 0.1
    """Initial step of the dual player in the log domain. The paper's "Parameters"."""
    dual_decay: float = 0.1
    """Final dual rate as a share of the initial one, by linear decay. The paper's "Parameters"."""
    dual_average: float = 0.9
    """Decay of the moving average of the weights. Authors."""
    weight_floor: float = 1e-6
    """Smallest ratio of one weight to the other. Authors."""
    penalty: float = 0.1
    """Initial lambda_1 / lambda_2. The paper's "Parameters"."""
    start_radius: float = 0.5
    """Starts are uniform within +- this radius around the input, clipped to the box. Authors: 0.5 on MNIST."""
    restarts: int = 1
    """Starts per sample; the paper reports 1, 10 and 100."""
    finetune_steps: int = 500
    """Iterations from the best point of all starts; 0 skips the fine-tuning. The paper's "Parameters"."""
    finetune_primal: float = 0.01
    """Primal rate of the fine-tuning as a share of that of the search. Authors."""
    finetune_dual: float = 0.1
    """Dual rate of the fine-tuning as a share of that of the search. Authors."""
    surrogate: str = "logistic"
    """Differentiable stand-in for the constraint, one of `pdpgd.criteria.SURROGATES`. The paper's choice."""
    keras_adam: bool = False
    """Whether Adam's epsilon is that of Keras, 1e-7, as in the authors' code, instead of that of torch, 1e-8."""
    max_batch: int = 256
    """Number of rows (restarts of samples) played together: bounds the memory."""

    def __post_init__(self) -> None:
        surrogate_by_name(self.surrogate)
        for name in ("steps", "restarts", "max_batch", "finetune_steps"):
            expect_setting(self, name, "an integer", isinstance(getattr(self, name), int))
        for name in ("steps", "restarts", "max_batch"):
            expect_setting(self, name, "at least 1", getattr(self, name) >= 1)
        for name in ("finetune_steps", "start_radius", "dual_rate"):
            expect_setting(self, name, "at least 0", getattr(self, name) >= 0)
        for name in ("primal_rate", "primal_decay", "dual_decay", "penalty", "finetune_primal", "finetune_dual"):
            expect_setting(self, name, "above 0", getattr(self, name) > 0)
        expect_setting(self, "dual_average", "in [0, 1)", 0 <= self.dual_average < 1)
        expect_setting(self, "weight_floor", "in (0, 1)", 0 < self.weight_floor < 1)


@dataclass(frozen=True, kw_only=True)
class PDGDConfig(GameConfig):
    """Settings of PDGD; all of them are those of `GameConfig`.

    Example:
        >>> config = pdpgd.PDGDConfig(steps=20, finetune_steps=20, restarts=2)
        >>> pdpgd.pdgd(model, images, labels, norm="l2", config=config).found.all()
        tensor(True)
    """


@dataclass(frozen=True, kw_only=True)
class PDPGDConfig(GameConfig):
    """Settings of PDPGD. The defaults are the best known; `paper_config` returns what the paper's authors ran.

    Raises:
        UnknownNameError: `prox` is neither "exact", "released" nor None.

    Example:
        >>> config = pdpgd.PDPGDConfig(steps=20, finetune_steps=20, prox="exact")
        >>> pdpgd.pdpgd(model, images, labels, norm="l1", config=config).found.all()
        tensor(True)
    """

    prox: Literal["exact", "released"] | None = None
    """How the proximal step is taken in Adam's metric: exactly, or by the five inner iterations of the released code,
    each of which ends in the box. None chooses the one known to be better for the norm and the number of steps
    (`pdpgd.attacks.primal_dual.fitting_prox`)."""
    project_first: bool = True
    """Whether the gradient step is projected into the box before the prox as well. Algorithm 2 projects after it
    only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prox is not None and self.prox not in PROXES:
            raise UnknownNameError("way to take the prox", self.prox, PROXES)

    @classmethod
    def algorithm2(cls, **settings: Any) -> PDPGDConfig:
        """Return the settings of the paper's Algorithm 2 as printed: the exact prox of the gradient step, then the box.

        Args:
            **settings: Settings that differ from the defaults.

        Returns:
            The config. On trained nets its l1 and l0 distances are larger than those of the defaults.

        Example:
            >>> PDPGDConfig.algorithm2(restarts=10)
        """
        return cls(**{"prox": "exact", "project_first": False, **settings})


Config = TypeVar("Config", bound=GameConfig)
AnyConfig = TypeVar("AnyConfig")


def config_or_default(config: AnyConfig | None, kind: type[AnyConfig]) -> AnyConfig:
    """Return the config, or the defaults of its kind for None; refuse a config of another kind."""
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise InvalidInputError(f"config: expected a {kind.__name__}, got a {type(config).__name__}")
    return config


# Adam's initial rate, picked by the authors from {1, 0.1, 0.01} with one restart [P].
_PRIMAL_RATE = {
    # [S] 1.0 throughout.
    "mnist": dict.fromkeys(PAPER_NORMS, 1.0),
    # [S] l2 depends on the model, see below.
    "cifar10": {"linf": 0.1, "l2": 1.0, "l1": 1.0, "l0": 1.0},
    # [O] Not published for this data set; the values of CIFAR-10.
    "restricted-imagenet": {"linf": 0.1, "l2": 1.0, "l1": 1.0, "l0": 1.0},
}


def paper_config(dataset: str, norm: str, model_kind: str, *, restarts: int = 1) -> PDGDConfig | PDPGDConfig:
    """Return the paper authors' settings for a data set, a norm and a kind of model.

    Args:
        dataset: "mnist", "cifar10" or "restricted-imagenet".
        norm: "linf", "l2", "l1" or "l0".
        model_kind: "plain", "linf-at" or "l2-at".
        restarts: Starts per sample; the paper reports 1, 10 and 100.

    Returns:
        A PDGDConfig for l2 and a PDPGDConfig for the other norms, as in the paper [S].

    Raises:
        UnknownNameError: The paper has no such data set, norm or kind of model.

    Example:
        >>> config = pdpgd.paper_config("mnist", "l1", "linf-at", restarts=10)
        >>> config.steps, config.finetune_steps, config.restarts
        (500, 500, 10)
    """
    for kind, name, known in (
        ("data set", dataset, START_RADIUS),
        ("norm", norm, PAPER_NORMS),
        ("kind of model", model_kind, MODEL_KINDS),
    ):
        if name not in known:
            raise UnknownNameError(kind, name, known)
    game = GameConfig(
        steps=500,  # [P]
        primal_rate=_primal_rate(dataset, norm, model_kind, restarts),
        primal_decay=0.01,  # [P] exponential
        dual_rate=0.1,  # [P]
        dual_decay=0.1,  # [P] linear
        dual_average=0.9,  # [S] the paper names the moving average, not its memory
        weight_floor=1e-6,  # [S]
        penalty=_penalty(dataset, norm, model_kind, restarts),
        start_radius=START_RADIUS[dataset],
        restarts=restarts,
        finetune_steps=500,  # [P]
        finetune_primal=0.01,  # [S]
        finetune_dual=0.1,  # [S]
        surrogate="logistic",  # [P]; [S] scales it by 1 / ln 2
        keras_adam=True,  # [S]
    )
    if norm == "l2":
        return PDGDConfig(**vars(game))
    return PDPGDConfig(
        **vars(game),
        prox="released",  # [S] at most 5 inner iterations, tolerance 1e-2, each of them ends in the box
        project_first=False,  # [S] and Algorithm 2
    )


def _penalty(dataset: str, norm: str, model_kind: str, restarts: int) -> float:
    """Return the initial C = lambda_1 / lambda_2, which the paper calls the initial value of the dual variable [S]."""
    return 10.0 if (dataset, norm, model_kind) == ("mnist", "l1", "plain") and restarts > 1 else 0.1


def _primal_rate(dataset: str, norm: str, model_kind: str, restarts: int) -> float:
    """Return Adam's initial rate."""
    if (dataset, norm, model_kind) == ("mnist", "l0", "linf-at") and restarts > 1:
        return 0.1  # [S]
    if dataset != "mnist" and norm == "l2" and model_kind == "plain":
        return 0.1  # [S] for CIFAR-10
    return _PRIMAL_RATE[dataset][norm]
