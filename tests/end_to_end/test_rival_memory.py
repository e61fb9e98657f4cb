"""CornerSearch and JSMA stay within 2 GiB on an image of 3 x 224 x 224, torch itself included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "rival_memory.py"


@pytest.mark.parametrize(("name", "options"), [("corner-search", ["--forwards", "2500"]), ("jsma", [])])
def test_an_image_of_imagenet_size_stays_within_2_gib(name: str, options: list[str]) -> None:
    command = [sys.executable, str(BENCHMARK), "--here", name, *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    measured = json.loads(process.stdout)
    assert measured["pixels"] > 0, "the attack must come to its end"
    assert 0.1 < measured["GiB"] < 2
