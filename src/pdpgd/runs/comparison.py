"""What came of several attacks on the same samples, by the paper's statistics."""

from __future__ import annotations

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
    """What came of one attack in one norm."""

    attack: AttackSpec
    norm: str
    evaluation: Evaluation | None
    """None if it failed."""
    failure: str | None
    """Why."""

    @property
    def label(self) -> str:
        return self.attack.label

    @property
    def distances(self) -> NDArray[Any]:
        """Of the attack's own points, as the referee has verified them; 0: wrong to begin with, inf: not fooled."""
        assert self.evaluation is not None
        return self.evaluation.own_distances(self.norm)

    @property
    def searched(self) -> bool:
        """Whether it looked for the smallest perturbation, and not within given radii."""
        return self.evaluation is None or "radii" not in self.evaluation.spec.settings

    @property
    def partial(self) -> bool:
        """Whether its mean distance is over fewer than all correctly classified samples, as some were not fooled."""
        return self.searched and bool(np.isinf(self.distances).any())

    @property
    def broken(self) -> int:
        """Number of samples on which the attack raised an error."""
        assert self.evaluation is not None
        return sum(len(each.faults) for each in self.evaluation.stats)

    def passes(self) -> float:
        """Forward + backward, of all samples that are right, each."""
        assert self.evaluation is not None
        spent = sum(each.forwards.attacks + each.backwards.attacks for each in self.evaluation.stats)
        return spent / max(1, int((self.distances > 0).sum()))

    def seconds(self) -> float:
        """Of the attack alone, without the referee."""
        assert self.evaluation is not None
        return float(sum(each.seconds_by_stage[self.norm] for each in self.evaluation.stats))


@dataclass(frozen=True)
class Comparison:
    """What came of all of them."""

    rows: tuple[Row, ...]
    radii: Mapping[str, tuple[float, ...]]
    """At which robust accuracy is compared, by norm."""
    folder: Path | None

    def of(self, norm: str) -> list[Row]:
        """Those that came to an end."""
        return [row for row in self.rows if row.norm == norm and row.evaluation is not None]

    def failed(self, norm: str) -> list[Row]:
        return [row for row in self.rows if row.norm == norm and row.evaluation is None]

    def accuracies(self, norm: str) -> dict[str, NDArray[Any]]:
        """Robust accuracy at the radii, by attack."""
        return {
            row.label: np.array([metrics.robust_accuracy(row.distances, radius) for radius in self.radii[norm]])
            for row in self.of(norm)
        }

    def statistics(self, norm: str) -> dict[str, Statistics]:
        """The paper's. Variants of one attack are not each other's rivals."""
        accuracies = self.accuracies(norm)
        families = {row.label: row.attack.name for row in self.of(norm)}
        return metrics.compared(accuracies, families=families) if accuracies else {}

    def as_json(self) -> dict[str, Any]:
        """The numbers, for machines."""
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
        mean = metrics.mean(row.distances)
        right = row.distances > 0
        return {
            "attack": row.label,
            "failure": None,
            "reliability": row.evaluation.reliability.word,
            "settings": dict(row.evaluation.spec.settings),
            "budget": row.evaluation.spec.budget,
            "made_with": dict(row.evaluation.spec.made_with),
            "samples": len(right),
            "right": int(right.sum()),
            "fooled": int(np.isfinite(row.distances[right]).sum()),
            "broken": row.broken,
            "mean_distance": mean if row.searched and np.isfinite(mean) else None,
            "robust_accuracy": self.accuracies(row.norm)[row.label].tolist(),
            **asdict(self.statistics(row.norm)[row.label]),
            "passes": row.passes(),
            "seconds": row.seconds(),
            "spec": row.evaluation.spec.digest(),
        }
