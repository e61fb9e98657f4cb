"""Options that several commands share."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdpgd.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import nn

    from pdpgd.models.normalization import NormalizationChoice
    from pdpgd.training.config import Threat


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help="a shipped net, package.module:factory, a file, paper:, timm:, hf: or robustbench:NAME"
    )
    parser.add_argument(
        "--weights",
        help="weights for it: safetensors, a state dict, or hf:OWNER/REPOSITORY/FILE; for paper:NAME a MATLAB file",
    )
    parser.add_argument("--mean", help="of its normalization: numbers with commas, or imagenet, cifar10, none")
    parser.add_argument("--std", help="of its normalization")
    parser.add_argument(
        "--pool", help="restricted-imagenet: a classifier of ImageNet as one of its nine groups, by the largest logit"
    )
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-model-code",
        "--trust-pickle",
        action="store_true",
        help="run the code inside model files: pickles, TorchScript, torch.export, Python beside hf: models",
    )


def add_samples(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="a data set's name, an .npz or a folder")
    parser.add_argument("--data-dir", help="where the data set lies (default: looked for, then downloaded)")


def add_run(parser: argparse.ArgumentParser, asked: argparse._ArgumentGroup) -> None:
    """How a run is cut up and who does it; what its bits depend on goes to the group `asked`."""
    asked.add_argument("--limit", type=int, default=1000, help="samples, the first ones (%(default)s)")
    asked.add_argument("--seed", type=int, default=0, help="of the starts (%(default)s)")
    asked.add_argument("--chunk-size", type=int, default=100, help="samples written together (%(default)s)")
    asked.add_argument("--batch-size", type=int, default=100, help="rows that the model gets at once (%(default)s)")
    asked.add_argument(
        "--threads", type=int, help="of each chunk (default: the cores, shared among the workers; on Ray 1)"
    )
    asked.add_argument("--device", help="(default: cuda if there is one, else cpu)")
    done = parser.add_argument_group("who does it")
    done.add_argument("--engine", default="local", help="local or ray (%(default)s)")
    done.add_argument("--workers", type=int, help="chunks done at once (default: 1; on Ray, all there is room for)")
    done.add_argument("--address", help="of a Ray cluster that exists (default: one on this machine)")


def run_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_model`, `add_samples` and `add_run` brought, as `evaluate` takes it."""
    names = ("limit", "seed", "chunk_size", "batch_size", "threads", "device", "engine", "workers", "address")
    return {
        **{name: getattr(options, name) for name in names},
        "weights": options.weights,
        "normalization": normalization(options),
        "pool": options.pool,
        "trust_model_code": options.trust_model_code,
        "data_dir": options.data_dir,
    }


def default_folder(options: argparse.Namespace, *names: str) -> str:
    """The same for the same question, another for another; `names` are the options that are the command's own."""
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
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:8]
    plain = "".join(letter if letter.isalnum() else "-" for letter in f"{options.model}-{Path(options.data).name}")
    return f"runs/{plain}-{digest}"


def model(options: argparse.Namespace) -> nn.Module:
    from pdpgd.models.loading import load_model

    return load_model(
        options.model,
        weights=options.weights,
        normalization=normalization(options),
        pool=options.pool,
        trust_model_code=options.trust_model_code,
    )


def normalization(options: argparse.Namespace) -> NormalizationChoice:
    from pdpgd.models.normalization import parse_normalization

    return parse_normalization(options.mean, options.std)


def threat(option: str, text: str) -> Threat:
    from pdpgd.training.config import Threat

    return Threat(*norm_and_radius(option, text))


def norm_and_radius(option: str, text: str) -> tuple[str, float]:
    """NORM:RADIUS, where the radius may be a fraction."""
    norm, _, value = text.partition(":")
    found = number(value)
    if found is None:
        raise InvalidInputError(f"{option}: expected NORM:RADIUS such as linf:0.3 or linf:8/255, got {text!r}")
    return norm, found


def number(text: str) -> float | None:
    """A number or a fraction; None if it is neither."""
    above, slash, below = text.strip().partition("/")
    try:
        return float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        return None
