"""Summary of a run: its numbers as the entries of summary.json, and as a table in text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.runs import metrics, records
from pdpgd.runs.stats import ChunkStats, Passes

if TYPE_CHECKING:
    from pdpgd.runs.result import Evaluation

DECILES = tuple(share / 10 for share in range(1, 10))
"""Shares of the correctly classified samples for which the summary has the radius that fools them."""


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return the entries of summary.json."""
    spec, reliability = evaluation.spec, evaluation.reliability
    return {
        "model": dict(spec.model),
        "data": dict(spec.data),
        "attack": spec.attack,
        "budget": spec.budget,
        "spec": spec.digest(),
        "folder": None if evaluation.folder is None else str(evaluation.folder),
        "samples": evaluation.samples,
        "clean_accuracy": evaluation.clean_accuracy,
        "norms": {norm: _norm_as_json(evaluation, norm) for norm in evaluation.norms},
        "forwards": _passes(evaluation, lambda stats: stats.forwards),
        "backwards": _passes(evaluation, lambda stats: stats.backwards),
        "seconds": sum(each.seconds for each in (*evaluation.stats, *evaluation.check_stats)),
        "reliability": {
            "verdict": reliability.word,
            "alarms": [check.name for check in reliability.alarms],
            "checks": [check.as_json() for check in reliability.checks],
        },
        "notes": list(evaluation.notes),
    }


def _norm_as_json(evaluation: Evaluation, norm: str) -> dict[str, Any]:
    distances, quantized = evaluation.distances(norm), evaluation.column("distance_8bit", norm)
    return {
        "counts": evaluation.counts(norm),
        "mean": _number(metrics.mean(distances)),
        "median": _number(metrics.quantile(distances, 0.5)),
        "fooled_8bit": int(metrics.fooled(quantized).sum()),
        "mean_8bit": _number(metrics.mean(quantized)),
        "median_8bit": _number(metrics.quantile(quantized, 0.5)),
        "deciles": [_number(metrics.quantile(distances, share)) for share in DECILES],
        "fragile": int(evaluation.column("fragile", norm).sum()),
        "found_by": _counted(evaluation.column("source", norm)),
    }


def _passes(evaluation: Evaluation, passes: Callable[[ChunkStats], Passes]) -> dict[str, int]:
    """Count the passes of the attacks, and those of the referee, the cheap attacks and the other checks."""
    attacks = sum(passes(each).attacks for each in evaluation.stats)
    total = sum(passes(each).total for each in (*evaluation.stats, *evaluation.check_stats))
    return {"attacks": attacks, "checks": total - attacks}


def _number(value: float) -> float | None:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return value if np.isfinite(value) else None


def _counted(sources: NDArray[Any]) -> dict[str, int]:
    names, counts = np.unique(np.asarray(sources, dtype=str), return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True) if name}


def as_text(evaluation: Evaluation) -> str:
    """Return the numbers as a table, one line per norm, with the verdict on the reliability."""
    name, accuracy = evaluation.spec.data["name"], evaluation.clean_accuracy
    lines = [f"{evaluation.samples} samples of {name}, {accuracy:.1%} correctly classified"]
    form = "{:<6}{:>10}{:>12}{:>12}{:>12}{:>12}{:>14}{:>9}"
    lines.append(form.format("norm", "fooled", "not fooled", "unverified", "mean", "median", "median 8 bit", "fragile"))
    for norm, numbers in as_json(evaluation)["norms"].items():
        counts = numbers["counts"]
        lines.append(
            form.format(
                norm,
                counts[records.FOOLED],
                counts[records.NOT_FOOLED],
                counts[records.UNVERIFIED],
                _shown(numbers["mean"]) + ("" if evaluation.fooled_all(norm) else metrics.PARTIAL),
                _shown(numbers["median"]),
                _shown(numbers["median_8bit"]),
                numbers["fragile"],
            )
        )
    if not all(map(evaluation.fooled_all, evaluation.norms)):
        lines.append(f"{metrics.PARTIAL} mean over the fooled samples only: not all were fooled")
    return "\n".join([*lines, f"reliability: {evaluation.reliability.verdict}"])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
