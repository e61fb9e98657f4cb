"""Was the attack still getting better when it had to stop?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.attacks.contract import Observation
from pdpgd.errors import AttackError

# The gain in this last share of a sample's iterations is what is reported.
LAST = 0.2


class LateGain:
    """Watches an attack's iterations, sample by sample."""

    def __init__(self) -> None:
        self._samples: list[Tensor] = []
        self._sizes: list[Tensor] = []

    def watch(self, seen: Observation) -> None:
        for name in ("samples", "size"):
            if not isinstance(getattr(seen, name, None), Tensor):
                raise AttackError(f"observe: expected an observation with the tensor {name}, got {type(seen).__name__}")
        if seen.samples.ndim != 1 or seen.samples.is_floating_point() or seen.size.shape != seen.samples.shape:
            raise AttackError(
                "observe: expected the places of some samples and as many sizes, got "
                f"{tuple(seen.samples.shape)} of {seen.samples.dtype} and {tuple(seen.size.shape)}"
            )
        # Copies: an attack may keep its best in one tensor and write to it as it goes.
        self._samples.append(seen.samples.clone())
        self._sizes.append(seen.size.clone())

    def share(self, samples: int, *, smallest: float) -> NDArray[np.float64]:
        """1 - (best at the end) / (best before the last fifth), of each sample; nan where nothing was seen or found.

        A sample at the smallest possible size was not stopped, it was done.
        """
        gains = np.full(samples, np.nan)
        for sample, mine in enumerate(self.courses(samples)):
            if len(mine) == 0 or np.isinf(mine.min()):
                continue
            before = mine[: max(1, int(np.ceil((1 - LAST) * len(mine))))].min()
            gains[sample] = 0.0 if mine.min() <= smallest else 1.0 - mine.min() / before
        return gains

    def courses(self, samples: int) -> list[NDArray[Any]]:
        """The sizes that were seen of each sample, in their order."""
        if not self._samples:
            return [np.empty(0)] * samples
        rows = np.concatenate([part.cpu().numpy() for part in self._samples])
        if len(rows) and not 0 <= rows.min() <= rows.max() < samples:
            raise AttackError(
                f"observe: expected samples 0 to {samples - 1}, places in the call, got {rows.min()} to {rows.max()}"
            )
        sizes = np.concatenate([part.detach().double().cpu().numpy() for part in self._sizes])
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], np.arange(1, samples))
        return np.split(sizes[order], bounds)
