"""pdpgd models, pdpgd data, pdpgd attacks: what is known by name, and where else it comes from."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from pdpgd.models.architectures import Architecture
if TYPE_CHECKING:
    from pdpgd.attacks.catalogue import AttackInfo


MODELS_ELSEWHERE = """
Models of your own, wherever a model is asked for:
  package.module:factory      Python; weights beside it as safetensors or a state dict
  FILE                        TorchScript, torch.export or torch.save, with --trust-model-code
  timm:NAME                   needs pip install 'pdpgd[timm]'
  hf:NAME                     needs pip install 'pdpgd[huggingface]'
  robustbench:NAME            needs pip install 'pdpgd[robustbench]'"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    add_models_to(commands)
    add_data_to(commands)
    add_attacks_to(commands)


def add_models_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("models", help="list the shipped nets, the paper's and the architectures to train")
    parser.set_defaults(run=list_models)


def list_models(options: argparse.Namespace) -> int:
    from rich.console import Console

    from pdpgd.models import paper_nets, zoo
    from pdpgd.models.architectures import ARCHITECTURES

    nets = _table("Shipped nets", "name", "type", "size", "clean", "under PGD", "trained by us")
    for name in zoo.names():
        card = zoo.card(name)
        robust = ", ".join(f"{norm} {_short(radius)}: {share:.1%}" for norm, radius, share in card.robust())
        size = f"{zoo.path(name).stat().st_size / 1e6:.2f} MB"
        nets.add_row(
            name, card.architecture, size, f"{card.clean():.2%}", robust, f"{card.data}, {_inner(card.training)}"
        )
    published = _table("Nets of the paper", "name", "architecture", "size", "clean", "here")
    for name, net in paper_nets.PAPER_NETS.items():
        size, here = f"{(net.file.size or 0) / 1e6:.2f} MB", paper_nets.place(name) is not None
        published.add_row(f"paper:{name}", net.architecture, size, f"{net.clean:.2%}", "yes" if here else "no")
    architectures = _table("Architectures to train", "name", "image", "parameters", "what it is")
    for name, architecture in ARCHITECTURES.items():
        shape = "x".join(map(str, architecture.shape))
        architectures.add_row(name, shape, _parameters(architecture), architecture.about)
    console = Console(highlight=False)
    console.print(nets)
    console.print("Clean: on the 10,000 test images. Under PGD: 40 steps, 5 restarts, on the first 1,000 of them.\n")
    console.print(published)
    console.print(
        f"Clean: on the 10,000 test images, as the paper says. Its authors publish the weights without a licence\n"
        f"({paper_nets.REPOSITORY}): they are not shipped, but looked for in $PDPGD_DATA/{paper_nets.FOLDER} and in\n"
        "the cache, and downloaded where there is a network; needs pip install 'pdpgd[paper]'.\n",
        markup=False,
        soft_wrap=True,
    )
    console.print(architectures)
    console.print(MODELS_ELSEWHERE, markup=False, highlight=False)
    return 0


def _table(title: str, *headings: str) -> Table:
    """Names are to be typed, so they are never cut, however narrow the terminal is."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in ("size", "clean", "parameters") else "left"
        table.add_column(heading, justify=justify, no_wrap=heading == "name", overflow="fold")
    return table


def _parameters(architecture: Architecture) -> str:
    """Counted on a net that takes no memory; a net that another library builds may not be there to count."""
    import torch

    from pdpgd.errors import MissingExtraError

    try:
        with torch.device("meta"):
            return f"{sum(parameter.numel() for parameter in architecture.build().parameters()):,}"
    except MissingExtraError:
        return "?"


def _short(radius: float) -> str:
    """Radii of colour images are known in 255ths."""
    steps = radius * 255
    return f"{steps:.0f}/255" if abs(steps - round(steps)) < 1e-6 and round(steps) % 5 else f"{radius:g}"


def _inner(training: dict[str, object]) -> str:
    return "plain" if training["inner"] == "none" else f"{training['inner']} training"


DATA_ELSEWHERE = """
Data of your own, wherever data is asked for:
  FILE.npz                    arrays images and labels
  FOLDER                      a sub-folder of images for each class
A data set is looked for in $PDPGD_DATA/NAME, in the cache folder and where the
system's packages put it, and is downloaded where there is a network."""


def add_data_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("data", help="list the data sets known by name, and where each is")
    parser.set_defaults(run=list_data)


def list_data(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    from pdpgd.data.loading import describe_data

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
        console.print(Padding(f"{data.origin}. License: {data.license}.", (0, 0, 0, 4)))
    console.print(DATA_ELSEWHERE, markup=False)
    return 0


def add_attacks_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("attacks", help="list the attacks, ours and the rivals")
    parser.add_argument("--norm", help="those that can do it")
    parser.add_argument("--json", action="store_true", help="print the list as JSON, and nothing else")
    parser.set_defaults(run=list_attacks)


def list_attacks(options: argparse.Namespace) -> int:
    from pdpgd.attacks.catalogue import ATTACKS
    from pdpgd.norms import norm_of

    norm = None if options.norm is None else norm_of(options.norm).name
    entries = [entry for entry in ATTACKS.values() if norm is None or entry.can_do(norm)]
    if options.json:
        print(json.dumps([_attack_as_json(entry) for entry in entries], indent=2))
        return 0
    _show_attacks(entries)
    return 0


def _show_attacks(entries: list[AttackInfo]) -> None:
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


def _source(entry: AttackInfo) -> str:
    if entry.library is None:
        return "here"
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
