"""Summary of a run: its numbers by norm and its cost, as the entries of summary.json, and as a table in text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.runs import metrics, records
from pdpgd.runs.stats import ChunkStats, Passes

if TYPE_CHECKING:
    from pdpgd.runs.result import Evaluation

DECILES = tuple(share / 10 for share in range(1, 10))
"""Shares of the correctly classified samples for which the summary has the radius that fools them."""

# Radii that are multiples of a quarter of an 8-bit gray level are taken as given in gray levels.
_LEVEL = 1 / (4 * 255)


@dataclass(frozen=True)
class NormSummary:
    """Numbers of a run in one norm; a distance that does not exist is None.

    A run that asked about radii only has no mean, median and deciles: its distances are not the smallest.
    """

    counts: Mapping[str, int]
    """Number of samples by status."""
    mean: float | None
    """Mean distance of the fooled samples."""
    median: float | None
    """Median distance of the correctly classified samples; None if more than half were not fooled."""
    fooled_8bit: int
    """Number of samples that are still fooled after quantization to 8 bits."""
    mean_8bit: float | None
    median_8bit: float | None
    deciles: tuple[float | None, ...]
    """Radii that fool the shares `DECILES` of the correctly classified samples."""
    fragile: int
    """Number of adversarial examples whose predicted class rounding may decide."""
    found_by: Mapping[str, int]
    """Number of adversarial examples by the attack that found them."""


def norm_summary(evaluation: Evaluation, norm: str) -> NormSummary:
    """Compute the numbers of a run in one norm."""
    distances, quantized = evaluation.distances(norm), evaluation.column("distance_8bit", norm)
    number = _nothing if evaluation.spec.only_radii else _number
    return NormSummary(
        counts=evaluation.counts(norm),
        mean=number(metrics.mean(distances)),
        median=number(metrics.quantile(distances, 0.5)),
        fooled_8bit=int(metrics.fooled(quantized).sum()),
        mean_8bit=number(metrics.mean(quantized)),
        median_8bit=number(metrics.quantile(quantized, 0.5)),
        deciles=tuple(number(metrics.quantile(distances, share)) for share in DECILES),
        fragile=int(evaluation.column("fragile", norm).sum()),
        found_by=_counted(evaluation.column("source", norm)),
    )


@dataclass(frozen=True)
class AtRadius:
    """What a run that asked about radii only found at one of them."""

    norm: str
    radius: float
    robust: int
    """Number of samples that are correctly classified and not fooled within the radius."""
    samples: int
    """Number of all samples."""

    @property
    def share(self) -> float:
        """The robust accuracy."""
        return self.robust / self.samples

    def __str__(self) -> str:
        at = f"{self.norm} radius {radius_name(self.radius)}"
        return f"Robust accuracy at {at}: {self.share:.1%} ({self.robust:,} of {self.samples:,})"


def robust_at_radii(evaluation: Evaluation) -> list[AtRadius]:
    """Count the robust samples at each radius that a run asked about; nothing if it asked for smallest distances."""
    return [
        AtRadius(norm, radius, int(metrics.withstood(evaluation.distances(norm), radius).sum()), evaluation.samples)
        for norm, radii in evaluation.spec.only_radii.items()
        for radius in radii
    ]


def passes_sentence(evaluation: Evaluation, norm: str) -> str:
    """Say how many passes the attack in a norm reports for the samples that it attacked."""
    attacked = evaluation.column("status", norm) != records.INITIALLY_WRONG
    passes = (evaluation.column("forwards", norm) + evaluation.column("backwards", norm))[attacked]
    if not len(passes):
        return f"Passes in {norm}: none, no sample is correctly classified"
    return f"Passes in {norm}: {passes.mean():,.0f} per attacked sample on average, at most {passes.max():,}"


def radius_name(radius: float) -> str:
    """A radius as people write it: 0.3 and 12 unchanged, 0.03137 as 8/255."""
    levels = round(radius / _LEVEL)
    short = abs(radius - round(radius, 4)) < 1e-12
    if not short and levels > 0 and abs(radius - levels * _LEVEL) < 1e-6 * radius:
        return f"{levels / 4:g}/255"
    return f"{radius:.6g}"


@dataclass(frozen=True)
class RunCost:
    """Passes and time of a whole run."""

    forwards: Passes
    backwards: Passes
    seconds: float


def run_cost(evaluation: Evaluation) -> RunCost:
    """Sum up the cost of all jobs of a run; passes of the attacks are those whose adversarial examples count."""
    every = (*evaluation.stats, *evaluation.check_stats)
    return RunCost(
        _passes(evaluation, lambda stats: stats.forwards),
        _passes(evaluation, lambda stats: stats.backwards),
        sum(each.seconds for each in every),
    )


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return the entries of summary.json."""
    cost = run_cost(evaluation)
    spec, reliability = evaluation.spec, evaluation.reliability
    return {
        "model": dict(spec.model),
        "data": dict(spec.data),
        "attack": spec.attack,
        "budget": spec.budget,
        **({} if spec.draws == 1 else {"draws": spec.draws}),
        **(_radii_as_json(evaluation) if spec.only_radii else {}),
        "spec": spec.digest(),
        "folder": None if evaluation.folder is None else str(evaluation.folder),
        "samples": evaluation.samples,
        "clean_accuracy": evaluation.clean_accuracy,
        "norms": {norm: _norm_as_json(norm_summary(evaluation, norm)) for norm in evaluation.norms},
        "forwards": asdict(cost.forwards),
        "backwards": asdict(cost.backwards),
        "seconds": cost.seconds,
        "reliability": {
            "verdict": reliability.word,
            "alarms": [check.name for check in reliability.alarms],
            "checks": [check.as_json() for check in reliability.checks],
        },
        "notes": list(evaluation.notes),
    }


def _radii_as_json(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "only_radii": {norm: list(radii) for norm, radii in evaluation.spec.only_radii.items()},
        "robust_accuracy": [
            {"norm": found.norm, "radius": found.radius, "share": found.share} for found in robust_at_radii(evaluation)
        ],
    }


def _norm_as_json(numbers: NormSummary) -> dict[str, Any]:
    return {**asdict(numbers), "deciles": list(numbers.deciles)}


def _passes(evaluation: Evaluation, passes: Callable[[ChunkStats], Passes]) -> Passes:
    """Count the passes of the attacks, and those of the referee, the cheap attacks and the other checks."""
    attacks = sum(passes(each).attacks for each in evaluation.stats)
    total = sum(passes(each).total for each in (*evaluation.stats, *evaluation.check_stats))
    return Passes(attacks, total - attacks)


def _number(value: float) -> float | None:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return value if np.isfinite(value) else None


def _nothing(value: float) -> None:
    """Leave out a statistic of distances that are not the smallest."""


def _counted(sources: NDArray[Any]) -> dict[str, int]:
    names, counts = np.unique(np.asarray(sources, dtype=str), return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True) if name}


def as_text(evaluation: Evaluation) -> str:
    """Return the numbers as a table, one line per norm, with the verdict on the reliability.

    A run that asked about radii only has a line for each of them instead.
    """
    name, accuracy = evaluation.spec.data["name"], evaluation.clean_accuracy
    lines = [f"{evaluation.samples} samples of {name}, {accuracy:.1%} correctly classified"]
    if evaluation.spec.only_radii:
        lines += [str(found) for found in robust_at_radii(evaluation)]
        lines += [passes_sentence(evaluation, norm) for norm in evaluation.norms]
        return "\n".join([*lines, f"reliability: {evaluation.reliability.verdict}"])
    form = "{:<6}{:>10}{:>12}{:>12}{:>12}{:>12}{:>14}{:>9}"
    lines.append(form.format("norm", "fooled", "not fooled", "unverified", "mean", "median", "median 8 bit", "fragile"))
    for norm in evaluation.norms:
        numbers = norm_summary(evaluation, norm)
        counts = numbers.counts
        lines.append(
            form.format(
                norm,
                counts[records.FOOLED],
                counts[records.NOT_FOOLED],
                counts[records.UNVERIFIED],
                _shown(numbers.mean) + ("" if evaluation.fooled_all(norm) else metrics.PARTIAL),
                _shown(numbers.median),
                _shown(numbers.median_8bit),
                numbers.fragile,
            )
        )
    if not all(map(evaluation.fooled_all, evaluation.norms)):
        lines.append(f"{metrics.PARTIAL} mean over the fooled samples only: not all were fooled")
    return "\n".join([*lines, f"reliability: {evaluation.reliability.verdict}"])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
