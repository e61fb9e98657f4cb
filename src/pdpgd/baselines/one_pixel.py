"""One-Pixel (Su, Vargas & Sakurai 2019): differential evolution over the positions and values of a few pixels.

    child_i = a + F (b - c),    a, b, c three of the population,    child_i replaces parent_i if it is fitter

A candidate consists of `count` genes, each the position of a pixel and a value for each of its channels; its fitness is
the margin of the model. There is no crossover, and only forward passes are needed. If two genes meet on a pixel, the
first counts, and fewer pixels change.

The authors of PDPGD ran the PixelAttack of ART, which evolves differently (strategy "best"):

    child_i = best + F (b - c),    F uniform in [1/2, 1) and the same for a generation,    b, c two others than i

The first generation is a Latin hypercube, values that leave their range are redrawn, and the fitness is the logit of
the label. Here any adversarial candidate ends the search, and values are not quantized to 8 bits; ART examines only the
fittest candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdpgd.attacks.base import Problem
from pdpgd.attacks.best import Best
from pdpgd.attacks.frame import Task, batches
from pdpgd.attacks.info import PaperSetup, Settings
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.criteria import Criterion
from pdpgd.errors import UnknownNameError, expect_setting

STRATEGIES = ("rand", "best")
# Candidates per generation within a budget; with the paper's 400 there would be no generations.
BUDGET_POPULATION = 20


@dataclass(frozen=True, kw_only=True)
class OnePixel(Preparable):
    """One-Pixel as an attack within an l0 ball: the radius, rounded down, is the maximum number of changed pixels."""

    population: int = 400
    """Candidates per sample. Su et al.: 400."""
    generations: int = 100
    """Maximum number of generations after the first, which is drawn at random. Su et al.: 100."""
    strategy: str = "rand"
    """What a child derives from: a random candidate ("rand", Su et al.) or the fittest ("best", ART and the paper)."""
    scale: float = 0.5
    """F, the weight of the difference in the strategy "rand". Su et al.: 0.5."""
    max_rows: int = 128
    """Maximum number of candidates per call of the model, and, unless the population is larger, in memory. On a CPU, a
    candidate for a LeNet-5 costs 0.35 ms in calls of 128 and 0.75 ms in calls of 1024."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UnknownNameError("strategy", self.strategy, STRATEGIES)
        for name, least in (("population", 3), ("generations", 1), ("max_rows", 1)):
            value = getattr(self, name)
            expect_setting(self, name, f"an integer of at least {least}", isinstance(value, int) and value >= least)
        expect_setting(self, "scale", "above 0", self.scale > 0)

    @classmethod
    def within(cls, budget: Budget) -> Settings:
        """Spend the budget on generations of a small population.

        The first generation is drawn at random, and costs as much as the others. The strategy is that of Su et al. Mean
        pixels on images 300-315 at 1000 passes, mnist-plain / mnist-linf-at: 116 / 83, with ART's strategy 145 / 92.
        """
        population = min(BUDGET_POPULATION, max(4, budget.passes // (2 * budget.evaluations)))
        return {"population": population, "generations": max(1, budget.steps(population * budget.evaluations) - 1)}

    @classmethod
    def paper(cls, setup: PaperSetup) -> Settings:
        """Return the paper's settings."""
        return {"population": 400, "generations": 100, "strategy": "best"}

    def __call__(self, task: Task, radius: Tensor, restart: int) -> Best:
        """Search for adversarial examples within the radius of each sample."""
        best = Best.none(task.inputs)
        canvas = Canvas.of(task.problem)
        count = radius.floor().clamp(max=canvas.pixels).long()
        for rows in batches((count >= 1).nonzero().flatten(), max(1, self.max_rows // self.population)):
            self._evolve(task, rows, count[rows], restart, canvas, best)
        return best

    def _evolve(self, task: Task, rows: Tensor, count: Tensor, restart: int, canvas: Canvas, best: Best) -> None:
        """Evolve the candidates of each row independently; a fooled row leaves at once."""
        problem = task.problem
        indices = problem.indices[task.samples[rows].cpu()].tolist()
        chance = [np.random.default_rng((problem.seed, index, restart)) for index in indices]
        children = self._first(chance, count, canvas).to(problem.inputs)
        genes, fitness = children, children.new_full(children.shape[:2], torch.inf)
        for generation in range(self.generations + 1):
            new_fitness, found = self._judged(task, rows, count, children, canvas)
            best.improve(found, at=rows)
            keep = found.size.isinf().nonzero().flatten()
            if len(keep) == 0 or generation == self.generations:
                return
            rows, count, chance = rows[keep], count[keep], [chance[row] for row in keep.tolist()]
            genes, fitness, children, new_fitness = genes[keep], fitness[keep], children[keep], new_fitness[keep]
            fitter = new_fitness < fitness
            genes = torch.where(fitter[:, :, None, None], children, genes)
            fitness = torch.where(fitter, new_fitness, fitness)
            children = (
                self._of_three(genes, chance, canvas)
                if self.strategy == "rand"
                else self._of_the_best(genes, fitness, count, chance)
            )

    def _first(self, chance: list[np.random.Generator], count: Tensor, canvas: Canvas) -> Tensor:
        """Draw the first generation.

        Su et al.: uniform positions, values N(128, 127) in [0, 255]. ART: a Latin hypercube.

        Positions are relative to the side of the image, values to the width of the box. Unused genes of a row are 0.
        """
        places, channels = len(canvas.sides), canvas.channels
        genes = np.zeros((len(chance), self.population, int(count.max()), places + channels))
        for row, (generator, own) in enumerate(zip(chance, count.tolist(), strict=True)):
            if self.strategy == "best":
                genes[row, :, :own] = _latin_hypercube(generator, (self.population, own, places + channels))
                continue
            genes[row, :, :own, :places] = generator.random((self.population, own, places))
            values = generator.normal(0.5, 0.5, (self.population, own, channels))
            genes[row, :, :own, places:] = values.clip(0.0, 1.0)
        return torch.from_numpy(genes)

    def _of_three(self, genes: Tensor, chance: list[np.random.Generator], canvas: Canvas) -> Tensor:
        """Compute a + F (b - c) from three different candidates; positions wrap around the image."""
        size = self.population
        draws = np.stack([generator.integers((size, size - 1, size - 2), size=(size, 3)) for generator in chance])
        parents = [genes.gather(1, _spread(number, genes)) for number in _different(torch.from_numpy(draws))]
        children = parents[0] + self.scale * (parents[1] - parents[2])
        places = len(canvas.sides)
        return torch.cat([children[..., :places].remainder(1.0), children[..., places:].clamp(0.0, 1.0)], dim=3)

    def _of_the_best(self, genes: Tensor, fitness: Tensor, count: Tensor, chance: list[np.random.Generator]) -> Tensor:
        """Compute best + F (b - c), where b and c are not the child's parent; values that leave [0, 1] are redrawn."""
        size = self.population
        draws = np.stack([generator.integers((size, size - 1, size - 2), size=(size, 3)) for generator in chance])
        draws[..., 0] = np.arange(size)  # the parent itself
        scale = torch.tensor([generator.uniform(0.5, 1.0) for generator in chance]).to(genes)
        anew = np.zeros(genes.shape)
        for row, (generator, own) in enumerate(zip(chance, count.tolist(), strict=True)):
            anew[row, :, :own] = generator.random((size, own, genes.shape[3]))
        _, second, third = (genes.gather(1, _spread(number, genes)) for number in _different(torch.from_numpy(draws)))
        best = genes[torch.arange(len(genes), device=genes.device), fitness.argmin(1)]
        children = best[:, None] + scale[:, None, None, None] * (second - third)
        return torch.where((children < 0) | (children > 1), torch.from_numpy(anew).to(genes), children)

    def _judged(self, task: Task, rows: Tensor, count: Tensor, children: Tensor, canvas: Canvas) -> tuple[Tensor, Best]:
        """Return the fitness of every child (smaller is fitter), and the smallest adversarial child per row."""
        owners = torch.arange(len(rows), device=rows.device).repeat_interleave(self.population)
        candidates = children.flatten(0, 1)
        fitness = children.new_empty(len(owners))
        best = Best.none(task.inputs[rows])
        for part in batches(torch.arange(len(owners), device=rows.device), self.max_rows):
            owner = owners[part]
            points = canvas.painted(task.inputs[rows[owner]], candidates[part], count[owner])
            logits = task.logits(points, rows[owner])
            fitness[part] = self._fitness(task.criterion.select(rows[owner]), logits)
            found = task.judged(points, logits, rows[owner])
            first = _smallest(found.size, owner, len(rows))
            best.improve(found.select(first), at=owner[first])
        return fitness.reshape(children.shape[:2]), best

    def _fitness(self, criterion: Criterion, logits: Tensor) -> Tensor:
        """Return the margin ("rand"), or the logit of the label or minus that of the target ("best")."""
        if self.strategy == "rand":
            return criterion.margin(logits)
        own = logits.gather(1, criterion.classes[:, None]).squeeze(1)
        return -own if criterion.targeted else own


@dataclass(frozen=True)
class Canvas:
    """What the genes are painted on: pixels with channels, or the elements of flat inputs."""

    problem: Problem
    sides: tuple[int, ...]
    channels: int

    @classmethod
    def of(cls, problem: Problem) -> Canvas:
        """Derive the canvas from the shape of the inputs and the norm."""
        shape = problem.inputs.shape[1:]
        if len(shape) == 1:
            return cls(problem, tuple(shape), 1)
        pixel = torch.zeros_like(problem.inputs[:1])
        pixel.flatten(2)[:, :, 0] = 1.0
        # Where the norm counts the channels of a pixel separately, each is painted separately.
        if float(problem.norm.size(pixel)) > 1:
            return cls(problem, tuple(shape), 1)
        return cls(problem, tuple(shape[1:]), shape[0])

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return int(np.prod(self.sides))

    def painted(self, inputs: Tensor, genes: Tensor, count: Tensor) -> Tensor:
        """Paint the first `count` genes of each row over its input."""
        rows, spare = len(inputs), self.pixels
        place = self._place(genes)
        # Unused genes, and genes on a pixel that is already painted, go to a spare pixel that is discarded: the order
        # of two writes to the same position is undefined.
        idle = torch.arange(genes.shape[1], device=genes.device) >= count[:, None]
        place = place.masked_fill(idle, spare)
        place = place.masked_fill(_repeated(place), spare)
        values = genes[:, :, len(self.sides) :].transpose(1, 2)
        shares = inputs.new_zeros(rows, self.channels, spare + 1)
        shares.scatter_(2, place[:, None].expand_as(values), values)
        painted = torch.zeros(rows, 1, spare + 1, dtype=torch.bool, device=inputs.device)
        painted.scatter_(2, place[:, None], True)
        box = self.problem.box
        values = box.low + shares[:, :, :spare].reshape(inputs.shape) * (box.high - box.low)
        where = painted[:, :, :spare].expand(-1, self.channels, -1).reshape(inputs.shape)
        return torch.where(where, box.clip(values), inputs)

    def _place(self, genes: Tensor) -> Tensor:
        """Return the index of each gene's pixel, in row-major order."""
        place = torch.zeros(genes.shape[:2], dtype=torch.long, device=genes.device)
        for axis, side in enumerate(self.sides):
            # In single precision, the remainder of a division by 1 may be 1.
            place = place * side + (genes[:, :, axis] * side).long().clamp(max=side - 1)
        return place


def _latin_hypercube(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw numbers in [0, 1), one in each of shape[0] equal intervals along the first axis."""
    size = shape[0]
    intervals = np.broadcast_to(np.arange(size).reshape(size, *[1] * (len(shape) - 1)), shape)
    return (generator.permuted(intervals, axis=0) + generator.random(shape)) / size


def _different(draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Map draws below n, n - 1 and n - 2 (in the last dimension) to three different uniform numbers below n."""
    a, b, c = draws.unbind(-1)
    b = b + (b >= a)
    c = c + (c >= torch.minimum(a, b))
    return a, b, c + (c >= torch.maximum(a, b))


def _spread(number: Tensor, genes: Tensor) -> Tensor:
    """Expand indices of candidates for `gather`."""
    return number.to(genes.device)[:, :, None, None].expand(-1, -1, *genes.shape[2:])


def _repeated(place: Tensor) -> Tensor:
    """Return which entries already occur earlier in their row."""
    ordered, order = place.sort(dim=1, stable=True)
    again = torch.zeros_like(place, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)


def _smallest(size: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Return the position of the smallest size of each owner that occurs. Ties go to the first."""
    by_size = size.sort(stable=True).indices
    by_owner = by_size[owner[by_size].sort(stable=True).indices]
    mine = owner[by_owner]
    first = torch.ones_like(mine, dtype=torch.bool)
    first[1:] = mine[1:] != mine[:-1]
    return by_owner[first]
