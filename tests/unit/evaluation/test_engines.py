"""Results do not depend on the engine, and an engine that is not available is reported at once."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from pdpgd.attacks.base import AttackResult
from pdpgd.errors import EngineError, InvalidInputError, ModelError, UnfinishedError, UnknownNameError
from pdpgd.evaluation.engines import Failure, Processes, Result, as_completed, load_in_worker, result_or_failure
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.evaluation.job import Job
from pdpgd.evaluation.model_handle import LiveModel, NamedModel
from pdpgd.runs.stats import JobResult
from support.bad_models import Spoiling
from support.models import Affine, random_affine
from support.patience import PATIENCE

SAMPLES, SPOILT = 72, 70
"""The look at the model is at the first 64: what is spoilt is beyond them, in the last of three chunks."""
SETTINGS: dict[str, Any] = {"norms": ("linf", "l2"), "budget": 4, "chunk_size": 24, "threads": 1}


@pytest.fixture
def slope(generator: Generator) -> Affine:
    return random_affine(generator, features=16, classes=5)


@pytest.fixture
def data(generator: Generator, slope: Affine) -> tuple[Tensor, Tensor]:
    points = torch.rand(SAMPLES, 1, 4, 4, generator=generator)
    return points, slope.labels(points)


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for part in ("records", "examples") for path in (folder / part).iterdir()}


def test_two_processes_give_the_same_bits_as_one(slope: Affine, data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    for workers in (1, 2):
        evaluate(slope, data, out=tmp_path / f"{workers}", workers=workers, **SETTINGS)
    assert len(results(tmp_path / "1")) == 6
    assert results(tmp_path / "2") == results(tmp_path / "1")
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_loses_nothing_that_was_done(
    slope: Affine, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    model = Spoiling(slope, data[0][SPOILT], marker, "die")
    evaluate(model, data, out=tmp_path / "well", **SETTINGS)
    marker.touch()
    with pytest.raises(EngineError, match=r"a worker process died .* no finished work is lost"):
        evaluate(model, data, out=tmp_path / "ill", workers=2, **SETTINGS)
    assert not alive(multiprocessing.active_children())
    assert not (tmp_path / "ill/receipts/chunk-00002.json").exists()
    marker.unlink()
    evaluate(model, data, out=tmp_path / "ill", **SETTINGS)
    assert results(tmp_path / "ill") == results(tmp_path / "well")


def alive(processes: list[Any]) -> list[Any]:
    """Return the processes that do not end.

    Asked again and again: the pool's own thread waits for the same processes, and for a moment one that it has just
    waited for looks alive to everyone else.
    """
    deadline = time.monotonic() + PATIENCE
    while (left := [process for process in processes if process.is_alive()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_a_chunk_that_fails_is_named_and_the_others_are_stored(
    slope: Affine, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "run"
    model = Spoiling(slope, data[0][SPOILT], marker, "raise")
    marker.touch()
    for _ in range(2):
        with pytest.raises(UnfinishedError, match=r"chunk-00002 \(samples 48 to 71\): the model failed .*not this one"):
            evaluate(model, data, out=folder, **SETTINGS)
        assert sorted(path.name for path in (folder / "receipts").iterdir()) == ["chunk-00000.json", "chunk-00001.json"]
    stored = results(folder)
    marker.unlink()
    evaluate(model, data, out=folder, **SETTINGS)
    assert stored.items() <= results(folder).items()
    evaluate(model, data, out=tmp_path / "undisturbed", **SETTINGS)
    assert results(folder) == results(tmp_path / "undisturbed")


def test_the_message_counts_the_chunks_that_are_stored(
    slope: Affine, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    model = Spoiling(slope, data[0][SPOILT], marker, "raise")
    with pytest.raises(UnfinishedError, match=r"1 jobs failed:(.|\n)*2 of 3 chunks are stored"):
        evaluate(model, data, **SETTINGS)


def lambda_model() -> nn.Module:
    model = nn.Flatten()
    model.register_forward_hook(lambda *_: None)
    return model


def test_what_cannot_be_sent_to_other_processes_is_refused_before_anything_runs(
    slope: Affine, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    def attack(model: Any, inputs: Tensor, labels: Tensor, *, norm: str) -> AttackResult:
        raise AssertionError("it was to be refused")

    out: dict[str, Any] = {"out": tmp_path / "run", "workers": 2}
    with pytest.raises(InvalidInputError, match=r"^model: expected one that can be sent to 2 processes .*workers=1"):
        evaluate(lambda_model(), data, **{**SETTINGS, **out})
    with pytest.raises(InvalidInputError, match=r"^attack: expected one that can be sent to 2 processes .*workers=1"):
        evaluate(slope, data, attack=attack, **{**SETTINGS, **out, "budget": None})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"engine": "spark"}, UnknownNameError, "unknown engine: expected one of local, ray, got 'spark'"),
        ({"engine": "Ray"}, UnknownNameError, "did you mean 'ray'"),
        ({"workers": 0}, InvalidInputError, "workers: expected an integer >= 1, got 0"),
        ({"workers": -2}, InvalidInputError, "workers: expected an integer >= 1, got -2"),
        ({"workers": 1.5}, InvalidInputError, r"workers: expected an integer >= 1, got 1\.5"),
        ({"workers": True}, InvalidInputError, "workers: expected an integer >= 1, got True"),
        ({"address": "here:1"}, InvalidInputError, "address: expected none with the engine local, got 'here:1'"),
    ],
    ids=str,
)
def test_an_engine_that_cannot_be_had_is_refused_and_nothing_is_written(
    wrong: dict[str, Any], kind: type[Exception], words: str, slope: Affine, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        evaluate(slope, data, norms="l2", out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_process_of_the_users_own_outlives_a_run_that_fails(slope: Affine) -> None:
    own = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    own.start()
    try:
        with pytest.raises(KeyboardInterrupt), Processes({"": LiveModel(slope)}, "cpu", 2):
            raise KeyboardInterrupt
        own.join(0.2)
        assert own.is_alive()
    finally:
        own.kill()
        own.join()


def test_an_error_of_a_model_that_a_worker_loads_is_reported_as_it_is() -> None:
    """Not as the death of the worker."""
    failure = load_in_worker(NamedModel("mnist-plain", sha256="0" * 64), "cpu")
    assert isinstance(failure, Failure)
    assert "expected the model that the run was started with" in failure.message
    assert result_or_failure(job("chunk-00000"), failure) is failure


def test_a_model_that_fails_in_the_preflight_ends_the_run(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("no weights")

    with pytest.raises(ModelError, match=r"the model failed on inputs of shape .*no weights"):
        evaluate(broken, data, out=tmp_path / "run", **SETTINGS)


# What follows is of `completed` alone, with jobs that somebody else does.


def job(name: str) -> Job:
    nothing: Any = None
    return Job(name, "chunk", nothing, nothing, nothing, nothing, nothing)


class Office:
    """Accepts jobs, and executes them on request."""

    def __init__(self) -> None:
        self.taken: dict[str, Future[Result]] = {}

    def submit(self, job: Job) -> Future[Result]:
        self.taken[job.name] = Future()
        if job.name in ("lost", "done"):
            self.finish(job.name)
        return self.taken[job.name]

    def finish(self, name: str) -> None:
        if name == "lost":
            self.taken[name].set_exception(ConnectionError("gone"))
        else:
            self.taken[name].set_result(JobResult({"name": name}))


def test_no_more_jobs_are_made_than_are_under_way() -> None:
    made: list[str] = []

    def jobs() -> Iterator[Job]:
        for number in range(6):
            made.append(str(number))
            yield job(str(number))

    office = Office()

    def submit(job: Job) -> Future[Result]:
        future = office.submit(job)
        if len(office.taken) == 2:
            office.finish("1")
        elif len(office.taken) > 2:
            office.finish(job.name)
        return future

    results = as_completed(submit, jobs(), at_once=2)
    assert next(results)[0] == "1"
    assert made == ["0", "1"]
    assert next(results)[0] == "2"
    assert made == ["0", "1", "2"]
    office.finish("0")
    assert sorted(name for name, _ in results) == ["0", "3", "4", "5"]


def test_what_is_done_comes_before_what_is_lost() -> None:
    """Whichever of the two comes first in a set."""
    for _ in range(20):
        results = as_completed(Office().submit, [job("lost"), job("done")], at_once=2)
        assert next(results) == ("done", JobResult({"name": "done"}))
        with pytest.raises(ConnectionError, match="gone"):
            next(results)


def test_no_jobs_are_no_results() -> None:
    assert list(as_completed(Office().submit, [], at_once=2)) == []
