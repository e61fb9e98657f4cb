"""Evaluating a chunk of samples: attack them in every norm, verify all points, and write the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.attacks.base import Observation
from pdpgd.classifier import Counted, Model
from pdpgd.evaluation.attack_call import faults_of, history_of, passes_of, run_attack
from pdpgd.evaluation.referee import NONE, Referee, as_pixels, from_pixels, pixel_sizes, quantized
from pdpgd.evaluation.sanity import cheap_points
from pdpgd.evaluation.tracking import (
    DistanceLog,
    SmallestPoints,
    SmallestPointsPerNorm,
    empty_trace,
    scattered,
    trace_rows,
)
from pdpgd.evaluation.vote import VotingReferee
from pdpgd.norms import norm_of
from pdpgd.random import STREAMS
from pdpgd.runs import records
from pdpgd.runs.stats import ChunkStats, JobResult, Passes

if TYPE_CHECKING:
    from pdpgd.evaluation.job import Job


@dataclass(frozen=True)
class OwnResult:
    """What the attack of one norm achieved by itself; each field has one row per sample of the chunk."""

    verdict: NDArray[Any]
    """Verdict of the referee on its point."""
    own_distance: NDArray[Any]
    """Distance of that point; inf unless it was verified and differs from the warm start."""
    late_gain: NDArray[Any]
    """Share of the distance that the last fifth of the iterations gained; nan if unknown."""
    forwards: NDArray[Any]
    """Forward passes that the attack reports."""
    backwards: NDArray[Any]
    """Backward passes that the attack reports."""
    trace: NDArray[Any]
    """Best distance so far, at `records.MARKS`."""

    @classmethod
    def empty(cls, count: int) -> OwnResult:
        """Return the result for samples of which none was attacked."""
        return cls(
            verdict=np.full(count, NONE, dtype=object),
            own_distance=np.full(count, np.inf),
            late_gain=np.full(count, np.nan),
            forwards=np.zeros(count, dtype=np.int64),
            backwards=np.zeros(count, dtype=np.int64),
            trace=empty_trace(count),
        )


class ChunkRun:
    """The execution of a job, whose inputs are on the device of the model."""

    def __init__(
        self, job: Job, model: Model, *, batch_size: int, seed: int, progress: Callable[[float], None] | None
    ) -> None:
        self.job, self.model, self.batch_size, self.seed, self.progress = job, model, batch_size, seed, progress
        self.norms = job.spec.norms
        self.draws = job.spec.draws
        self.referee = _referee(job, model, batch_size)
        self.clean = self.referee.judge_inputs()
        self.correct = ~self.clean.valid
        self.smallest = SmallestPointsPerNorm(self.norms, job.inputs, self.referee.sizes)
        self.counted = Counted(model)
        self.seconds: dict[str, float] = {}
        self.own: dict[str, OwnResult] = {}
        self.drift = 0.0
        """Difference of the logits of the inputs between before and after the attacks, in units of rounding errors."""
        self.faults: dict[str, str] = {}
        """Error messages of the attack, by the sample (position in the data set) and norm that it failed on."""

    def result(self, *, checks: bool, examples: bool) -> JobResult:
        """Execute the job.

        Args:
            checks: Run the cheap attacks and quantize the points to 8 bits as well.
            examples: Return the adversarial examples as well.

        Returns:
            The records with counts and timings.
        """
        for norm in self.norms:
            with self._timed(norm):
                self.own[norm] = self._attack(norm)
        cheap = dict.fromkeys(self.norms, self._none_found())
        eight_bit = SmallestPointsPerNorm(self.norms, as_pixels(self.job.inputs), self._pixel_size)
        if checks:
            with self._timed("cheap"):
                cheap = self._cheap()
            with self._timed("8 bit"):
                self._quantize(eight_bit)
        self.drift = self.referee.drift()
        parts = [self._columns(norm, cheap[norm], eight_bit[norm]) for norm in self.norms]
        stats = ChunkStats(
            seconds_by_stage=self.seconds,
            forwards=Passes(self.counted.forwards, self.referee.forwards),
            backwards=Passes(self.counted.backwards, self.referee.backwards),
            faults=self.faults,
        )
        arrays = self._examples(eight_bit if checks else None) if examples else {}
        return JobResult(stats, records.joined(parts), arrays)

    def _attack(self, norm: str) -> OwnResult:
        """Attack the correctly classified samples, with the best points of earlier norms as warm starts."""
        job, rows = self.job, self.correct.nonzero().flatten()
        count = len(self.correct)
        if len(rows) == 0:
            return OwnResult.empty(count)
        starts = self.smallest[norm].points[rows]
        log = DistanceLog()
        result = run_attack(
            job.attack,
            self.counted,
            job.inputs[rows],
            job.labels[rows],
            norm=norm,
            batch_size=self.batch_size,
            seed=self.seed,
            indices=job.indices[rows.cpu()],
            starts=starts,
            observe=self._observer(norm, log),
            draws=self.draws,
        )
        for place, fault in faults_of(result).items():
            self.faults[f"{int(job.indices[rows[place]])} ({norm})"] = fault
        points, claimed = job.inputs.clone(), torch.zeros_like(self.correct)
        points[rows], claimed[rows] = result.adversarials.detach().to(points), result.found.to(claimed)
        points = self.referee.steadied(points, claimed)
        verdicts = self.referee.judge(points, claimed)
        size = self.referee.sizes(points.nan_to_num(), norm)
        self.smallest.update(norm, points, verdicts)

        places = rows.cpu().numpy()
        own = OwnResult.empty(count)
        moved = torch.zeros_like(self.correct)
        moved[rows] = (points[rows] != starts).flatten(1).any(1)
        distance = size.masked_fill(~(verdicts.valid & moved), torch.inf).cpu().numpy()
        own.late_gain[places] = log.late_gain(len(rows), smallest=norm_of(norm).smallest)
        own.forwards[places] = passes_of(result, "forwards", len(rows), self.draws).numpy()
        own.backwards[places] = passes_of(result, "backwards", len(rows), self.draws).numpy()
        passes = own.forwards[places] + own.backwards[places]
        trace = trace_rows(history_of(result, self.draws), log.per_sample(len(rows)), passes, distance[places])
        return replace(
            own, verdict=verdicts.word.astype(object), own_distance=distance, trace=scattered(trace, places, count)
        )

    def _cheap(self) -> dict[str, NDArray[Any]]:
        """Run the cheap attacks; return the smallest size that one of them found, per norm.

        Only points that would improve on the present ones are judged, and replace them if they are verified.
        """
        least = {norm: torch.from_numpy(self._none_found()).to(self.correct.device) for norm in self.norms}
        found_by = cheap_points(
            self.referee,
            self.model,
            self.clean.prediction,
            self.correct,
            seed=self.seed,
            indices=self.job.indices,
        )
        for name, points, found in found_by:
            for norm in self.norms:
                size = self.referee.sizes(points, norm).masked_fill(~found, torch.inf)
                least[norm] = torch.minimum(least[norm], size)
            improving = found & self.smallest.improved_by(points)
            self.smallest.update(name, points, self.referee.judge(points, improving))
        return {norm: size.cpu().numpy() for norm, size in least.items()}

    def _quantize(self, eight_bit: SmallestPointsPerNorm) -> None:
        for norm in self.norms:
            smallest = self.smallest[norm]
            pixels, verdicts = quantized(self.referee, smallest.points, smallest.found, norm)
            eight_bit.update(norm, pixels, verdicts)

    def _pixel_size(self, pixels: Tensor, norm: str) -> Tensor:
        return pixel_sizes(pixels, as_pixels(self.job.inputs), norm)

    def _columns(self, norm: str, cheap: NDArray[Any], eight_bit: SmallestPoints) -> records.Columns:
        smallest, job = self.smallest[norm], self.job
        own, wrong = self.own[norm], ~self.correct
        rejected = (own.verdict != NONE) & ~smallest.found.cpu().numpy()
        status = np.full(len(wrong), records.NOT_FOOLED, dtype=object)
        status[rejected] = records.UNVERIFIED
        status[smallest.found.cpu().numpy()] = records.FOOLED
        status[wrong.cpu().numpy()] = records.INITIALLY_WRONG
        as_input = ~smallest.found
        sizes = {
            f"size_{name}": _zero_where(
                wrong, self.referee.sizes(smallest.points, name).masked_fill(as_input, torch.inf)
            )
            for name in records.MEASURED
        }
        return records.typed(
            {
                "sample": job.indices.numpy(),
                "label": job.labels.cpu().numpy(),
                "norm": np.full(len(wrong), norm, dtype=object),
                "status": status,
                "distance": _zero_where(wrong, smallest.size),
                "source": smallest.source,
                "prediction": torch.where(wrong, self.clean.prediction, smallest.prediction).cpu().numpy(),
                "margin": torch.where(as_input, self.clean.margin.double(), smallest.margin).cpu().numpy(),
                "fragile": torch.where(as_input, self.clean.fragile, smallest.fragile).cpu().numpy(),
                **sizes,
                "verdict": own.verdict,
                "own_distance": own.own_distance,
                "late_gain": own.late_gain,
                "forwards": own.forwards,
                "backwards": own.backwards,
                "cheap_distance": cheap,
                "distance_8bit": _zero_where(wrong, eight_bit.size),
                "fragile_8bit": eight_bit.fragile.cpu().numpy(),
                "prediction_8bit": torch.where(wrong, self.clean.prediction, eight_bit.prediction).cpu().numpy(),
                "confidence": torch.where(wrong, self.clean.confidence.double(), smallest.confidence).cpu().numpy(),
                "input_prediction": self.clean.prediction.cpu().numpy(),
                "input_confidence": self.clean.confidence.double().cpu().numpy(),
            }
        )

    def _examples(self, eight_bit: SmallestPointsPerNorm | None) -> dict[str, NDArray[Any]]:
        """Return what a report shows of the samples: inputs, adversarial examples and traces."""
        arrays = {"sample": self.job.indices.numpy(), "input": _compact(self.job.inputs)}
        for norm in self.norms:
            arrays[norm] = self.smallest[norm].points.cpu().numpy()
            arrays[f"{norm}_trace"] = self.own[norm].trace
            if eight_bit is not None:
                arrays[f"{norm}_8bit"] = eight_bit[norm].points.cpu().numpy()
        return arrays

    def _observer(self, norm: str, log: DistanceLog) -> Callable[[Observation], None]:
        place, progress = self.norms.index(norm), self.progress

        def observe(seen: Observation) -> None:
            log.record(seen)
            if progress is not None:
                progress((place + seen.done / max(seen.total, 1)) / len(self.norms))

        return observe

    def _none_found(self) -> NDArray[Any]:
        return np.full(len(self.correct), np.inf)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - begin


def _referee(job: Job, model: Model, batch_size: int) -> Referee:
    """Return the referee of a job; for several draws of a randomized model, one that lets draws of its own vote."""
    if job.spec.draws == 1:
        return Referee(model, job.inputs, job.labels, batch_size=batch_size)
    key = (job.spec.seed, int(job.indices[0]), STREAMS[job.kind], STREAMS["vote"])
    return VotingReferee(model, job.inputs, job.labels, batch_size=batch_size, draws=job.spec.draws, key=key)


def _compact(inputs: Tensor) -> NDArray[Any]:
    """Return the inputs as uint8 if that is lossless."""
    pixels = as_pixels(inputs)
    compact = pixels if torch.equal(from_pixels(pixels).to(inputs), inputs) else inputs
    return compact.cpu().numpy()


def _zero_where(wrong: Tensor, sizes: Tensor) -> NDArray[Any]:
    return sizes.masked_fill(wrong, 0.0).cpu().numpy()
