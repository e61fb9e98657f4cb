"""pdpgd experiment: data sets x models x norms x attacks x restarts from one file, to tables and figures."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from pdpgd.cli.options import add_trust
from pdpgd.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdpgd.experiments.plan import PlannedRun
    from pdpgd.experiments.results import Results
    from pdpgd.experiments.runner import Experiment
    from pdpgd.progress import ProgressListener

EPILOG = """examples:
  pdpgd experiment run paper-mnist-small
  pdpgd experiment run mine.toml --out results/mine --workers 4
  pdpgd experiment run paper-cifar10-small --model plain=nets:resnet --data-dir data
  pdpgd experiment status results/mine
  pdpgd experiment clean mine.toml

SPEC is a TOML file, the directory of an experiment, or one that comes with the package: {shipped}.
An experiment that was stopped, by whatever, goes on when the same command is given again; one whose spec was changed
does what is new. An attack that fails is a row that says why.

exit codes:
  0    done; rows may say why an attack failed
  2    the call or the spec is wrong, or a model or data cannot be used
  4    not finished, or no attack came to an end: what was done is kept, start the same command again
  130  stopped by Ctrl-C: the same"""
ALL_FAILED = 4


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("experiment", help="the paper's tables and figures, or your own, from one file")
    steps = parser.add_subparsers(title="commands", required=True)
    for name, about, function in (
        ("run", "do what is not done yet; write tables and figures", run),
        ("status", "what is done, and what is not", status),
        ("clean", "take away the runs that the spec no longer asks for", clean),
    ):
        step = steps.add_parser(
            name, help=about, epilog=_epilog(), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        step.add_argument(
            "spec", metavar="SPEC", help="a TOML file, the name of a shipped one, or the directory of results"
        )
        step.add_argument("--out", help="directory of the results (default: results/NAME)")
        step.add_argument(
            "--model",
            action="append",
            default=[],
            metavar="NAME=SOURCE",
            help="another model in the place of one of the spec's; repeatable",
        )
        step.add_argument(
            "--without", action="append", default=[], metavar="NAME", help="leave a model of the spec out; repeatable"
        )
        step.add_argument("--limit", type=int, help="samples of each data set, instead of the spec's number")
        step.add_argument("--data-dir", help="where the data lies (default: looked for, then downloaded)")
        step.add_argument("--device", help="(default: cuda if there is one, else cpu)")
        add_trust(step)
        if name == "run":
            done = step.add_argument_group("who does it")
            done.add_argument("--engine", default="local", help="local or ray (%(default)s)")
            done.add_argument(
                "--workers", type=int, help="chunks done at once (default: cores / the spec's threads; on a GPU 1)"
            )
            done.add_argument("--address", help="of a Ray cluster that exists (default: one on this machine)")
        if name == "clean":
            step.add_argument("--all", action="store_true", help="every run of the experiment; its tables stay")
        step.set_defaults(run=function)


def run(options: argparse.Namespace) -> int:
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
    from rich.console import Console

    from pdpgd.experiments.results import JOBS
    from pdpgd.experiments.runner import clean as take_away
    from pdpgd.experiments.runner import is_job

    experiment = _experiment(options, None)
    place = experiment.folder / JOBS
    every = sorted(path for path in place.iterdir() if is_job(path)) if place.is_dir() else []
    jobs = every if options.all else experiment.stale()
    freed = take_away(experiment.folder, jobs) if jobs else 0
    Console(highlight=False).print(
        f"{len(jobs)} of {len(every)} runs taken away, {freed / 1e6:.1f} MB: {experiment.folder}", soft_wrap=True
    )
    return 0


def _epilog() -> str:
    from pathlib import Path

    # Not `spec.shipped`, whose import is heavy: --help is instant.
    place = Path(__file__).parents[1] / "experiments" / "specs"
    names = sorted(path.stem for path in place.glob("*.toml"))
    return EPILOG.format(shipped=", ".join(names))


def _experiment(options: argparse.Namespace, progress: ProgressListener | None) -> Experiment:
    from pathlib import Path

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
    """NAME=SOURCE, each."""
    models: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or not source:
            raise InvalidInputError(f"model: expected NAME=SOURCE such as plain=nets:resnet, got {text!r}")
        models[name] = source
    return models


def _status_table(states: list[tuple[PlannedRun, str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("data set", "model", "norm", "for"):
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
    for cell in results.cells:
        if cell.failure and cell.role == "table":
            console.print(
                f"{cell.dataset} {cell.model} {cell.norm} {cell.label} failed: {cell.failure}",
                style="bold",
                markup=False,
                soft_wrap=True,
            )
    done = {cell.id for cell in results.cells if cell.id and not cell.failure}
    work = {cell.id: cell.seconds for cell in results.cells}
    console.print(
        f"{results.title}: {len(done)} runs, {sum(work.values()):,.0f} s of attacks, {seconds:,.0f} s now.\n"
        f"Tables: {experiment.folder / 'tables' / 'tables.md'}\nFigures: {experiment.folder / 'figures'}\n"
        f"A page to look at: pdpgd report {experiment.folder}",
        markup=False,
        soft_wrap=True,
    )
