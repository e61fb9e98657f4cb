"""pdpgd report and pdpgd export: stored results as a page, and adversarial examples as PNG files."""

from __future__ import annotations

import argparse

from pdpgd.cli.options import RADIUS_HELP, radii_by_norm

REPORT_EPILOG = """examples:
  pdpgd report runs/mine
  pdpgd report runs/before runs/after --radius linf:8/255 --out change.html
  pdpgd report runs/comparison --gallery 0

With several directories, each is compared with the first one: which is more
robust, by how much, and how certain that is."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands."""
    _add_report(commands)
    _add_export(commands)


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "report",
        help="write a page about runs, comparisons or experiments",
        description="Write one HTML page about stored results.",
        epilog=REPORT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", metavar="DIR", nargs="+", help="directory of pdpgd evaluate, pdpgd compare or pdpgd experiment"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="HTML file (default: report.html in the directory; with several directories, in the current one)",
    )
    parser.add_argument("--radius", action="append", default=[], metavar="NORM:RADIUS", help=RADIUS_HELP)
    parser.add_argument(
        "--gallery", metavar="N", type=int, default=40, help="maximum number of samples shown per norm (%(default)s)"
    )
    parser.add_argument("--title", metavar="TEXT", help="title of the page")
    parser.set_defaults(run=report)


def report(options: argparse.Namespace) -> int:
    """Write the page."""
    from pdpgd.report.page import write_report

    place = write_report(
        options.folders,
        options.out,
        radii=radii_by_norm(options.radius),
        gallery=options.gallery,
        title=options.title or None,
    )
    print(f"{place}: {place.stat().st_size / 1e6:.1f} MB, opens in any browser, without network access")
    return 0


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="export the adversarial examples of a run as PNG files",
        description="Export the adversarial examples of a run as PNG files, with an index.csv. Every file was "
        "verified: its image is adversarial when it is read back.",
    )
    parser.add_argument("run_folder", metavar="RUN", help="directory of a finished run of pdpgd evaluate")
    parser.add_argument("--out", metavar="DIR", required=True, help="directory for the PNG files and index.csv")
    parser.add_argument("--norm", action="append", metavar="NORM", help="norm to export; repeatable (default: all)")
    parser.add_argument("--limit", metavar="N", type=int, help="maximum number of files per norm (default: all)")
    parser.set_defaults(run=export)


def export(options: argparse.Namespace) -> int:
    """Write the PNG files."""
    from pdpgd.evaluation.export import export as export_examples
    from pdpgd.files import output_path
    from pdpgd.runs.result import load_evaluation

    place = output_path(options.out)
    evaluation = load_evaluation(options.run_folder)
    norms = tuple(options.norm) if options.norm else None
    count = export_examples(evaluation, place, norms=norms, limit=options.limit)
    print(f"Wrote {count} PNG files and index.csv to {options.out}; each was verified as adversarial at 8 bits.")
    return 0
