"""pdpgd demo: pdpgd evaluate on a shipped net and the embedded images, in every norm."""

from __future__ import annotations

import argparse

MODEL, DATA = "mnist-plain", "mnist-1000"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from pdpgd.cli import evaluate

    parser = commands.add_parser(
        "demo", help="evaluate a shipped net on embedded images in every norm", description=__doc__
    )
    parser.add_argument("--model", default=MODEL, help="a shipped net for MNIST (%(default)s)")
    parser.add_argument("--limit", type=int, default=100, help="images, the first ones (%(default)s)")
    parser.add_argument(
        "--budget", type=int, default=1000, help="forward + backward passes an image and norm (%(default)s)"
    )
    parser.add_argument("--out", help="directory of the results (default: runs/MODEL-DATA-...)")
    mine = vars(parser.parse_args([]))
    parser.set_defaults(**{**evaluate.defaults(), **mine, "data": DATA})
