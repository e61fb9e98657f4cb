"""A run whose model and classes have names that are HTML code, which a report must escape."""

from __future__ import annotations

from dataclasses import replace

import torch

from pdpgd import Evaluation, evaluate
from support.models import TinyConv

EVIL = "<script>alert(1)</script>"


def evaluated_under_an_evil_name() -> Evaluation:
    generator = torch.Generator().manual_seed(1)
    model = type(EVIL, (TinyConv,), {})(generator)
    images = torch.rand(6, 3, 6, 6, generator=generator)
    run = evaluate(model, (images, model(images).argmax(1)), norms=["l2"], budget=10, threads=1)
    assert EVIL in run.spec.model["source"]
    classes = [f'"{EVIL}<img src=x onerror=alert({place})>' for place in range(5)]
    return replace(run, spec=replace(run.spec, data={**run.spec.data, "classes": classes}))
