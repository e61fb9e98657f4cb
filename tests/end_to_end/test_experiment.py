"""An experiment from its spec to its tables: started, interrupted, extended, inspected and cleaned."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pdpgd.cli import main
from pdpgd.data.known import LABELS
from pdpgd.experiments.results import Results, load_results
from pdpgd.experiments.spec import load_spec
from support.patience import PATIENCE
from support.pickled_code import LeavesMarker

SPEC = """
title = "tiny"
norms = ["linf", "l2"]
budget = 30

[run]
chunk_size = 3

[datasets.mnist]
source = "mnist-1000"
like = "mnist"
limit = 6

[datasets.mnist.models]
plain = "mnist-plain"
linf-at = "mnist-linf-at"

[figures]
examples = "pdpgd:1"

[figures.restarts]
attacks = ["pdpgd"]
restarts = [1, 2]

[figures.queries]
gradients = [5]
penalties = [1]

[[attacks]]
name = "pdpgd"
restarts = [1]

[[attacks]]
name = "pgd"
restarts = [1]
"""
GROWN = f'{SPEC}\n[[attacks]]\nname = "auto"\n'


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC)
    return path


def run(spec: Path, *more: str, step: str = "run") -> int:
    out = () if "--out" in more else ("--out", str(spec.parent / "out"))
    return main(["experiment", step, str(spec), *out, *more])


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return content and modification time of the files of finished chunks, which are those with a receipt."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for receipt in sorted(folder.glob("jobs/*/receipts/chunk-*.json"))
        for part in ("records", "examples")
        for path in (receipt.parents[1] / part).glob(f"{receipt.stem}.*")
    }


def numbers(results: Results) -> list[tuple[object, ...]]:
    return [(cell.id, cell.label, cell.robust_accuracy, cell.mean_distance) for cell in results.cells]


def test_from_a_file_to_tables_and_figures(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(spec, "--workers", "1") == 0
    out = spec.parent / "out"
    results = load_results(out)
    assert [(cell.role, cell.label) for cell in results.of("table", model="plain", norm="l2")] == [
        ("table", "pdpgd:1"),
        ("table", "pgd:1"),
    ]
    # The table and the figure share one run.
    table, figure = (
        next(cell for cell in results.of(role, model="plain", norm="l2") if cell.label == "pdpgd:1")
        for role in ("table", "restarts")
    )
    assert table.id == figure.id
    assert table.fooled == table.right == 6
    assert all(cell.failure is None for cell in results.cells)
    assert table.backwards > 0
    assert {cost.attack: (cost.forwards, cost.backwards) for cost in results.iteration_costs} == {
        "pdpgd": (1, 1),
        "pgd": (1, 1),
    }
    tables = {path.name for path in (out / "tables").iterdir()}
    assert {"table-1.md", "table-1.tex", "table-1.csv"} <= tables
    assert {path.name for path in (out / "figures").iterdir()} == {
        "examples-mnist.png",
        "queries-mnist.svg",
        "restarts-mnist.svg",
    }
    said = capsys.readouterr().out
    assert "tables.md" in said

    # Nothing is repeated when the command is given again, and two processes give the same results.
    before = files(out)
    assert run(spec) == 0
    assert files(out) == before
    assert run(spec, "--workers", "2", "--out", str(spec.parent / "other")) == 0
    assert numbers(load_results(spec.parent / "other")) == numbers(results)


def test_an_extended_spec_executes_what_is_new_and_stale_runs_can_be_cleaned(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(spec)
    out = spec.parent / "out"
    before = files(out)
    spec.write_text(GROWN)
    run(spec, step="status")
    assert re.search(r"24 done, 4 to do", capsys.readouterr().out)
    run(spec)
    grown = files(out)
    assert {name: grown[name] for name in before} == before
    assert len(grown) > len(before)
    run(spec, step="clean")
    assert files(out) == grown
    spec.write_text(SPEC)
    run(spec, step="clean")
    assert files(out) == before
    assert re.search(r"4 of \d+ runs deleted", capsys.readouterr().out)
    run(spec, "--all", step="clean")
    assert files(out) == {}
    assert (out / "tables").is_dir()


def test_a_killed_experiment_resumes_and_loses_nothing(spec: Path) -> None:
    """Killed by the signal that cannot be caught."""
    undisturbed = spec.parent / "undisturbed"
    run(spec, "--out", str(undisturbed))
    out = spec.parent / "out"
    command = [sys.executable, "-m", "pdpgd", "experiment", "run", str(spec), "--out", str(out), "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + PATIENCE
    while len(files(out)) < 4 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = files(out)
    assert len(there) > 0
    assert run(spec) == 0
    after = files(out)
    assert {name: after[name] for name in there} == there
    assert numbers(load_results(out)) == numbers(load_results(undisturbed))


def test_settings_are_selected_on_held_out_samples(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SPEC.replace("budget = 30", 'preset = "paper"\ntune = 2\niteration_cost = false')
    text = text[: text.index("[figures]")] + text[text.index("[[attacks]]") : text.rindex("[[attacks]]")]
    text = text.replace("restarts = [1]", "restarts = [1, 2]\nsettings = { steps = 4, finetune_steps = 0 }")
    text = text.replace('norms = ["linf", "l2"]', 'norms = ["l2"]')
    spec.write_text(text)
    run(spec, step="status")
    assert "4 to tune" in capsys.readouterr().out
    run(spec)
    results = load_results(spec.parent / "out")
    for model in ("plain", "linf-at"):
        one, two = results.of("table", model=model)
        assert one.settings["primal_rate"] in (1.0, 0.1, 0.01)
        assert one.settings == two.settings
    names = [json.loads(path.read_text())["data"]["name"] for path in spec.parent.glob("out/jobs/*/spec.json")]
    assert sorted(names) == ["mnist-1000"] * 4 + ["mnist-1000[6:8]"] * 6
    run(spec, step="status")
    assert "4 done" in capsys.readouterr().out


def test_an_attack_that_is_not_installed_is_a_row_with_the_reason(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pdpgd.attacks.info import Library

    def missing(library: Library) -> bool:
        return library.name != "adv-lib"

    monkeypatch.setattr(Library, "installed", missing)
    spec.write_text(f'{SPEC}\n[[attacks]]\nname = "ddn"\n')
    assert run(spec, "--workers", "1") == 0
    results = load_results(spec.parent / "out")
    failed = [cell for cell in results.cells if cell.failure]
    assert {cell.label for cell in failed} == {"ddn"}
    assert "pip install" in str(failed[0].failure)
    assert "pip install" in (spec.parent / "out/tables/tables.md").read_text()
    assert "ddn failed" in capsys.readouterr().out


def test_the_directory_can_be_given_for_the_spec_and_includes_changes_of_the_command(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(spec, "--limit", "2", "--workers", "1") == 0
    out = spec.parent / "out"
    assert [dataset.limit for dataset in load_spec(out / "spec.toml").datasets] == [2]
    capsys.readouterr()
    assert main(["experiment", "status", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"Directory: {out}" in said
    assert " done" in said
    assert "to do" not in said
    assert main(["experiment", "status", str(spec.parent)]) == 2
    assert "expected the spec of an experiment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--model", "plain"), "model: expected NAME=SOURCE"),
        (("--model", "plane=mnist-plain"), "did you mean 'plain'"),
        (("--model", "plain=mnist-plane"), "did you mean"),
        (("--limit", "0"), "limit: expected an integer >= 1, got 0"),
        (("--device", "gpu7"), "device: expected one that torch has here"),
    ],
)
def test_a_wrong_call_is_refused_and_leaves_nothing(
    spec: Path, more: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(spec, *more) == 2
    assert words in capsys.readouterr().err
    assert not (spec.parent / "out").exists()


def test_a_directory_with_other_files_is_refused(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (spec.parent / "out").mkdir()
    (spec.parent / "out/thesis.tex").write_text("mine")
    assert run(spec) == 2
    assert "expected a new directory or that of an experiment, got one with thesis.tex" in capsys.readouterr().err
    assert [path.name for path in (spec.parent / "out").iterdir()] == ["thesis.tex"]


TRUSTING = """
title = "trusting"
norms = ["l2"]
budget = 4
iteration_cost = false
attacks = [{{ name = "pgd" }}]

[datasets.mnist]
source = "mnist-1000"
like = "mnist"
limit = 1

[datasets.mnist.models]
first = {{ source = "{first}", like = "plain" }}
mine = {{ source = "{mine}", like = "plain"{consent} }}
"""


class LeavesNote(nn.Module):
    """A net whose file writes another file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.note = LeavesMarker(marker)
        self.layer = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        return logits


@pytest.mark.parametrize("consent", [", trust_model_code = true", ", trust_pickle = true", ""])
def test_a_spec_cannot_give_consent_to_run_the_code_in_a_file(
    consent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("first_net", None)
    marker, spec, out = tmp_path / "ran", tmp_path / "spec.toml", tmp_path / "out"
    torch.save(LeavesNote(marker), "mine.pt")
    (tmp_path / "first_net.py").write_text("open('imported', 'w').close()\nfrom torch import nn\n" + FIRST)
    spec.write_text(TRUSTING.format(first="first_net:net", mine="mine.pt", consent=consent))
    for step in ("run", "status", "clean"):
        assert run(spec, step=step) == 2
        said = capsys.readouterr().err
        assert "mine" in said
        assert "--trust-model-code" in said
        assert not marker.exists()
        assert not out.exists()
    if consent:
        assert "datasets.mnist.models.mine" in said
        assert not Path("imported").exists()
    assert run(spec, "--workers", "1", "--trust-model-code") == 0
    assert marker.exists()
    # Nor can the copy of the spec beside the results.
    marker.unlink()
    assert main(["experiment", "run", str(out), "--workers", "1"]) == 2
    assert not marker.exists()


FIRST = """
def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""
NETS = """
import torch
from torch import nn


def net():
    torch.manual_seed({seed})
    return nn.Sequential(nn.AvgPool2d(28), nn.Flatten(), nn.Linear(192, {outputs}))
"""


def test_restricted_imagenet_small_on_a_tiny_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    groups: dict[int, str] = {}
    for name, label in LABELS.items():
        groups.setdefault(label, name)
    for name in groups.values():
        (tmp_path / "tree/val" / name).mkdir(parents=True)
        pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((256, 256)).save(tmp_path / "tree/val" / name / "1.png")
    models = []
    # An ImageNet model is pooled like the one that it replaces; a model of the nine groups is not pooled.
    for seed, (kind, outputs) in enumerate({"plain": 1000, "linf-at": 9, "l2-at": 9}.items()):
        module = f"tiny_{kind.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(NETS.format(seed=seed, outputs=outputs))
        models += ["--model", f"{kind}={module}:net"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "out"
    call = [
        "experiment",
        "run",
        "paper-restricted-imagenet-small",
        "--out",
        str(out),
        "--data-dir",
        "tree",
        "--limit",
        "3",
        *models,
    ]
    assert main([*call, "--workers", "1"]) == 0
    results = load_results(out)
    assert results.datasets[0].samples == 3
    assert all(cell.failure is None for cell in results.cells)
    assert "(" in (out / "tables/tables.md").read_text()
    assert (out / "figures/examples-restricted-imagenet.png").exists()


SAME_WEIGHTS = """
title = "same weights"
norms = ["l2"]
budget = 10
iteration_cost = false
attacks = [{ name = "pdpgd" }]

[datasets.mnist]
source = "mnist-1000"
like = "mnist"
limit = 8

[datasets.mnist.models]
dark = { source = "same_net:net", weights = "w.pt", mean = "0.1", std = "0.3", like = "plain" }
light = { source = "same_net:net", weights = "w.pt", mean = "0.9", std = "0.3", like = "plain" }
"""


def test_models_with_the_same_weights_but_different_normalization_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same_net.py").write_text("from torch import nn\n" + FIRST)
    weights = {"1.weight": torch.randn(10, 784, generator=generator), "1.bias": torch.zeros(10)}
    torch.save(weights, "w.pt")
    spec = tmp_path / "same.toml"
    spec.write_text(SAME_WEIGHTS)
    assert run(spec, "--workers", "1") == 0
    together = numbers(load_results(tmp_path / "out"))
    alone = []
    for name, other in (("dark", "light"), ("light", "dark")):
        assert run(spec, "--workers", "1", "--without", other, "--out", name) == 0
        alone += numbers(load_results(tmp_path / name))
    assert together == alone
    assert together[0][2] != together[1][2] or together[0][3] != together[1][3]


DOTTED = """
title = "versions"
norms = ["linf"]
budget = 10
iteration_cost = false

[datasets."set-v1.0"]
source = "mnist-1000"
like = "mnist"
limit = 2
models = { plain = "mnist-plain" }

[datasets."set-v2.0"]
source = "mnist-1000"
like = "mnist"
limit = 3
models = { plain = "mnist-plain" }

[[attacks]]
name = "pdpgd"
restarts = [1]
"""


def test_data_sets_whose_names_agree_after_a_dot_have_separate_results_and_tables(spec: Path) -> None:
    spec.write_text(DOTTED)
    assert run(spec, "--workers", "1") == 0
    results = load_results(spec.parent / "out")
    assert [(cell.dataset, cell.samples) for cell in results.cells] == [("set-v1.0", 2), ("set-v2.0", 3)]
    assert {dataset.name: dataset.samples for dataset in results.datasets} == {"set-v1.0": 2, "set-v2.0": 3}
    tables = spec.parent / "out" / "tables"
    for name in ("set-v1.0", "set-v2.0"):
        assert f"Attacks on {name} (the paper's Table II)" in (tables / f"table-2-{name}.md").read_text()
        assert (tables / f"complete-{name}-linf.csv").exists()
