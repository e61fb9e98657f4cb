"""The shipped experiments on Restricted ImageNet, unmodified, with weights in the caches of their libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from PIL import Image
from torch import nn

from pdpgd.cli import main
from pdpgd.data.known import CLASSES, LABELS, PAPER_CLASSES
from pdpgd.data.loading import load_data
from pdpgd.experiments.results import load_results
from pdpgd.experiments.spec import SHIPPED
from pdpgd.models.loading import load_model
from pdpgd.models.weights import write_weights
from support.hub import offline_hub, put

SMALL, FULL = "paper-restricted-imagenet-small", "paper-restricted-imagenet"
ROBUST = "madrylab/robust-imagenet-models"


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, patched: pytest.MonkeyPatch) -> Path:
    """Create untrained ResNet-50s in the Hugging Face cache, and two images of the group that all of them predict."""
    timm = pytest.importorskip("pdpgd.models.adapters.timm")
    cache, folder = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("imagenet")
    offline_hub(cache, patched)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net: nn.Module = timm.untrained("resnet50", classes=1000)
    write_weights(put(cache, "timm/resnet50.a1_in1k", "model.safetensors"), net)
    state = {f"module.model.{name}": value for name, value in net.state_dict().items()}
    state |= {"module.normalizer.new_mean": torch.zeros(3, 1, 1), "module.normalizer.new_std": torch.ones(3, 1, 1)}
    for file in ("resnet50_linf_eps1.0.ckpt", "resnet50_l2_eps1.ckpt"):
        # Weights that differ from those of the plain net, with the same prediction.
        state["module.model.fc.bias"] = state["module.model.fc.bias"] + 1
        torch.save({"model": state, "epoch": 1}, put(cache, ROBUST, file))
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((256, 256))
    (folder / "probe/val/n01641577").mkdir(parents=True)
    image.save(folder / "probe/val/n01641577/1.png")
    images, _ = load_data("restricted-imagenet", root=folder / "probe").batch([0])
    model = load_model("timm:resnet50", pool="restricted-imagenet")
    with torch.no_grad():
        group = int(model(images).argmax())
    wnid = next(wnid for wnid, label in LABELS.items() if label == group and wnid in PAPER_CLASSES)
    (folder / "val" / wnid).mkdir(parents=True)
    for number in (1, 2):
        image.save(folder / "val" / wnid / f"ILSVRC2012_val_{number:08d}.png")
    return folder


def test_the_small_spec_runs_without_a_model_option(tree: Path, tmp_path: Path) -> None:
    """One norm and few passes: a forward and backward pass of a ResNet-50 takes a quarter of a second."""
    text = (SHIPPED / f"{SMALL}.toml").read_text()
    text = text.replace('norms = ["linf", "l2", "l1", "l0"]', 'norms = ["l1"]').replace("budget = 100", "budget = 4")
    assert text != (SHIPPED / f"{SMALL}.toml").read_text()
    (tmp_path / "short.toml").write_text(text)
    out = tmp_path / "out"
    call = ["experiment", "run", str(tmp_path / "short.toml"), "--out", str(out), "--data-dir", str(tree)]
    assert main([*call, "--limit", "1", "--workers", "1"]) == 0
    results = load_results(out)
    assert {cell.model for cell in results.cells} == {"plain", "linf-at", "l2-at"}
    assert all(cell.failure is None for cell in results.cells)
    assert {cell.right for cell in results.cells} == {1}
    assert (out / "figures/examples-restricted-imagenet.png").exists()
    assert results.datasets[0].models["l2-at"].pool == "restricted-imagenet"
    specs = [json.loads(path.read_text())["model"] for path in out.glob("jobs/*/spec.json")]
    assert {spec["pool"] for spec in specs} == {"restricted-imagenet"}
    assert {(spec["source"], spec["weights"]) for spec in specs} == {
        ("timm:resnet50", None),
        ("timm:resnet50", f"hf:{ROBUST}/resnet50_linf_eps1.0.ckpt"),
        ("timm:resnet50", f"hf:{ROBUST}/resnet50_l2_eps1.ckpt"),
    }


def test_the_full_spec_finds_its_models_and_the_images_of_the_paper(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["experiment", "status", FULL, "--out", str(tmp_path / "out"), "--data-dir", str(tree), "--limit", "1"]
    assert main(call) == 0
    said = capsys.readouterr().out
    assert "to tune" in said
    assert all(model in said for model in ("plain", "linf-at", "l2-at"))


@pytest.mark.parametrize("spec", [SMALL, FULL])
def test_everything_that_is_missing_is_listed_at_once_with_what_to_do(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offline_hub(tmp_path / "hub", monkeypatch)
    monkeypatch.delenv("PDPGD_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    assert main(["experiment", "run", spec, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "got 4 errors" in said
    assert f"Put\n  val\ninto {tmp_path / 'cache/pdpgd/restricted-imagenet'}" in said.replace(
        "the folder restricted-imagenet in a folder that PDPGD_DATA names, or into ", ""
    )
    assert "models.plain (timm:resnet50): timm:resnet50: expected a model" in said
    for name, file in (("linf-at", "resnet50_linf_eps1.0.ckpt"), ("l2-at", "resnet50_l2_eps1.ckpt")):
        assert f"`hf download {ROBUST} {file}`" in said
        assert f"--model {name}=SOURCE replaces this model, --without {name} leaves it out" in said
    assert not (tmp_path / "out").exists()


def test_one_missing_model_does_not_hide_the_others(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ten_classes.py").write_text(TEN)
    call = ["experiment", "status", SMALL, "--out", str(tmp_path / "out"), "--data-dir", str(tree), "--limit", "1"]
    assert main([*call, "--model", "plain=ten_classes:net", "--model", "l2-at=nowhere:net"]) == 2
    said = capsys.readouterr().err
    assert "models.plain (ten_classes:net): pool restricted-imagenet: expected a model of 1000 outputs" in said
    assert "got one of 10" in said
    assert "models.l2-at (nowhere:net): nowhere:net: expected a module that can be imported" in said
    assert "linf-at" not in said
    assert main([*call, "--without", "plain", "--without", "l2-at"]) == 0
    said = capsys.readouterr().out
    assert "linf-at" in said
    assert "plain" not in said


TEN = """
from torch import nn


def net():
    return nn.Sequential(nn.AvgPool2d(28), nn.Flatten(), nn.Linear(192, 10))
"""


def test_a_model_is_pooled_on_the_command_line(tree: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pooled = ["timm:resnet50", "--pool", "restricted-imagenet"]
    data = ["--data-dir", str(tree)]
    assert main(["accuracy", *pooled, "--data", "restricted-imagenet:first", *data]) == 0
    assert "clean: 100.00% of 2 images" in capsys.readouterr().out
    short = ["--norm", "l2", "--limit", "1", "--out", str(tmp_path / "run"), "--budget", "4"]
    compared = ["compare", *pooled, "restricted-imagenet", *data, *short, "--attacks", "pdpgd", "--radius", "l2:1"]
    assert main(compared) == 0
    said = capsys.readouterr().out
    assert (
        "timm:resnet50 pooled over restricted-imagenet on 1 samples of restricted-imagenet, 100.0% correctly classified"
        in said
    )
    assert len(CLASSES) == 9
