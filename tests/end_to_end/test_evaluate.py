"""pdpgd evaluate and pdpgd export as users run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdpgd import evaluate, load_evaluation
from pdpgd.cli import main
from support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["mnist-plain", "mnist-1000", "--limit", "12", "--budget", "40", "--chunk-size", "6", "--threads", "1"]


def run(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pdpgd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=at)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a small run in two norms, in the folder `run`."""
    folder = tmp_path_factory.mktemp("evaluate")
    done = run("evaluate", *SMALL, "--norm", "linf", "--norm", "l2", "--out", "run", at=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_the_command_ends_with_table_curves_report_and_place(place: Path) -> None:
    said = (place / "stdout").read_text()
    assert said.startswith(
        "mnist-plain on 12 samples of mnist-1000: 100.0% correctly classified.\n"
        "Attack auto, 40 passes per sample and norm.\n"
    )
    for part in (
        "8-bit median",
        "linf: robust accuracy",
        "l2: robust accuracy",
        "Reliability: ",
        "still moving: the last",
    ):
        assert part in said
    assert said.rstrip().endswith("Results: run")
    assert max(map(len, said.splitlines()[:40])) <= 120
    assert (place / "stderr").read_text() == "", "no bar where there is no terminal"


def test_the_same_command_repeats_no_work_and_gives_the_same_results_as_json(place: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*") if path.name != ".lock"}
    again = ["evaluate", *SMALL, "--norm", "linf", "--norm", "l2", "--out", "run"]
    radii = ["--radius", "linf:0.1", "--radius", "l2:1", "--radius", "l2:1/2"]
    done = run(*again, "--json", *radii, "--require", "linf@0.01>=0.5", at=place)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["samples"] == 12
    assert [entry["radius"] for entry in numbers["robust_accuracy"]] == [0.1, 1.0, 0.5]
    assert numbers["union_robust_accuracy"] <= min(entry["share"] for entry in numbers["robust_accuracy"])
    assert numbers["requirements"] == [{"text": "linf@0.01>=0.5", "found": 1.0, "met": True}]
    assert before == {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*") if path.name != ".lock"}


def test_a_requirement_that_is_not_met_has_an_exit_code_of_its_own(place: Path) -> None:
    again = ["evaluate", *SMALL, "--norm", "linf", "--norm", "l2", "--out", "run"]
    done = run(*again, "--require", "linf@1>=0.5", "--require", "clean>=0.5", at=place)
    assert done.returncode == 3
    assert "Required linf@1>=0.5: NOT MET (measured 0)" in done.stdout
    assert "Required clean>=0.5: met (measured 1)" in done.stdout


ASKED = ["--radius", "linf:8/255", "--radius", "linf:0.1", "--radius", "l2:1", "--only-radius"]


def test_a_run_at_radii_only_ends_with_robust_accuracy_and_passes(tmp_path: Path) -> None:
    done = run("evaluate", *SMALL, *ASKED, "--require", "linf@0.1>=0", at=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    evaluation = load_evaluation(folder)
    assert evaluation.norms == ("linf", "l2")
    robust = round(12 * evaluation.robust_accuracy(8 / 255, "linf"))
    assert f"Robust accuracy at linf radius 8/255: {robust / 12:.1%} ({robust} of 12)\n" in done.stdout
    for part in ("at linf radius 0.1: ", "at l2 radius 1: ", "Passes in linf: ", "Passes in l2: ", "linf@0.1>=0: met"):
        assert part in done.stdout
    for part in ("mean", "median", "by radius", "Smallest perturbations"):
        assert part not in done.stdout.partition("Reliability: ")[0]

    entries = json.loads(run("evaluate", *SMALL, *ASKED, "--json", at=tmp_path).stdout)
    assert entries["only_radii"] == {"linf": [8 / 255, 0.1], "l2": [1.0]}
    assert entries["robust_accuracy"][0] == {"norm": "linf", "radius": 8 / 255, "share": robust / 12}
    assert entries["norms"]["linf"]["median"] is None

    other = run("evaluate", *SMALL, *ASKED, "--radius", "l2:2", "--json", at=tmp_path)
    assert other.returncode == 0, other.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2, "other radii are another run, in a directory of its own"


def test_a_different_call_in_the_same_directory_is_refused_with_the_differences(place: Path) -> None:
    done = run("evaluate", *SMALL, "--norm", "l2", "--seed", "7", "--out", "run", at=place)
    assert done.returncode == 2
    assert "norms: linf, l2 stored, l2 requested" in done.stderr
    assert "seed: 0 stored, 7 requested" in done.stderr


def test_a_directory_that_cannot_be_written_has_the_exit_code_of_unfinished_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("evaluate", *SMALL, "--norm", "l2", "--out", "file/run", at=tmp_path)
    assert done.returncode == 4
    assert "expected a directory to write the results to" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--norm", "l3"], "unknown norm: expected one of"),
        (["--require", "linf@0.1"], "require: expected NORM@RADIUS>=SHARE"),
        (["--norm", "l2", "--require", "linf@0.1>=0.5"], "require: expected one of the run's norms, l2"),
        (["--radius", "linf"], "--radius: expected NORM:RADIUS"),
        (["--only-radius"], "--only-radius: expected at least one --radius such as linf:8/255, got none"),
        (["--norm", "l1", *ASKED], "only_radii: expected radii for each norm of the run, got none for l1"),
        (["--norm", "linf", *ASKED], "only_radii: expected norms of the run, linf, got l2"),
        (["--attack", "pgd", *ASKED], "only_radii: expected the attack auto or auto-shared, got pgd"),
        ([*ASKED, "--require", "linf@0.2>=0.5"], "require: expected a radius of --radius, because of --only-radius"),
        (["--attack", "pdgpd"], "unknown attack"),
        (["--engine", "slurm"], "unknown engine: expected one of local, ray"),
        (["--workers", "0"], "workers: expected an integer >= 1, got 0"),
        (["--budget", "0"], "budget: expected an integer >= 1, got 0"),
        (["--chunk-size", "0"], "chunk_size: expected an integer of at least 1, got 0"),
        (["--device", "quantum"], "device: expected one that torch has here"),
    ],
)
def test_a_wrong_option_gives_an_error_of_one_line_and_leaves_nothing_behind(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("pdpgd: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_exported_pictures_are_still_adversarial_for_a_script_that_only_reads_them(place: Path) -> None:
    done = run("export", "run", "--out", "pictures", at=place)
    assert done.returncode == 0, done.stderr
    assert "24 PNG files" in done.stdout
    script = [sys.executable, str(ROOT / "scripts/check_exported.py"), "pictures", "mnist-plain"]
    read = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE, cwd=place)
    assert read.returncode == 0, read.stderr
    assert read.stdout == "24 of 24 PNG files are still adversarial\n"


def test_an_unfinished_run_is_not_exported(tmp_path: Path) -> None:
    done = run("export", "nowhere", "--out", "pictures", at=tmp_path)
    assert done.returncode == 4
    assert "expected the directory of a run" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_shipped_plain_net_passes_every_check() -> None:
    evaluation = evaluate("mnist-plain", "mnist-1000", limit=60, budget=300, threads=1)
    assert evaluation.reliability.verdict == "trusted", [check.sentence for check in evaluation.reliability.alarms]
    assert all(check.passed for check in evaluation.reliability.checks)
    assert len(evaluation.reliability.checks) == 18


NOISY = """
import torch
from pdpgd import load_model

class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = load_model("mnist-plain")

    def forward(self, x):
        return self.net(x + 0.2 * torch.randn_like(x))
"""


def test_a_randomized_model_is_attacked_over_draws_and_judged_by_a_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy_nets.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    call = ["evaluate", "noisy_nets:Noisy", "mnist-1000", "--limit", "12", "--norm", "l2", "--threads", "1"]

    def said(*options: str) -> str:
        assert main([*call, "--budget", "100", *options]) == 0
        return capsys.readouterr().out

    drawn = said("--draws", "8")
    assert "Attack auto, 100 passes per sample and norm, on the mean of 8 draws of the model." in drawn
    assert "ok   randomised: " in drawn
    (folder,) = (tmp_path / "runs").iterdir()
    again = json.loads(said("--draws", "8", "--json"))
    assert (again["draws"], again["folder"]) == (8, f"runs/{folder.name}"), "the same command finds its own run"

    plain = said()
    assert "LOOK randomised: " in plain
    assert "judge by a vote: draws=10, or --draws 10" in plain
    assert len(list((tmp_path / "runs").iterdir())) == 2
