"""pdpgd export: the adversarial examples of a run as PNG files."""

from __future__ import annotations

import argparse


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("export", help="write the adversarial examples of a run as PNG files")
    parser.add_argument("run_folder", metavar="run", help="the directory of a finished run of pdpgd evaluate")
    parser.add_argument("--out", required=True, help="directory for the PNG files and their index.csv")
    parser.add_argument("--norm", action="append", metavar="NORM", help="repeatable (default: all of the run)")
    parser.add_argument("--limit", type=int, help="files a norm (default: all)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pdpgd.evaluation.export import export
    from pdpgd.files import output_path
    from pdpgd.runs.result import load_evaluation

    place = output_path(options.out)
    evaluation = load_evaluation(options.run_folder)
    norms = tuple(options.norm) if options.norm else None
    count = export(evaluation, place, norms=norms, limit=options.limit)
    print(f"{count} PNG files and index.csv in {options.out}: each verified as adversarial at 8 bits")
    return 0
