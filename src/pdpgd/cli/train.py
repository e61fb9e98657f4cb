"""pdpgd train: train a net, plainly or adversarially, and write its weights and its card."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pdpgd.cli.options import threat
from pdpgd.cli.progress import StageBar

if TYPE_CHECKING:
    from pdpgd.training.config import TrainingConfig
    from pdpgd.training.recipe import Recipe

EPILOG = """examples:
  pdpgd train --data mnist --architecture mnist-compact --name my-plain --epochs 10
  pdpgd train --data mnist --architecture mnist-compact --name my-robust --inner pgd --threat linf:0.3
  pdpgd train --data mnist --architecture mnist-compact --name my-both --inner pdpgd --threat linf:0.3 --threat l2:2

The same command resumes a training that was stopped."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a net, plainly or adversarially",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_net(parser.add_argument_group("net and data"))
    _add_training(parser.add_argument_group("training"))
    _add_execution(parser.add_argument_group("execution and testing"))
    parser.set_defaults(run=run)


def _add_net(net: argparse._ArgumentGroup) -> None:
    net.add_argument("--data", required=True, help="name of a data set, an .npz file or a folder of images by class")
    net.add_argument("--data-dir", help="folder of the data set (default: search the usual places, then download)")
    net.add_argument("--test-data", help="data to test the net on; required with data of your own")
    net.add_argument("--architecture", required=True, help="a name (see pdpgd models) or package.module:factory")
    net.add_argument("--initial", help="initial weights: name of a shipped net or a file (default: random)")
    net.add_argument("--name", required=True, help="name of the trained net")
    net.add_argument("--out", type=Path, default=Path("trained"), help="folder to write to (default: %(default)s)")


def _add_training(how: argparse._ArgumentGroup) -> None:
    how.add_argument("--inner", help="inner attack: none, pgd, fast or pdpgd (default: none)")
    how.add_argument(
        "--threat",
        action="append",
        default=[],
        metavar="NORM:RADIUS",
        help="threat model to train against, e.g. linf:8/255; repeatable",
    )
    how.add_argument("--inner-steps", type=int, help="steps of pgd and pdpgd (default: 7)")
    how.add_argument("--inner-rate", type=float, help="PGD's step size times steps, over the radius (default: 2.5)")
    how.add_argument("--fast-rate", type=float, help="step size of fast, over the radius (default: 1.25)")
    how.add_argument("--clean-share", type=float, help="weight of the loss on clean images (default: 0)")
    how.add_argument("--radius-warmup", type=float, help="fraction of training in which the radius grows (default: 0)")
    how.add_argument("--epochs", type=int, help="passes over the data (default: 10)")
    how.add_argument("--batch", type=int, help="images per step (default: 128)")
    how.add_argument("--optimiser", dest="optimizer", help="adam or sgd (default: adam)")
    how.add_argument("--rate", type=float, help="maximum learning rate (default: 0.002)")
    how.add_argument("--rate-warmup", type=float, help="fraction of training in which the rate rises (default: 0.2)")
    how.add_argument("--weight-decay", type=float, help="weight decay of the optimizer (default: 0)")
    how.add_argument("--augment", help="data augmentation: none or crop-flip (default: none)")
    how.add_argument("--seed", type=int, help="random seed of weights, sample order and attacks (default: 0)")


def _add_execution(running: argparse._ArgumentGroup) -> None:
    running.add_argument("--device", default="cpu", help="device to train on (default: %(default)s)")
    running.add_argument("--threads", type=int, help="CPU threads; the last bits of the weights depend on it")
    running.add_argument(
        "--checkpoint-every",
        type=int,
        default=200,
        metavar="STEPS",
        help="steps between checkpoints (default: %(default)s)",
    )
    running.add_argument(
        "--judge",
        action="append",
        default=[],
        metavar="NORM:RADIUS",
        help="threat model to measure robust accuracy under, by PGD; repeatable (default: those of --threat)",
    )
    running.add_argument(
        "--judge-images", type=int, default=1000, help="images to measure robust accuracy on (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Train the net, and print where it is and how accurate it is."""
    import torch
    from rich.console import Console

    from pdpgd.training.recipe import train_model

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(highlight=False)
    recipe = _recipe(options)
    with StageBar(console) as bar:
        card = train_model(recipe, progress=bar)
    console.print(f"{recipe.weights}: {card.parameters:,} parameters, sha256 {card.sha256[:16]}", soft_wrap=True)
    console.print(f"clean accuracy {card.clean():.2%}")
    for norm, radius, share in card.robust():
        console.print(f"under PGD {norm} {radius:.4g}: {share:.1%}")
    return 0


def _recipe(options: argparse.Namespace) -> Recipe:
    """Build the recipe that the command line describes."""
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
    """Build the config; options that were not given keep its defaults."""
    from pdpgd.training.config import TrainingConfig

    given = {entry.name: getattr(options, entry.name, None) for entry in fields(TrainingConfig)}
    given["threats"] = tuple(threat("--threat", text) for text in options.threat)
    return TrainingConfig(**{name: value for name, value in given.items() if value is not None})
