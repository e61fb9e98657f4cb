"""What an iteration of an attack costs a sample, by counting the passes: Table I of the paper, measured.

    (passes of 2n iterations - passes of n iterations) / (n x samples)

so that what is paid once (the look at the input, a start, the last point) falls out. An attack that leaves alone what
it has fooled, or ends there, is run on the model with its answer fixed: a constant on the logit of one class, to which
all samples then belong, keeps every slope and lets nothing succeed. Brendel & Bethge walk along a boundary, and need
the model as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pdpgd.attacks.catalogue import ATTACKS, info_of, prepared
from pdpgd.classifier import Counted, Model
from pdpgd.errors import InvalidInputError
from pdpgd.experiments.results import IterationCost

# The shorter run. APGD in l1 changes its ways below ten steps.
ITERATIONS = 10
# More than the logits differ even outside the box, where SparseFool's DeepFool goes (1e4 was not, on mnist-plain).
OUT_OF_REACH = 1e6
# For attacks within a ball, as a share of the way across the box or in pixels: nothing succeeds, so any will do.
RADIUS = {"linf": 0.1, "l2": 1.0, "l1": 5.0, "l0": 3.0}


@dataclass(frozen=True)
class Counting:
    """How the iterations of an attack are made more."""

    setting: str
    """The one that is their number."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that leave nothing else to vary."""
    told: str = ""
    """What an iteration is, where that is not one of the setting."""
    each: int = 1
    """Iterations, so told, in one of the setting."""
    each_class: bool = False
    """Whether that number is per class of the model."""
    fooled: bool = False
    """Whether it needs a model that can be fooled."""

    @property
    def iteration(self) -> str:
        return self.told or self.setting


_ONE_START: Mapping[str, Any] = {"restarts": 1}
_CANDIDATES = 4
_COUNTINGS: Mapping[str, Counting] = {
    **dict.fromkeys(("pdpgd", "pdgd"), Counting("steps", {"restarts": 1, "finetune_steps": 0})),
    **dict.fromkeys(("pgd", "daa", "daa-attraction", "apgd"), Counting("steps", _ONE_START)),
    **dict.fromkeys(("ddn", "deepfool", "fmn", "alma", "sigma-zero", "vfga"), Counting("steps")),
    **dict.fromkeys(("cw", "ead"), Counting("steps", {"binary_search_steps": 1})),
    "fab": Counting("steps", _ONE_START),
    "bb": Counting("steps", fooled=True),
    **dict.fromkeys(
        ("apgd-t", "fab-t"), Counting("steps", {"restarts": 1, "targets": 1}, told="steps towards a target")
    ),
    "jsma": Counting("steps", {"targets": 1}, told="steps towards a target"),
    "corner-search": Counting("iterations", {"max_sparsity": 2}, told="combinations that are drawn", each_class=True),
    "one-pixel": Counting(
        "generations", {"restarts": 1, "population": _CANDIDATES}, told="candidates", each=_CANDIDATES
    ),
    "sparsefool": Counting("deepfool_steps", {"steps": 1, "lambdas": (1.0,)}, told="steps of DeepFool"),
    "superdeepfool": Counting("deepfool_steps", {"steps": 1}, told="steps of DeepFool"),
    # Below 90 passes it makes a single descent; the input and the last point are looked at beside its steps.
    **dict.fromkeys(("auto", "auto-shared"), Counting("budget", told="steps of a descent")),
}


def countable() -> tuple[str, ...]:
    """The attacks whose iterations can be counted: all of the catalogue but the second sources (NAME@LIBRARY)."""
    return tuple(name for name in ATTACKS if name in _COUNTINGS)


def measured(attack: str, norm: str, model: Model, inputs: Tensor, labels: Tensor) -> IterationCost:
    """What an iteration of the attack costs one of these samples on average; a handful of them is enough."""
    info_of(attack, norm)
    if attack not in _COUNTINGS:
        raise InvalidInputError(
            f"attack {attack}: expected one whose iterations are counted ({', '.join(countable())})"
        )
    counting = _COUNTINGS[attack]
    subject: Model = model
    if counting.fooled:
        rows = _right(model, inputs, labels)
        inputs, labels = inputs[rows], labels[rows]
    else:
        labels = labels[:1].expand(len(inputs)).clone()
        subject = _Settled(model, int(labels[0]))
    if len(inputs) == 0:
        raise InvalidInputError(f"attack {attack}: expected samples that the model gets right, got none")

    def passes(count: int) -> tuple[int, int]:
        counted = Counted(subject)
        _attack(attack, norm, counting, count, len(inputs))(counted, inputs, labels, norm=norm)
        return counted.forwards, counted.backwards

    short, long = passes(ITERATIONS), passes(2 * ITERATIONS)
    each = counting.each * (_classes(model, inputs) if counting.each_class else 1)
    forwards, backwards = (
        (more - less) / (ITERATIONS * each * len(inputs)) for less, more in zip(short, long, strict=True)
    )
    return IterationCost(attack=attack, norm=norm, forwards=forwards, backwards=backwards, iteration=counting.iteration)


def _attack(attack: str, norm: str, counting: Counting, count: int, samples: int) -> Callable[..., Any]:
    if counting.setting == "budget":
        return prepared(attack, norm, budget=2 * count + 2, max_batch=samples)
    settings = {**counting.fixed, counting.setting: count}
    if info_of(attack).is_ball:
        settings["radii"] = [RADIUS[norm]]
    return prepared(attack, norm, settings=settings, max_batch=samples)


def _right(model: Model, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return (_logits(model, inputs).argmax(1) == labels).nonzero().flatten()


def _classes(model: Model, inputs: Tensor) -> int:
    with torch.no_grad():
        return _logits(model, inputs[:1]).shape[1]


def _logits(model: Model, inputs: Tensor) -> Tensor:
    output: Any = model(inputs)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


class _Settled(nn.Module):
    """The model, but for its answer, which is always the same class."""

    def __init__(self, model: Model, label: int) -> None:
        super().__init__()
        # Not as a child: the model's mode, parameters and hooks are its owner's.
        self._model: Callable[[], Model] = lambda: model
        self.training = bool(getattr(model, "training", False))
        self.label = label

    def forward(self, inputs: Tensor) -> Tensor:
        logits = _logits(self._model(), inputs)
        settled = torch.zeros_like(logits[:1])
        settled[:, self.label] = OUT_OF_REACH
        return logits + settled
