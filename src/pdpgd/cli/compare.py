"""pdpgd compare: run several attacks on the same samples, judged by the same referee."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from pdpgd.cli.options import (
    OUT_HELP,
    RADIUS_HELP,
    add_data,
    add_execution,
    add_model,
    default_folder,
    plain_table,
    radii_by_norm,
    run_arguments,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdpgd.runs.comparison import Comparison, Row

DESCRIPTION = """Run several attacks on the same samples and compare what each finds on its own.
An attack that fails is listed with the reason; the others continue. A
comparison that was interrupted resumes when the same command is given again."""
EPILOG = """examples:
  pdpgd compare mnist-linf-at mnist-1000 --norm l2 --attacks auto,pdpgd,ddn,fab
  pdpgd compare mnist-plain mnist-1000 --norm linf --attacks pgd:10,fab:10 \\
      --preset paper --tune
  pdpgd compare nets:resnet cifar10 --weights resnet.safetensors --norm linf \\
      --attacks auto,apgd --radius linf:8/255

exit codes:
  0    finished; attacks that failed are listed with the reason
  2    invalid call, or the model or the data cannot be used
  4    all attacks failed; completed chunks are stored
  130  interrupted by Ctrl-C; completed chunks are stored"""
# Exit code if no attack succeeded.
ALL_FAILED = 4
# Options of this command alone that its results depend on.
OWN = ("norm", "attacks", "budget", "preset", "like", "tune", "radius")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="compare several attacks on the same samples",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    add_data(parser)
    attacks = parser.add_argument_group("attacks")
    attacks.add_argument(
        "--norm", action="append", required=True, metavar="NORM", help="norm to compare in; repeatable"
    )
    attacks.add_argument(
        "--attacks",
        metavar="NAMES",
        required=True,
        help="comma-separated names, as listed by pdpgd attacks; NAME:RESTARTS sets the number of restarts",
    )
    attacks.add_argument(
        "--budget", metavar="N", type=int, help="maximum forward + backward passes per sample and attack (1000)"
    )
    attacks.add_argument(
        "--preset", metavar="NAME", help="paper: run the attacks of the paper with its settings instead of a budget"
    )
    attacks.add_argument(
        "--like",
        metavar="DATASET:KIND",
        help="data set and kind of model of the paper whose settings and radii apply, such as mnist:plain (default: "
        "inferred from the names of model and data)",
    )
    attacks.add_argument(
        "--tune",
        action="store_true",
        help="select settings from the paper's grids, on held-out samples that follow the first --limit ones",
    )
    attacks.add_argument("--radius", action="append", default=[], metavar="NORM:RADIUS", help=RADIUS_HELP)
    add_execution(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help=OUT_HELP)
    output.add_argument("--json", action="store_true", help="print only the results, as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare the attacks and print the results."""
    from rich.console import Console

    from pdpgd.cli.progress import SampleBar
    from pdpgd.evaluation.compare import compare
    from pdpgd.evaluation.engines import keep_freed_memory

    keep_freed_memory()
    stderr = Console(stderr=True, highlight=False)
    radii = radii_by_norm(options.radius)
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
            **run_arguments(options),
        )
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2))
    else:
        show(Console(highlight=False), comparison)
    return 0 if any(row.evaluation is not None for row in comparison.rows) else ALL_FAILED


def show(console: Console, comparison: Comparison) -> None:
    """Print the results for people."""
    for norm in comparison.radii:
        rows = comparison.of(norm)
        if rows:
            evaluation = rows[0].evaluation
            assert evaluation is not None
            console.print(
                f"{evaluation.spec.model_name} on {evaluation.samples:,} samples of "
                f"{evaluation.spec.data['name']}, {evaluation.clean_accuracy:.1%} correctly classified: {norm}\n",
                soft_wrap=True,
            )
            console.print(_statistics(comparison, norm))
            console.print(_accuracies(comparison, norm))
        for row in comparison.failed(norm):
            console.print(f"{row.label} ({norm}) failed: {row.failure}", style="bold", markup=False, soft_wrap=True)
    console.print(
        "Fooled: share of the correctly classified samples.\n"
        "Mean: mean distance of the fooled samples; none for attacks at given radii.\n"
        f"{_partial_note(comparison)}"
        "Robust acc.: mean over the radii. Gap: to the lowest, in percentage points.\n"
        "Best: number of radii at which no other attack leaves a lower robust accuracy.\n"
        "Passes: forward + backward, per correctly classified sample.",
        soft_wrap=True,
    )
    verdicts = dict.fromkeys(
        row.evaluation.reliability.verdict for row in comparison.rows if row.evaluation is not None
    )
    for verdict in verdicts:
        console.print(f"Reliability: {verdict} (only pdpgd evaluate checks its results)", soft_wrap=True)
    console.print(f"Results: {comparison.folder}", soft_wrap=True)


def _statistics(comparison: Comparison, norm: str) -> Table:
    from pdpgd.runs.metrics import PARTIAL

    statistics = comparison.statistics(norm)
    # Headings in two lines where that is narrower, so that the table fits into 80 columns.
    headings = ("fooled", "mean", "robust\nacc.", "best", "mean\ngap", "max\ngap", "passes", "seconds")
    table = _table("", headings)
    for row in comparison.of(norm):
        mine = statistics[row.label]
        mean = "-" if row.mean_distance is None else f"{row.mean_distance:.4g}"
        table.add_row(
            row.label + _broken(row),
            f"{row.fooled / max(1, row.correct):.1%}",
            f"{mean}{PARTIAL}" if row.searched and not row.fooled_all else mean,
            f"{mine.mean_accuracy:.2%}",
            str(mine.times_best),
            f"{100 * mine.mean_gap:.2f}",
            f"{100 * mine.max_gap:.2f}",
            f"{row.passes():,.0f}",
            f"{row.seconds():.1f}",
        )
    return table


def _partial_note(comparison: Comparison) -> str:
    """Explain the star at a mean, if there is one."""
    from pdpgd.runs.metrics import PARTIAL

    if not any(row.searched and not row.fooled_all for norm in comparison.radii for row in comparison.of(norm)):
        return ""
    return f"{PARTIAL} not all were fooled, so it is not comparable with a mean over all samples.\n"


def _accuracies(comparison: Comparison, norm: str) -> Table:
    radii = comparison.radii[norm]
    table = _table("Robust accuracy by radius", tuple(f"{radius:.4g}" for radius in radii))
    for label, shares in comparison.accuracies(norm).items():
        table.add_row(label, *(f"{share:.1%}" for share in shares))
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = plain_table(title)
    table.add_column("attack", no_wrap=True, vertical="bottom")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    return table


def _broken(row: Row) -> str:
    """Return a mark for attacks that raised an error on some samples."""
    return f" ({row.broken} failed)" if row.broken else ""
