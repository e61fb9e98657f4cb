"""pdpgd accuracy: the accuracy of a model on clean images and under PGD."""

from __future__ import annotations

import argparse

from pdpgd.cli.options import add_model, model, threat
from pdpgd.cli.progress import StageBar

EPILOG = """examples:
  pdpgd accuracy mnist-linf-at --threat linf:0.3
  pdpgd accuracy nets:resnet --weights resnet.safetensors --mean cifar10 --data cifar10 --threat linf:8/255"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "accuracy",
        help="measure the accuracy of a model on clean images and under PGD",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument(
        "--data", default="mnist-1000", help="name of a data set, an .npz file or a folder (default: %(default)s)"
    )
    parser.add_argument("--data-dir", help="folder of the data set (default: search the usual places, then download)")
    parser.add_argument(
        "--threat",
        action="append",
        default=[],
        metavar="NORM:RADIUS",
        help="measure robust accuracy under PGD, e.g. linf:8/255; repeatable",
    )
    parser.add_argument("--images", type=int, default=1000, help="number of images to attack (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of PGD (default: %(default)s)")
    parser.add_argument("--restarts", type=int, default=5, help="random starts of PGD (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of PGD's starts (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="device to run on (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print clean accuracy, and robust accuracy under each threat model."""
    from rich.console import Console

    from pdpgd.data.loading import load_data
    from pdpgd.training.recipe import clean_accuracy, robust_accuracy

    console = Console(highlight=False)
    threats = [threat("--threat", text) for text in options.threat]
    samples = load_data(options.data, root=options.data_dir)
    net = model(options).to(options.device)
    clean = clean_accuracy(net, samples, device=options.device)
    console.print(f"clean: {clean.share:.2%} of {clean.samples:,} images")
    for known in threats:
        with StageBar(console) as bar:
            robust = robust_accuracy(
                net,
                samples,
                norm=known.norm,
                radius=known.radius,
                steps=options.steps,
                restarts=options.restarts,
                count=options.images,
                seed=options.seed,
                device=options.device,
                progress=bar,
            )
        console.print(f"PGD {known.norm} {known.radius:.4g}: {robust.share:.2%} of {robust.samples:,} images")
    return 0
