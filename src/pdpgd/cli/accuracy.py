"""pdpgd accuracy: how often a model is right, on clean images and under PGD."""

from __future__ import annotations

import argparse
from functools import partial

from pdpgd.cli.options import add_model, model, threat
from pdpgd.cli.progress import shown

EPILOG = """examples:
  pdpgd accuracy mnist-linf-at --threat linf:0.3
  pdpgd accuracy nets:resnet --weights resnet.safetensors --mean cifar10 --data cifar10 --threat linf:8/255"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "accuracy",
        help="how often a model is right, clean and under PGD",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("--data", default="mnist-1000", help="a data set's name, an .npz or a folder (%(default)s)")
    parser.add_argument("--data-dir", help="where the data set lies (default: looked for, then downloaded)")
    parser.add_argument(
        "--threat", action="append", default=[], metavar="NORM:RADIUS", help="e.g. linf:8/255; repeatable"
    )
    parser.add_argument("--images", type=int, default=1000, help="images attacked, the first ones (%(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="of PGD (%(default)s)")
    parser.add_argument("--restarts", type=int, default=5, help="of PGD (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of PGD's starts (%(default)s)")
    parser.add_argument("--device", default="cpu", help="(%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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
        name = f"PGD {known.norm} {known.radius:.4g}"
        with shown(console) as show:
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
                observe=partial(show, name, seen=""),
            )
        console.print(f"{name}: {robust.share:.2%} of {robust.samples:,} images")
    return 0
