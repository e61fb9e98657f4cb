"""Recipes of trained nets: train a net, measure its clean and robust accuracy, and write its weights and card."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

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
from pdpgd.progress import ProgressListener
from pdpgd.training.config import BALLS, Threat, TrainingConfig
from pdpgd.training.loop import train

BATCH = 250


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train on which data, with which settings, and where to write the result.

    Args:
        name: Name of the trained net, and of its files.
        data: Training data: the name of a data set, an .npz file or a folder (see `load_data`).
        architecture: Name of an architecture, or `package.module:factory`.
        config: Settings of the training.
        folder: Folder to write weights, card and checkpoint to.
        data_folder: Folder that holds the files of a known data set; if None, the usual places are searched.
        test_data: Data to evaluate the trained net on; if None, the test split of `data`.
        initial: Initial weights: the name of a shipped net, or a file; if None, they are drawn at random.
        device: Device to train and evaluate on.
        checkpoint_every: Steps between two checkpoints.
        judges: Threat models to measure robust accuracy under; if empty, those of the training that PGD supports.
        judge_images: Number of test images to measure robust accuracy on.
        command: The command line, for the card.

    Raises:
        InvalidInputError: The name is empty or a path.
        UnknownNameError: PGD does not support the norm of a threat model in `judges`.

    Example:
        >>> recipe = Recipe(
        ...     name="my-plain",
        ...     data="mnist",
        ...     architecture="mnist-compact",
        ...     config=TrainingConfig(epochs=5),
        ...     folder=Path("trained"),
        ... )
        >>> card = train_model(recipe)
    """

    name: str
    data: str
    architecture: str
    config: TrainingConfig
    folder: Path
    data_folder: str | None = None
    test_data: str | None = None
    initial: str | None = None
    device: str = "cpu"
    checkpoint_every: int = 200
    judges: tuple[Threat, ...] = ()
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
        """File of the trained weights."""
        return self.folder / f"{self.name}.safetensors"

    @property
    def card(self) -> Path:
        """File of the model card."""
        return self.folder / f"{self.name}.json"

    @property
    def checkpoint(self) -> Path:
        """File of the checkpoint, which exists while the training is unfinished."""
        return self.folder / f"{self.name}.checkpoint"


def train_model(recipe: Recipe, *, progress: ProgressListener | None = None) -> ModelCard:
    """Train a net, measure its accuracy, and write its weights and card; a stopped training is resumed.

    Args:
        recipe: What to train, and where to write it.
        progress: Listener that is told how far the training and the measurements have come.

    Returns:
        The card of the trained net, as written.

    Raises:
        InvalidInputError: The net exists already, does not fit the data, or has no test data.
        LoadError: Data, initial weights or the checkpoint cannot be read, or the results cannot be written.

    Example:
        >>> train_model(recipe).clean()  # the recipe of the example of `Recipe`
    """
    for path in (recipe.weights, recipe.card, recipe.checkpoint):
        check_file(output_path(path))
    # The card is written last, and the checkpoint is deleted after it: weights with a checkpoint are unfinished.
    if recipe.card.exists() or (recipe.weights.exists() and not recipe.checkpoint.exists()):
        raise InvalidInputError(f"name: expected one that is not trained yet, got {recipe.weights}, which exists")
    samples, tests = _data(recipe)
    model = _initial_net(recipe, samples)
    make_folder(recipe.folder)
    train(
        model,
        samples,
        recipe.config,
        device=recipe.device,
        checkpoint=recipe.checkpoint,
        checkpoint_every=recipe.checkpoint_every,
        progress=progress,
    )
    accuracies = [clean_accuracy(model, tests, device=recipe.device, progress=progress)]
    for threat in recipe.judges or [threat for threat in recipe.config.threats if threat.norm in BALLS]:
        accuracies.append(
            robust_accuracy(
                model,
                tests,
                norm=threat.norm,
                radius=threat.radius,
                count=recipe.judge_images,
                device=recipe.device,
                progress=progress,
            )
        )
    return _write(recipe, model.cpu(), samples, accuracies)


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a net on clean images, or under PGD if a norm is given.

    Args:
        share: Fraction of correctly classified samples.
        samples: Number of samples that it was measured on.
        norm: Norm of the ball of PGD; None for clean images.
        radius: Radius of the ball.
        steps: Steps of PGD.
        restarts: Random starts of PGD.
    """

    share: float
    samples: int
    norm: str | None = None
    radius: float | None = None
    steps: int | None = None
    restarts: int | None = None


def clean_accuracy(
    model: nn.Module, samples: Samples, *, device: str = "cpu", progress: ProgressListener | None = None
) -> Accuracy:
    """Measure the accuracy on clean images.

    Args:
        model: The model, on `device`.
        samples: Samples to classify, all of them.
        device: Device of the model.
        progress: Listener that is told of each batch.

    Returns:
        The fraction of correctly classified samples, with their number.

    Raises:
        ModelError: The model fails on the images, or does not return logits.

    Example:
        >>> clean_accuracy(load_model("mnist-plain"), load_data("mnist-1000")).share
    """
    progress = progress or ProgressListener()
    progress.started("clean accuracy", len(samples))
    correct, classifier = 0, Classifier(model)
    with torch.no_grad():
        for first in range(0, len(samples), BATCH):
            rows = torch.arange(first, min(first + BATCH, len(samples)))
            images, labels = samples.batch(rows)
            correct += int((classifier.logits(images.to(device), rows).argmax(1).cpu() == labels).sum())
            progress.advanced(len(rows))
    return Accuracy(correct / len(samples), len(samples))


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
    progress: ProgressListener | None = None,
) -> Accuracy:
    """Measure the accuracy under PGD: the fraction of samples that are correctly classified and stay so.

    Args:
        model: The model, on `device`.
        samples: Samples to attack.
        norm: Norm of the ball, "linf" or "l2".
        radius: Radius of the ball.
        steps: Steps of PGD.
        restarts: Random starts of PGD.
        count: Maximum number of samples; the first ones are attacked.
        seed: Random seed of the starts.
        device: Device of the model.
        progress: Listener that is told of each batch.

    Returns:
        The robust accuracy, with the number of samples and the settings of PGD.

    Raises:
        InvalidInputError: `count` is below 1, or a setting of PGD is out of its range.
        ModelError: The model fails on the images, or does not return logits.

    Example:
        >>> robust_accuracy(load_model("mnist-linf-at"), load_data("mnist-1000"), norm="linf", radius=0.3).share
    """
    if count < 1:
        raise InvalidInputError(f"count: expected at least 1, got {count}")
    count = min(count, len(samples))
    config = PGDConfig(radius=radius, steps=steps, restarts=restarts, max_batch=BATCH)
    progress = progress or ProgressListener()
    progress.started(f"PGD {norm} {radius:.4g}", count)
    robust = 0
    for first in range(0, count, BATCH):
        rows = torch.arange(first, min(first + BATCH, count))
        images, labels = samples.batch(rows)
        attacked = pgd(model, images.to(device), labels.to(device), norm=norm, config=config, seed=seed, indices=rows)
        robust += int((~attacked.found).sum())
        progress.advanced(len(rows))
    return Accuracy(robust / count, count, norm, radius, steps, restarts)


def _data(recipe: Recipe) -> tuple[Samples, Samples]:
    """Load the training samples and the test samples, which are never the same images."""
    samples = load_data(recipe.data, split="train", root=recipe.data_folder)
    if recipe.test_data is None and recipe.data.partition(":")[0] not in DATA:
        raise InvalidInputError(
            "--test-data: expected images to test the net on, as a file or a folder has no test split, got none"
        )
    return samples, load_data(recipe.test_data or recipe.data, split="test", root=recipe.data_folder)


def _initial_net(recipe: Recipe, samples: Samples) -> nn.Module:
    """Build the net with its initial weights, and check that it fits the data."""
    model = untrained(recipe.architecture, seed=recipe.config.seed)
    if recipe.initial is not None:
        shipped = recipe.initial in zoo.names()
        load_weights(model, zoo.path(recipe.initial) if shipped else Path(recipe.initial))
    _check_fit(model, samples)
    return model


def _check_fit(model: nn.Module, samples: Samples) -> None:
    """Raise InvalidInputError unless the net accepts the images and has one output per class."""
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
            f"architecture: expected {len(samples.classes)} outputs, one per class of {samples.name}, "
            f"got an output of shape {tuple(logits.shape)}"
        )


def _write(recipe: Recipe, model: nn.Module, samples: Samples, accuracies: list[Accuracy]) -> ModelCard:
    """Write weights, then the card, and delete the checkpoint last."""
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
