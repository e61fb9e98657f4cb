"""The examples in the docstrings of the public API run, and print what they say."""

from __future__ import annotations

import copy
import doctest
import importlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pdpgd
from pdpgd import norms
from pdpgd.experiments.runner import Experiment
from pdpgd.experiments.spec import load_spec

ROOT = Path(pdpgd.__file__).parents[2]
DOCUMENTED = {
    name for page in (ROOT / "docs" / "api").glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
}
NAMES = sorted(DOCUMENTED | {f"pdpgd.{home}.{name}" for name, home in pdpgd._PUBLIC.items()})

EXPERIMENT = """
title = "Two attacks on MNIST"
norms = ["l2"]
budget = 50
datasets.mnist = { source = "mnist-1000", like = "mnist", limit = 4, models = { plain = "mnist-plain" } }
attacks = [{ name = "auto" }, { name = "pdpgd" }]
figures = { examples = "auto" }
iteration_cost = false
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory that a reader of the examples works in, and the names that they have defined."""
    folder, before, threads = tmp_path_factory.mktemp("reader"), Path.cwd(), torch.get_num_threads()
    os.chdir(folder)
    torch.set_num_threads(1)
    try:
        _write_files(folder)
        model = pdpgd.load_model("mnist-plain")
        images, labels = pdpgd.load_data("mnist-1000").batch(range(4))
        names = {
            "pdpgd": pdpgd,
            "torch": torch,
            "model": model,
            "images": images,
            "labels": labels,
            "result": pdpgd.auto(model, images, labels, norm="l2", budget=50),
            "evaluation": pdpgd.evaluate(
                "mnist-plain", "mnist-1000", norms=["linf", "l2"], limit=20, budget=50, out="runs/mnist"
            ),
            "comparison": pdpgd.compare(
                "mnist-plain", "mnist-1000", norms=["l2"], attacks=["auto", "pdpgd"], limit=4, budget=200
            ),
        }
        Experiment(load_spec("experiment.toml"), "runs/experiment").run(workers=1)
        shutil.copytree("runs/mnist", "runs/stopped")
        Path("runs/stopped/records/chunk-00000.parquet").unlink()
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)
    return folder, names


def _write_files(folder: Path) -> None:
    """Write images of two classes in both formats, and the spec of an experiment."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 40, 32, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=np.array([0, 1, 0, 1]))
    for number, image in enumerate(pixels):
        path = folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (folder / "experiment.toml").write_text(EXPERIMENT)


def examples_of(name: str) -> doctest.DocTest:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    (found,) = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(value, name, globs={attribute: value})
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example_that_runs(
    name: str, reader: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = reader
    examples = examples_of(name)
    run = [example for example in examples.examples if doctest.SKIP not in example.options]
    assert run, f"{name}: expected an example in its docstring that is not skipped"
    monkeypatch.chdir(folder)
    torch.set_num_threads(1)
    # An example may put the model into train mode, or register a norm.
    examples.globs |= {**names, "model": copy.deepcopy(names["model"])}
    monkeypatch.setattr(norms, "_NORMS", {name: norms.norm_of(name) for name in ("linf", "l2", "l1", "l0")})
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(examples, out=printed.append).failed == 0, "".join(printed)
