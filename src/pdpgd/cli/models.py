"""pdpgd models: the nets that come with the package, the paper's, those to train, and where else models come from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from pdpgd.subjects.architectures import Architecture

ELSEWHERE = """
Models of your own, wherever a model is asked for:
  package.module:factory      Python; weights beside it as safetensors or a state dict
  FILE                        TorchScript, torch.export or torch.save, with --trust-model-code
  timm:NAME                   needs pip install 'pdpgd[timm]'
  hf:NAME                     needs pip install 'pdpgd[huggingface]'
  robustbench:NAME            needs pip install 'pdpgd[robustbench]'"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("models", help="list the shipped nets, the paper's and the architectures to train")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from pdpgd.subjects import paper_nets, zoo
    from pdpgd.subjects.architectures import ARCHITECTURES

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
    console.print(ELSEWHERE, markup=False, highlight=False)
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
