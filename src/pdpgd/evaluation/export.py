"""Exporting adversarial examples as PNG files that are still adversarial when they are read back."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import InvalidInputError, need
from pdpgd.files import check_file, make_folder, output_path, replace_file
from pdpgd.runs.result import Evaluation

INDEX = "index.csv"
HEADINGS = ("file", "sample", "norm", "label", "prediction", "distance", "fragile")


def export(
    evaluation: Evaluation, folder: str | Path, *, norms: tuple[str, ...] | None = None, limit: int | None = None
) -> int:
    """Write the adversarial examples of a run as PNG files, with an index.csv.

    The files hold the adversarial examples that were verified at 8 bits. Samples without one, and those that were
    misclassified before the attack, are omitted.

    Args:
        evaluation: A run with checks.
        folder: Directory to write to.
        norms: Norms of the run to export; all by default.
        limit: Maximum number of files per norm.

    Returns:
        The number of images written.

    Raises:
        InvalidInputError: The run has no adversarial examples at 8 bits, or images that a PNG cannot hold.
        MissingExtraError: Pillow is not installed.

    Example:
        >>> export(load_evaluation("runs/mnist"), "pictures", norms=("l2",))  # doctest: +SKIP
    """
    pillow = need("PIL.Image", extra="data", purpose="writing PNG files")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidInputError(f"limit: expected an integer >= 1, got {limit!r}")
    place = output_path(folder)
    check_file(place / INDEX)
    rows: list[tuple[Any, ...]] = []
    for norm in norms or evaluation.norms:
        distance = evaluation.distances(norm, eight_bit=True)
        pixels = evaluation.examples(norm, eight_bit=True)
        chosen = np.flatnonzero((distance > 0) & np.isfinite(distance))[:limit]
        sample, label = evaluation.column("sample", norm), evaluation.column("label", norm)
        prediction, fragile = evaluation.column("prediction_8bit", norm), evaluation.column("fragile_8bit", norm)
        for row in chosen.tolist():
            name = f"{norm}/{sample[row]:06d}.png"
            _write(place / name, _png(pillow, pixels[row]))
            rows.append((name, sample[row], norm, label[row], prediction[row], distance[row], fragile[row]))
    if not rows:
        asked = ", ".join(norms or evaluation.norms)
        raise InvalidInputError(
            f"run: expected adversarial examples in {asked}, verified at 8 bits, got none: nothing was written"
        )
    text = io.StringIO()
    csv.writer(text).writerows([HEADINGS, *rows])
    _write(place / INDEX, text.getvalue().encode())
    return len(rows)


def _png(pillow: Any, pixels: NDArray[Any]) -> bytes:
    channels = len(pixels)
    if channels not in (1, 3):
        raise InvalidInputError(f"expected images of 1 or 3 channels, which a PNG can hold, got {channels}")
    image = pillow.fromarray(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    replace_file(path, content)
