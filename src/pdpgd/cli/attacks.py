"""pdpgd attacks: every attack by name, ours and the rivals, and what to install for those from other libraries."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdpgd.catalogue import Entry


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("attacks", help="list the attacks, ours and the rivals")
    parser.add_argument("--norm", help="those that can do it")
    parser.add_argument("--json", action="store_true", help="print the list as JSON, and nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pdpgd.catalogue import ATTACKS
    from pdpgd.norms import norm_of

    norm = None if options.norm is None else norm_of(options.norm).name
    entries = [entry for entry in ATTACKS.values() if norm is None or entry.can_do(norm)]
    if options.json:
        print(json.dumps([_as_json(entry) for entry in entries], indent=2))
        return 0
    _show(entries)
    return 0


def _show(entries: list[Entry]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    form = "{:<17}{:<15}{:<24}{}"
    console.print(form.format("name", "norms", "source", "cost of an iteration"), style="bold")
    for entry in entries:
        line = form.format(entry.name, " ".join(entry.norms), _source(entry), entry.cost)
        console.print(line, markup=False, soft_wrap=True)
        console.print(f"    {entry.about}. {entry.citation}", style="dim", markup=False, soft_wrap=True)
    console.print("\nCost in forward (f) and backward (b) passes; k is the number of classes.")
    for library in {entry.library.name: entry.library for entry in entries if entry.library}.values():
        state = "is installed" if library.installed() else "is not installed"
        console.print(f"{library.short} {state}: {library.install}", markup=False, soft_wrap=True)


def _source(entry: Entry) -> str:
    if entry.library is None:
        return "here"
    version = entry.library.version()
    return f"{entry.library.short} {version}" if version else f"{entry.library.short} (not installed)"


def _as_json(entry: Entry) -> dict[str, Any]:
    library = entry.library
    return {
        "name": entry.name,
        "norms": list(entry.norms),
        "about": entry.about,
        "targeted": entry.targeted,
        "kind": "ball" if entry.is_ball else "minimum",
        "library": None if library is None else library.name,
        "version": None if library is None else library.version(),
        "install": None if library is None else library.install,
        "cost": entry.cost,
        "citation": entry.citation,
    }
