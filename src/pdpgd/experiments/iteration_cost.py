"""Measuring the cost of an iteration of an attack by counting passes, as in Table I of the paper.

    (passes of 2n iterations - passes of n iterations) / (n x samples)

so that passes that are made once cancel: the check of the input, the start, the check of the last point. Attacks may
skip samples that they have fooled, or stop there. They are therefore run on a model whose prediction is fixed: a
constant added to the logit of one class, which is also the label of all samples, leaves all gradients unchanged and
lets no attack succeed. Only Brendel & Bethge's attack needs the model itself, because it follows the decision boundary.
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

# Number of iterations of the shorter run. APGD in l1 behaves differently below ten steps.
ITERATIONS = 10
# Exceeds all differences of logits, even outside the box, where DeepFool within SparseFool goes (1e4 did not, on
# mnist-plain).
UNREACHABLE = 1e6
# Radii for attacks within a ball, in units of the box or in pixels; the value does not matter, as nothing succeeds.
RADIUS = {"linf": 0.1, "l2": 1.0, "l1": 5.0, "l0": 3.0}


@dataclass(frozen=True)
class Counting:
    """How the number of iterations of an attack is set."""

    setting: str
    """Setting that holds the number of iterations."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Other settings, such that nothing else varies."""
    description: str = ""
    """What counts as an iteration, if not one unit of the setting."""
    per_unit: int = 1
    """Number of such iterations per unit of the setting."""
    per_class: bool = False
    """Whether that number is per class of the model."""
    needs_boundary: bool = False
    """Whether the attack needs a model that can be fooled."""

    @property
    def iteration(self) -> str:
        """What counts as an iteration."""
        return self.description or self.setting


_ONE_START: Mapping[str, Any] = {"restarts": 1}
_CANDIDATES = 4
_COUNTINGS: Mapping[str, Counting] = {
    **dict.fromkeys(("pdpgd", "pdgd"), Counting("steps", {"restarts": 1, "finetune_steps": 0})),
    **dict.fromkeys(("pgd", "daa", "daa-attraction", "apgd"), Counting("steps", _ONE_START)),
    "apgd-ce": Counting("steps", {"restarts": 1, "phases": False}),
    **dict.fromkeys(("ddn", "deepfool", "fmn", "alma", "sigma-zero", "vfga"), Counting("steps")),
    **dict.fromkeys(("cw", "ead"), Counting("steps", {"binary_search_steps": 1})),
    "fab": Counting("steps", _ONE_START),
    "bb": Counting("steps", needs_boundary=True),
    **dict.fromkeys(
        ("apgd-t", "fab-t"), Counting("steps", {"restarts": 1, "targets": 1}, description="steps towards a target")
    ),
    "jsma": Counting("steps", {"targets": 1}, description="steps towards a target"),
    "corner-search": Counting(
        "iterations", {"max_sparsity": 2}, description="combinations that are drawn", per_class=True
    ),
    "one-pixel": Counting(
        "generations", {"restarts": 1, "population": _CANDIDATES}, description="candidates", per_unit=_CANDIDATES
    ),
    **dict.fromkeys(("square", "sparse-rs"), Counting("queries", _ONE_START)),
    "sparsefool": Counting("deepfool_steps", {"steps": 1, "lambdas": (1.0,)}, description="steps of DeepFool"),
    "superdeepfool": Counting("deepfool_steps", {"steps": 1}, description="steps of DeepFool"),
    # Below 90 passes there is a single descent; besides its steps, the input and the last point are checked.
    **dict.fromkeys(("auto", "auto-shared"), Counting("budget", description="steps of a descent")),
}


def countable() -> tuple[str, ...]:
    """Return the attacks whose iterations can be counted.

    All except the alternative sources (NAME@LIBRARY), and AutoAttack, whose parts have different iterations.
    """
    return tuple(name for name in ATTACKS if name in _COUNTINGS)


def measure_cost(attack: str, norm: str, model: Model, inputs: Tensor, labels: Tensor) -> IterationCost:
    """Measure the mean number of passes per sample and iteration of an attack.

    Args:
        attack: Name of the attack in the catalogue.
        norm: Name of a norm that the attack supports.
        model: The model to attack.
        inputs: A few samples.
        labels: Their labels.

    Returns:
        The forward and backward passes of an iteration.

    Raises:
        InvalidInputError: The iterations of the attack cannot be counted, or no sample is correctly classified.
    """
    info_of(attack, norm)
    if attack not in _COUNTINGS:
        raise InvalidInputError(
            f"attack {attack}: expected one whose iterations are counted ({', '.join(countable())})"
        )
    counting = _COUNTINGS[attack]
    attacked: Model = model
    if counting.needs_boundary:
        rows = _correctly_classified(model, inputs, labels)
        inputs, labels = inputs[rows], labels[rows]
    else:
        labels = labels[:1].expand(len(inputs)).clone()
        attacked = _FixedPrediction(model, int(labels[0]))
    if len(inputs) == 0:
        raise InvalidInputError(f"attack {attack}: expected correctly classified samples, got none")

    def passes(count: int) -> tuple[int, int]:
        counted = Counted(attacked)
        _attack(attack, norm, counting, count, len(inputs))(counted, inputs, labels, norm=norm)
        return counted.forwards, counted.backwards

    short, long = passes(ITERATIONS), passes(2 * ITERATIONS)
    per_unit = counting.per_unit * (_classes(model, inputs) if counting.per_class else 1)
    forwards, backwards = (
        (more - less) / (ITERATIONS * per_unit * len(inputs)) for less, more in zip(short, long, strict=True)
    )
    return IterationCost(attack=attack, norm=norm, forwards=forwards, backwards=backwards, iteration=counting.iteration)


def _attack(attack: str, norm: str, counting: Counting, count: int, samples: int) -> Callable[..., Any]:
    """Prepare the attack with this number of iterations."""
    if counting.setting == "budget":
        return prepared(attack, norm, budget=2 * count + 2, max_batch=samples)
    settings = {**counting.fixed, counting.setting: count}
    if info_of(attack).is_ball:
        settings["radii"] = [RADIUS[norm]]
    return prepared(attack, norm, settings=settings, max_batch=samples)


def _correctly_classified(model: Model, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return (_logits(model, inputs).argmax(1) == labels).nonzero().flatten()


def _classes(model: Model, inputs: Tensor) -> int:
    with torch.no_grad():
        return _logits(model, inputs[:1]).shape[1]


def _logits(model: Model, inputs: Tensor) -> Tensor:
    output: Any = model(inputs)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


class _FixedPrediction(nn.Module):
    """The model with a constant added to one logit, so that it always predicts the same class."""

    def __init__(self, model: Model, label: int) -> None:
        super().__init__()
        # Not a submodule: mode, parameters and hooks of the model are left to its owner.
        self._model: Callable[[], Model] = lambda: model
        self.training = bool(getattr(model, "training", False))
        self.label = label

    def forward(self, inputs: Tensor) -> Tensor:
        logits = _logits(self._model(), inputs)
        constant = torch.zeros_like(logits[:1])
        constant[:, self.label] = UNREACHABLE
        return logits + constant
