"""The tables of the paper, filled with the results of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pdpgd.experiments import published
from pdpgd.experiments.results import Cell, DatasetInfo, IterationCost, Results
from pdpgd.files import make_folder, output_path, replace_file
from pdpgd.report.table import FORMATS, Table, TableCell, TableRow, emphasized, markdown_text, to_markdown, with_digits
from pdpgd.report.wording import DASH, attack_name, cell_name, file_stem, norm_name
from pdpgd.runs.metrics import PARTIAL, Statistics, compared
from pdpgd.runs.summary import radius_name

# Characters of a failure's reason that a note quotes.
LONGEST_REASON = 300


@dataclass(frozen=True)
class AttackRuns:
    """The results of one attack, with a number of restarts, in one norm."""

    norm: str
    cells: Mapping[str, Cell]
    """By name of the model."""

    @property
    def first(self) -> Cell:
        """The first run of the attack."""
        return next(iter(self.cells.values()))

    @property
    def name(self) -> str:
        """Name of the attack as the tables show it."""
        return cell_name(self.first)

    @property
    def finished(self) -> dict[str, Cell]:
        """Runs that have numbers, by model."""
        return {model: cell for model, cell in self.cells.items() if cell.failure is None and cell.samples > 0}

    def accuracies(self) -> dict[tuple[str, float], float]:
        """Robust accuracy by model and radius, without failed runs."""
        return {
            (model, radius): accuracy
            for model, cell in self.finished.items()
            for radius, accuracy in zip(cell.radii, cell.robust_accuracy, strict=True)
        }

    def unfooled(self) -> set[str]:
        """Models on which some correctly classified samples were not fooled: the mean distance leaves these out."""
        return {model for model, cell in self.finished.items() if not cell.whole}

    def failures(self) -> list[str]:
        """A note on failed runs; empty if there are none."""
        reason = self.why()
        return [f"{self._title}: {reason}."] if reason else []

    def misses(self) -> list[str]:
        """A note on runs that did not fool all samples; empty if there are none."""
        parts = [f"{cell.part} on {model}" for model, cell in self.finished.items() if not cell.whole]
        return [f"{PARTIAL} {self._title} fooled {', '.join(parts)}."] if parts else []

    def breaks(self) -> list[str]:
        """A note for each model on which the attack raised errors."""
        return [
            f"{self._title} broke on {cell.broken} of {cell.samples} samples of {model}, which count as not fooled."
            for model, cell in self.finished.items()
            if cell.broken
        ]

    def why(self) -> str:
        """On which models the attack failed, and why; empty if it did not."""
        models: dict[str, list[str]] = {}
        for model, cell in self.cells.items():
            if cell.failure is not None:
                models.setdefault(_cut(cell.failure), []).append(model)
        return "; ".join(f"it failed on {', '.join(own)} ({reason})" for reason, own in models.items())

    @property
    def _title(self) -> str:
        return f"{self.name} in {norm_name(self.norm)}"


def runs_of(results: Results, dataset: DatasetInfo, norm: str) -> dict[str, AttackRuns]:
    """The attacks of the tables by label, in the order of the experiment's spec."""
    found: dict[str, dict[str, Cell]] = {}
    for cell in results.of("table", dataset=dataset.name, norm=norm):
        found.setdefault(cell.label, {})[cell.model] = cell
    return {label: AttackRuns(norm, cells) for label, cells in found.items()}


def percent(value: float | None, paper: float | None, digits: int) -> TableCell:
    """A cell with a share in percent, beside that of the paper."""
    return TableCell(None if value is None else 100 * value, digits, paper=None if paper is None else 100 * paper)


def images(dataset: DatasetInfo) -> str:
    """The number of images of a data set, for a caption."""
    return f"{dataset.samples} images"


def bracketed(rows: Iterable[TableRow], whose: str) -> str:
    """A sentence on whose values are in brackets; empty if there are none."""
    return f" In brackets: {whose}." if any(cell.paper is not None for row in rows for cell in row) else ""


def _cut(reason: str) -> str:
    reason = " ".join(reason.split()).rstrip(".")
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} ..."


# Number of images of the paper's running times.
IMAGES = 1000
# Facts about the machine that the caption of running times states.
MACHINE = ("device", "processor", "threads of a run")


def iteration_costs(costs: Sequence[IterationCost]) -> Table:
    """Table I: passes per iteration."""
    norms: dict[tuple[str, float, float, str], list[str]] = {}
    for cost in costs:
        norms.setdefault((cost.attack, cost.forwards, cost.backwards, cost.iteration), []).append(cost.norm)
    rows: list[TableRow] = []
    for (attack, forwards, backwards, iteration), own in norms.items():
        paper = published.iteration_cost(attack)
        labels = (TableCell(attack_name(attack)), TableCell(", ".join(map(norm_name, own))), TableCell(iteration))
        if paper is None:
            rows.append((*labels, _passes(forwards), _passes(backwards), TableCell(None)))
        else:
            passes = _passes(forwards, paper.forwards or DASH), _passes(backwards, paper.backwards or DASH)
            rows.append((*labels, *passes, TableCell(paper.extra or None)))
    return Table(
        name="table-1",
        title="Cost of an iteration (the paper's Table I)",
        caption="Forward and backward passes that one more iteration costs a sample, by counting. In brackets: what "
        "the paper says; k is the number of classes, d that of the entries of an input.",
        headings=("attack", "norms", "iteration", "forward", "backward", "beside the passes (paper)"),
        rows=tuple(rows),
    )


def _passes(passes: float, paper: str | None = None) -> TableCell:
    whole = abs(passes - round(passes)) < 0.005
    return TableCell(passes, 0 if whole else 2, paper=paper)


def running_times(results: Results, dataset: DatasetInfo) -> Table:
    """Running times, averaged over the models."""
    by_norm = {norm: every for norm in results.norms if (every := runs_of(results, dataset, norm))}
    names = {label: own.name for every in by_norm.values() for label, own in every.items()}
    rows: list[TableRow] = []
    notes = []
    for label, name in names.items():
        cells = []
        for norm, every in by_norm.items():
            runs = every.get(label)
            if runs is None:
                cells.append(TableCell(None))
                continue
            done = [cell.seconds * IMAGES / cell.samples for cell in runs.finished.values()]
            mean = sum(done) / len(done) if done else None
            paper = published.seconds(dataset.like, norm, runs.first.attack, runs.first.restarts)
            cells.append(TableCell(mean, 0 if mean is None or mean >= 100 else 1, paper=paper, paper_digits=0))
            if len(done) < len(runs.cells):
                notes.append(
                    f"{name} in {norm_name(norm)}: over {len(done)} of {len(runs.cells)} models; {runs.why()}."
                )
        rows.append((TableCell(name), *cells))
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


INDEX = "tables.md"


def tables(results: Results) -> list[Table]:
    """All tables of an experiment, without empty ones: Table I, running times, Tables II and III, complete tables."""
    made = [
        iteration_costs(results.iteration_costs),
        *(running_times(results, dataset) for dataset in results.datasets),
        *(_table_2(results, dataset) for dataset in results.datasets),
        *(_table_3(results, dataset) for dataset in results.datasets),
        *(_complete(results, dataset, norm) for dataset in results.datasets for norm in results.norms),
    ]
    return _distinct([table for table in made if table.rows])


def write_tables(results: Results, folder: str | Path) -> list[Path]:
    """Write the paper's tables, filled with the results of an experiment.

    Args:
        results: The results of an experiment.
        folder: Directory of the files; it is created if it does not exist.

    Returns:
        The files: each table as Markdown, LaTeX and CSV, and `tables.md` with all of them.

    Raises:
        InvalidInputError: The path of the directory is not usable.
        StorageError: The files cannot be written.

    Example:
        >>> from pdpgd.experiments.results import load_results
        >>> paths = write_tables(load_results("runs/experiment"), "tables")
        >>> paths[-1].name
        'tables.md'
    """
    folder = output_path(folder)
    make_folder(folder)
    made = tables(results)
    texts = {f"{table.name}.{ending}": write(table) for table in made for ending, write in FORMATS.items()}
    title, about = markdown_text(results.title), markdown_text(results.about)
    texts[INDEX] = "\n".join([f"# {title}\n{about}\n", *map(to_markdown, made)])
    for name, text in texts.items():
        replace_file(folder / name, text.encode())
    return [folder / name for name in texts]


def _table_2(results: Results, dataset: DatasetInfo) -> Table:
    """Table II: statistics of the robust accuracy that the attacks leave."""
    rows: list[TableRow] = []
    notes: list[str] = []
    for norm in results.norms:
        attacks = runs_of(results, dataset, norm)
        values = {label: runs.accuracies() for label, runs in attacks.items()}
        places = list(dict.fromkeys(place for own in values.values() for place in own))
        whole = {label: own for label, own in values.items() if own.keys() == set(places)} if places else {}
        notes += [_left_out(runs) for label, runs in attacks.items() if label not in whole]
        if not whole:
            continue
        statistics = compared(
            {label: np.array([own[place] for place in places]) for label, own in whole.items()},
            families={label: attacks[label].first.attack for label in whole},
        )
        group = []
        for label, own in statistics.items():
            cell = attacks[label].first
            paper = published.summary(dataset.like, norm, cell.attack, cell.restarts)
            group.append((TableCell(norm_name(norm)), TableCell(attacks[label].name), *_statistics(own, paper)))
        rows += emphasized(group, (min, max, min, min), first=2)
    return Table(
        name=f"table-2-{file_stem(dataset.name)}",
        title=f"Attacks on {dataset.name} (the paper's Table II)",
        caption=f"Over all models and radii, {images(dataset)}: mean robust accuracy (%); in how many cells no other "
        "attack leaves less (the same attack with other restarts is no other); mean and largest gap to the best "
        "(percentage points). Best in bold." + bracketed(rows, "the paper's, among its own attacks on its own models"),
        headings=("norm", "attack", "mean robust accuracy", "times best", "mean gap", "max gap"),
        rows=tuple(rows),
        grouped=True,
        notes=tuple(notes),
    )


def _left_out(runs: AttackRuns) -> str:
    why = runs.why() or "it was not run on all models and radii"
    return f"{runs.name} is left out in {norm_name(runs.norm)}: {why}."


def _statistics(own: Statistics, paper: Statistics | None) -> TableRow:
    if paper is None:
        nothing = Statistics(0.0, 0, 0.0, 0.0)
        return tuple(replace(cell, paper=None) for cell in _statistics(own, nothing))
    return (
        percent(own.mean_accuracy, paper.mean_accuracy, 2),
        TableCell(float(own.times_best), paper=float(paper.times_best)),
        percent(own.mean_gap, paper.mean_gap, 2),
        percent(own.max_gap, paper.max_gap, 1),
    )


def _table_3(results: Results, dataset: DatasetInfo) -> Table:
    """Table III: mean distances."""
    models = list(dataset.models)
    rows: list[TableRow] = []
    notes: list[str] = []
    for norm in results.norms:
        attacks = [runs for runs in runs_of(results, dataset, norm).values() if not _within_radii(runs)]
        group = [
            (TableCell(norm_name(norm)), TableCell(runs.name), *(_distance(runs, dataset, model) for model in models))
            for runs in attacks
        ]
        partly = [{2 + models.index(model) for model in runs.unfooled()} for runs in attacks]
        rows += emphasized(with_digits(group, first=2), [min] * len(models), first=2, barred=partly)
        notes += [note for runs in attacks for note in (*runs.failures(), *runs.misses())]
    return Table(
        name=f"table-3-{file_stem(dataset.name)}",
        title=f"Mean distance on {dataset.name} (the paper's Table III)",
        caption=f"The mean size of the perturbations, over the samples that were right and were fooled, of "
        f"{images(dataset)}; {norm_name('l0')} counts pixels. Attacks that were run within radii have none. Best in "
        f"bold, among those that fooled all.{_partly(rows)}" + bracketed(rows, "the paper's, on its own models"),
        headings=("norm", "attack", *models),
        rows=tuple(rows),
        grouped=True,
        notes=tuple(notes),
    )


def _within_radii(runs: AttackRuns) -> bool:
    cells = runs.cells.values()
    at_radii = "radii" in runs.first.settings or any(cell.fooled and cell.mean_distance is None for cell in cells)
    return at_radii and all(cell.mean_distance is None for cell in cells)


def _distance(runs: AttackRuns, dataset: DatasetInfo, model: str) -> TableCell:
    cell, kind = runs.cells.get(model), dataset.models[model].like
    paper = published.mean_norm(dataset.like, runs.norm, kind, runs.first.attack, runs.first.restarts)
    printed = 0 if paper is None or paper.is_integer() else len(repr(paper).partition(".")[2])
    if cell is None:
        return TableCell(None, paper=paper, paper_digits=printed)
    return TableCell(cell.mean_distance, paper=paper, paper_digits=printed, part="" if cell.whole else cell.part)


def _partly(rows: Sequence[TableRow]) -> str:
    """A sentence on what a star means; empty if there is none."""
    if not any(cell.part for row in rows for cell in row):
        return ""
    return (
        f" {PARTIAL}: not all were fooled, and the mean over those that were is not comparable with one over all; the "
        "notes say how many."
    )


def _complete(results: Results, dataset: DatasetInfo, norm: str) -> Table:
    """The table of the supplement: robust accuracy at each radius of each model."""
    attacks = list(runs_of(results, dataset, norm).values())
    radii: dict[str, set[float]] = {model: set() for model in dataset.models}
    for cell in results.of("table", dataset=dataset.name, norm=norm):
        radii[cell.model].update(cell.radii)
    places = [(model, radius) for model, own in radii.items() for radius in sorted(own)]
    rows: list[TableRow] = []
    for runs in attacks:
        left, cell = runs.accuracies(), runs.first
        row = [TableCell(runs.name)]
        for model, radius in places:
            kind = dataset.models[model].like
            paper = published.robust_accuracy(dataset.like, norm, kind, radius, cell.attack, cell.restarts)
            row.append(percent(left.get((model, radius)), paper, 1))
        rows.append(tuple(row))
    return Table(
        name=f"complete-{file_stem(dataset.name)}-{file_stem(norm)}",
        title=f"Robust accuracy on {dataset.name}, {norm_name(norm)}",
        caption=f"In per cent of {images(dataset)}, at each radius of each model; less is better for the attack. "
        f"{_clean(dataset)}Best in bold." + bracketed(rows, "the paper's, on its own models"),
        headings=("attack", *(radius_name(radius) for _, radius in places)),
        spans=(("", 1), *((model, len(own)) for model, own in radii.items() if own)),
        rows=tuple(emphasized(rows, [min] * len(places), first=1)),
        notes=tuple(note for runs in attacks for note in (*runs.failures(), *runs.breaks())),
    )


def _clean(dataset: DatasetInfo) -> str:
    known = {name: model.clean_accuracy for name, model in dataset.models.items()}
    shares = [f"{name} {100 * share:.1f} %" for name, share in known.items() if share is not None]
    return f"Right before the attack: {', '.join(shares)}. " if shares else ""


def _distinct(made: Sequence[Table]) -> list[Table]:
    """Make file names distinct: names of data sets may differ only in characters that file names omit."""
    seen: dict[str, int] = {}
    distinct = []
    for table in made:
        seen[table.name.lower()] = count = seen.get(table.name.lower(), 0) + 1
        distinct.append(table if count == 1 else replace(table, name=f"{table.name}-{count}"))
    return distinct
