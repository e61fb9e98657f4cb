"""The training loop: steps with the inner attack, data augmentation, random streams, and checkpoints to resume from."""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from pdpgd.data.dataset import Samples
from pdpgd.errors import InvalidInputError, LoadError, ModelError
from pdpgd.files import replace_file
from pdpgd.progress import ProgressListener
from pdpgd.training.config import TrainingConfig
from pdpgd.training.inner_attack import training_points

# Random streams by purpose; no two purposes share one. The numbers are part of what the weights depend on.
TRAINING_STREAMS = {"shuffle": 0, "step": 1}
# Maximum shift of the augmentation, in pixels.
SHIFT = 4
FORMAT = 1


def train(
    model: nn.Module,
    samples: Samples,
    config: TrainingConfig,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every: int = 200,
    progress: ProgressListener | None = None,
) -> nn.Module:
    """Train a model in place, or resume its training from a checkpoint.

    Args:
        model: The model to train, with its initial weights.
        samples: Training samples.
        config: Settings of the training.
        device: Device to train on.
        checkpoint: File to write checkpoints to; if it exists, the training resumes from it.
        checkpoint_every: Steps between two checkpoints.
        progress: Listener that is told of each step, with epoch, loss and accuracy as the detail.

    Returns:
        The same model, in eval mode and with frozen parameters.

    Raises:
        InvalidInputError: A batch is larger than the data set.
        LoadError: The checkpoint is damaged, or belongs to a training with other settings, data or initial weights.
        ModelError: The loss is not finite: the training diverged.

    Example:
        >>> train(net, load_data("mnist", split="train"), TrainingConfig(epochs=5), checkpoint=Path("net.checkpoint"))
    """
    if len(samples) < config.batch:
        raise InvalidInputError(f"batch: expected at most the {len(samples)} samples of the data, got {config.batch}")
    progress = progress or ProgressListener()
    model.to(device).train().requires_grad_(True)
    optimizer = _optimizer(model, config)
    belongs_to = _identity(model, samples, config)
    batches = len(samples) // config.batch
    total = config.epochs * batches
    begin = 0
    if checkpoint is not None and checkpoint.exists():
        state = Checkpoint.read(checkpoint, belongs_to=belongs_to)
        model.load_state_dict(state.model)
        optimizer.load_state_dict(state.optimizer)
        begin = state.step
    progress.started("training", total, begin)

    order, ordered = torch.empty(0), -1
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False):
        for step in range(begin, total):
            epoch, place = divmod(step, batches)
            if epoch != ordered:
                order, ordered = torch.randperm(len(samples), generator=stream(config.seed, "shuffle", epoch)), epoch
            images, labels = samples.batch(order[place * config.batch : (place + 1) * config.batch])
            optimizer.param_groups[0]["lr"] = config.rate * rate_share(step / total, config.rate_warmup)
            loss, accuracy = _learn(
                model, images.to(device), labels.to(device), optimizer, config=config, step=step, total=total
            )
            progress.advanced(1, f"epoch {epoch + 1}  loss {loss:.3f}  accuracy {accuracy:.0%}")
            if checkpoint is not None and ((step + 1) % checkpoint_every == 0 or step + 1 == total):
                Checkpoint(step + 1, model.state_dict(), optimizer.state_dict(), belongs_to).write(checkpoint)
    return model.eval().requires_grad_(False)


def rate_share(progress: float, warmup: float) -> float:
    """Return the learning rate relative to its maximum: it rises to 1 during `warmup`, then falls to 0, linearly."""
    return progress / warmup if progress < warmup else (1 - progress) / (1 - warmup) if warmup < 1 else 1.0


def stream(seed: int, purpose: str, number: int) -> Generator:
    """Return the random generator of one epoch or step.

    Args:
        seed: Seed of the training.
        purpose: A key of `TRAINING_STREAMS`.
        number: Number of the epoch or step.
    """
    # Generators with close seeds start with similar numbers; multiples of a large prime keep the seeds apart.
    return Generator().manual_seed(((seed * 1_000_003 + TRAINING_STREAMS[purpose]) * 1_000_003 + number) % 2**63)


def _learn(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainingConfig,
    step: int,
    total: int,
) -> tuple[float, float]:
    """Take one optimizer step; return the loss and the accuracy on the points that it was taken on."""
    generator = stream(config.seed, "step", step)
    if config.augment == "crop-flip":
        images = crop_flip(images, generator)
    points = training_points(model, images, labels, config=config, progress=step / total, generator=generator)
    optimizer.zero_grad(set_to_none=True)
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
    optimizer.step()
    return value, float((logits.detach().argmax(1) == labels).float().mean())


def crop_flip(images: Tensor, generator: Generator) -> Tensor:
    """Shift each image by up to SHIFT pixels in either direction, filled with black, and mirror half of the images."""
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


def _optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the optimizer that the config names."""
    if config.optimizer == "adam":
        return torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        model.parameters(), lr=config.rate, momentum=0.9, nesterov=True, weight_decay=config.weight_decay
    )


def _identity(model: nn.Module, samples: Samples, config: TrainingConfig) -> str:
    """Describe what two trainings must share for one to resume from the other's checkpoint."""
    weights = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        weights.update(name.encode())
        weights.update(tensor.cpu().contiguous().numpy().tobytes())
    about = {"data": samples.name, "samples": len(samples), "initial weights": weights.hexdigest()[:16]}
    return json.dumps({**about, **config.as_json()}, sort_keys=True)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after `step` steps; all its random numbers follow from the seed and the step."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    belongs_to: str
    """Settings, data and initial weights of the training, as text."""

    def write(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        state = {
            "format": FORMAT,
            "step": self.step,
            "model": self.model,
            "optimiser": self.optimizer,
            "belongs_to": self.belongs_to,
        }
        content = io.BytesIO()
        torch.save(state, content)
        replace_file(path, content.getvalue())

    @classmethod
    def read(cls, path: Path, *, belongs_to: str) -> Checkpoint:
        """Read a checkpoint of the training that `belongs_to` describes; raise LoadError for any other file."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise LoadError(
                f"{path}: expected a checkpoint of this program, got a file that does not load ({error})"
            ) from error
        if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
            raise LoadError(f"{path}: expected a checkpoint of format {FORMAT}, got something else")
        checkpoint = cls(optimizer=state.pop("optimiser"), **state)
        if checkpoint.belongs_to != belongs_to:
            raise LoadError(
                f"{path}: expected a checkpoint of this training, {belongs_to}, got one of {checkpoint.belongs_to}; "
                "train into another folder, or delete it"
            )
        return checkpoint
