"""How good a trained net is: its accuracy on clean images, and under PGD."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from pdpgd.attacks.pgd import PGDConfig, pgd
from pdpgd.classifier import Classifier
from pdpgd.data.dataset import Samples
from pdpgd.data.known import DATA
from pdpgd.data.loading import load_data
from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, UnknownNameError
from pdpgd.files import check_file, make_folder, output_path
from pdpgd.models import zoo
from pdpgd.models.loading import untrained
from pdpgd.models.weights import checksum, load_weights, write_weights
from pdpgd.models.zoo import ModelCard
from pdpgd.training.config import BALLS, Threat, TrainingConfig
from pdpgd.training.loop import Progress, train

BATCH = 250


@dataclass(frozen=True)
class Accuracy:
    """The share of `samples` images that a net gets right; under attack, if a norm is given."""

    share: float
    samples: int
    norm: str | None = None
    radius: float | None = None
    steps: int | None = None
    restarts: int | None = None


ObserveShare = Callable[[int, int], None]
"""Called with how many samples were judged, and of how many."""


def clean_accuracy(model: nn.Module, samples: Samples, *, device: str = "cpu") -> Accuracy:
    right, classifier = 0, Classifier(model)
    with torch.no_grad():
        for first in range(0, len(samples), BATCH):
            rows = torch.arange(first, min(first + BATCH, len(samples)))
            images, labels = samples.batch(rows)
            right += int((classifier.logits(images.to(device), rows).argmax(1).cpu() == labels).sum())
    return Accuracy(right / len(samples), len(samples))


def robust_accuracy(
    model: nn.Module,
    samples: Samples,
    *,
    norm: str,
    radius: float,
    steps: int = 40,
    restarts: int = 5,
    count: int = 1000,
    seed: int = 0,
    device: str = "cpu",
    observe: ObserveShare | None = None,
) -> Accuracy:
    """The share of the first `count` images that are right and stay right under PGD with this radius."""
    if count < 1:
        raise InvalidInputError(f"count: expected at least 1, got {count}")
    count = min(count, len(samples))
    config = PGDConfig(radius=radius, steps=steps, restarts=restarts, max_batch=BATCH)
    right = 0
    for first in range(0, count, BATCH):
        rows = torch.arange(first, min(first + BATCH, count))
        images, labels = samples.batch(rows)
        attacked = pgd(model, images.to(device), labels.to(device), norm=norm, config=config, seed=seed, indices=rows)
        right += int((~attacked.found).sum())
        if observe is not None:
            observe(int(rows[-1]) + 1, count)
    return Accuracy(right / count, count, norm, radius, steps, restarts)


class Observe(Protocol):
    """Told the phase, how much of it is done, how much there is, and what there is to say."""

    def __call__(self, phase: str, done: int, total: int, seen: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained on what, how, and where to."""

    name: str
    data: str
    architecture: str
    config: TrainingConfig
    folder: Path
    data_folder: str | None = None
    test_data: str | None = None
    """What the trained net is judged on; the data set's own test images, if none are given."""
    initial: str | None = None
    device: str = "cpu"
    checkpoint_every: int = 200
    judges: tuple[Threat, ...] = ()
    """What the trained net is judged under; the threats it was trained against that PGD knows, if none are given."""
    judge_images: int = 1000
    command: str = ""

    def __post_init__(self) -> None:
        for threat in self.judges:
            if threat.norm not in BALLS:
                raise UnknownNameError("norm of a ball", threat.norm, BALLS)
        if not self.name or Path(self.name).name != self.name:
            raise InvalidInputError(f"name: expected a name, not a path, got {self.name!r}")

    @property
    def weights(self) -> Path:
        return self.folder / f"{self.name}.safetensors"

    @property
    def card(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}.checkpoint"


def carry_out(recipe: Recipe, *, observe: Observe | None = None) -> ModelCard:
    """Train, judge, and write weights and card; a training that was stopped goes on where it was."""
    for path in (recipe.weights, recipe.card, recipe.checkpoint):
        check_file(output_path(path))
    # The card is written last, and the checkpoint goes after it: weights with a checkpoint are not finished.
    if recipe.card.exists() or (recipe.weights.exists() and not recipe.checkpoint.exists()):
        raise InvalidInputError(f"name: expected one that is not trained yet, got {recipe.weights}, which exists")
    say = observe or _say_nothing
    samples, tests = _data(recipe)
    model = _initial_net(recipe, samples)
    make_folder(recipe.folder)

    def seen(progress: Progress) -> None:
        words = f"epoch {progress.epoch}  loss {progress.loss:.3f}  right {progress.accuracy:.0%}"
        say("training", progress.step, progress.total, words)

    train(
        model,
        samples,
        recipe.config,
        device=recipe.device,
        checkpoint=recipe.checkpoint,
        checkpoint_every=recipe.checkpoint_every,
        observe=seen,
    )
    accuracies = [clean_accuracy(model, tests, device=recipe.device)]
    for threat in recipe.judges or [threat for threat in recipe.config.threats if threat.norm in BALLS]:
        accuracies.append(
            robust_accuracy(
                model,
                tests,
                norm=threat.norm,
                radius=threat.radius,
                count=recipe.judge_images,
                device=recipe.device,
                observe=partial(say, f"PGD {threat.norm} {threat.radius:.3g}", seen=""),
            )
        )
    return _write(recipe, model.cpu(), samples, accuracies)


def _say_nothing(phase: str, done: int, total: int, seen: str) -> None:
    """Nobody asked."""


def _data(recipe: Recipe) -> tuple[Samples, Samples]:
    """What to train on and what to judge on: never the same images."""
    samples = load_data(recipe.data, split="train", root=recipe.data_folder)
    if recipe.test_data is None and recipe.data.partition(":")[0] not in DATA:
        raise InvalidInputError("--test-data: expected images to judge the net on, which a file or a folder has not")
    return samples, load_data(recipe.test_data or recipe.data, split="test", root=recipe.data_folder)


def _initial_net(recipe: Recipe, samples: Samples) -> nn.Module:
    model = untrained(recipe.architecture, seed=recipe.config.seed)
    if recipe.initial is not None:
        shipped = recipe.initial in zoo.names()
        load_weights(model, zoo.path(recipe.initial) if shipped else Path(recipe.initial))
    _check_fit(model, samples)
    return model


def _check_fit(model: nn.Module, samples: Samples) -> None:
    """The net takes these images and has an output for each of their classes."""
    images, _ = samples.batch([0])
    try:
        with torch.no_grad():
            logits = model.eval()(images)
    except FOREIGN_ERRORS as error:
        raise InvalidInputError(
            f"architecture: expected one that takes images of shape {tuple(images.shape[1:])}, got one that fails "
            f"on them: {type(error).__name__}: {error}"
        ) from error
    if logits.shape != (1, len(samples.classes)):
        raise InvalidInputError(
            f"architecture: expected {len(samples.classes)} outputs, one a class of {samples.name}, "
            f"got an output of shape {tuple(logits.shape)}"
        )


def _write(recipe: Recipe, model: nn.Module, samples: Samples, accuracies: list[Accuracy]) -> ModelCard:
    write_weights(recipe.weights, model)
    images, _ = samples.batch([0])
    card = ModelCard(
        name=recipe.name,
        architecture=recipe.architecture,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shape=tuple(images.shape[1:]),
        classes=samples.classes,
        data=samples.name,
        training_samples=len(samples),
        training=recipe.config.as_json(),
        initial=recipe.initial,
        command=recipe.command,
        made_with={
            "pdpgd": version("pdpgd"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": recipe.device,
            "threads": torch.get_num_threads(),
        },
        accuracies=tuple(asdict(accuracy) for accuracy in accuracies),
        sha256=checksum(recipe.weights),
    )
    card.write(recipe.card)
    recipe.checkpoint.unlink(missing_ok=True)
    return card
