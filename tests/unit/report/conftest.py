"""Small runs to report on, computed once, since no test changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pdpgd import Comparison, Evaluation, compare, evaluate
from pdpgd.runs import records
from support.models import TinyConv

SAMPLES = 14


def problem(seed: int = 1) -> tuple[TinyConv, tuple[torch.Tensor, torch.Tensor]]:
    """A net, and 8-bit images of which it classifies all but one correctly."""
    generator = torch.Generator().manual_seed(seed)
    model = TinyConv(generator)
    images = torch.randint(0, 256, (SAMPLES, 3, 6, 6), generator=generator).float().div(255)
    labels = model(images).argmax(1)
    labels[3] = (labels[3] + 1) % 5
    return model, (images, labels)


@pytest.fixture(scope="session")
def evaluation() -> Evaluation:
    model, data = problem()
    return evaluate(model, data, norms=["linf", "l0"], budget=20, chunk_size=5, threads=1)


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    model, data = problem()
    return compare(model, data, norms=["l2"], attacks=["auto", "pdpgd", "pgd", "fmn"], budget=20, threads=1)


@pytest.fixture(scope="session")
def changed(evaluation: Evaluation) -> Callable[..., Evaluation]:
    """The run with other distances, names or data, as another model or another run would have them."""

    def change(
        *,
        distances: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
    ) -> Evaluation:
        spec = replace(
            evaluation.spec,
            model={**evaluation.spec.model, **(model or {})},
            data={**evaluation.spec.data, **(data or {})},
        )
        columns = {name: column.copy() for name, column in evaluation.columns.items()}
        for norm, values in (distances or {}).items():
            where = columns["norm"] == norm
            values = np.broadcast_to(np.asarray(values, dtype=float), where.sum())
            columns["distance"][where] = values
            status = np.where(values == 0, records.INITIALLY_WRONG, records.FOOLED)
            columns["status"][where] = np.where(np.isinf(values), records.NOT_FOOLED, status)
        return replace(evaluation, spec=spec, columns=columns)

    return change
