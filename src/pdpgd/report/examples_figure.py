"""The paper's figure of adversarial examples: one attack, all norms and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import PdpgdError, UnknownNameError, need
from pdpgd.experiments.results import JOBS, Cell, Results
from pdpgd.report.wording import OURS, norm_name
from pdpgd.runs.result import load_evaluation

# Side of an image in inches, and space for the row labels in multiples of it.
SIDE = 0.42
MARGIN = 1.35
# Images up to this side, in pixels, are drawn without smoothing.
SMALL = 64


class _Strip(NamedTuple):
    """A row of the figure: a model in a norm."""

    model: str
    norm: str
    images: NDArray[Any]
    fooled: NDArray[np.bool_]
    """Which samples were correctly classified and fooled, and so have an adversarial example."""


def shown_attack(results: Results, dataset: str) -> str | None:
    """Choose the attack whose adversarial examples are drawn.

    Args:
        results: The results of an experiment.
        dataset: Name of one of its data sets.

    Returns:
        The label of the attack that the spec names; else PDPGD with the most restarts, else another of our attacks,
        else the first. None if it has no runs.
    """
    cells = [cell for cell in results.of("table", dataset=dataset) if cell.failure is None and cell.id]
    if results.examples is not None:
        cells = [cell for cell in cells if cell.label == results.examples]
    order = ["pdpgd", *(name for name in OURS if name != "pdpgd")]

    def rank(cell: Cell) -> tuple[int, int]:
        return (order.index(cell.attack) if cell.attack in order else len(order), -(cell.restarts or 1))

    return min(cells, key=rank).label if cells else None


def draw_examples(
    results: Results, folder: str | Path, attack_label: str, dataset: str, count: int = 10, seed: int = 0
) -> Any:
    """Draw inputs, and below them the adversarial examples for each model and norm.

    Args:
        results: The results of an experiment.
        folder: Directory of the experiment.
        attack_label: The attack, as NAME or NAME:RESTARTS.
        dataset: Name of one of the data sets.
        count: Number of samples; those fooled in the most rows are preferred.
        seed: Random seed for the choice of the samples.

    Returns:
        A matplotlib figure; None if no run has stored examples of images.

    Raises:
        UnknownNameError: The attack was not run on the data set.
    """
    cells = [cell for cell in results.of("table", dataset=dataset) if cell.label == attack_label]
    if not cells:
        known = {cell.label for cell in results.of("table", dataset=dataset)}
        raise UnknownNameError(f"attack of the experiment on {dataset}", attack_label, known)
    inputs: NDArray[Any] | None = None
    strips: dict[tuple[str, str], _Strip] = {}
    for cell in cells:
        read = _read(Path(folder).expanduser() / JOBS / cell.id, cell) if cell.id and cell.failure is None else None
        if read is not None:
            inputs, strips[cell.model, cell.norm] = read
    if inputs is None or inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        return None
    order = [(model, norm) for model in results.dataset(dataset).models for norm in results.norms]
    rows = [strips[place] for place in order if place in strips]
    return _drawn(inputs, rows, _chosen(rows, len(inputs), count, seed))


def _read(folder: Path, cell: Cell) -> tuple[NDArray[Any], _Strip] | None:
    """The inputs and adversarial examples of a run; None if it is missing or has no inputs."""
    try:
        run = load_evaluation(folder)
    except PdpgdError:
        return None
    inputs = run.inputs()
    if inputs is None:
        return None
    distances = run.own_distances(cell.norm)
    return inputs, _Strip(cell.model, cell.norm, run.examples(cell.norm), (distances > 0) & np.isfinite(distances))


def _chosen(rows: list[_Strip], samples: int, count: int, seed: int) -> list[int]:
    """Choose samples at random among those fooled in the most rows; in increasing order."""
    times = np.sum([row.fooled for row in rows], axis=0)
    chance = np.random.default_rng(seed).random(samples)
    return sorted(np.lexsort((chance, -times))[:count].tolist())


def _drawn(inputs: NDArray[Any], rows: list[_Strip], chosen: list[int]) -> Any:
    """Draw the rows; samples that were not fooled are left blank."""
    models = list(dict.fromkeys(row.model for row in rows))
    gap = 0.35
    height = 1 + len(rows) + gap * len(models)
    width = len(chosen) + MARGIN
    module = need("matplotlib.figure", extra="report", purpose="a figure")
    figure = module.Figure(figsize=(SIDE * width, SIDE * height))

    interpolation = "nearest" if max(inputs.shape[2:]) <= SMALL else "antialiased"

    def place(images: NDArray[Any], shown: NDArray[np.bool_], top: float, label: str) -> None:
        bottom = 1 - (top + 1) / height
        figure.text((MARGIN - 0.12) / width, bottom + 0.5 / height, label, ha="right", va="center", fontsize=8)
        for column, sample in enumerate(chosen):
            axes = figure.add_axes(((MARGIN + column) / width, bottom, 0.96 / width, 0.96 / height))
            axes.set_axis_off()
            if shown[sample]:
                image = np.clip(images[sample].transpose(1, 2, 0), 0, 1)
                axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation=interpolation)

    place(inputs, np.ones(len(inputs), dtype=np.bool_), 0, "input")
    top = 1.0
    for model in models:
        top += gap
        own = [row for row in rows if row.model == model]
        middle = 1 - (top + len(own) / 2) / height
        name = model.replace("$", r"\$")
        figure.text(0.3 / width, middle, name, ha="center", va="center", rotation="vertical", fontsize=8)
        for row in own:
            place(row.images, row.fooled, top, norm_name(row.norm))
            top += 1
    return figure
