"""The samples of a job before the referee: attacked in each norm, by cheap means, and on the grid of 8 bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.attacks.contract import Observation
from pdpgd.classifier import Counted, Model
from pdpgd.evaluation import records
from pdpgd.evaluation.cheap import cheap_points
from pdpgd.evaluation.contestants import faults_of, spent
from pdpgd.evaluation.eight_bit import from_grey, grey, grid_sizes, on_grid
from pdpgd.evaluation.jobs import Job, Outcome, Progress
from pdpgd.evaluation.late_gain import LateGain
from pdpgd.evaluation.referee import NONE, Referee
from pdpgd.evaluation.standings import Standing, Standings
from pdpgd.evaluation.trace import nothing_traced, spread, traced
from pdpgd.norms import norm_of


class Trial:
    """A job under way, its inputs on the device of the model."""

    def __init__(self, job: Job, model: Model, *, batch_size: int, seed: int, progress: Progress | None) -> None:
        self.job, self.model, self.batch_size, self.seed, self.progress = job, model, batch_size, seed, progress
        self.norms = job.spec.norms
        self.referee = Referee(model, job.inputs, job.labels, batch_size=batch_size)
        self.clean = self.referee.judge_inputs()
        self.right = ~self.clean.valid
        self.standings = Standings(self.norms, job.inputs, self.referee.sizes)
        self.counted = Counted(model)
        self.seconds: dict[str, float] = {}
        self.own: dict[str, dict[str, NDArray[Any]]] = {}
        self.traces: dict[str, NDArray[Any]] = {}
        self.moved = 0.0
        """By how many roundings the logits of the inputs differ after the attacks from before."""
        self.faults: dict[str, str] = {}
        """Samples on which the attack itself broke, by place in the data set and norm, and how."""

    def outcome(self, *, checks: bool, examples: bool) -> Outcome:
        """`checks`: with the cheap attacks and the grid; `examples`: with the points themselves."""
        for norm in self.norms:
            with self._timed(norm):
                self.own[norm] = self._attack(norm)
        cheap = dict.fromkeys(self.norms, self._nothing())
        grid = Standings(self.norms, grey(self.job.inputs), self._grid_size)
        if checks:
            with self._timed("cheap"):
                cheap = self._cheap()
            with self._timed("8 bit"):
                self._to_grid(grid)
        self.moved = self.referee.drift()
        parts = [self._columns(norm, cheap[norm], grid[norm]) for norm in self.norms]
        facts = {
            "seconds_of": self.seconds,
            "forwards": {"attacks": self.counted.forwards, "checks": self.referee.forwards},
            "backwards": {"attacks": self.counted.backwards, "checks": self.referee.backwards},
            "faults": self.faults,
        }
        kept = self._kept(grid if checks else None) if examples else {}
        return Outcome(facts, records.joined(parts), kept)

    def _kept(self, grid: Standings | None) -> dict[str, NDArray[Any]]:
        """What a report shows of the samples: the inputs, the points, and how they came about."""
        kept = {"sample": self.job.indices.numpy(), "input": _compact(self.job.inputs)}
        for norm in self.norms:
            kept[norm] = self.standings[norm].points.cpu().numpy()
            kept[f"{norm}_trace"] = self.traces[norm]
            if grid is not None:
                kept[f"{norm}_8bit"] = grid[norm].points.cpu().numpy()
        return kept

    def _attack(self, norm: str) -> dict[str, NDArray[Any]]:
        """Let the attack try the samples that are right, from the best of the norms before; judge what it brings."""
        job, rows = self.job, self.right.nonzero().flatten()
        count = len(self.right)
        own: dict[str, NDArray[Any]] = {
            "verdict": np.full(count, NONE, dtype=object),
            "own_distance": np.full(count, np.inf),
            "late_gain": np.full(count, np.nan),
            "forwards": np.zeros(count, dtype=np.int64),
            "backwards": np.zeros(count, dtype=np.int64),
        }
        self.traces[norm] = nothing_traced(count)
        if len(rows) == 0:
            return own
        starts = self.standings[norm].points[rows]
        late = LateGain()
        result = job.contestant.attack(
            self.counted,
            self.job.inputs[rows],
            self.job.labels[rows],
            norm=norm,
            batch_size=self.batch_size,
            seed=self.seed,
            indices=job.indices[rows.cpu()],
            starts=starts,
            observe=self._observer(norm, late),
        )
        for place, fault in faults_of(result).items():
            self.faults[f"{int(job.indices[rows[place]])} ({norm})"] = fault
        points, claimed = self.job.inputs.clone(), torch.zeros_like(self.right)
        points[rows], claimed[rows] = result.adversarials.detach().to(points), result.found.to(claimed)
        verdicts = self.referee.judge(points, claimed)
        size = self.referee.sizes(points.nan_to_num(), norm)
        self.standings.enter(norm, points, verdicts)

        places = rows.cpu().numpy()
        fresh = torch.zeros_like(self.right)
        fresh[rows] = (points[rows] != starts).flatten(1).any(1)
        own["verdict"] = verdicts.word.astype(object)
        own["own_distance"] = size.masked_fill(~(verdicts.valid & fresh), torch.inf).cpu().numpy()
        own["late_gain"][places] = late.share(len(rows), smallest=norm_of(norm).smallest)
        for name in ("forwards", "backwards"):
            own[name][places] = spent(result, name, len(rows)).numpy()
        passes = own["forwards"][places] + own["backwards"][places]
        history, ends = getattr(result, "history", None), own["own_distance"][places]
        self.traces[norm] = spread(traced(history, late.courses(len(rows)), passes, ends), places, count)
        return own

    def _cheap(self) -> dict[str, NDArray[Any]]:
        """The least size a cheap attack found; those that would win are judged and may."""
        least = {norm: torch.from_numpy(self._nothing()).to(self.right.device) for norm in self.norms}
        found_by = cheap_points(
            self.referee,
            self.model,
            self.clean.prediction,
            self.right,
            seed=self.seed,
            indices=self.job.indices,
        )
        for name, points, found in found_by:
            for norm in self.norms:
                size = self.referee.sizes(points, norm).masked_fill(~found, torch.inf)
                least[norm] = torch.minimum(least[norm], size)
            contenders = found & self.standings.beaten_by(points)
            self.standings.enter(name, points, self.referee.judge(points, contenders))
        return {norm: size.cpu().numpy() for norm, size in least.items()}

    def _to_grid(self, grid: Standings) -> None:
        for norm in self.norms:
            standing = self.standings[norm]
            pixels, verdicts = on_grid(self.referee, standing.points, standing.found, norm)
            grid.enter(norm, pixels, verdicts)

    def _grid_size(self, pixels: Tensor, norm: str) -> Tensor:
        return grid_sizes(pixels, grey(self.job.inputs), norm)

    def _columns(self, norm: str, cheap: NDArray[Any], grid: Standing) -> records.Columns:
        standing, job = self.standings[norm], self.job
        own, wrong = self.own[norm], ~self.right
        refused = (own["verdict"] != NONE) & ~standing.found.cpu().numpy()
        status = np.full(len(wrong), records.NOT_FOOLED, dtype=object)
        status[refused] = records.UNVERIFIED
        status[standing.found.cpu().numpy()] = records.FOOLED
        status[wrong.cpu().numpy()] = records.INITIALLY_WRONG
        as_input = ~standing.found
        sizes = {
            f"size_{name}": _zero_where(
                wrong, self.referee.sizes(standing.points, name).masked_fill(as_input, torch.inf)
            )
            for name in records.MEASURED
        }
        return records.typed(
            {
                "sample": job.indices.numpy(),
                "label": job.labels.cpu().numpy(),
                "norm": np.full(len(wrong), norm, dtype=object),
                "status": status,
                "distance": _zero_where(wrong, standing.size),
                "source": standing.source,
                "prediction": torch.where(wrong, self.clean.prediction, standing.prediction).cpu().numpy(),
                "margin": torch.where(as_input, self.clean.margin.double(), standing.margin).cpu().numpy(),
                "fragile": torch.where(as_input, self.clean.fragile, standing.fragile).cpu().numpy(),
                **sizes,
                **own,
                "cheap_distance": cheap,
                "distance_8bit": _zero_where(wrong, grid.size),
                "fragile_8bit": grid.fragile.cpu().numpy(),
                "prediction_8bit": torch.where(wrong, self.clean.prediction, grid.prediction).cpu().numpy(),
                "confidence": torch.where(wrong, self.clean.confidence.double(), standing.confidence).cpu().numpy(),
                "input_prediction": self.clean.prediction.cpu().numpy(),
                "input_confidence": self.clean.confidence.double().cpu().numpy(),
            }
        )

    def _observer(self, norm: str, late: LateGain) -> Callable[[Observation], None]:
        place, progress = self.norms.index(norm), self.progress

        def observe(seen: Observation) -> None:
            late.watch(seen)
            if progress is not None:
                progress((place + seen.done / max(seen.total, 1)) / len(self.norms))

        return observe

    def _nothing(self) -> NDArray[Any]:
        return np.full(len(self.right), np.inf)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[what] = time.perf_counter() - begin


def _compact(inputs: Tensor) -> NDArray[Any]:
    """Images of 8 bits as such, if that loses nothing."""
    pixels = grey(inputs)
    compact = pixels if torch.equal(from_grey(pixels).to(inputs), inputs) else inputs
    return compact.cpu().numpy()


def _zero_where(wrong: Tensor, sizes: Tensor) -> NDArray[Any]:
    return sizes.masked_fill(wrong, 0.0).cpu().numpy()
