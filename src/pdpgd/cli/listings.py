"""pdpgd attacks, pdpgd models and pdpgd data: list what can be used by name."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Literal

from pdpgd.cli.options import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from pdpgd.attacks.catalogue import AttackInfo
    from pdpgd.models.architectures import Architecture

NUMERIC = ("size", "clean", "parameters", "classes", "train", "test")
"""Headings of columns that are aligned to the right."""
OWN_MODELS = """
Models of your own can be given wherever a model is expected:
  package.module:factory    Python; with --weights for safetensors or a state
                            dict
  FILE                      TorchScript, torch.export or torch.save, with
                            --trust-model-code
  timm:NAME                 needs pip install 'pdpgd[timm]'
  hf:NAME                   needs pip install 'pdpgd[huggingface]'
  robustbench:NAME          needs pip install 'pdpgd[robustbench]'"""
OWN_DATA = """
Data of your own can be given wherever data is expected:
  FILE.npz    arrays images and labels
  FOLDER      one sub-folder of images per class
Data sets are searched for in $PDPGD_DATA/NAME, in the cache directory and where
system packages install them, and downloaded if there is a network."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three commands."""
    attacks = commands.add_parser(
        "attacks",
        help="list the attacks with their norms, sources and costs",
        description="List the attacks with their norms, sources and costs.",
    )
    attacks.add_argument("--norm", metavar="NORM", help="list only attacks that support this norm")
    attacks.add_argument("--json", action="store_true", help="print only the list, as JSON")
    attacks.set_defaults(run=list_attacks)
    about = "list the shipped nets, the paper's nets and architectures"
    commands.add_parser("models", help=about, description=f"{about.capitalize()}.").set_defaults(run=list_models)
    about = "list the data sets known by name"
    commands.add_parser("data", help=about, description=f"{about.capitalize()}.").set_defaults(run=list_data)


def list_attacks(options: argparse.Namespace) -> int:
    """Print the attacks of the catalogue."""
    from pdpgd.attacks.catalogue import ATTACKS
    from pdpgd.norms import norm_of

    norm = None if options.norm is None else norm_of(options.norm).name
    entries = [entry for entry in ATTACKS.values() if norm is None or entry.can_do(norm)]
    if options.json:
        print(json.dumps([_attack_as_json(entry) for entry in entries], indent=2))
    else:
        _show_attacks(entries)
    return 0


def _show_attacks(entries: list[AttackInfo]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    form = "{:<17}{:<15}{:<24}{}"
    console.print(form.format("name", "norms", "source", "cost per iteration"), style="bold")
    for entry in entries:
        line = form.format(entry.name, " ".join(entry.norms), _source(entry), entry.cost)
        console.print(line, markup=False, soft_wrap=True)
        about = Text(f"{entry.about}. {entry.citation}", style="dim")
        console.print(Padding(about, (0, 0, 0, 4), expand=False))
    console.print("\nCost: forward (f) and backward (b) passes per sample; k is the number of classes.", soft_wrap=True)
    for library in {entry.library.name: entry.library for entry in entries if entry.library}.values():
        state = "is installed" if library.installed() else "is not installed"
        console.print(f"{library.short} {state}: {library.install}", markup=False, soft_wrap=True)


def _source(entry: AttackInfo) -> str:
    """Return the library of an attack with its version."""
    if entry.library is None:
        return "built-in"
    version = entry.library.version()
    return f"{entry.library.short} {version}" if version else f"{entry.library.short} (not installed)"


def _attack_as_json(entry: AttackInfo) -> dict[str, Any]:
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


def list_models(options: argparse.Namespace) -> int:
    """Print the shipped nets, the nets of the paper, and the architectures that can be trained."""
    from rich.console import Console

    from pdpgd.models import paper_nets

    console = Console(highlight=False)
    console.print(_shipped_nets())
    console.print(
        "Clean: accuracy on the 10,000 test images. Under PGD: robust accuracy on the first 1,000 of them, with 40 "
        "steps and 5 restarts.\n"
    )
    console.print(_paper_nets())
    console.print(
        "Clean: accuracy on the 10,000 test images, as stated in the paper. Its authors published the weights without "
        f"a license ({paper_nets.REPOSITORY}). They are therefore not shipped, but searched for in "
        f"$PDPGD_DATA/{paper_nets.FOLDER} and in the cache, and downloaded if there is a network. They need pip "
        "install 'pdpgd[paper]'.\n",
        markup=False,
    )
    console.print(_architectures())
    console.print(OWN_MODELS, markup=False)
    return 0


def _shipped_nets() -> Table:
    from pdpgd.models import zoo

    table = _table("Shipped nets", "name", "architecture", "size", "clean", "under PGD", "training")
    for name in zoo.names():
        card = zoo.card(name)
        robust = ", ".join(f"{norm} {_short(radius)} {share:.1%}" for norm, radius, share in card.robust())
        size = f"{zoo.path(name).stat().st_size / 1e6:.2f} MB"
        inner = "plain" if card.training["inner"] == "none" else str(card.training["inner"])
        table.add_row(name, card.architecture, size, f"{card.clean():.2%}", robust, f"{inner} on {card.data}")
    return table


def _paper_nets() -> Table:
    from pdpgd.models import paper_nets

    table = _table("Nets of the paper", "name", "architecture", "size", "clean", "found here")
    for name, net in paper_nets.PAPER_NETS.items():
        size, found = f"{(net.file.size or 0) / 1e6:.2f} MB", paper_nets.place(name) is not None
        table.add_row(f"paper:{name}", net.architecture, size, f"{net.clean:.2%}", "yes" if found else "no")
    return table


def _architectures() -> Table:
    from pdpgd.models.architectures import ARCHITECTURES

    table = _table("Architectures that can be trained", "name", "image", "parameters", "description")
    for name, architecture in ARCHITECTURES.items():
        shape = "x".join(map(str, architecture.shape))
        table.add_row(name, shape, _parameters(architecture), architecture.about)
    return table


def _parameters(architecture: Architecture) -> str:
    """Count the parameters on a net without storage; "?" if the library that builds it is not installed."""
    import torch

    from pdpgd.errors import MissingExtraError

    try:
        with torch.device("meta"):
            return f"{sum(parameter.numel() for parameter in architecture.build().parameters()):,}"
    except MissingExtraError:
        return "?"


def _short(radius: float) -> str:
    """Write a radius for color images as a multiple of 1/255, as is common, and others as they are."""
    steps = radius * 255
    return f"{steps:.0f}/255" if abs(steps - round(steps)) < 1e-6 and round(steps) % 5 else f"{radius:g}"


def list_data(options: argparse.Namespace) -> int:
    """Print the data sets that are known by name, and where each of them is."""
    from rich.console import Console
    from rich.padding import Padding

    from pdpgd.data.loading import describe_data

    known = describe_data()
    table = _table("Data sets", "name", "image", "classes", "train", "test")
    for data in known:
        train, test = ("?" if size is None else f"{size:,}" for size in (data.train, data.test))
        table.add_row(data.name, "x".join(map(str, data.shape)), str(data.classes), train, test)
    console = Console(highlight=False)
    console.print(table)
    for data in known:
        console.print(f"[bold]{data.name}[/bold]: {data.place}")
        console.print(Padding(f"{data.origin}. License: {data.license}.", (0, 0, 0, 4), expand=False))
    console.print(OWN_DATA, markup=False)
    return 0


def _table(title: str, *headings: str) -> Table:
    """Return a table whose names, which users type, are never broken, however narrow the terminal is."""
    table = plain_table(title)
    table.pad_edge = False
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in NUMERIC else "left"
        unbroken = heading in ("name", "architecture", *NUMERIC)
        width = 8 if heading == "training" else None
        table.add_column(heading, justify=justify, no_wrap=unbroken, max_width=width, overflow="fold")
    return table
