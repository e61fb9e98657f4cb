"""Batch-shape helpers, and the public face of pdpgd.proximal."""

from __future__ import annotations

import pytest
import torch

from pdpgd import proximal
from pdpgd.tensors import clip, flat, length, per_sample


@pytest.mark.parametrize("ndim", [2, 3, 4])
def test_one_value_per_sample_gets_a_dimension_for_each_of_the_tensor(ndim: int) -> None:
    like = torch.ones(3, *[2] * (ndim - 1))
    assert per_sample(torch.arange(3.0), like).shape == (3, *[1] * (ndim - 1))
    assert torch.equal((like * per_sample(torch.arange(3.0), like)).flatten(1).amax(1), torch.arange(3.0))


def test_numbers_and_full_tensors_keep_their_shape_and_take_the_dtype() -> None:
    like = torch.ones(3, 2, 2, dtype=torch.float64)
    assert per_sample(2, like).shape == ()
    assert per_sample(torch.ones(3, 1, 2), like).shape == (3, 1, 2)
    assert {per_sample(w, like).dtype for w in (2, torch.ones(3), torch.ones(3, 1, 2))} == {torch.float64}


def test_flat_keeps_the_batch() -> None:
    assert flat(torch.ones(3, 2, 4)).shape == (3, 8)
    assert flat(torch.tensor(1.0)).shape == ()


def test_clip_is_clamp() -> None:
    v, low, high = torch.linspace(-2, 2, 9)[None], -torch.ones(1, 1), torch.linspace(0, 1, 9)[None]
    assert torch.equal(clip(v, low, high), v.clamp(low, high))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_length_neither_overflows_nor_vanishes(scale: float) -> None:
    assert length(torch.tensor([[3.0, 4.0]]) * scale, 1).tolist() == [
        [pytest.approx(5 * scale, rel=8 * torch.finfo(torch.float32).eps)]
    ]


def test_every_public_operator_is_exported_and_opens_with_its_meaning() -> None:
    modules = [getattr(proximal, name) for name in ("simplex", "balls", "convex", "sparse", "metric", "box")]
    written = {name for m in modules for name in vars(m) if name.startswith(("prox_", "project_"))}
    assert set(proximal.__all__) == written
    for name in proximal.__all__:
        doc = getattr(proximal, name).__doc__ or ""
        assert doc.startswith(("Return argmin_z", "Apply the paper's pixel rule", "Approximate argmin_z")), name
