"""The lines of the paper's two kinds of figures, norm by norm and model by model; drawn on paper and on the page."""

from __future__ import annotations

from collections.abc import Callable

from pdpgd.experiments.results import Cell, Results, Role
from pdpgd.report.names import attack_name

Point = tuple[float, float]

Panels = dict[tuple[str, str], dict[str, list[Point]]]
"""By norm and model: the lines by name, in the order of the spec."""


def over_restarts(results: Results, dataset: str) -> Panels:
    """Mean distance against restarts."""

    def point(cell: Cell) -> Point | None:
        return None if cell.mean_distance is None else (float(cell.restarts or 1), cell.mean_distance)

    return _panels(results, dataset, "restarts", lambda cell: attack_name(cell.attack), point)


def over_queries(results: Results, dataset: str) -> Panels:
    """Mean robust accuracy over the radii, in per cent, against gradients a sample."""

    def line(cell: Cell) -> str:
        return attack_name(cell.attack) + ("" if cell.penalty is None else f", C = {cell.penalty:g}")

    def point(cell: Cell) -> Point | None:
        if cell.gradients is None or not cell.robust_accuracy:
            return None
        return float(cell.gradients), 100 * sum(cell.robust_accuracy) / len(cell.robust_accuracy)

    return _panels(results, dataset, "queries", line, point)


def _panels(
    results: Results, dataset: str, role: Role, line: Callable[[Cell], str], point: Callable[[Cell], Point | None]
) -> Panels:
    panels: Panels = {}
    for cell in results.of(role, dataset=dataset):
        place = None if cell.failure is not None else point(cell)
        if place is not None:
            panels.setdefault((cell.norm, cell.model), {}).setdefault(line(cell), []).append(place)
    return panels
