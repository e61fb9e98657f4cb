"""Every tunable of `auto`: the tactics of its descents, how a step is found, and how the budget is divided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pdpgd.errors import expect_setting


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
    sparse: Style | None = None
    """Style in a norm that leaves most entries unchanged and does not count, such as l1; None: `style`."""
    nearest_class: bool = False
    """Whether the descent heads for one of the classes ranked nearest instead of the class with the highest logit."""


_QUICK = Style(trust=3.0, overshoot=0.25)
# In l1 a bold step changes few entries, by more than the linearization holds for on deep nets.
_QUICK_SPARSE = Style(trust=1.0, overshoot=0.25)
_QUICK_COUNT = Style(trust=1.0, overshoot=0.25)
_STEADY = Style(trust=0.6, overshoot=0.5, adaptive=False, memory=0.7)
_STEADY_COUNT = Style(trust=0.3, overshoot=0.1)
_CAREFUL = Style(trust=0.3, overshoot=0.05)

CLASS = Tactic(
    name="class", start="input", style=_QUICK, sparse=_QUICK_SPARSE, counting=_QUICK_COUNT, nearest_class=True
)
STEADY = Tactic(name="steady", start="random", style=_STEADY, counting=_STEADY_COUNT)
NEAR = Tactic(name="near", start="around input", style=_QUICK, sparse=_QUICK_SPARSE, counting=_QUICK_COUNT)
HOPPING = Tactic(name="hop", start="around best", style=_STEADY, counting=_STEADY_COUNT)
QUICK_HOP = Tactic(name="quick hop", start="around best", style=_QUICK, sparse=_QUICK_SPARSE, counting=_QUICK_COUNT)
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

    misled: float = 0.9
    """Error above which the trust falls."""
    confirmed: float = 0.5
    """Error below which the trust grows."""
    less: float = 0.6
    """Factor by which it falls."""
    more: float = 1.3
    """Factor by which it grows."""
    lowest: float = 0.02
    highest: float = 30.0


@dataclass(frozen=True, kw_only=True)
class BallRule:
    """How the questions about radii are pursued: by climbs inside the ball, and by queries without gradients."""

    share: float = 0.3
    """Share of the passes with gradients for climbs, which descend the loss inside the ball."""
    polish_share: float = 0.0
    """Share of the passes of the descents for the last one, from the best point, which comes before the climbs."""
    steps: int = 50
    """Most gradients of a climb."""
    momentum: float = 0.25
    """Weight of the last move. Croce & Hein 2020."""
    first_step: float = 2.0
    """First length of a step, relative to the radius. Croce & Hein 2020."""
    halved_below: float = 0.75
    """Share of successful steps between two checkpoints below which the step is halved. Croce & Hein 2020."""
    checkpoints: tuple[float, float, float] = (0.22, 0.03, 0.06)
    """First distance between checkpoints, by how much it falls, and the smallest, as shares of the steps. Croce & Hein
    2020."""
    sparsity: float = 0.01
    """Share of the entries that a step moves, in l1."""
    query_share: float = 0.5
    """Share of the budget for the search without gradients."""
    below: float = 0.98
    """Radius of a search below the best perturbation, relative to its size."""
    query_from: int = 600
    """Fewest passes of which that share is taken: fewer queries find nothing that gradients do not."""


@dataclass(frozen=True, kw_only=True)
class BlindRule:
    """How the slopes of entries without a gradient are estimated, by differences of the logits.

    Selected on images 900-919 of mnist-1000 and 300-309 of CIFAR-10, with the shipped nets.
    """

    share: float = 0.3
    """Share of the entries without a gradient above which a sample is treated so; 1 turns it off."""
    probe: float = 1e-3
    """Length of the moves by which it is made sure that the model depends on these entries, in units of the box."""
    probes: int = 2
    """Number of these moves."""
    least_slope: float = 0.01
    """Slope along such a move, relative to the root mean square of the visible slopes, above which it does."""
    rounds: tuple[float, ...] = (0.55, 0.2)
    """Shares of the budget for differences: around the input, then around the best points. Descents follow each."""
    step: float = 0.5
    """Length of a difference, relative to the largest entry of the best perturbation."""
    shortest: float = 0.005
    """Shortest difference, in units of the box."""
    longest: float = 0.6
    """Longest difference, in units of the box; also where no perturbation was found yet."""
    secant_range: tuple[float, float] = (0.01, 0.5)
    """Shortest and longest step that corrects the estimate, relative to the perturbation."""
    first: tuple[Tactic, ...] = (CLASS, CLASS, NEAR)
    """Tactics of the descents after the first round, in rotation."""
    then: tuple[Tactic, ...] = (POLISH, HOPPING, QUICK_HOP)
    """Tactics after the later rounds, in rotation."""

    def __post_init__(self) -> None:
        expect_setting(self, "share", "in [0, 1]", 0 <= self.share <= 1)
        expect_setting(self, "probes", "an integer of at least 1", isinstance(self.probes, int) and self.probes >= 1)
        shares = all(share > 0 for share in self.rounds) and 0 < sum(self.rounds) < 1
        expect_setting(self, "rounds", "shares above 0 whose sum is below 1", shares)
        for name in ("probe", "step", "shortest", "longest"):
            expect_setting(self, name, "above 0", getattr(self, name) > 0)
        for name in ("first", "then"):
            expect_setting(self, name, "at least one tactic", len(getattr(self, name)) > 0)


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

    first: tuple[Tactic, ...] = (CLASS, STEADY, HOPPING, NEAR, CLASS, STEADY, STEADY)
    """Tactics of the first descents: every kind of start, and an early hop, which pays where gradients mislead."""
    then: tuple[Tactic, ...] = (HOPPING,)
    """Tactics of the later descents, in rotation: hops from the best point so far."""
    other_class: Tactic = CLASS
    """Tactic of idle samples, toward each ranked class that they did not head for yet."""
    class_patience: int = 6
    """Descents in a row without an improvement after which a sample turns to these classes. Selected on ReLU nets of 12
    and 12 units, beside the nets above."""
    local_start: Tactic = NEAR
    """Tactic that replaces random starts on samples where descents from afar end far out."""
    local_hop: Tactic = QUICK_HOP
    """Tactic that replaces steady hops on these samples."""
    far_limit: float = 1.2
    """How much larger than the best distance the end of a steady descent from afar is where these are given up."""
    random_limit: float = 0.004
    """Size of the perturbation that the first descent found, relative to that of a random start, below which random
    starts are not tried."""
    counting_random_limit: float = 0.1
    """The same in a norm that counts, for the lengths in l2: a random start changes every pixel."""
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
    polish_share: float = 0.15
    """Share of the budget that is reserved for the last descent."""
    counting_polish_share: float = 0.1
    """The same in a norm that counts, where there is less to gain."""
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
    rounding: float = 16.0
    """Margin that a point has to be beyond the boundary, in units of the rounding of the input's leading logits. Nearer
    ones may be classified correctly in another batch, and count only where nothing else is found. On seven nets the
    logits of a batch and of its samples alone differ by at most 11."""
    hair: float = 1 / 255
    """How far inside the box gradients are looked up where its edge hides them, as a share of its width: a gray
    level."""
    fine_hair: float = 1e-6
    """The same where that is enough, as behind a ReLU: so little that the point inside competes itself, and a step
    takes no pass of its own for the point at the edge. Not in a norm that counts."""
    hidden_limits: tuple[float, float] = (0.9, 0.98)
    """Gradients count as hidden by the edge of the box if they vanish in less than the first share of the entries
    inside it, and in more than the second share of those at one of its sides."""
    check_every: int = 4
    """Steps between two looks at which gradients vanish and, if a radius is asked about, which samples are done: each
    waits for the device."""
    ball: BallRule = field(default_factory=BallRule)
    """How questions about radii are pursued."""
    blind: BlindRule = field(default_factory=BlindRule)
    """How the slopes of entries without a gradient are estimated."""
    prices: PriceSearch = field(default_factory=PriceSearch)
    """How the dual variable of a step is found."""
    trust: TrustRule = field(default_factory=TrustRule)
    """How the trust in the linearization adapts."""
    relaxed_trust: TrustRule = field(default_factory=lambda: TrustRule(misled=0.6, confirmed=0.25))
    """The same in the first part of a descent in a norm that counts. Too bold a first part may end beside hundreds of
    pixels too many: on four of ImageNet images 40-47 and `efficientnet_lite0`, 98.8 pixels instead of 87.8. Tiny
    differences change these numbers as much; on CIFAR-10 and MNIST nets the two rules differ by less than two seeds."""

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
            "class_patience",
            "check_every",
        ):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1", isinstance(value, int) and value >= 1)
        pruning = self.pruning_passes
        expect_setting(self, "pruning_passes", "an integer of at least 0", isinstance(pruning, int) and pruning >= 0)
        for name in ("polish_share", "counting_polish_share", "worthwhile", "extension_gain"):
            expect_setting(self, name, "in [0, 1)", 0 <= getattr(self, name) < 1)
        for name in ("start_radius", "near_scale", "hop_scale", "overshoot_power", "far_limit", "rounding"):
            expect_setting(self, name, "at least 0", getattr(self, name) >= 0)
        for name in ("least_length", "level_step", "hair", "fine_hair"):
            expect_setting(self, name, "above 0", getattr(self, name) > 0)
