"""A Ray cluster gives the same bits as this process, also where its workers die."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from pdpgd.attacks.base import AttackResult
from pdpgd.errors import EngineError, InvalidInputError, UnfinishedError
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.experiments.runner import Experiment
from pdpgd.experiments.spec import parse_spec
from support.bad_models import Spoiling
from support.models import Affine, random_affine

ray = pytest.importorskip("ray")

SAMPLES, SPOILT = 72, 70
"""The preflight uses the first 64 samples; the model fails on a later one, in the last of three chunks."""
SETTINGS: dict[str, Any] = {"norms": ("linf", "l2"), "budget": 4, "chunk_size": 24, "threads": 1}
ON_RAY: dict[str, Any] = {**SETTINGS, "engine": "ray", "workers": 2}

Data = tuple[Tensor, Tensor]


@pytest.fixture
def slope(generator: Generator) -> Affine:
    return random_affine(generator, features=16, classes=5)


@pytest.fixture
def data(generator: Generator, slope: Affine) -> Data:
    points = torch.rand(SAMPLES, 1, 4, 4, generator=generator)
    return points, slope.labels(points)


@pytest.fixture(scope="module", autouse=True)
def path_to_the_models() -> Iterator[None]:
    """Ray's workers inherit the environment of the process that starts the cluster, but not its sys.path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        yield


@pytest.fixture(scope="module")
def cluster(path_to_the_models: None) -> Iterator[None]:
    """One cluster for all tests after its first use; a run that finds it does not shut it down."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    yield
    ray.shutdown()


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for part in ("records", "examples") for path in (folder / part).iterdir()}


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_said_not_to(scheme: str, slope: Affine, data: Data) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"ray: expected a cluster at {address}, got none .*refused"):
            evaluate(slope, data, address=address, **ON_RAY)
    assert not ray.is_initialized()


def test_a_cluster_that_was_to_be_found_is_said_to_be_missing(slope: Affine, data: Data) -> None:
    with pytest.raises(EngineError, match="ray: expected a cluster at auto, got none"):
        evaluate(slope, data, address="auto", **ON_RAY)


def test_a_run_has_a_cluster_of_its_own_and_the_same_bits_as_one_process(
    slope: Affine, data: Data, tmp_path: Path
) -> None:
    evaluate(slope, data, out=tmp_path / "here", **SETTINGS)
    evaluate(slope, data, out=tmp_path / "ray", **ON_RAY)
    assert len(results(tmp_path / "here")) == 6
    assert results(tmp_path / "ray") == results(tmp_path / "here")
    assert not ray.is_initialized()


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_changes_no_bit(slope: Affine, data: Data, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    model = Spoiling(slope, data[0][SPOILT], marker, "die once")
    evaluate(model, data, out=tmp_path / "here", **SETTINGS)
    assert not marker.exists()
    evaluate(model, data, out=tmp_path / "ray", **ON_RAY)
    assert marker.exists()
    assert results(tmp_path / "ray") == results(tmp_path / "here")
    assert ray.is_initialized()


@pytest.mark.usefixtures("cluster")
def test_a_chunk_that_fails_there_is_named_and_the_others_are_kept(slope: Affine, data: Data, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    model = Spoiling(slope, data[0][SPOILT], marker, "raise")
    with pytest.raises(UnfinishedError, match=r"chunk-00002 \(samples 48 to 71\): .*not this one(.|\n)*2 of 3 chunks"):
        evaluate(model, data, out=tmp_path / "ray", **ON_RAY)
    marker.unlink()
    evaluate(model, data, out=tmp_path / "ray", **ON_RAY)
    evaluate(model, data, out=tmp_path / "here", **SETTINGS)
    assert results(tmp_path / "ray") == results(tmp_path / "here")


class Constant(nn.Module):
    """A model without weights, whose checksum is that of any other such model."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(5)[self.answer] + 0 * x.flatten(1).sum(1, keepdim=True)


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_served_another_run_does_not_answer_with_its_model(data: Data) -> None:
    """Even if the specs of the two runs are equal."""
    zeros = (data[0][:4], torch.zeros(4, dtype=torch.long))
    assert [evaluate(Constant(answer), zeros, **ON_RAY).clean_accuracy for answer in (0, 3)] == [1.0, 0.0]


@pytest.mark.usefixtures("cluster")
def test_what_cannot_be_sent_there_is_refused(slope: Affine, data: Data, generator: Generator) -> None:
    lock = socket.socket()

    def attack(model: Any, inputs: Tensor, labels: Tensor, *, norm: str) -> AttackResult:
        raise AssertionError(f"it was to be refused: {lock}")

    model = random_affine(generator, features=16)
    vars(model)["lock"] = lock
    with lock:
        with pytest.raises(InvalidInputError, match="model: expected one that can be sent to other processes"):
            evaluate(model, data, **ON_RAY)
        with pytest.raises(InvalidInputError, match="attack: expected one that can be sent to other processes"):
            evaluate(slope, data, attack=attack, **{**ON_RAY, "budget": None})


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_lacks_the_models_module_says_so(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the cause, not that the job was lost six times."""
    module = ModuleType("only_here")
    exec("import torch\nclass Net(torch.nn.Flatten): ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(EngineError, match=r"could not load its job \(.*No module named 'only_here'.*import"):
        evaluate(module.Net().eval(), data, **ON_RAY)


TWO_MODELS = """
title = "two models"
norms = ["l2"]
budget = 6
iteration_cost = false
run.chunk_size = 2
attacks = [{ name = "auto" }, { name = "pgd" }]
[datasets.digits]
source = "mnist-1000"
like = "mnist"
limit = 4
models = { plain = "mnist-plain", linf-at = "mnist-linf-at" }
"""


def test_an_experiment_on_a_cluster_is_the_same_as_here(cluster: None, tmp_path: Path) -> None:
    spec = parse_spec(TWO_MODELS)
    here = Experiment(spec, tmp_path / "here").run(workers=1)
    there = Experiment(spec, tmp_path / "there").run(engine="ray", workers=2)
    assert len(here.cells) == 4
    for cell in here.cells:
        assert results(tmp_path / "there/jobs" / cell.id) == results(tmp_path / "here/jobs" / cell.id)
    assert [cell.robust_accuracy for cell in there.cells] == [cell.robust_accuracy for cell in here.cells]
