"""Processors add in different orders: what docs/evaluation.md promises about runs on two of them.

One run computes as an old processor would, the other as this process does. `make test-arithmetic` runs the second under
several settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd.data.loading import load_data
from pdpgd.evaluation.referee import Referee
from pdpgd.models.loading import load_model
from pdpgd.runs.records import FOOLED
from pdpgd.runs.result import Evaluation, load_evaluation
from support.patience import PATIENCE

SAMPLES = 30
NORMS = ("linf", "l2", "l1", "l0")
MEANS_AGREE = 0.05
"""Share by which the mean distances of two processors may differ, as docs/evaluation.md says."""
OLD = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}


def evaluated(model: str, folder: Path, arithmetic: dict[str, str]) -> Evaluation:
    """Run in a new process, since torch selects the instructions once, when it is imported."""
    norms = [option for norm in NORMS for option in ("--norm", norm)]
    how = ("--limit", str(SAMPLES), "--budget", "60", "--threads", os.environ.get("PDPGD_TEST_THREADS", "1"), "--json")
    command = [sys.executable, "-m", "pdpgd", "evaluate", model, "mnist-1000", *norms, *how, "--out", str(folder)]
    environment = {**os.environ, **arithmetic}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return load_evaluation(folder)


@pytest.fixture(scope="module", params=["mnist-plain", "mnist-l2-at"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Evaluation, Evaluation]:
    folder = tmp_path_factory.mktemp("arithmetic")
    return evaluated(request.param, folder / "here", {}), evaluated(request.param, folder / "there", OLD)


def test_a_run_says_which_arithmetic_it_was_made_with(two: tuple[Evaluation, Evaluation]) -> None:
    here, there = ({each.machine["processor"] for each in run.stats} for run in two)
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    instructions = torch.backends.cpu.get_cpu_capability() + ("" if limit is None else f", oneDNN at most {limit}")
    assert all(name.endswith(instructions) for name in here)
    assert all("oneDNN at most SSE41" in name for name in there)


def test_the_same_samples_are_right_and_the_mean_distances_agree(two: tuple[Evaluation, Evaluation]) -> None:
    here, there = two
    assert here.clean_accuracy == there.clean_accuracy
    for norm in NORMS:
        ours, theirs = here.distances(norm), there.distances(norm)
        assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
        assert theirs.mean() == pytest.approx(ours.mean(), rel=MEANS_AGREE)


def test_what_fools_the_model_there_fools_it_here(two: tuple[Evaluation, Evaluation]) -> None:
    """Except for adversarial examples that the run itself marks as fragile."""
    here, there = two
    model = load_model(here.spec.model["source"])
    inputs, labels = load_data("mnist-1000").batch(torch.arange(SAMPLES))
    referee = Referee(model, inputs, labels, batch_size=SAMPLES)
    for norm in NORMS:
        sound = (there.column("status", norm) == FOOLED) & ~there.column("fragile", norm)
        assert sound.sum() >= SAMPLES / 3
        verdicts = referee.judge(torch.from_numpy(there.examples(norm)), torch.from_numpy(sound))
        assert np.array_equal(verdicts.valid.numpy(), sound)
