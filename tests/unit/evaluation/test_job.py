"""The result of a job depends on the job alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd.errors import AttackError, ModelError
from pdpgd.evaluation.job import Job, run_job
from pdpgd.runs.records import NAMES
from pdpgd.runs.spec import AttackSpec, JobKind
from pdpgd.runs.stats import JobResult
from support.models import Counting, TinyConv
from support.specs import small_spec

NORMS = ("linf", "l2", "l1", "l0")
SPEC = small_spec(norms=NORMS, attack="pdpgd", budget=6)
Make = Callable[..., Job]


class Narrow(nn.Module):
    """Has memory for three rows."""

    def __init__(self, model: nn.Module, error: Callable[[str], Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.model, self.error = model, error
        self.widest = 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:
            # Only by these words can the error of torch's own allocator be recognized.
            raise self.error("can't allocate memory" if self.error is RuntimeError else "no room")
        self.widest = max(self.widest, len(x))
        answer: Tensor = self.model(x)
        return answer


@pytest.fixture
def job(images: Tensor, labels: Tensor) -> Make:
    def make(
        kind: JobKind = "chunk", attack: AttackSpec | None = None, rows: Any = slice(None), **settings: Any
    ) -> Job:
        attack = AttackSpec(name="pdpgd", budget=6) if attack is None else attack
        return Job(
            "chunk-00000",
            kind,
            replace(SPEC, **settings),
            attack,
            images[rows],
            labels[rows],
            torch.arange(20, 20 + len(images))[rows],
        )

    return make


def same(first: JobResult, second: JobResult) -> bool:
    """To the last bit."""
    assert first.columns is not None
    assert second.columns is not None
    return (
        list(first.columns) == list(second.columns)
        and all(
            np.array_equal(values, second.columns[name])
            if values.dtype == object
            else values.tobytes() == second.columns[name].tobytes()
            for name, values in first.columns.items()
        )
        and list(first.examples) == list(second.examples)
        and all(array.tobytes() == second.examples[name].tobytes() for name, array in first.examples.items())
    )


def complete(result: JobResult, samples: int, norms: tuple[str, ...] = NORMS) -> bool:
    assert result.columns is not None
    shapes = {name: array.shape for name, array in result.examples.items()}
    pictures = {name: (samples, 3, 6, 6) for norm in norms for name in (norm, f"{norm}_8bit")}
    traces = {name: shapes.pop(name) for name in list(shapes) if name.endswith("_trace")}
    return (
        tuple(result.columns) == NAMES
        and all(len(values) == samples * len(norms) for values in result.columns.values())
        and shapes == {"sample": (samples,), "input": (samples, 3, 6, 6), **pictures}
        and {name: shape[0] for name, shape in traces.items()} == {f"{norm}_trace": samples for norm in norms}
    )


def test_the_result_of_a_chunk_is_complete(model: TinyConv, job: Make) -> None:
    result = run_job(job(), model)
    assert complete(result, 10)
    assert result.columns is not None
    assert result.columns["sample"].tolist() == list(range(20, 30)) * 4
    assert result.columns["norm"].tolist() == [norm for norm in NORMS for _ in range(10)]
    assert result.stats.halved is False
    assert result.stats.batch_size == 8
    assert set(result.stats.seconds_by_stage) == {*NORMS, "cheap", "8 bit"}


def test_the_same_job_twice_gives_the_same_bits(model: TinyConv, job: Make) -> None:
    assert same(run_job(job(), model), run_job(job(), model))


def test_another_seed_gives_others(model: TinyConv, job: Make) -> None:
    assert not same(run_job(job(), model), run_job(job(seed=4), model))


@contextmanager
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(99)
        yield


@contextmanager
def more_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


@contextmanager
def half_precision() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@pytest.mark.parametrize(
    "around",
    [seeded, torch.no_grad, torch.inference_mode, more_threads, half_precision],
    ids=lambda around: around.__name__,
)
def test_what_goes_on_around_a_job_changes_no_bit(
    model: TinyConv, job: Make, around: Callable[[], AbstractContextManager[None]]
) -> None:
    plain = run_job(job(), model)
    random = torch.get_rng_state()
    with around():
        within = run_job(job(), model)
    assert same(plain, within)
    assert torch.equal(torch.get_rng_state(), random)


def test_samples_made_under_inference_mode_are_attacked_as_any_others(model: TinyConv, job: Make) -> None:
    plain = job()
    with torch.inference_mode():
        made = replace(plain, inputs=plain.inputs.clone(), labels=plain.labels.clone(), indices=plain.indices.clone())
    assert same(run_job(plain, model), run_job(made, model))
    measured = run_job(replace(made, kind="preflight"), model)
    assert measured.stats.preflight is not None
    assert measured.stats.preflight.no_gradient == 0.0


def test_a_job_does_not_write_to_its_samples(model: TinyConv, job: Make, images: Tensor) -> None:
    given, before = job(), images.clone()
    run_job(given, model)
    assert torch.equal(given.inputs, before)


@pytest.mark.parametrize("fails", [False, True])
def test_the_job_runs_with_its_threads_and_puts_back_the_others(model: TinyConv, job: Make, fails: bool) -> None:
    seen: set[int] = set()

    def attack(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        seen.add(torch.get_num_threads())
        assert torch.is_grad_enabled()
        if fails:
            raise ArithmeticError("no")
        return SimpleNamespace(adversarials=inputs, found=torch.zeros(len(inputs), dtype=torch.bool))

    outside = torch.get_num_threads()
    with pytest.raises(AttackError, match="ArithmeticError: no") if fails else nullcontext():
        run_job(job(attack=AttackSpec(name="mine", function=attack), threads=2), model)
    assert seen == {2}
    assert torch.get_num_threads() == outside


@pytest.mark.parametrize("kind", ["chunk", "second start", "preflight"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError], ids=lambda error: error.__name__)
def test_where_memory_is_short_the_batch_is_halved(
    model: TinyConv, job: Make, kind: JobKind, error: Callable[[str], Exception]
) -> None:
    narrow = Narrow(model, error)
    result = run_job(job(kind, norms=("l2",)), narrow)
    assert result.stats.halved is True
    assert result.stats.batch_size == narrow.widest == 2
    if kind == "chunk":
        assert complete(result, 10, ("l2",))
        assert same(result, run_job(job(norms=("l2",), batch_size=2), model))


def test_the_memory_an_attack_of_the_users_own_lacks_is_not_hidden(model: TinyConv, job: Make) -> None:
    tried: list[int] = []

    def attack(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        tried.append(len(inputs))
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(AttackError, match="OutOfMemoryError: no room"):
        run_job(job(attack=AttackSpec(name="mine", function=attack)), model)
    # In batches of 8, 4, 2 and 1.
    assert len(tried) == 4


@pytest.mark.parametrize("error", [RuntimeError, KeyError, ModelError])
def test_another_error_is_not_swallowed(model: TinyConv, job: Make, error: type[Exception]) -> None:
    tried: list[int] = []

    def broken(x: Tensor) -> Tensor:
        tried.append(len(x))
        raise error("the model is broken")

    with pytest.raises(ModelError, match="the model is broken"):
        run_job(job(), broken)
    assert tried == [8]


def test_no_batch_is_larger_than_asked(model: TinyConv, job: Make) -> None:
    counting = Counting(model)
    run_job(job(batch_size=3), counting)
    assert max(counting.forwards) == 3


def test_the_passes_of_the_attacks_and_of_the_checks_are_all_the_model_saw(model: TinyConv, job: Make) -> None:
    counting = Counting(model)
    stats = run_job(job(), counting).stats
    assert stats.forwards.total == sum(counting.forwards)
    assert stats.backwards.total == sum(counting.backwards)


def test_a_chunk_in_which_every_sample_is_wrong_has_nothing_to_attack(
    model: TinyConv, job: Make, images: Tensor
) -> None:
    with torch.no_grad():
        prediction = model(images).argmax(1)
    given = replace(job(), labels=(prediction + 1) % 5)
    result = run_job(given, model)
    assert complete(result, 10)
    assert result.columns is not None
    assert set(result.columns["status"]) == {"initially wrong"}
    assert (result.columns["distance"] == 0).all()
    assert (result.columns["distance_8bit"] == 0).all()
    assert result.columns["prediction"].tolist() == prediction.tolist() * 4
    assert result.stats.forwards.attacks == 0
    assert np.array_equal(result.examples["l2"], images.numpy())


@pytest.mark.parametrize("row", [0, 3])
def test_a_chunk_of_one_sample_is_a_chunk(model: TinyConv, job: Make, row: int) -> None:
    result = run_job(job(rows=slice(row, row + 1)), model)
    assert complete(result, 1)
    assert result.columns is not None
    assert set(result.columns["status"]) == {"initially wrong" if row == 3 else "fooled"}
    assert result.stats.batch_size == 1
    assert result.stats.halved is False


def test_progress_goes_from_nothing_into_the_last_norm(model: TinyConv, job: Make) -> None:
    shares: list[float] = []
    run_job(job(), model, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[0] > 0
    # The last norm may have nothing left to fine-tune.
    assert 0.75 < shares[-1] <= 1.0


def test_the_second_start_is_the_attacks_again_with_another_seed(model: TinyConv, job: Make) -> None:
    seeds: list[int] = []

    def attack(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str, seed: int) -> Any:
        seeds.append(seed)
        return SimpleNamespace(adversarials=1 - inputs, found=torch.ones(len(inputs), dtype=torch.bool))

    attack = AttackSpec(name="mine", function=attack)
    result = run_job(job("second start", attack), model)
    assert seeds == [4] * 4
    assert result.examples == {}
    assert result.columns is not None
    assert np.isinf(result.columns["cheap_distance"]).all()
    assert set(result.columns["source"]) <= {"", *NORMS}


def test_the_model_is_left_as_it_was(model: TinyConv, job: Make) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run_job(job(), model)
    assert not model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_chance_of_a_model_or_an_attack_belongs_to_the_job(model: TinyConv, job: Make) -> None:
    """An attack that draws from the global generators of torch, numpy and Python gives the same bits each time."""

    def by_chance(model: object, inputs: Tensor, labels: Tensor, *, norm: str) -> SimpleNamespace:
        draws = torch.rand_like(inputs) * float(np.random.rand()) * random.random()
        return SimpleNamespace(adversarials=draws, found=torch.ones_like(labels, dtype=torch.bool))

    work = job(attack=AttackSpec(name="chance", function=by_chance))
    before = torch.get_rng_state()
    assert same(run_job(work, model), run_job(work, model))
    assert torch.equal(before, torch.get_rng_state())
