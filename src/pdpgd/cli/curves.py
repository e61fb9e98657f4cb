"""Curves of robust accuracy as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pdpgd.extras import need

if TYPE_CHECKING:
    from pdpgd.evaluation.metrics import Curve

WIDTH, HEIGHT = 80, 12
POINTS = 120
# The last few samples would squeeze the rest of the curve to the left.
SHOWN = 0.98


def drawn(curves: Mapping[str, Curve]) -> str:
    """Two curves in a row, each over its own radii."""
    plotext: Any = need("plotext", extra="cli", purpose="the plot of the curves")
    rows = (len(curves) + 1) // 2
    figure = plotext.figure
    figure.clear()
    figure.plot_size(WIDTH if len(curves) > 1 else WIDTH // 2, rows * HEIGHT)
    if len(curves) > 1:
        figure.subplots(rows, 2)
    for place, (norm, curve) in enumerate(curves.items()):
        plot = figure.subplot(place // 2 + 1, place % 2 + 1) if len(curves) > 1 else figure
        plot.draw(plot.signal(*_stairs(curve), marker="braille").lines())
        plot.title(f"{norm}: robust accuracy in %, by radius")
        plot.ruler("y").lim(0, 100)
        plot.ruler("y").ticks([0, 25, 50, 75, 100])
    # Without its colours: they would paint a white field into a dark terminal.
    text: str = plotext.uncolorize(str(figure.build()))
    return "\n".join(line.rstrip() for line in text.splitlines())


def _stairs(curve: Curve) -> tuple[list[float], list[float]]:
    import numpy as np

    fallen = curve.accuracy[0] * (1 - SHOWN)
    beyond = np.flatnonzero(curve.accuracy <= max(fallen, curve.accuracy[-1]))
    right = float(curve.radius[beyond[0]]) if len(beyond) else float(curve.radius[-1])
    radius = np.linspace(0.0, right or 1.0, POINTS)
    at = np.searchsorted(curve.radius, radius, side="right") - 1
    return radius.tolist(), (100 * curve.accuracy[at]).tolist()
