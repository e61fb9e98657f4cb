"""`pdpgd train` as a user runs it: to the end, killed in the middle, and with invalid options."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd.cli import main
from pdpgd.models.loading import load_model
from support.patience import PATIENCE

NET = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
"""
# Long enough to be killed before the end, short enough to run twice.
STEPS = ("--epochs", "20", "--batch", "8", "--checkpoint-every", "10", "--threads", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a net, and images that are bright on the left or on the right."""
    (tmp_path / "net.py").write_text(NET)
    rng = np.random.default_rng(0)
    for name, count in (("train", 80), ("test", 40)):
        labels = rng.integers(2, size=count)
        bright = (np.arange(8) < 4) == (labels[:, None] == 0)
        images = rng.integers(50, size=(count, 8, 8)) + 200 * bright[:, None, :]
        np.savez(tmp_path / f"{name}.npz", images=images.astype(np.uint8), labels=labels)
    return tmp_path


def command(name: str, *more: str) -> list[str]:
    what = ("--data", "train.npz", "--test-data", "test.npz", "--architecture", "net:tiny", "--name", name)
    how = ("--inner", "pgd", "--threat", "linf:0.1", "--inner-steps", "2", "--augment", "crop-flip")
    return [sys.executable, "-m", "pdpgd", "train", *what, *how, *STEPS, *more]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_training_that_is_killed_and_started_again_ends_with_the_weights_of_one_that_was_not(folder: Path) -> None:
    assert run(folder, "whole").returncode == 0
    process = subprocess.Popen(command("killed"), cwd=folder, stdout=subprocess.DEVNULL)
    wait_for(folder / "trained" / "killed.checkpoint", process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    trained = folder / "trained"
    assert not (trained / "killed.safetensors").exists()
    assert not (trained / "killed.json").exists()

    assert run(folder, "killed").returncode == 0
    assert (trained / "killed.safetensors").read_bytes() == (trained / "whole.safetensors").read_bytes()
    assert sorted(path.name for path in trained.iterdir()) == [
        f"{name}.{kind}" for name in ("killed", "whole") for kind in ("json", "safetensors")
    ]


def test_the_card_says_what_was_trained_how_and_how_good_it_is(folder: Path) -> None:
    finished = run(folder, "net1", "--judge", "linf:0.1", "--judge", "l2:1/2", "--seed", "5")
    assert finished.returncode == 0, finished.stderr
    card = json.loads((folder / "trained" / "net1.json").read_text())
    assert (card["name"], card["architecture"], card["data"]) == ("net1", "net:tiny", "train")
    assert (card["parameters"], card["training_samples"], card["shape"]) == (338, 80, [1, 8, 8])
    assert (card["training"]["seed"], card["training"]["epochs"], card["made_with"]["threads"]) == (5, 20, 1)
    assert card["made_with"]["torch"] == torch.__version__
    assert "--seed 5" in card["command"]
    kinds = [(entry["norm"], entry["radius"], entry["samples"]) for entry in card["accuracies"]]
    assert kinds == [(None, None, 40), ("linf", 0.1, 40), ("l2", 0.5, 40)]

    weights = folder / "trained" / "net1.safetensors"
    sys.path.insert(0, str(folder))
    try:
        model = load_model("net:tiny", weights=weights)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("net", None)
    with np.load(folder / "test.npz") as test:
        images = torch.from_numpy(test["images"]).float().div(255)[:, None]
        labels = torch.from_numpy(test["labels"])
    assert card["accuracies"][0]["share"] == float((model(images).argmax(1) == labels).double().mean())
    assert f"{card['accuracies'][0]['share']:.2%}" in finished.stdout


def test_what_is_trained_already_is_not_trained_over(folder: Path) -> None:
    assert run(folder, "net1", "--epochs", "1").returncode == 0
    before = (folder / "trained" / "net1.safetensors").read_bytes()
    again = run(folder, "net1", "--epochs", "2")
    assert again.returncode == 2
    assert "expected one that is not trained yet" in again.stderr
    assert (folder / "trained" / "net1.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--threat", "0.3"), "--threat: expected NORM:RADIUS"),
        (("--threat", "linf:8/0"), "--threat: expected NORM:RADIUS"),
        (("--threat", "l0:5"), "norm of pgd training"),
        (("--test-data", "nowhere.npz"), "nowhere.npz"),
        (("--architecture", "mnist-compakt"), "did you mean 'mnist-compact'"),
        (("--architecture", "mnist-compact"), "expected one that takes images of shape (1, 8, 8)"),
        (("--data", "mnist-1001"), "did you mean 'mnist-1000'"),
        (("--rate", "-1"), "rate: expected above 0"),
        (("--judge", "l1:5"), "norm of a ball"),
        (("--name", "a/b"), "name: expected a name, not a path, got 'a/b'"),
        (("--initial", "mnist-plane"), "mnist-plane"),
    ],
)
def test_bad_input_gets_one_clear_line_and_writes_nothing(
    folder: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(command("net1", *arguments)[3:]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pdpgd: ")
    assert message in said
    assert not (folder / "trained").exists()


def test_data_of_ones_own_needs_images_to_test_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    arguments = command("net1")[3:]
    at = arguments.index("--test-data")
    del arguments[at : at + 2]
    assert main(arguments) == 2
    assert "--test-data" in capsys.readouterr().err
