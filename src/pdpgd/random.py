"""Random streams: named keys, and the global generators that models and other libraries draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

STREAMS: Mapping[str, int] = {
    "chunk": 5,
    "preflight": 9,
    "second start": 12,
    "noise": 2**32,
    "preflight noise": 2**33,
    "vote": 2**34,
}
"""Keys of the random streams of an evaluation, by what they are for. A key must never change: results depend on it."""


@contextmanager
def seeded_globally(*key: int, devices: Sequence[torch.device] | None = None) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and restore their state afterwards.

    Args:
        *key: Integers that determine the seed.
        devices: Devices whose generators are seeded; None for all GPUs.
    """
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
