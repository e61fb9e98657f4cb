"""Chance that is not ours, of a model or of another library's attack: it comes from the global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded_globally(*key: int, devices: Sequence[torch.device] | None = None) -> Iterator[None]:
    """The generators of torch, NumPy and Python, seeded by these numbers and put back; all GPUs, or these devices."""
    (seed,) = np.random.SeedSequence(key).generate_state(1)
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(seed))
            np.random.seed(seed)
            random.seed(int(seed))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
