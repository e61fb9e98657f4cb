"""A place where results cannot be written is reported in one line, before any work is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdpgd import compare, evaluate, write_report
from pdpgd.cli import main
from pdpgd.errors import InvalidInputError, PdpgdError
from pdpgd.evaluation.export import export
from pdpgd.experiments.runner import Experiment
from pdpgd.experiments.spec import parse_spec
from support.models import tiny_conv_problem

LONG = "x" * 300
RUN = ["mnist-plain", "mnist-1000", "--limit", "1", "--budget", "2", "--norm", "linf"]
TRAIN = ["--data", "mnist", "--architecture", "mnist-compact", "--name", "net"]


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", *RUN],
        ["demo", "--limit", "1"],
        ["compare", *RUN, "--attacks", "auto"],
        ["export", "nowhere"],
        ["report", "nowhere"],
        ["experiment", "run", "paper-mnist-small"],
        ["experiment", "status", "paper-mnist-small"],
        ["experiment", "clean", "paper-mnist-small"],
        ["train", *TRAIN],
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize("out", [LONG, f"deep/{LONG}/er", "~nobody-of-this-name/run"], ids=["long", "deep", "home"])
def test_an_impossible_path_is_refused_by_every_command_with_an_out(
    command: list[str], out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--out", out]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pdpgd: out: expected a path that can be written to, got ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "mnist-plain", LONG],
        ["experiment", "run", LONG],
        ["report", LONG],
        ["export", LONG, "--out", "png"],
    ],
    ids=lambda command: command[0],
)
def test_an_input_with_too_long_a_name_is_reported_in_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) in (2, 4)
    assert capsys.readouterr().err.startswith("pdpgd: ")
    assert not list(tmp_path.iterdir())


def test_a_directory_in_place_of_a_file_is_reported_before_any_work(tmp_path: Path) -> None:
    def asked(model: object) -> object:
        raise AssertionError("the call should have been refused before")

    run = evaluate(*tiny_conv_problem(2), norms="linf", budget=4, out=tmp_path / "run")
    for name in ("comparison.json", "report.html", "results.json", "spec.toml", "index.csv"):
        (tmp_path / name).mkdir()
    with pytest.raises(PdpgdError, match=r"comparison\.json: expected a file to write, got a directory or a device"):
        compare(asked, tiny_conv_problem(2)[1], norms=["linf"], attacks=["auto"], out=tmp_path)
    with pytest.raises(InvalidInputError, match=r"report\.html: expected a file that can be written, got an error"):
        write_report(run, tmp_path / "report.html")
    with pytest.raises(PdpgdError, match=r"index\.csv: expected a file to write, got a directory or a device"):
        export(run, tmp_path)
    assert not list(tmp_path.glob("linf/*"))


SPEC = """
title = "one"
norms = ["linf"]
budget = 2
iteration_cost = false
datasets.digits = { source = "mnist-1000", like = "mnist", limit = 1, models = { plain = "mnist-plain" } }
attacks = [{ name = "pdpgd" }]
"""


@pytest.mark.parametrize("name", ["results.json", "spec.toml", "tables"])
def test_what_prevents_writing_the_results_of_an_experiment_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.toml").write_text(SPEC)
    out = tmp_path / "out"
    out.mkdir()
    if name == "tables":
        (out / name).write_text("a file")
    else:
        (out / name).mkdir()
    if name != "spec.toml":
        (out / "spec.toml").write_text(SPEC)
    assert main(["experiment", "run", str(tmp_path / "one.toml"), "--out", str(out), "--workers", "1"]) in (2, 4)
    assert f"{name}: expected a " in capsys.readouterr().err
    assert (out / "jobs").exists() == (name == "tables"), "no work is lost, and none is done for nothing"


def test_the_home_directory_is_expanded_in_the_folder_of_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Experiment(parse_spec(SPEC), "~/mine").folder == tmp_path / "mine"


def test_results_can_be_written_to_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evaluate(*tiny_conv_problem(2), norms="linf", budget=4, out=".")
    assert json.loads((tmp_path / "summary.json").read_text())["samples"] == 2


def test_the_longest_possible_name_of_a_directory_is_accepted(tmp_path: Path) -> None:
    evaluate(*tiny_conv_problem(2), norms="linf", budget=4, out=tmp_path / ("x" * 255))
    assert (tmp_path / ("x" * 255) / "summary.json").exists()
