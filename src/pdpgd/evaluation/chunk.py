"""The smallest verified point of every sample in every norm, whichever attack it is from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.attacks.base import History, Observation
from pdpgd.classifier import Counted, Model
from pdpgd.errors import AttackError
from pdpgd.evaluation.attack_call import faults_of, passes_of, run_attack
from pdpgd.evaluation.referee import NONE, Referee, Verdicts, from_grey, grey, grid_sizes, on_grid
from pdpgd.evaluation.sanity import cheap_points
from pdpgd.norms import norm_of
from pdpgd.runs import records
from pdpgd.runs.records import MARKS
from pdpgd.runs.stats import ChunkStats, JobResult, Passes

if TYPE_CHECKING:
    from pdpgd.evaluation.job import Job

Measure = Callable[[Tensor, str], Tensor]
"""(points, norm) -> the size of each."""


class Standing:
    """One norm's best points so far; size inf where there is none."""

    def __init__(self, points: Tensor) -> None:
        count = len(points)
        self.points = points.clone()
        self.size = torch.full((count,), torch.inf, dtype=torch.float64, device=points.device)
        self.margin = points.new_full((count,), torch.inf, dtype=torch.float64)
        self.prediction = torch.full((count,), -1, device=points.device)
        self.fragile = torch.zeros(count, dtype=torch.bool, device=points.device)
        self.confidence = points.new_full((count,), torch.nan, dtype=torch.float64)
        self.source = np.full(count, "", dtype=object)

    @property
    def found(self) -> Tensor:
        return self.size.isfinite()

    def enter(self, source: str, points: Tensor, size: Tensor, verdicts: Verdicts) -> None:
        """Take each verified point that is smaller than what there is."""
        better = verdicts.valid & (size < self.size)
        self.points[better], self.size[better] = points[better], size[better]
        self.margin[better], self.prediction[better] = verdicts.margin[better].double(), verdicts.prediction[better]
        self.fragile[better], self.confidence[better] = verdicts.fragile[better], verdicts.confidence[better].double()
        self.source[better.cpu().numpy()] = source


class Standings:
    """Every point is measured in every norm, whichever it was looked for in."""

    def __init__(self, norms: tuple[str, ...], points: Tensor, measure: Measure) -> None:
        self._measure = measure
        self._norms = {norm: Standing(points) for norm in norms}

    def __getitem__(self, norm: str) -> Standing:
        return self._norms[norm]

    def enter(self, source: str, points: Tensor, verdicts: Verdicts) -> None:
        for norm, standing in self._norms.items():
            standing.enter(source, points, self._measure(points, norm), verdicts)

    def beaten_by(self, points: Tensor) -> Tensor:
        """Which points would be smaller than what there is, in any norm."""
        smaller = [self._measure(points, norm) < standing.size for norm, standing in self._norms.items()]
        return torch.stack(smaller).any(0)


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


def traced(
    history: History | None, courses: Sequence[NDArray[Any]], passes: NDArray[Any], ends: NDArray[Any]
) -> NDArray[Any]:
    """Rows of the best so far at the marks, up to `ends`, what was had with all passes.

    An attack that keeps a history says with how many passes it found what. One that only lets its iterations be seen
    has its passes spread evenly over them.
    """
    last = int(np.searchsorted(MARKS, passes.max(initial=1)))
    marks = MARKS[: last + 1]
    rows = np.full((len(passes), len(marks)), np.nan, dtype=np.float32)
    for row, (course, spent, end) in enumerate(zip(courses, passes, ends, strict=True)):
        if history is not None:
            at, sizes = (column[row].detach().double().cpu().numpy() for column in (history.passes, history.distances))
        elif len(course) and spent > 0:
            at = spent * np.arange(1, len(course) + 1) / len(course)
            sizes = np.minimum.accumulate(course)
        else:
            continue
        seen = np.searchsorted(at, marks, side="right") - 1
        sofar = np.where(seen >= 0, sizes[np.maximum(seen, 0)], np.inf)
        # The last point of all is judged after the last iteration that was seen.
        rows[row] = np.where(marks >= spent, np.minimum(sofar, end), sofar)
    return rows


def nothing_traced(samples: int) -> NDArray[Any]:
    return np.full((samples, 1), np.nan, dtype=np.float32)


def spread(rows: NDArray[Any], places: NDArray[Any], samples: int) -> NDArray[Any]:
    """The rows at their places among all samples."""
    every = np.full((samples, rows.shape[1]), np.nan, dtype=np.float32)
    every[places] = rows
    return every


class ChunkRun:
    """A job under way, its inputs on the device of the model."""

    def __init__(
        self, job: Job, model: Model, *, batch_size: int, seed: int, progress: Callable[[float], None] | None
    ) -> None:
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
        self.drift = 0.0
        """By how many roundings the logits of the inputs differ after the attacks from before."""
        self.faults: dict[str, str] = {}
        """Samples on which the attack itself broke, by place in the data set and norm, and how."""

    def result(self, *, checks: bool, examples: bool) -> JobResult:
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
        self.drift = self.referee.drift()
        parts = [self._columns(norm, cheap[norm], grid[norm]) for norm in self.norms]
        stats = ChunkStats(
            seconds_by_stage=self.seconds,
            forwards=Passes(self.counted.forwards, self.referee.forwards),
            backwards=Passes(self.counted.backwards, self.referee.backwards),
            faults=self.faults,
        )
        shown = self._examples(grid if checks else None) if examples else {}
        return JobResult(stats, records.joined(parts), shown)

    def _examples(self, grid: Standings | None) -> dict[str, NDArray[Any]]:
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
        result = run_attack(
            job.attack,
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
            own[name][places] = passes_of(result, name, len(rows)).numpy()
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
