"""Randomness that belongs to a sample, not to the batch it happens to be in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pdpgd.attacks.problem import Problem


def random_rows(problem: Problem, samples: Tensor, restarts: Tensor, step: int = 0) -> Tensor:
    """Uniform in [-1, 1), shaped as the inputs, drawn from (seed, index of the sample, restart, step) on the CPU.

    So the draw is the same in any batch and on any device.
    """
    shape = problem.inputs.shape[1:]
    dtype = np.float64 if problem.inputs.dtype == torch.float64 else np.float32
    draws = np.empty((len(samples), *shape), dtype)
    keys = zip(problem.indices[samples.cpu()].tolist(), restarts.tolist(), strict=True)
    for row, (index, restart) in enumerate(keys):
        np.random.default_rng((problem.seed, index, restart, step)).random(out=draws[row], dtype=dtype)
    return torch.from_numpy(draws).mul_(2).sub_(1).to(problem.inputs.device)
