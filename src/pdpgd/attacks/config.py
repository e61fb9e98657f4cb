"""The numbers that an attack is played with, each with its one default and its source.

"Authors" are the settings of the paper's released scripts for MNIST. Rates and radii are in units of the box's width.
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
    """What PDGD and PDPGD have in common."""

    steps: int = 500
    """Iterations of a start; one forward and one backward pass each. Authors, and the paper's "Parameters"."""
    primal_rate: float = 1.0
    """Adam's rate at the beginning. Authors: 1.0 on MNIST, picked from {1, 0.1, 0.01}."""
    primal_decay: float = 0.01
    """What is left of the primal rate at the end, by exponential decay. The paper's "Parameters"."""
    dual_rate: float = 0.1
    """Step of the dual player in the log domain at the beginning. The paper's "Parameters"."""
    dual_decay: float = 0.1
    """What is left of the dual rate at the end, by linear decay. The paper's "Parameters"."""
    dual_average: float = 0.9
    """Memory of the moving average of the weights. Authors."""
    weight_floor: float = 1e-6
    """The least ratio of one weight to the other. Authors."""
    penalty: float = 0.1
    """lambda_1 / lambda_2 at the beginning. The paper's "Parameters"."""
    start_radius: float = 0.5
    """A start is uniform in +- this around the input, clipped to the box. Authors: 0.5 on MNIST."""
    restarts: int = 1
    """Starts of each sample; the paper reports 1, 10 and 100."""
    finetune_steps: int = 500
    """Iterations from the best point of all starts; 0 leaves the fine-tuning out. The paper's "Parameters"."""
    finetune_primal: float = 0.01
    """The primal rate of the fine-tuning over that of the search. Authors."""
    finetune_dual: float = 0.1
    """The dual rate of the fine-tuning over that of the search. Authors."""
    surrogate: str = "logistic"
    """The differentiable stand-in for the constraint. The paper's choice."""
    keras_adam: bool = False
    """Whether Adam's epsilon is that of Keras, 1e-7, as in the authors' code, and not that of torch, 1e-8."""
    max_batch: int = 256
    """Rows (restarts of samples) that are played together: the bound on memory."""

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
    """The settings of PDGD."""


@dataclass(frozen=True, kw_only=True)
class PDPGDConfig(GameConfig):
    """The settings of PDPGD. The defaults are the best known; `paper_config` has what the paper's authors ran."""

    prox: Literal["exact", "released"] | None = None
    """How the proximal step is taken in Adam's metric: exactly, or by the five inner iterations of the authors' code as
    released, each of which ends in the box. None: whichever is known to be better for the norm and the number of steps
    (`pdpgd.attacks.primal_dual.fitting_prox`)."""
    project_first: bool = True
    """Whether the gradient step is brought into the box before the prox too. Algorithm 2 does so after it only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prox is not None and self.prox not in PROXES:
            raise UnknownNameError("way to take the prox", self.prox, PROXES)

    @classmethod
    def algorithm2(cls, **settings: Any) -> PDPGDConfig:
        """Algorithm 2 of the paper to the letter: the exact prox of the gradient step, then the box.

        Args:
            **settings: Other settings than the defaults.

        Returns:
            The config; on trained nets its l1 and l0 distances are larger than those of the defaults.
        """
        return cls(**{"prox": "exact", "project_first": False, **settings})


Config = TypeVar("Config", bound=GameConfig)


def config_or_default(config: Config | None, kind: type[Config]) -> Config:
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise InvalidInputError(f"config: expected a {kind.__name__}, got a {type(config).__name__}")
    return config


# Adam's first rate, picked by the authors from {1, 0.1, 0.01} with one restart [P].
_PRIMAL_RATE = {
    # [S] 1.0 throughout.
    "mnist": dict.fromkeys(PAPER_NORMS, 1.0),
    # [S] l2 depends on the model, see below.
    "cifar10": {"linf": 0.1, "l2": 1.0, "l1": 1.0, "l0": 1.0},
    # [O] Not published for this data set: those of CIFAR-10.
    "restricted-imagenet": {"linf": 0.1, "l2": 1.0, "l1": 1.0, "l0": 1.0},
}


def paper_config(dataset: str, norm: str, model_kind: str, *, restarts: int = 1) -> PDGDConfig | PDPGDConfig:
    """The authors' settings for a data set, a norm and a kind of model; the paper reports 1, 10 and 100 restarts.

    Returns a PDGDConfig for l2 and a PDPGDConfig for the others, as in the paper [S].
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
    """C = lambda_1 / lambda_2 at the beginning, which the paper calls the initial value of the dual variable [S]."""
    return 10.0 if (dataset, norm, model_kind) == ("mnist", "l1", "plain") and restarts > 1 else 0.1


def _primal_rate(dataset: str, norm: str, model_kind: str, restarts: int) -> float:
    if (dataset, norm, model_kind) == ("mnist", "l0", "linf-at") and restarts > 1:
        return 0.1  # [S]
    if dataset != "mnist" and norm == "l2" and model_kind == "plain":
        return 0.1  # [S] for CIFAR-10
    return _PRIMAL_RATE[dataset][norm]
