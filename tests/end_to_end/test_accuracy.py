"""`pdpgd accuracy`, with shipped nets and with a user's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd.cli import main

NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
"""


class Trap:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (Path.write_text, (Path("ran.txt"), "code ran"))  # type: ignore[return-value]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a net, images, and weights that classify them correctly only when they are normalized."""
    (tmp_path / "net_of_a_test.py").write_text(NET)
    rng = np.random.default_rng(0)
    images = rng.random((30, 3, 2, 2), dtype=np.float32)
    weight = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    bias = torch.tensor([5.0, 0.0, -5.0])
    normalized = (torch.from_numpy(images) - 0.5) / 0.01
    labels = (normalized.flatten(1) @ weight.T + bias).argmax(1)
    np.savez(tmp_path / "images.npz", images=images, labels=labels.numpy())
    torch.save({"1.weight": weight, "1.bias": bias}, tmp_path / "weights.pt")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("net_of_a_test", None)


def shares(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)% of", text)]


def test_a_shipped_net_is_judged_clean_and_under_attack(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--threat", "linf:0.1", "--threat", "l2:1/2", "--images", "40", "--steps", "5", "--restarts", "1"]
    assert main(["accuracy", "mnist-plain", *options]) == 0
    said = capsys.readouterr().out
    assert "of 1,000 images" in said
    assert "PGD linf 0.1:" in said
    assert "PGD l2 0.5:" in said
    clean, linf, l2 = shares(said)
    assert clean > 98
    assert linf < clean
    assert l2 < clean


@pytest.mark.parametrize(
    ("options", "right"), [((), False), (("--mean", "0.5,0.5,0.5", "--std", "0.01,0.01,0.01"), True)]
)
def test_mean_and_std_put_the_normalization_inside_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], right: bool
) -> None:
    command = ["accuracy", "net_of_a_test:net", "--weights", "weights.pt", "--data", "images.npz", *options]
    assert main(command) == 0
    (share,) = shares(capsys.readouterr().out)
    assert (share == 100) is right


@pytest.mark.parametrize("flag", ["--trust-model-code", "--trust-pickle"])
def test_weights_that_run_code_are_refused_unless_they_are_trusted(
    flag: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {**torch.load("weights.pt"), "trap": Trap()}
    torch.save(state, "trap.pt")
    command = ["accuracy", "net_of_a_test:net", "--weights", "trap.pt", "--data", "images.npz"]
    assert main(command) == 2
    assert "give --trust-model-code" in capsys.readouterr().err
    assert not Path("ran.txt").exists()
    main([*command, flag])
    assert Path("ran.txt").read_text() == "code ran"


def test_a_model_that_does_not_fit_the_images_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "mnist-plain", "--data", "images.npz"]) == 2
    assert "the model failed on inputs of shape" in capsys.readouterr().err
