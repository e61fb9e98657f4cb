"""pdpgd experiment: run many attacks on many models from one file, and write tables and figures."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pdpgd.cli.options import DATA_DIR_HELP, add_engine, add_trust, plain_table
from pdpgd.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdpgd.experiments.plan import PlannedRun
    from pdpgd.experiments.results import Results
    from pdpgd.experiments.runner import Experiment
    from pdpgd.progress import ProgressListener

DESCRIPTION = """Run an experiment: data sets x models x norms x attacks x restarts from one TOML
file, with the tables and figures of the paper. An experiment that was
interrupted resumes when the same command is given again; one whose spec was
changed executes only what is new."""
EPILOG = """examples:
  pdpgd experiment run paper-mnist-small
  pdpgd experiment run mine.toml --out results/mine --workers 4
  pdpgd experiment run paper-cifar10-small --model plain=nets:resnet
  pdpgd experiment status results/mine
  pdpgd experiment clean mine.toml

shipped specs:
{shipped}

exit codes:
  0    finished; attacks that failed are listed with the reason
  2    invalid call or spec, or a model or data set cannot be used
  4    not finished, or all attacks failed; completed chunks are stored: give
       the command again
  130  interrupted by Ctrl-C; completed chunks are stored"""
# Exit code if no attack succeeded.
ALL_FAILED = 4


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command with its sub-commands."""
    parser = commands.add_parser(
        "experiment",
        help="run an experiment: the paper's tables, or your own",
        description=DESCRIPTION,
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, about, function in (
        ("run", "execute what is not finished, and write tables and figures", run),
        ("status", "show which runs are done", status),
        ("clean", "delete the runs that the spec no longer asks for", clean),
    ):
        step = steps.add_parser(
            name,
            help=about,
            description=f"{about.capitalize()}.",
            epilog=_epilog() if name == "run" else "pdpgd experiment --help lists examples and exit codes.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        step.add_argument(
            "spec", metavar="SPEC", help="a TOML file, the name of a shipped spec, or the directory of an experiment"
        )
        step.add_argument("--out", metavar="DIR", help="directory of the results (default: results/NAME)")
        step.add_argument(
            "--model",
            action="append",
            default=[],
            metavar="NAME=SOURCE",
            help="replace a model of the spec; repeatable",
        )
        step.add_argument(
            "--without", action="append", default=[], metavar="NAME", help="leave out a model of the spec; repeatable"
        )
        step.add_argument(
            "--limit", metavar="N", type=int, help="number of samples per data set (default: as in the spec)"
        )
        step.add_argument("--data-dir", metavar="DIR", help=DATA_DIR_HELP)
        step.add_argument("--device", help="torch device (default: cuda if available, else cpu)")
        add_trust(step)
        if name == "run":
            add_engine(
                step.add_argument_group("execution"),
                workers="the cores, divided by the threads of the spec; 1 on a GPU",
            )
        if name == "clean":
            step.add_argument("--all", action="store_true", help="delete all runs; tables and figures stay")
        step.set_defaults(run=function)


def run(options: argparse.Namespace) -> int:
    """Run the experiment, and write its tables and figures."""
    from rich.console import Console

    from pdpgd.cli.progress import RunBar
    from pdpgd.evaluation.engines import keep_freed_memory
    from pdpgd.report.figures import write_figures
    from pdpgd.report.paper_tables import write_tables

    keep_freed_memory()
    stderr = Console(stderr=True, highlight=False)
    begin = time.monotonic()
    with RunBar(stderr) as bar:
        experiment = _experiment(options, bar)
        results = experiment.run(engine=options.engine, workers=options.workers, address=options.address)
    write_tables(results, experiment.folder / "tables")
    write_figures(results, experiment.folder)
    _show(Console(highlight=False), experiment, results, time.monotonic() - begin)
    return ALL_FAILED if all(cell.failure for cell in results.cells) else 0


def status(options: argparse.Namespace) -> int:
    """Print how many runs are done."""
    from rich.console import Console

    experiment = _experiment(options, None)
    console = Console(highlight=False)
    states = experiment.status()
    console.print(_status_table(states))
    counts = Counter(state for _, state in states)
    console.print(
        f"{experiment.spec.title}: {', '.join(f'{count} {state}' for state, count in counts.items())}. "
        f"Directory: {experiment.folder}",
        markup=False,
        soft_wrap=True,
    )
    return 0


def clean(options: argparse.Namespace) -> int:
    """Delete stale runs, or all of them."""
    from rich.console import Console

    from pdpgd.experiments.results import JOBS
    from pdpgd.experiments.runner import clean as delete
    from pdpgd.experiments.runner import is_job

    experiment = _experiment(options, None)
    place = experiment.folder / JOBS
    every = sorted(path for path in place.iterdir() if is_job(path)) if place.is_dir() else []
    jobs = every if options.all else experiment.stale()
    freed = delete(experiment.folder, jobs) if jobs else 0
    Console(highlight=False).print(
        f"{len(jobs)} of {len(every)} runs deleted, {freed / 1e6:.1f} MB freed: {experiment.folder}", soft_wrap=True
    )
    return 0


def _epilog() -> str:
    # Not `spec.shipped`, whose import is slow: --help is instant.
    place = Path(__file__).parents[1] / "experiments" / "specs"
    names = sorted(path.stem for path in place.glob("*.toml"))
    return EPILOG.format(shipped="\n".join(f"  {name}" for name in names))


def _experiment(options: argparse.Namespace, progress: ProgressListener | None) -> Experiment:
    """Load the experiment that the options describe."""
    from pdpgd.experiments.results import SPEC
    from pdpgd.experiments.runner import Experiment
    from pdpgd.experiments.spec import changed, load_spec

    source = Path(options.spec).expanduser()
    folder = options.out or f"results/{source.stem.removeprefix('paper-')}"
    if os.path.isdir(source):
        source, folder = source / SPEC, options.out or source
    spec = changed(load_spec(source), limit=options.limit, models=_models(options.model), without=options.without)
    return Experiment(
        spec,
        folder,
        device=options.device,
        data_dir=options.data_dir,
        trust_model_code=options.trust_model_code,
        progress=progress,
    )


def _models(given: list[str]) -> dict[str, str]:
    """Parse the values of --model, NAME=SOURCE each."""
    models: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or not source:
            raise InvalidInputError(f"model: expected NAME=SOURCE such as plain=nets:resnet, got {text!r}")
        models[name] = source
    return models


def _status_table(states: list[tuple[PlannedRun, str]]) -> Table:
    """Count the runs by what they are for and how far they have come."""
    table = plain_table()
    for heading in ("data set", "model", "norm", "used in"):
        table.add_column(heading)
    kinds = list(dict.fromkeys(state for _, state in states))
    for kind in kinds:
        table.add_column(kind, justify="right", max_width=40)
    rows: dict[tuple[str, ...], Counter[str]] = {}
    for planned, state in states:
        rows.setdefault((planned.dataset.name, planned.model.name, planned.norm, planned.role), Counter())[state] += 1
    for place, counts in rows.items():
        table.add_row(*place, *(str(counts[kind] or "") for kind in kinds))
    return table


def _show(console: Console, experiment: Experiment, results: Results, seconds: float) -> None:
    """Print failed attacks, and where the results are."""
    for cell in results.cells:
        if cell.failure and cell.role == "table":
            console.print(
                f"{cell.dataset} {cell.model} {cell.norm} {cell.label} failed: {cell.failure}",
                style="bold",
                markup=False,
                soft_wrap=True,
            )
    done = {cell.id for cell in results.cells if cell.id and not cell.failure}
    attack_seconds = {cell.id: cell.seconds for cell in results.cells}
    console.print(
        f"{results.title}: {len(done)} runs, {sum(attack_seconds.values()):,.0f} s of attacks; "
        f"this command took {seconds:,.0f} s.\n"
        f"Tables: {experiment.folder / 'tables' / 'tables.md'}\nFigures: {experiment.folder / 'figures'}\n"
        f"Report: pdpgd report {experiment.folder}",
        markup=False,
        soft_wrap=True,
    )
