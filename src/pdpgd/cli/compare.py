"""pdpgd compare: several attacks on the same samples, judged by the same referee."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from pdpgd.cli.options import add_model, add_run, add_samples, default_folder, norm_and_radius, run_settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdpgd.runs.comparison import Comparison, Row

EPILOG = """examples:
  pdpgd compare mnist-linf-at mnist-1000 --norm l2 --attacks auto,pdpgd,ddn,fab --limit 100
  pdpgd compare mnist-plain mnist-1000 --norm linf --attacks pgd:10,daa,fab:10,pdpgd:10 --preset paper --tune
  pdpgd compare nets:resnet cifar10 --weights resnet.safetensors --norm linf --attacks auto,apgd --radius linf:8/255

NAME:RESTARTS gives an attack so many starts. A comparison that was stopped goes on when the same command is given
again. An attack that fails is a row that says why; the others go on.

exit codes:
  0    done; rows may say why an attack failed
  2    the call is wrong, or the model or the data cannot be used
  4    no attack came to an end: what was done is kept
  130  stopped by Ctrl-C: the same"""

ALL_FAILED = 4


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="several attacks on the same samples",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    add_samples(parser)
    asked = parser.add_argument_group("what is compared")
    asked.add_argument("--norm", action="append", required=True, metavar="NORM", help="repeatable")
    asked.add_argument("--attacks", required=True, help="names of `pdpgd attacks`, with commas; NAME:RESTARTS")
    asked.add_argument("--budget", type=int, help="forward + backward passes a sample and attack (1000)")
    asked.add_argument("--preset", help="paper: the settings that the paper ran each attack with, if it has it")
    asked.add_argument("--like", metavar="DATASET:KIND", help="whose settings and radii of the paper (from the names)")
    asked.add_argument(
        "--tune", action="store_true", help="select from the paper's grids, on the samples behind --limit"
    )
    asked.add_argument(
        "--radius", action="append", default=[], metavar="NORM:RADIUS", help="robust accuracy there; repeatable"
    )
    add_run(parser, asked)
    shown = parser.add_argument_group("what comes of it")
    shown.add_argument("--out", help="directory of the results (default: runs/MODEL-DATA-...)")
    shown.add_argument("--json", action="store_true", help="print the numbers as JSON, and nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from pdpgd.cli.progress import SampleBar
    from pdpgd.evaluation.compare import compare
    from pdpgd.evaluation.engines import keep_freed_memory

    keep_freed_memory()
    stderr = Console(stderr=True, highlight=False)
    radii: dict[str, list[float]] = {}
    for text in options.radius:
        norm, radius = norm_and_radius("--radius", text)
        radii.setdefault(norm, []).append(radius)
    with SampleBar(stderr) as bar:
        comparison = compare(
            options.model,
            options.data,
            norms=tuple(options.norm),
            attacks=options.attacks.split(","),
            budget=options.budget,
            preset=options.preset,
            radii=radii,
            tune=options.tune,
            like=options.like,
            out=options.out or default_folder(options, *OWN),
            progress=bar,
            **run_settings(options),
        )
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2))
    else:
        show(Console(highlight=False), comparison)
    return 0 if any(row.evaluation is not None for row in comparison.rows) else ALL_FAILED


# The options of this command alone.
OWN = ("norm", "attacks", "budget", "preset", "like", "tune", "radius")


def show(console: Console, comparison: Comparison) -> None:
    for norm in comparison.radii:
        rows = comparison.of(norm)
        if rows:
            evaluation = rows[0].evaluation
            assert evaluation is not None
            console.print(
                f"{evaluation.spec.model_name} on {evaluation.samples:,} samples of "
                f"{evaluation.spec.data['name']}, {evaluation.clean_accuracy:.1%} right: {norm}\n",
                soft_wrap=True,
            )
            console.print(_statistics(comparison, norm))
            console.print(_accuracies(comparison, norm))
        for row in comparison.failed(norm):
            console.print(f"{row.label} ({norm}) failed: {row.failure}", style="bold", markup=False, soft_wrap=True)
    console.print(
        "Fooled: of the samples that were right. Mean: distance of those that were fooled; none of attacks that were "
        f"run at given radii{_partly(comparison)}. Best: at how many radii no other attack leaves less; gap: to the "
        "least that any leaves.",
        soft_wrap=True,
    )
    verdicts = dict.fromkeys(
        row.evaluation.reliability.verdict for row in comparison.rows if row.evaluation is not None
    )
    for verdict in verdicts:
        console.print(
            f"Reliability: {verdict} (a comparison runs no checks of its results; evaluate does)", soft_wrap=True
        )
    console.print(f"Results: {comparison.folder}", soft_wrap=True)


def _statistics(comparison: Comparison, norm: str) -> Table:
    from pdpgd.runs.metrics import PARTIAL

    statistics = comparison.statistics(norm)
    numbers = {row["attack"]: row for row in comparison.as_json()[norm]["attacks"]}
    # In two lines where that is narrower, so that the table fits into 80 columns.
    headings = ("fooled", "mean", "robust\nacc.", "best", "mean\ngap", "max\ngap", "passes", "seconds")
    table = _table("", headings)
    for row in comparison.of(norm):
        mine, found = statistics[row.label], numbers[row.label]
        mean = "-" if found["mean_distance"] is None else f"{found['mean_distance']:.4g}"
        table.add_row(
            row.label + _broken(row),
            f"{found['fooled'] / max(1, found['right']):.1%}",
            f"{mean}{PARTIAL}" if row.partial else mean,
            f"{mine.mean_accuracy:.2%}",
            str(mine.times_best),
            f"{100 * mine.mean_gap:.2f}",
            f"{100 * mine.max_gap:.2f}",
            f"{row.passes():,.0f}",
            f"{row.seconds():.1f}",
        )
    return table


def _partly(comparison: Comparison) -> str:
    """What the star at a mean says, if there is one."""
    from pdpgd.runs.metrics import PARTIAL

    if not any(row.partial for norm in comparison.radii for row in comparison.of(norm)):
        return ""
    return f"; {PARTIAL} not all were fooled, so it is not comparable with a mean over all"


def _accuracies(comparison: Comparison, norm: str) -> Table:
    radii = comparison.radii[norm]
    table = _table("Robust accuracy at a radius of", tuple(f"{radius:.4g}" for radius in radii))
    for label, shares in comparison.accuracies(norm).items():
        table.add_row(label, *(f"{share:.1%}" for share in shares))
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("attack", no_wrap=True, vertical="bottom")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    return table


def _broken(row: Row) -> str:
    """Return a mark for attacks that raised an error on some samples."""
    return f" ({row.broken} broke)" if row.broken else ""
