"""pdpgd report: runs, comparisons or an experiment as one page that opens from disk."""

from __future__ import annotations

import argparse

from pdpgd.cli.options import norm_and_radius

EPILOG = """examples:
  pdpgd report runs/mine
  pdpgd report runs/before runs/after --radius linf:8/255 --out difference.html
  pdpgd report runs/comparison --gallery 0

Several directories are held against the first one: which withstands more, by how much, and how sure that is."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "report",
        help="one page on runs, comparisons or an experiment",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", metavar="dir", nargs="+", help="of pdpgd evaluate, of compare, or of an experiment")
    parser.add_argument("--out", help="the file (default: report.html in the directory; of several, here)")
    parser.add_argument(
        "--radius", action="append", default=[], metavar="NORM:RADIUS", help="robust accuracy there; repeatable"
    )
    parser.add_argument("--gallery", type=int, default=40, help="the most samples a norm with pictures (%(default)s)")
    parser.add_argument("--title", help="of the page")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pdpgd.report.page import write_report

    radii: dict[str, list[float]] = {}
    for text in options.radius:
        norm, radius = norm_and_radius("--radius", text)
        radii.setdefault(norm, []).append(radius)
    place = write_report(
        options.folders, options.out, radii=radii, gallery=options.gallery, title=options.title or None
    )
    print(f"{place}: {place.stat().st_size / 1e6:.1f} MB, opens in any browser, without a network")
    return 0
