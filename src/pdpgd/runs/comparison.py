"""Results of several attacks on the same samples, with the paper's statistics."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.runs import metrics
from pdpgd.runs.metrics import Statistics
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import AttackSpec


@dataclass(frozen=True)
class Row:
    """The result of one attack in one norm.

    Attributes:
        attack: The attack.
        norm: The norm that it minimizes.
        evaluation: Its run; None if it failed. Apart from `label` and `searched`, properties and methods need it.
        failure: Why it failed; None if it did not.

    Example:
        >>> [row.label for row in comparison.of("l2") if row.fooled_all]
        ['auto', 'pdpgd']
    """

    attack: AttackSpec
    norm: str
    evaluation: Evaluation | None
    failure: str | None

    @property
    def label(self) -> str:
        """The attack as users write it: NAME or NAME:RESTARTS."""
        return self.attack.label

    @property
    def distances(self) -> NDArray[Any]:
        """Verified distances of the attack's own adversarial examples, one per sample.

        0 for samples that were misclassified before the attack, inf for those that were not fooled.
        """
        assert self.evaluation is not None
        return self.evaluation.own_distances(self.norm)

    @property
    def searched(self) -> bool:
        """Whether the attack minimizes the perturbation, rather than attacking within given radii."""
        return self.evaluation is None or "radii" not in self.evaluation.spec.settings

    @property
    def fooled_all(self) -> bool:
        """Whether every correctly classified sample was fooled, so that the mean distance includes all of them."""
        return not bool(np.isinf(self.distances).any())

    @property
    def partial(self) -> bool:
        """Deprecated: use `searched and not fooled_all`."""
        warnings.warn(
            "Row.partial is deprecated: write row.searched and not row.fooled_all", DeprecationWarning, stacklevel=2
        )
        return self.searched and not self.fooled_all

    @property
    def correct(self) -> int:
        """Number of correctly classified samples."""
        return int((self.distances > 0).sum())

    @property
    def fooled(self) -> int:
        """Number of correctly classified samples for which an adversarial example was found."""
        return int(metrics.fooled(self.distances).sum())

    @property
    def mean_distance(self) -> float | None:
        """Mean distance of the fooled samples; None if there are none, or if the attack was run at given radii."""
        mean = metrics.mean(self.distances)
        return mean if self.searched and np.isfinite(mean) else None

    @property
    def broken(self) -> int:
        """Number of samples on which the attack raised an error."""
        assert self.evaluation is not None
        return sum(len(each.faults) for each in self.evaluation.stats)

    def passes(self) -> float:
        """Compute the cost of the attack.

        Returns:
            Mean number of forward plus backward passes per correctly classified sample.
        """
        assert self.evaluation is not None
        spent = sum(each.forwards.attacks + each.backwards.attacks for each in self.evaluation.stats)
        return spent / max(1, self.correct)

    def seconds(self) -> float:
        """Compute the wall time of the attack.

        Returns:
            Seconds that the attack itself took, without the referee.
        """
        assert self.evaluation is not None
        return float(sum(each.seconds_by_stage[self.norm] for each in self.evaluation.stats))


@dataclass(frozen=True)
class Comparison:
    """The results of several attacks on the same samples, as `compare` returns them.

    Attributes:
        rows: One row per attack and norm, failed ones included.
        radii: Radii at which robust accuracy is compared, by norm.
        folder: Directory of the results; None if they are in memory only.

    Example:
        >>> comparison = pdpgd.compare(
        ...     "mnist-plain", "mnist-1000", norms=["l2"], attacks=["auto", "pdpgd"], limit=4, budget=200
        ... )
        >>> comparison.statistics("l2")["auto"].times_best
        5
    """

    rows: tuple[Row, ...]
    radii: Mapping[str, tuple[float, ...]]
    folder: Path | None

    def of(self, norm: str) -> list[Row]:
        """Return the rows of a norm whose attack finished.

        Args:
            norm: One of the norms of the comparison.

        Returns:
            The rows, in the order of the attacks.
        """
        return [row for row in self.rows if row.norm == norm and row.evaluation is not None]

    def failed(self, norm: str) -> list[Row]:
        """Return the rows of a norm whose attack failed.

        Args:
            norm: One of the norms of the comparison.

        Returns:
            The rows, in the order of the attacks, each with the reason.
        """
        return [row for row in self.rows if row.norm == norm and row.evaluation is None]

    def accuracies(self, norm: str) -> dict[str, NDArray[Any]]:
        """Compute the robust accuracy that each attack leaves.

        Args:
            norm: One of the norms of the comparison.

        Returns:
            Robust accuracy at each of the radii, by the label of the attack.
        """
        return {
            row.label: np.array([metrics.robust_accuracy(row.distances, radius) for radius in self.radii[norm]])
            for row in self.of(norm)
        }

    def statistics(self, norm: str) -> dict[str, Statistics]:
        """Compute the paper's statistics; one attack with different numbers of restarts is not its own rival.

        Args:
            norm: One of the norms of the comparison.

        Returns:
            The statistics over the radii, by the label of the attack.
        """
        accuracies = self.accuracies(norm)
        families = {row.label: row.attack.name for row in self.of(norm)}
        return metrics.compared(accuracies, families=families) if accuracies else {}

    def as_json(self) -> dict[str, Any]:
        """Return the numbers of the comparison.

        Returns:
            Radii and attacks, by norm, as in comparison.json.
        """
        return {
            norm: {
                "radii": list(radii),
                "attacks": [self._row_as_json(row) for row in self.rows if row.norm == norm],
            }
            for norm, radii in self.radii.items()
        }

    def _row_as_json(self, row: Row) -> dict[str, Any]:
        if row.evaluation is None:
            return {"attack": row.label, "failure": row.failure}
        return {
            "attack": row.label,
            "failure": None,
            "reliability": row.evaluation.reliability.word,
            "settings": dict(row.evaluation.spec.settings),
            "budget": row.evaluation.spec.budget,
            "made_with": dict(row.evaluation.spec.made_with),
            "samples": len(row.distances),
            "right": row.correct,
            "fooled": row.fooled,
            "broken": row.broken,
            "mean_distance": row.mean_distance,
            "robust_accuracy": self.accuracies(row.norm)[row.label].tolist(),
            **asdict(self.statistics(row.norm)[row.label]),
            "passes": row.passes(),
            "seconds": row.seconds(),
            "spec": row.evaluation.spec.digest(),
        }
