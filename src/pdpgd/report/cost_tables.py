"""The tables of what attacks cost: an iteration, by counting (the paper's Table I), and the time."""

from __future__ import annotations

from collections.abc import Sequence

from pdpgd.experiments import published
from pdpgd.experiments.results import DatasetInfo, IterationCost, Results
from pdpgd.report.cells import Row, bracketed, images, runs_of
from pdpgd.report.names import DASH, attack_name, file_stem, norm_name
from pdpgd.report.table import Item, Table

# The paper's running times are for so many images.
IMAGES = 1000
# What a reader must know of how long something took.
MACHINE = ("device", "processor", "threads of a run")


def iteration_costs(costs: Sequence[IterationCost]) -> Table:
    norms: dict[tuple[str, float, float, str], list[str]] = {}
    for cost in costs:
        norms.setdefault((cost.attack, cost.forwards, cost.backwards, cost.iteration), []).append(cost.norm)
    rows: list[Row] = []
    for (attack, forwards, backwards, iteration), own in norms.items():
        paper = published.iteration_cost(attack)
        labels = (Item(attack_name(attack)), Item(", ".join(map(norm_name, own))), Item(iteration))
        if paper is None:
            rows.append((*labels, _passes(forwards), _passes(backwards), Item(None)))
        else:
            passes = _passes(forwards, paper.forwards or DASH), _passes(backwards, paper.backwards or DASH)
            rows.append((*labels, *passes, Item(paper.extra or None)))
    return Table(
        name="table-1",
        title="Cost of an iteration (the paper's Table I)",
        caption="Forward and backward passes that one more iteration costs a sample, by counting. In brackets: what "
        "the paper says; k is the number of classes, d that of the entries of an input.",
        headings=("attack", "norms", "iteration", "forward", "backward", "beside the passes (paper)"),
        rows=tuple(rows),
    )


def _passes(passes: float, paper: str | None = None) -> Item:
    whole = abs(passes - round(passes)) < 0.005
    return Item(passes, 0 if whole else 2, paper=paper)


def running_times(results: Results, dataset: DatasetInfo) -> Table:
    by_norm = {norm: every for norm in results.norms if (every := runs_of(results, dataset, norm))}
    names = {label: own.name for every in by_norm.values() for label, own in every.items()}
    rows: list[Row] = []
    notes = []
    for label, name in names.items():
        items = []
        for norm, every in by_norm.items():
            runs = every.get(label)
            if runs is None:
                items.append(Item(None))
                continue
            done = [cell.seconds * IMAGES / cell.samples for cell in runs.done.values()]
            mean = sum(done) / len(done) if done else None
            paper = published.seconds(dataset.like, norm, runs.first.attack, runs.first.restarts)
            items.append(Item(mean, 0 if mean is None or mean >= 100 else 1, paper=paper, paper_digits=0))
            if len(done) < len(runs.cells):
                notes.append(
                    f"{name} in {norm_name(norm)}: over {len(done)} of {len(runs.cells)} models; {runs.why()}."
                )
        rows.append((Item(name), *items))
    where = ", ".join(f"{what} {results.made_with[what]}" for what in MACHINE if what in results.made_with)
    return Table(
        name=f"running-time-{file_stem(dataset.name)}",
        title=f"Running time on {dataset.name}",
        caption=f"Seconds for {IMAGES} images, averaged over the models: measured on {images(dataset)} and scaled"
        f"{where and f' ({where})'}. The attack alone, all restarts, and all radii where it is run within them."
        + bracketed(rows, f"the paper's, for {IMAGES} images on an Nvidia Titan V"),
        headings=("attack", *map(norm_name, by_norm)),
        rows=tuple(rows),
        notes=tuple(notes),
    )
