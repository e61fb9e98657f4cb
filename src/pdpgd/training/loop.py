"""A training's state on disk: written whole or not at all, and read back only into the training it belongs to."""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from pdpgd.data.dataset import Samples
from pdpgd.errors import InvalidInputError, ModelError, SubjectError
from pdpgd.files import replace_file
from pdpgd.training.config import TrainingConfig
from pdpgd.training.inner_attack import training_points

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stands after `step` steps. All its randomness follows from the seed and the step."""

    step: int
    model: dict[str, Tensor]
    optimiser: dict[str, Any]
    belongs_to: str
    """The training's settings, as text."""

    def write(self, path: Path) -> None:
        content = io.BytesIO()
        torch.save({"format": FORMAT, **vars(self)}, content)
        replace_file(path, content.getvalue())

    @classmethod
    def read(cls, path: Path, *, belongs_to: str) -> Checkpoint:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise SubjectError(
                f"{path}: expected a checkpoint of this program, got a file that does not load ({error})"
            ) from error
        if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
            raise SubjectError(f"{path}: expected a checkpoint of format {FORMAT}, got something else")
        checkpoint = cls(**state)
        if checkpoint.belongs_to != belongs_to:
            raise SubjectError(
                f"{path}: expected a checkpoint of this training, {belongs_to}, got one of {checkpoint.belongs_to}; "
                "train into another folder, or delete it"
            )
        return checkpoint


SHIFT = 4


def crop_flip(images: Tensor, generator: Generator) -> Tensor:
    """Each image moved by up to SHIFT pixels either way, black coming in from outside; every second one mirrored."""
    count, _, height, width = images.shape
    padded = F.pad(images, (SHIFT, SHIFT, SHIFT, SHIFT))
    top, left = torch.randint(2 * SHIFT + 1, (2, count), generator=generator).to(images.device)
    mirrored = torch.randint(2, (count,), generator=generator).to(images.device).bool()
    across = torch.arange(width, device=images.device).expand(count, width)
    columns = left[:, None] + torch.where(mirrored[:, None], width - 1 - across, across)
    rows = top[:, None] + torch.arange(height, device=images.device)
    picture = torch.arange(count, device=images.device)[:, None, None]
    # Indexing with tensors around a slice puts the channels last.
    return padded[picture, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


# Streams of random numbers, so that no two purposes share one.
ORDER, STEP = 0, 1


@dataclass(frozen=True)
class Progress:
    """What the progress hook is shown after each step."""

    step: int
    total: int
    epoch: int
    loss: float
    accuracy: float
    """The share of this batch's training points that the net got right."""


Observe = Callable[[Progress], None]


def train(
    model: nn.Module,
    samples: Samples,
    config: TrainingConfig,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every: int = 200,
    observe: Observe | None = None,
) -> nn.Module:
    """Train `model` in place and return it in eval mode; go on from `checkpoint` if that file exists."""
    if len(samples) < config.batch:
        raise InvalidInputError(f"batch: expected at most the {len(samples)} samples of the data, got {config.batch}")
    model.to(device).train().requires_grad_(True)
    optimiser = _optimiser(model, config)
    belongs_to = _identity(model, samples, config)
    batches = len(samples) // config.batch
    total = config.epochs * batches
    begin = 0
    if checkpoint is not None and checkpoint.exists():
        state = Checkpoint.read(checkpoint, belongs_to=belongs_to)
        model.load_state_dict(state.model)
        optimiser.load_state_dict(state.optimiser)
        begin = state.step

    order, ordered = torch.empty(0), -1
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False):
        for step in range(begin, total):
            epoch, place = divmod(step, batches)
            if epoch != ordered:
                order, ordered = torch.randperm(len(samples), generator=stream(config.seed, ORDER, epoch)), epoch
            images, labels = samples.batch(order[place * config.batch : (place + 1) * config.batch])
            optimiser.param_groups[0]["lr"] = config.rate * rate_share(step / total, config.rate_warmup)
            seen = _learn(model, images.to(device), labels.to(device), optimiser, config=config, step=step, total=total)
            if observe is not None:
                observe(Progress(step + 1, total, epoch + 1, *seen))
            if checkpoint is not None and ((step + 1) % checkpoint_every == 0 or step + 1 == total):
                Checkpoint(step + 1, model.state_dict(), optimiser.state_dict(), belongs_to).write(checkpoint)
    return model.eval().requires_grad_(False)


def stream(seed: int, purpose: int, number: int) -> Generator:
    """The random numbers of one epoch or one step."""
    # A generator mixes its seed badly when seeds are close; a prime far from powers of two keeps them apart.
    return Generator().manual_seed(((seed * 1_000_003 + purpose) * 1_000_003 + number) % 2**63)


def rate_share(progress: float, warmup: float) -> float:
    """Up to 1 over the share `warmup` of the training, then down to 0, both linearly."""
    return progress / warmup if progress < warmup else (1 - progress) / (1 - warmup) if warmup < 1 else 1.0


def _identity(model: nn.Module, samples: Samples, config: TrainingConfig) -> str:
    """What two trainings must share for one to go on with the other's checkpoint."""
    weights = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        weights.update(name.encode())
        weights.update(tensor.cpu().contiguous().numpy().tobytes())
    about = {"data": samples.name, "samples": len(samples), "initial weights": weights.hexdigest()[:16]}
    return json.dumps({**about, **config.as_json()}, sort_keys=True)


def _learn(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    optimiser: torch.optim.Optimizer,
    *,
    config: TrainingConfig,
    step: int,
    total: int,
) -> tuple[float, float]:
    """One step of the optimiser; the loss and the accuracy at the points it was taken on."""
    generator = stream(config.seed, STEP, step)
    if config.augment == "crop-flip":
        images = crop_flip(images, generator)
    points = training_points(model, images, labels, config=config, progress=step / total, generator=generator)
    optimiser.zero_grad(set_to_none=True)
    logits = model(points)
    loss = F.cross_entropy(logits, labels)
    if config.clean_share > 0:
        clean = F.cross_entropy(model(images), labels)
        loss = (1 - config.clean_share) * loss + config.clean_share * clean
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ModelError(
            f"expected a finite loss, got {value} at step {step + 1}: the training diverged, lower the rate"
        )
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimiser.step()
    return value, float((logits.detach().argmax(1) == labels).float().mean())


def _optimiser(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    if config.optimiser == "adam":
        return torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        model.parameters(), lr=config.rate, momentum=0.9, nesterov=True, weight_decay=config.weight_decay
    )
