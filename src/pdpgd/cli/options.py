"""What several commands share: options, their values, and the style of tables."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from pdpgd.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from pdpgd.models.normalization import NormalizationChoice
    from pdpgd.training.config import Threat

OUT_HELP = "directory of the results (default: in runs/, named after model and data)"
RADIUS_HELP = "report robust accuracy at this radius, such as linf:8/255; repeatable"
DATA_DIR_HELP = "directory of the data set (default: search, then download)"


class RunArguments(TypedDict):
    """Arguments that `evaluate` and `compare` have in common."""

    weights: str | None
    normalization: NormalizationChoice
    pool: str | None
    trust_model_code: bool
    data_dir: str | None
    limit: int
    seed: int
    chunk_size: int
    batch_size: int
    threads: int | None
    device: str | None
    engine: str
    workers: int | None
    address: str | None
    draws: int


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model and the options that say how it is loaded."""
    parser.add_argument(
        "model",
        help="a shipped net, package.module:factory, a file, paper:NAME, timm:NAME, hf:NAME or robustbench:NAME",
    )
    group = parser.add_argument_group("model")
    group.add_argument(
        "--weights",
        metavar="FILE",
        help="weights to load: safetensors, a state dict, or hf:OWNER/REPOSITORY/FILE; for paper:NAME a MATLAB file",
    )
    group.add_argument(
        "--mean", help="mean of the input normalization: comma-separated numbers, or imagenet, cifar10 or none"
    )
    group.add_argument("--std", help="standard deviation of the input normalization, as for --mean")
    group.add_argument(
        "--pool",
        metavar="NAME",
        help="restricted-imagenet: reduce an ImageNet classifier to the nine groups of Restricted ImageNet, by the "
        "largest logit of each group",
    )
    add_trust(group)


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add the option that gives consent to run code from model files."""
    parser.add_argument(
        "--trust-model-code",
        "--trust-pickle",
        action="store_true",
        help="allow running code from model files: pickle, TorchScript, torch.export, and Python files of hf: models",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the data set and the options that select samples of it."""
    parser.add_argument(
        "data", help="name of a data set, an .npz file, or a folder with one sub-folder of images per class"
    )
    group = parser.add_argument_group("data")
    group.add_argument("--data-dir", metavar="DIR", help=DATA_DIR_HELP)
    group.add_argument(
        "--limit", metavar="N", type=int, default=1000, help="number of samples, from the first on (%(default)s)"
    )


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a run is divided and executed."""
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--seed", metavar="N", type=int, default=0, help="random seed for attack initialization (%(default)s)"
    )
    group.add_argument(
        "--draws",
        metavar="N",
        type=int,
        default=1,
        help="for randomized models: attack the mean of N draws, each of which counts as a pass, and judge by a vote "
        "(%(default)s)",
    )
    group.add_argument(
        "--chunk-size",
        metavar="N",
        type=int,
        default=100,
        help="samples that are attacked and written together (%(default)s)",
    )
    group.add_argument(
        "--batch-size", metavar="N", type=int, default=100, help="maximum rows per forward pass (%(default)s)"
    )
    group.add_argument(
        "--threads",
        metavar="N",
        type=int,
        help="CPU threads per chunk (default: the cores, divided among the workers; 1 on Ray)",
    )
    group.add_argument("--device", help="torch device (default: cuda if available, else cpu)")
    add_engine(group, workers="1; on Ray as many as fit")


def add_engine(group: argparse._ArgumentGroup, *, workers: str) -> None:
    """Add the options of the engine; `workers` is the default number of workers in words."""
    group.add_argument("--engine", metavar="NAME", default="local", help="local or ray (%(default)s)")
    group.add_argument("--workers", metavar="N", type=int, help=f"chunks processed at once (default: {workers})")
    group.add_argument("--address", help="address of an existing Ray cluster (default: start one on this machine)")


def run_arguments(options: argparse.Namespace) -> RunArguments:
    """Return what `add_model`, `add_data` and `add_execution` added, as arguments of `evaluate`."""
    return {
        "weights": options.weights,
        "normalization": normalization(options),
        "pool": options.pool,
        "trust_model_code": options.trust_model_code,
        "data_dir": options.data_dir,
        "limit": options.limit,
        "seed": options.seed,
        "chunk_size": options.chunk_size,
        "batch_size": options.batch_size,
        "threads": options.threads,
        "device": options.device,
        "engine": options.engine,
        "workers": options.workers,
        "address": options.address,
        "draws": options.draws,
    }


def default_folder(options: argparse.Namespace, *names: str) -> str:
    """Return a directory that is the same for the same call, so that a call resumes its own run.

    Args:
        options: Options of the command.
        names: Options of this command that the results depend on, besides those that commands share.
    """
    question = {
        name: getattr(options, name)
        for name in (
            *("model", "weights", "mean", "std", "data", "data_dir"),
            *names,
            *("limit", "seed", "chunk_size", "batch_size", "threads", "device"),
        )
    }
    if options.pool is not None:
        question["pool"] = options.pool
    if options.draws != 1:
        question["draws"] = options.draws
    if getattr(options, "only_radius", False):
        question["only_radius"] = radii_by_norm(options.radius)
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:8]
    plain = "".join(letter if letter.isalnum() else "-" for letter in f"{options.model}-{Path(options.data).name}")
    return f"runs/{plain}-{digest}"


def model(options: argparse.Namespace) -> nn.Module:
    """Load the model that the options of `add_model` describe."""
    from pdpgd.models.loading import load_model

    return load_model(
        options.model,
        weights=options.weights,
        normalization=normalization(options),
        pool=options.pool,
        trust_model_code=options.trust_model_code,
    )


def normalization(options: argparse.Namespace) -> NormalizationChoice:
    """Return the normalization that --mean and --std describe."""
    from pdpgd.models.normalization import parse_normalization

    return parse_normalization(options.mean, options.std)


def threat(option: str, text: str) -> Threat:
    """Parse NORM:RADIUS as a threat model."""
    from pdpgd.training.config import Threat

    return Threat(*norm_and_radius(option, text))


def norm_and_radius(option: str, text: str) -> tuple[str, float]:
    """Parse NORM:RADIUS, where the radius may be a fraction.

    Raises:
        InvalidInputError: The text has another form.
    """
    norm, _, value = text.partition(":")
    found = number(value)
    if found is None:
        raise InvalidInputError(f"{option}: expected NORM:RADIUS such as linf:0.3 or linf:8/255, got {text!r}")
    return norm, found


def radii_by_norm(texts: Iterable[str]) -> dict[str, list[float]]:
    """Parse the values of --radius and group them by norm."""
    radii: dict[str, list[float]] = {}
    for text in texts:
        norm, radius = norm_and_radius("--radius", text)
        radii.setdefault(norm, []).append(radius)
    return radii


def number(text: str) -> float | None:
    """Parse a number or a fraction; return None for anything else."""
    above, slash, below = text.strip().partition("/")
    try:
        return float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        return None


def plain_table(title: str = "") -> Table:
    """Return a table without columns, with few lines, so that wide tables fit into 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
