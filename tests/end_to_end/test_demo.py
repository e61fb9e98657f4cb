"""The demo as users run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE


def run(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pdpgd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=at)


def test_the_demo_ends_with_every_norm_fooled_and_the_place_of_the_results(tmp_path: Path) -> None:
    outcome = run("demo", "--limit", "20", "--budget", "100", at=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    lines = [line.split() for line in outcome.stdout.splitlines()]
    rows = {cells[0]: cells for cells in lines if len(cells) == 8 and cells[0] in ("linf", "l2", "l1", "l0")}
    assert set(rows) == {"linf", "l2", "l1", "l0"}
    for _, fooled, not_fooled, unverified, mean, median, rough, _ in rows.values():
        assert (fooled, not_fooled, unverified) == ("20", "0", "0")
        assert min(float(mean), float(median), float(rough)) > 0
    place = re.search(r"Results: (\S+)", outcome.stdout)
    assert place is not None
    assert len(list((tmp_path / place.group(1) / "records").glob("*.parquet"))) == 1


def test_a_wrong_option_gives_an_error_of_one_line(tmp_path: Path) -> None:
    outcome = run("demo", "--limit", "0", at=tmp_path)
    assert outcome.returncode == 2
    assert outcome.stderr == "pdpgd: limit: expected an integer >= 1, got 0\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["evaluate", "--help"], ["export", "--help"]])
def test_commands_have_help(arguments: list[str], tmp_path: Path) -> None:
    outcome = run(*arguments, at=tmp_path)
    assert outcome.returncode == 0
    assert arguments[0].lstrip("-") in outcome.stdout
