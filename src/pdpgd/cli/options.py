"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pdpgd.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import nn

    from pdpgd.subjects.normalise import NormalisationChoice
    from pdpgd.training.config import Threat


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a shipped net, package.module:factory, a file, timm:, hf: or robustbench:NAME")
    parser.add_argument("--weights", help="weights for it: safetensors or a state dict")
    parser.add_argument("--mean", help="of its normalisation: numbers with commas, or imagenet, cifar10, none")
    parser.add_argument("--std", help="of its normalisation")
    parser.add_argument(
        "--trust-pickle", action="store_true", help="unpickle files: this runs whatever code they contain"
    )


def model(options: argparse.Namespace) -> nn.Module:
    from pdpgd.subjects import load_model

    return load_model(
        options.model,
        weights=options.weights,
        normalisation=normalisation(options),
        trust_pickle=options.trust_pickle,
    )


def normalisation(options: argparse.Namespace) -> NormalisationChoice:
    from pdpgd.subjects.normalise import parse_normalisation

    return parse_normalisation(options.mean, options.std)


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
