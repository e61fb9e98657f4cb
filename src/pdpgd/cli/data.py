"""pdpgd data: the data sets known by name, and where each is on this machine."""

from __future__ import annotations

import argparse

ELSEWHERE = """
Data of your own, wherever data is asked for:
  FILE.npz                    arrays images and labels
  FOLDER                      a sub-folder of images for each class
A data set is looked for in $PDPGD_DATA/NAME, in the cache folder and where the
system's packages put it, and is downloaded where there is a network."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("data", help="list the data sets known by name, and where each is")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    from pdpgd.subjects.data import describe_data

    known = describe_data()
    table = Table(title="Data sets", title_justify="left")
    for heading in ("name", "image", "classes", "train", "test"):
        table.add_column(heading, justify="left" if heading in ("name", "image") else "right")
    for data in known:
        train, test = ("?" if size is None else f"{size:,}" for size in (data.train, data.test))
        table.add_row(data.name, "x".join(map(str, data.shape)), str(data.classes), train, test)
    console = Console(highlight=False)
    console.print(table)
    for data in known:
        console.print(f"[bold]{data.name}[/bold]: {data.place}")
        console.print(Padding(f"{data.origin}. Licence: {data.licence}.", (0, 0, 0, 4)))
    console.print(ELSEWHERE, markup=False)
    return 0
