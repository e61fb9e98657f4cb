"""pdpgd train: train a net, plainly or adversarially, and write its weights with a card beside them."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pdpgd.cli.options import threat
from pdpgd.cli.progress import shown

if TYPE_CHECKING:
    from pdpgd.training.config import TrainingConfig
    from pdpgd.training.recipe import Recipe

EPILOG = """examples:
  pdpgd train --data mnist --architecture mnist-compact --name my-plain --epochs 10
  pdpgd train --data mnist --architecture mnist-compact --name my-robust --inner pgd --threat linf:0.3
  pdpgd train --data mnist --architecture mnist-compact --name my-both --inner pdpgd --threat linf:0.3 --threat l2:2

A training that was stopped goes on where it was when the same command is given again."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "train",
        help="train a net, plainly or adversarially",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subject = parser.add_argument_group("what is trained")
    subject.add_argument("--data", required=True, help="a data set's name, an .npz file or a folder of images by class")
    subject.add_argument("--data-dir", help="where the data set lies (default: looked for, then downloaded)")
    subject.add_argument("--test-data", help="what to judge it on; needed with data of your own")
    subject.add_argument("--architecture", required=True, help="a name (see pdpgd models) or package.module:factory")
    subject.add_argument("--initial", help="weights to begin with: a shipped net's name or a file")
    subject.add_argument("--name", required=True, help="the name of the trained net")
    subject.add_argument("--out", type=Path, default=Path("trained"), help="the folder it is written to (%(default)s)")

    how = parser.add_argument_group("how")
    how.add_argument("--inner", help="the inner attack: none, pgd, fast or pdpgd (none)")
    how.add_argument("--threat", action="append", default=[], metavar="NORM:RADIUS", help="e.g. linf:8/255; repeatable")
    how.add_argument("--inner-steps", type=int, help="steps of pgd and pdpgd (7)")
    how.add_argument("--inner-rate", type=float, help="PGD's step times the steps, over the radius (2.5)")
    how.add_argument("--fast-rate", type=float, help="the single step of fast, over the radius (1.25)")
    how.add_argument("--clean-share", type=float, help="weight of the clean images' loss (0)")
    how.add_argument("--radius-warmup", type=float, help="share of the training over which the radius grows (0)")
    how.add_argument("--epochs", type=int, help="passes over the data (10)")
    how.add_argument("--batch", type=int, help="images a step (128)")
    how.add_argument("--optimiser", help="adam or sgd (adam)")
    how.add_argument("--rate", type=float, help="the highest learning rate (0.002)")
    how.add_argument("--rate-warmup", type=float, help="share of the training over which the rate rises (0.2)")
    how.add_argument("--weight-decay", type=float, help="(0)")
    how.add_argument("--augment", help="none or crop-flip (none)")
    how.add_argument("--seed", type=int, help="(0)")

    running = parser.add_argument_group("running and judging")
    running.add_argument("--device", default="cpu", help="(%(default)s)")
    running.add_argument("--threads", type=int, help="of the CPU; the last bits of the weights depend on it")
    running.add_argument("--checkpoint-every", type=int, default=200, metavar="STEPS", help="(%(default)s)")
    running.add_argument(
        "--judge", action="append", default=[], metavar="NORM:RADIUS", help="PGD to judge with (the threats)"
    )
    running.add_argument("--judge-images", type=int, default=1000, help="images it is judged on (%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import torch
    from rich.console import Console

    from pdpgd.training.recipe import carry_out

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(highlight=False)
    recipe = _recipe(options)
    with shown(console) as show:
        card = carry_out(recipe, observe=show)
    console.print(f"{recipe.weights}: {card.parameters:,} parameters, sha256 {card.sha256[:16]}", soft_wrap=True)
    console.print(f"clean accuracy {card.clean():.2%}")
    for norm, radius, share in card.robust():
        console.print(f"under PGD {norm} {radius:.4g}: {share:.1%}")
    return 0


def _recipe(options: argparse.Namespace) -> Recipe:
    from pdpgd.training.recipe import Recipe

    return Recipe(
        name=options.name,
        data=options.data,
        data_folder=options.data_dir,
        test_data=options.test_data,
        architecture=options.architecture,
        initial=options.initial,
        config=_config(options),
        folder=options.out,
        device=options.device,
        checkpoint_every=options.checkpoint_every,
        judges=tuple(threat("--judge", text) for text in options.judge),
        judge_images=options.judge_images,
        command=shlex.join(["pdpgd", *sys.argv[1:]]),
    )


def _config(options: argparse.Namespace) -> TrainingConfig:
    """What was not said on the command line keeps the config's default."""
    from pdpgd.training.config import TrainingConfig

    said = {entry.name: getattr(options, entry.name, None) for entry in fields(TrainingConfig)}
    said["threats"] = tuple(threat("--threat", text) for text in options.threat)
    return TrainingConfig(**{name: value for name, value in said.items() if value is not None})
