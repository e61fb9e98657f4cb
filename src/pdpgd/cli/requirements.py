"""What a model must withstand: linf@0.1>=0.6, a gate for a pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdpgd.cli.options import number
from pdpgd.errors import InvalidInputError

if TYPE_CHECKING:
    from pdpgd.evaluation.result import Evaluation

FORM = "NORM@RADIUS>=SHARE such as linf@0.1>=0.6, l2@1,linf@8/255>=0.5 (both at once), clean>=0.9, or trusted"


@dataclass(frozen=True)
class Requirement:
    """At least this share of the samples withstands all these norms at their radii; no radii: is right at all."""

    text: str
    radii: tuple[tuple[str, float], ...]
    share: float | None
    """None: the results were checked, and the reliability report raises no alarm."""

    @classmethod
    def parse(cls, text: str) -> Requirement:
        if text.strip() == "trusted":
            return cls(text, (), None)
        what, comparison, share = text.partition(">=")
        if not comparison:
            raise InvalidInputError(f"require: expected {FORM}, got {text!r}")
        parts = [] if what.strip() == "clean" else [_pair(part, text) for part in what.split(",")]
        value = number(share)
        if value is None or not 0 <= value <= 1:
            raise InvalidInputError(f"require: expected a share from 0 to 1 after >=, got {share!r} in {text!r}")
        return cls(text, tuple(parts), value)

    def check(self, norms: tuple[str, ...]) -> None:
        """Refuse, before anything runs, what the run will not measure."""
        for norm, _ in self.radii:
            if norm not in norms:
                raise InvalidInputError(
                    f"require: expected one of the run's norms, {', '.join(norms)}, got {norm!r} in {self.text!r}"
                )

    def found(self, evaluation: Evaluation) -> float:
        """The share that does; for trust, 1 or 0. A run whose results were not checked is not trusted."""
        if self.share is None:
            return float(evaluation.reliability.trusted)
        return evaluation.robust_accuracy(dict(self.radii)) if self.radii else evaluation.clean_accuracy

    def met(self, evaluation: Evaluation) -> bool:
        return self.found(evaluation) >= (1.0 if self.share is None else self.share)


def _pair(part: str, text: str) -> tuple[str, float]:
    match = re.fullmatch(r"\s*([\w-]+)\s*@\s*([^@]+)", part)
    radius = number(match.group(2)) if match else None
    if match is None or radius is None or not 0 <= radius < float("inf"):
        raise InvalidInputError(f"require: expected {FORM}, got {text!r}")
    return match.group(1), radius
