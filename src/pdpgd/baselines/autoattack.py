"""AutoAttack (Croce & Hein 2020): its parts, of `pdpgd.baselines.autoattack_parts`, one after another at a radius."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from torch import Tensor

from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.baselines.autoattack_parts import (
    NORMS,
    PHASED_STEPS,
    STEPS_PER_TARGET,
    AutoAttackAPGD,
    AutoAttackAPGDT,
    AutoAttackFABT,
    AutoAttackSquare,
    Part,
)
from pdpgd.baselines.bridge import expect_counts, expect_norm
from pdpgd.errors import AttackError, UnknownNameError, expect_setting

VERSIONS = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
"""The parts of each version of AutoAttack, in the order in which they run."""

# Largest share of a budget below AutoAttack's standard cost that Square gets; in the standard version it has half.
SQUARE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Preparable):
    """AutoAttack (Croce & Hein 2020; l1: 2021): several attacks at one radius, each on the samples that are left.

    Without a budget it has its authors' settings. A sample that withstands the standard version on ten classes costs
    9,766 passes per radius in linf and l2 (Square 5,004, FAB-T 2,729, APGD-T 1,829, APGD-CE 204), and 9,802 in l1. The
    parts and the settings are those of the library's own `AutoAttack`; its checks of the model, which cost some
    passes, are left out. Whether a sample is fooled is decided by our own forward pass after each part. A sample on
    which one part fails goes on to the next.

    With fewer classes than APGD-T (4) or APGD-DLR (3) needs, give `attacks` without it.
    """

    version: str = "standard"
    """`standard`: APGD-CE, APGD-T, FAB-T, Square. `plus`: also APGD-DLR and FAB, with five starts. `rand`, for
    randomized models: APGD-CE and APGD-DLR on means of 20 gradients."""
    attacks: Sequence[str] | None = None
    """Attacks to run in place of those of the version: `apgd-ce`, `apgd-dlr`, `apgd-t`, `fab`, `fab-t`, `square`."""
    steps: int = 100
    """Steps of APGD and FAB."""
    targets: int = 9
    """Number of target classes of APGD-T and FAB-T; APGD-T of the standard version has at most 5 in l1."""
    queries: int = 5000
    """Maximum number of proposals of Square."""
    starts: int | None = None
    """Random starts of APGD-CE and APGD-DLR, and starts of FAB. None: 5 in `plus`, and 5 of APGD in l1; else 1."""
    draws: int | None = None
    """Gradients that APGD-CE and APGD-DLR average per step. None: 20 in `rand`, else 1."""

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise UnknownNameError("version", self.version, tuple(VERSIONS))
        expect_counts(self, "steps", "targets", "queries")
        for name in ("starts", "draws"):
            value = getattr(self, name)
            expect_setting(self, name, "an integer of at least 1, or None", value is None or _is_count(value))
        some = self.attacks is None or (not isinstance(self.attacks, str) and len(self.attacks) > 0)
        expect_setting(self, "attacks", "a list of names, or None", some)
        known = VERSIONS["plus"]
        for attack in self.names:
            if attack not in known:
                raise UnknownNameError("attack of AutoAttack", attack, known)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts to run, in order."""
        return VERSIONS[self.version] if self.attacks is None else tuple(self.attacks)

    def parts(self, norm: str) -> tuple[Part, ...]:
        """Return the parts with their settings.

        Args:
            norm: Name of the norm.

        Returns:
            One attack for each of `names`.

        Example:
            >>> [part.passes("linf", 10) for part in AutoAttack().parts("linf")]
            [204, 1829, 2729, 5004]
        """
        standard_l1 = self.version == "standard" and norm == "l1"
        several = 5 if self.version == "plus" else 1
        starts = self.starts or (5 if standard_l1 else several)
        apgd = AutoAttackAPGD(
            steps=self.steps,
            starts=starts,
            draws=self.draws or (20 if self.version == "rand" else 1),
            phases=standard_l1,
        )
        few = min(self.targets, 5) if standard_l1 else self.targets
        made = {
            "apgd-ce": apgd,
            "apgd-dlr": replace(apgd, loss="dlr"),
            "apgd-t": AutoAttackAPGDT(steps=self.steps, targets=few, phases=standard_l1),
            "fab": AutoAttackFABT(steps=self.steps, targets=0, starts=self.starts or several),
            "fab-t": AutoAttackFABT(steps=self.steps, targets=self.targets),
            "square": AutoAttackSquare(queries=self.queries),
        }
        return tuple(made[name] for name in self.names)

    def passes(self, norm: str, classes: int) -> int:
        """Return the passes that it spends on a sample at one radius if it finds nothing."""
        return sum(part.passes(norm, classes) for part in self.parts(norm))

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Keep the standard settings if the budget pays for them; else have fewer queries, targets, starts and steps.

        Square gets its share of the standard cost, at most half. The rest buys steps, towards as many targets as have
        20 steps each.
        """
        own = {name: value for name, value in budget.settings.items() if name in {field.name for field in fields(cls)}}
        full, passes = cls(**own), budget.passes / (budget.restarts * budget.evaluations)
        cost = full.passes(budget.norm, budget.classes)
        if cost <= passes:
            return {}
        searches = "square" in full.names
        alone = len(set(full.names)) == 1
        share = (1.0 if alone else min(SQUARE_SHARE, (full.queries + 4) / cost)) if searches else 0.0
        queries = max(1, min(full.queries, int(share * passes) - 4))
        most = min(full.targets, budget.classes - 1)
        starts = max((part.starts for part in full.parts(budget.norm) if hasattr(part, "starts")), default=1)
        for targets in range(most, 0, -1):
            fewer = replace(full, queries=queries, targets=targets, starts=max(1, starts * targets // most))
            steps = fewer.affordable_steps(passes, budget.norm, budget.classes)
            if steps >= STEPS_PER_TARGET:
                break
        return {"queries": queries, "targets": fewer.targets, "starts": fewer.starts, "steps": min(steps, full.steps)}

    def affordable_steps(self, passes: float, norm: str, classes: int) -> int:
        """Return the number of steps with which it spends these passes on a sample, at least 1."""
        # The cost is linear in the steps where the number of phases stays the same.
        low, high = (replace(self, steps=PHASED_STEPS + more).passes(norm, classes) for more in (0, 1))
        return max(1, PHASED_STEPS + int((passes - low) // (high - low))) if high > low else self.steps

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        parts = self.parts(expect_norm(self, task, tuple(NORMS)))
        for part in parts:
            part.expect_task(task)
        best, faults, failures = Best.none(task.inputs), dict[int, str](), list[AttackError]()
        for part in parts:
            rows = best.size.isinf().nonzero().flatten()
            if len(rows) == 0:
                break
            remaining = replace(task.select(rows), faults=faults)
            try:
                best.improve(part(remaining, radius[rows], restart), at=rows)
            except AttackError as error:  # it failed on every sample; other parts may not
                failures.append(error)
                faults.update(dict.fromkeys(remaining.samples.tolist(), str(error)))
        if len(failures) == len(parts):
            raise failures[0]
        lost = set(task.samples[best.size.isinf()].tolist())
        task.faults.update({sample: reason for sample, reason in faults.items() if sample in lost})
        return best


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1
