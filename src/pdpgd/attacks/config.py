"""The settings of the attacks, each with its one default and its source.

"Authors" refers to the settings of the paper's released scripts for MNIST. Rates and radii are in units of the box's
width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class Style:
    """How bold a descent of `auto` is."""

    trust: float
    """Initial trust in the linearized margin; `pdpgd.attacks.linearized` defines its unit for each kind of norm."""
    overshoot: float
    """Initial distance by which a step crosses the linearized boundary, as a share of the present size; it falls to 0
    over the descent."""
    adaptive: bool = True
    """Whether the trust follows the errors of the linearization."""
    memory: float = 0.5
    """Weight of the previous slopes in the slope: misleading gradients tend to alternate."""


Start = Literal["input", "random", "around input", "best", "around best"]
"""Where a descent begins: at the input, at a random point, at noise around the input that is as long as the best
perturbation, at the best point, or at noise around the best point."""


@dataclass(frozen=True, kw_only=True)
class Tactic:
    """A kind of start and the style of the descent from it."""

    name: str
    start: Start
    style: Style
    counting: Style
    """Style of the second part in a norm that counts; the first part descends in the norm it is relaxed to."""
    relaxed: float = 0.6
    """Share of the steps that go to that first part."""
    nearest_class: bool = False
    """Whether the descent heads for one of the classes ranked nearest instead of the class with the highest logit."""


_QUICK = Style(trust=3.0, overshoot=0.25)
_QUICK_COUNT = Style(trust=1.0, overshoot=0.25)
_STEADY = Style(trust=0.6, overshoot=0.5, adaptive=False, memory=0.7)
_STEADY_COUNT = Style(trust=0.3, overshoot=0.1)
_CAREFUL = Style(trust=0.3, overshoot=0.05)

CLASS = Tactic(name="class", start="input", style=_QUICK, counting=_QUICK_COUNT, nearest_class=True)
FAR = Tactic(name="far", start="random", style=_QUICK, counting=_QUICK_COUNT)
STEADY = Tactic(name="steady", start="random", style=_STEADY, counting=_STEADY_COUNT)
NEAR = Tactic(name="near", start="around input", style=_QUICK, counting=_QUICK_COUNT)
HOPPING = Tactic(name="hop", start="around best", style=_STEADY, counting=_STEADY_COUNT)
QUICK_HOP = Tactic(name="quick hop", start="around best", style=_QUICK, counting=_QUICK_COUNT)
POLISH = Tactic(name="polish", start="best", style=_CAREFUL, counting=_STEADY_COUNT, relaxed=0.0)


@dataclass(frozen=True, kw_only=True)
class PriceSearch:
    """How the dual variable of a linearized step is found: by false position, from the price of the last step.

    Lengths are in units of the box and slopes have length 1.
    """

    lowest: float = -8.0
    """Smallest logarithm of the price."""
    highest: float = 14.0
    """Largest logarithm of the price; a response at it reaches the farthest corner of the box."""
    rounds: int = 18
    """Prices tried in the first step of a descent."""
    warm_rounds: int = 6
    """Prices tried in a step that begins at the price of the last one."""
    warm_counting_rounds: int = 14
    """The same in a norm that counts, where what a price reaches grows in jumps."""


@dataclass(frozen=True, kw_only=True)
class TrustRule:
    """How the trust follows the error of the linearization, relative to the change of the margin it promised."""

    misled: float = 0.6
    """Error above which the trust falls."""
    confirmed: float = 0.25
    """Error below which the trust grows."""
    less: float = 0.6
    """Factor by which it falls."""
    more: float = 1.3
    """Factor by which it grows."""
    lowest: float = 0.02
    highest: float = 30.0


@dataclass(frozen=True, kw_only=True)
class AutoConfig:
    """Every tunable of `auto`; the defaults need no tuning.

    Where a field names no other source, its value was selected on images 900-999 of mnist-1000 with the shipped MNIST
    nets. `benchmarks/auto_parts.py` measures what the parts are worth; `docs/auto.md` has the table.

    Raises:
        InvalidInputError: A setting is outside of its range.

    Example:
        >>> from dataclasses import replace
        >>> config = replace(pdpgd.AutoConfig(), hop_scale=0.0)  # an ablation
        >>> result = pdpgd.auto(model, images, labels, norm="l2", budget=50, config=config)
        >>> result.found.all()
        tensor(True)
    """

    first: tuple[Tactic, ...] = (CLASS, STEADY, FAR, NEAR, CLASS, STEADY, STEADY)
    """Tactics of the first descents: every kind of start."""
    then: tuple[Tactic, ...] = (HOPPING,)
    """Tactics of the later descents, in rotation: hops from the best point so far."""
    local: Tactic = QUICK_HOP
    """Tactic that replaces random starts, and steady hops, on samples where steady descents from afar end far out."""
    far_limit: float = 1.2
    """How much larger than the best distance the end of a steady descent from afar is where these are given up."""
    polish: Tactic = POLISH
    """Tactic of the last descent, from the best point."""
    shared: tuple[Tactic, ...] = (HOPPING, HOPPING, HOPPING, STEADY, POLISH)
    """Tactics of the descents that samples make with the passes others left over (`share=True`), in rotation."""
    min_descent_steps: int = 17
    """Fewest gradients of one descent when there are several: a larger budget first gives more descents, then longer
    ones."""
    extension_steps: int = 4
    """Steps by which a descent is prolonged as long as it progresses."""
    extension_gain: float = 0.2
    """Relative decrease of the size over these steps that counts as progress."""
    extension_limit: int = 3
    """Largest length, relative to its planned one, of a descent in a norm that counts that finds nothing."""
    shared_steps: int = 20
    """Gradients of a descent with passes that others left over."""
    polish_share: float = 0.1
    """Share of the budget that is reserved for the last descent."""
    several_from: int = 90
    """Fewest passes that are divided into several descents."""
    rank_from: int = 110
    """Smallest budget with which the classes are ranked. With less, the forward passes that judge the ends of the
    descents do not make up for the backward passes of the ranking, and more than half of the budget would be backward
    passes."""
    ranked_classes: int = 5
    """Runners-up that are ranked by their linearized distance: one backward pass each."""
    pruning_passes: int = 12
    """Passes reserved for reverting single changes, in a norm that counts; 0 turns it off."""
    worthwhile: float = 1e-3
    """Relative decrease of the best size below which a descent does not count as an improvement."""
    patience: int = 15
    """Descents in a row without an improvement after which a sample has converged."""
    start_radius: float = 0.5
    """Half width of a random start, in units of the box. The paper's value for MNIST."""
    near_scale: float = 1.0
    """Length of the noise of a start around the input, relative to the best perturbation."""
    hop_scale: float = 3.0
    """Length of the noise of a hop, relative to the best perturbation."""
    overshoot_power: float = 3.0
    """The overshoot falls with this power of the remaining share of the descent."""
    least_length: float = 1e-4
    """Length that stands in for the present size where a start is on the boundary itself, in units of the box."""
    level_step: float = 0.2
    """Step that a trust of 1 allows in l-infinity, where every entry may move, as a share of the largest entry."""
    prices: PriceSearch = field(default_factory=PriceSearch)
    """How the dual variable of a step is found."""
    trust: TrustRule = field(default_factory=TrustRule)
    """How the trust in the linearization adapts."""

    def __post_init__(self) -> None:
        for name in ("then", "shared"):
            expect_setting(self, name, "at least one tactic", len(getattr(self, name)) > 0)
        for name in (
            "min_descent_steps",
            "extension_steps",
            "extension_limit",
            "shared_steps",
            "several_from",
            "rank_from",
            "ranked_classes",
            "patience",
        ):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", isinstance(value, int) and value >= 1)
        pruning = self.pruning_passes
        expect_setting(self, "pruning_passes", "an integer of at least 0", isinstance(pruning, int) and pruning >= 0)
        for name in ("polish_share", "worthwhile", "extension_gain"):
            expect_setting(self, name, "in [0, 1)", 0 <= getattr(self, name) < 1)
        for name in ("start_radius", "near_scale", "hop_scale", "overshoot_power", "far_limit"):
            expect_setting(self, name, "at least 0", getattr(self, name) >= 0)
        for name in ("least_length", "level_step"):
            expect_setting(self, name, "above 0", getattr(self, name) > 0)


Config = TypeVar("Config", bound=GameConfig)
AnyConfig = TypeVar("AnyConfig", bound=GameConfig | AutoConfig)


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
