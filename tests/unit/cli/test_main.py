"""No command ends successfully without its result, and the help of each is readable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pdpgd import evaluate
from pdpgd.cli import listings, main
from pdpgd.models import zoo
from support.models import tiny_conv_problem

NETS = """
import sys
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        sys.exit(0)

def leaves():
    sys.exit(0)
"""
MODULES = {"nets_that_leave": NETS, "leaves_when_imported": "import sys; sys.exit()"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, content in MODULES.items():
        (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("code", [None, 0, "", "all is well", 5])
def test_an_exit_from_inside_a_command_is_reported_and_is_no_success(
    code: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(options: object) -> int:
        raise SystemExit(code)

    monkeypatch.setattr(listings, "list_attacks", leave)
    assert main(["attacks"]) == 2
    assert f"expected a result, got an exit with {code!r}" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["evaluate", "--help"], 0), (["evaluate"], 2)])
def test_help_and_usage_end_as_they_did(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == code


COMMANDS = [
    *("demo", "evaluate", "compare", "experiment", "report", "export"),
    *("accuracy", "attacks", "models", "data", "train"),
]


def test_the_help_lists_the_commands_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert listed == COMMANDS


@pytest.mark.parametrize(
    "command",
    ["", *(name for name in COMMANDS if name not in ("accuracy", "train")), "experiment run", "experiment clean"],
)
def test_the_help_of_a_command_fits_into_eighty_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_report_is_written_without_torch(tmp_path: Path) -> None:
    evaluate(*tiny_conv_problem(2), norms="linf", budget=4, out=tmp_path)
    program = f"import sys; from pdpgd.cli import main; assert main(['report', {str(tmp_path)!r}]) == 0; "
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", f"{program} print('torch' in sys.modules)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("architecture", ["sys:exit", "nets_that_leave:leaves", "leaves_when_imported:net"])
@pytest.mark.parametrize(
    "command", [("evaluate", "--require", "trusted"), ("compare", "--norm", "l2", "--attacks", "auto")]
)
def test_a_card_that_names_code_is_refused(
    architecture: str, command: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(zoo.path("mnist-plain"), "card.safetensors")
    card = json.loads(zoo.path("mnist-plain").with_suffix(".json").read_text())
    Path("card.json").write_text(json.dumps({**card, "architecture": architecture}))
    name, *options = command
    assert main([name, "card.safetensors", "mnist-1000", "--limit", "2", *options]) == 2
    said = capsys.readouterr()
    assert "--weights card.safetensors" in said.err
    assert not said.out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "model", ["nets_that_leave:leaves", "nets_that_leave:Net", "leaves_when_imported:net", "sys:exit"]
)
@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "mnist-1000", "--limit", "2", "--require", "trusted"),
        ("compare", "mnist-1000", "--limit", "2", "--norm", "l2", "--attacks", "auto"),
        ("accuracy",),
    ],
    ids=lambda command: command[0],
)
def test_a_model_that_ends_the_process_is_an_error(
    model: str, command: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    assert main([name, model, *options]) == 2
    said = capsys.readouterr()
    assert "SystemExit" in said.err
    assert not said.out


@pytest.mark.parametrize("architecture", ["nets_that_leave:leaves", "nets_that_leave:Net", "leaves_when_imported:net"])
def test_an_architecture_that_ends_the_process_is_not_trained(
    architecture: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("digits.npz", images=np.zeros((2, 28, 28), np.uint8), labels=np.arange(2))
    data = ("--data", "digits.npz", "--test-data", "digits.npz")
    assert main(["train", *data, "--architecture", architecture, "--name", "mine"]) == 2
    assert "SystemExit" in capsys.readouterr().err
    assert not Path("trained").exists()
