"""The training loop learns, resumes after an interruption, and rejects the checkpoint of another training."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from pdpgd.data.dataset import ArraySamples
from pdpgd.errors import InvalidInputError, LoadError, ModelError
from pdpgd.progress import ProgressListener
from pdpgd.training.config import Threat, TrainingConfig
from pdpgd.training.loop import rate_share, train

CONFIG = TrainingConfig(epochs=3, batch=8, rate=0.01, inner="fast", threats=(Threat("linf", 0.1),), augment="crop-flip")


@pytest.fixture
def samples() -> ArraySamples:
    """Return forty images of one channel, bright on the left (class 0) or on the right (class 1)."""
    generator = Generator().manual_seed(0)
    labels = torch.randint(2, (40,), generator=generator)
    pixels = torch.randint(40, (40, 1, 8, 8), generator=generator)
    sides = torch.arange(8).repeat(40, 1) < 4
    bright = torch.where(labels[:, None] == 0, sides, ~sides)
    return ArraySamples("sides", (pixels + 200 * bright[:, None, None, :]).to(torch.uint8), labels, ("left", "right"))


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.0), nn.Linear(144, 2))
        return nn.Sequential(*layers)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0] | states[1])


class PowerCutError(Exception):
    """Interrupts a training."""


class Steps(ProgressListener):
    """Records the steps of a training, and may cut the power after one of them."""

    def __init__(self, cut_after: int | None = None) -> None:
        self.taken: list[int] = []
        self.details: list[str] = []
        self._cut_after = cut_after

    def started(self, stage: str, total: int, done: int = 0) -> None:
        self.stage, self.total, self._step = stage, total, done

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        self._step += round(amount)
        self.taken.append(self._step)
        self.details.append(detail)
        if self._step == self._cut_after:
            raise PowerCutError


def test_a_plain_training_learns_what_there_is_to_learn(samples: ArraySamples) -> None:
    model = train(net(), samples, TrainingConfig(epochs=20, batch=8, rate=0.01))
    images, labels = samples.batch(range(40))
    assert torch.equal(model(images).argmax(1), labels)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("stop", [1, 5, 7, 14])
def test_a_training_that_was_cut_off_ends_with_the_weights_of_one_that_was_not(
    samples: ArraySamples, tmp_path: Path, stop: int
) -> None:
    whole = train(net(), samples, CONFIG)
    path = tmp_path / "run.checkpoint"
    with pytest.raises(PowerCutError):
        train(net(), samples, CONFIG, checkpoint=path, checkpoint_every=2, progress=Steps(stop))
    steps = Steps()
    resumed = train(net(), samples, CONFIG, checkpoint=path, checkpoint_every=2, progress=steps)
    assert same_weights(whole, resumed)
    # The step at which the power went is not in the checkpoint yet: the listener was called first.
    assert steps.taken == list(range((stop - 1) // 2 * 2 + 1, 16))
    assert (steps.stage, steps.total) == ("training", 15)


def test_a_listener_gets_epoch_loss_and_accuracy_of_each_step(samples: ArraySamples) -> None:
    steps = Steps()
    train(net(), samples, TrainingConfig(epochs=2, batch=20, rate=0.01), progress=steps)
    assert steps.taken == [1, 2, 3, 4]
    assert [detail.split()[1] for detail in steps.details] == ["1", "1", "2", "2"]
    assert all(re.fullmatch(r"epoch \d  loss \d+\.\d{3}  accuracy \d+%", detail) for detail in steps.details)


def test_the_seed_decides_the_weights_and_the_global_random_state_does_not(samples: ArraySamples) -> None:
    first = train(net(), samples, CONFIG)
    torch.rand(7)
    assert same_weights(first, train(net(), samples, CONFIG))
    other = TrainingConfig(**{**vars(CONFIG), "seed": 1})
    assert not same_weights(first, train(net(), samples, other))


def test_a_training_leaves_the_global_random_state_as_it_was(samples: ArraySamples) -> None:
    before = torch.get_rng_state()
    train(net(), samples, CONFIG)
    assert torch.equal(before, torch.get_rng_state())


def test_a_checkpoint_of_another_training_is_refused(samples: ArraySamples, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    train(net(), samples, CONFIG, checkpoint=path)
    with pytest.raises(LoadError, match="expected a checkpoint of this training"):
        train(net(), samples, TrainingConfig(**{**vars(CONFIG), "epochs": 4}), checkpoint=path)
    other = net()
    torch.nn.init.zeros_(next(other.parameters()))
    with pytest.raises(LoadError, match="expected a checkpoint of this training"):
        train(other, samples, CONFIG, checkpoint=path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_rejected_and_not_overwritten(
    samples: ArraySamples, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "run.checkpoint"
    path.write_bytes(content)
    with pytest.raises(LoadError, match="expected a checkpoint"):
        train(net(), samples, CONFIG, checkpoint=path)
    assert path.read_bytes() == content


def test_a_full_disk_keeps_the_checkpoint_before(
    samples: ArraySamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.checkpoint"
    with pytest.raises(PowerCutError):
        train(net(), samples, CONFIG, checkpoint=path, checkpoint_every=2, progress=Steps(3))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LoadError, match=r"expected enough space and permission to write .* No space left"):
        train(net(), samples, CONFIG, checkpoint=path, checkpoint_every=2)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.checkpoint"]


def test_a_training_that_diverges_says_so(samples: ArraySamples) -> None:
    model = net()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ModelError, match="expected a finite loss, got nan at step 1"):
        train(model, samples, TrainingConfig(batch=8))


def test_a_batch_larger_than_the_data_is_refused(samples: ArraySamples) -> None:
    with pytest.raises(InvalidInputError, match="batch: expected at most the 40 samples"):
        train(net(), samples, TrainingConfig(batch=41))


def test_the_rate_rises_and_falls_linearly() -> None:
    assert [rate_share(progress, 0.2) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert rate_share(0.0, 0.0) == 1.0
    assert rate_share(0.5, 1.0) == 0.5
