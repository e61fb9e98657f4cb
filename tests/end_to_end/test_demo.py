"""The demo as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pdpgd", *arguments], capture_output=True, text=True, timeout=300)


def test_the_demo_ends_with_a_row_for_every_norm_and_fools_every_image() -> None:
    outcome = run("demo", "--images", "20", "--steps", "60")
    assert outcome.returncode == 0, outcome.stderr
    rows = {
        cells[0]: cells
        for cells in (re.split(r"\s*[│┃|]\s*", line.strip("│┃| ")) for line in outcome.stdout.splitlines())
        if cells[0] in ("linf", "l2", "l1", "l0")
    }
    assert set(rows) == {"linf", "l2", "l1", "l0"}
    for norm, (_, attack, _, fooled, mean, median, _, _) in rows.items():
        assert attack == ("PDGD" if norm == "l2" else "PDPGD")
        done, total = fooled.split("/")
        assert done == total != "0"
        assert float(mean) > 0
        assert float(median) > 0


def test_a_wrong_option_is_answered_in_one_line() -> None:
    outcome = run("demo", "--images", "0")
    assert outcome.returncode == 2
    assert outcome.stderr == "pdpgd: --images: expected 1 to 1000, got 0\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_is_there(arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.returncode == 0
    assert "demo" in outcome.stdout
