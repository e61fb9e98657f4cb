"""Where on the curves a page reads robust accuracy off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.errors import InvalidInputError
from pdpgd.evaluation import metrics
from pdpgd.presets import PAPER_RADII, paper_case
from pdpgd.report import wording
from pdpgd.report.sources import Source, Subject

# Where nobody gives radii: those within which these shares of the right samples are fooled.
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Marks:
    """Radii of a norm, the smallest first."""

    radii: tuple[float, ...]
    origin: str
    """Whose they are: "the dotted lines mark ..."."""

    @property
    def middle(self) -> float:
        """The one that a headline is about."""
        return self.radii[len(self.radii) // 2]


def marks_of(subject: Subject, given: Mapping[str, Sequence[float]]) -> dict[str, Marks]:
    """For every norm of the page that has any: asked for, else the comparison's, else the paper's, else quantiles."""
    check(given, subject.norms)
    return {norm: marks for norm in subject.norms if (marks := _marks(subject, norm, given.get(norm, ()))).radii}


def check(given: Mapping[str, Sequence[float]], norms: Sequence[str]) -> None:
    for norm, radii in given.items():
        if norm not in norms:
            raise InvalidInputError(f"radii: expected norms of the report, {', '.join(norms)}, got {norm!r}")
        if not all(isinstance(radius, int | float) and 0 < radius < np.inf for radius in radii):
            raise InvalidInputError(f"radii: expected numbers above 0, got {', '.join(map(str, radii))} for {norm}")


def _marks(subject: Subject, norm: str, given: Sequence[float]) -> Marks:
    if given:
        return Marks(tuple(sorted({float(radius) for radius in given})), "the radii that were asked for")
    sources = [source for source in subject.sources if norm in source.norms]
    compared = {tuple(source.comparison.radii.get(norm, ())) for source in sources if source.comparison is not None}
    if len(compared) == 1 and all(source.comparison is not None for source in sources):
        return Marks(compared.pop(), "the radii of the comparison")
    papers = {_papers(source, norm) for source in sources}
    if len(papers) == 1 and (radii := papers.pop()):
        return Marks(radii, "the paper's radii for this net")
    everything = np.concatenate([source.distances(norm) for source in sources])
    found = {float(f"{metrics.quantile(everything, share):.2g}") for share in QUANTILES}
    shares = wording.listed([f"{100 * share:.0f}" for share in QUANTILES])
    return Marks(
        tuple(sorted(filter(np.isfinite, found))), f"the radii within which {shares}% of the right samples are fooled"
    )


def _papers(source: Source, norm: str) -> tuple[float, ...]:
    """The paper's radii, where the names of model and data say which net of the paper this one is like."""
    spec = source.evaluation.spec
    model, data = str(spec.model["source"]), str(spec.data["name"])
    case = paper_case(model, data)
    return () if case is None else PAPER_RADII.get((case[0], norm, case[1]), ())
