"""A start belongs to its sample: neither the batch nor the memory limit nor later restarts change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult
from support.models import Affine, random_affine

if TYPE_CHECKING:
    from .conftest import Case


@pytest.fixture
def model(generator: torch.Generator) -> Affine:
    return random_affine(generator, features=12, classes=5, dtype=torch.float64)


@pytest.fixture
def inputs(model: Affine, generator: torch.Generator) -> Tensor:
    return 0.3 + 0.4 * torch.rand(10, 12, generator=generator, dtype=torch.float64)


def assert_same(one: AttackResult, other: AttackResult) -> None:
    torch.testing.assert_close(one.distances, other.distances)
    torch.testing.assert_close(one.adversarials, other.adversarials)
    assert torch.equal(one.labels, other.labels)


def test_a_sample_alone_gets_what_it_gets_in_its_batch(case: Case, model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    whole = case.run(model, inputs, labels)
    alone = case.run(model, inputs[7:8], labels[7:8], indices=torch.tensor([7]))
    torch.testing.assert_close(alone.adversarials[0], whole.adversarials[7])
    torch.testing.assert_close(alone.distances[0], whole.distances[7])
    assert alone.forwards[0] == whole.forwards[7]


def test_a_sample_under_another_index_gets_another_start(case: Case, model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    settings = {"steps": 2, "finetune_steps": 0}
    as_seven = case.run(model, inputs[7:8], labels[7:8], indices=torch.tensor([7]), settings=settings)
    as_eight = case.run(model, inputs[7:8], labels[7:8], indices=torch.tensor([8]), settings=settings)
    assert not torch.equal(as_seven.adversarials, as_eight.adversarials)


@pytest.mark.parametrize("max_batch", [1, 7])
def test_the_memory_limit_does_not_change_the_result(case: Case, max_batch: int, model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    labels[4] = (labels[4] + 1) % 5
    settings = {"steps": 15, "finetune_steps": 5, "restarts": 3}
    narrow = case.run(model, inputs, labels, settings={**settings, "max_batch": max_batch})
    wide = case.run(model, inputs, labels, settings={**settings, "max_batch": 1000})
    assert_same(narrow, wide)


def test_more_restarts_never_make_it_worse(case: Case, model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    best = torch.full((10,), torch.inf, dtype=torch.float64)
    for restarts in (1, 2, 3, 6):
        result = case.run(model, inputs, labels, settings={"restarts": restarts, "finetune_steps": 0})
        assert (result.distances <= best * (1 + 1e-9)).all()
        best = result.distances


def test_some_sample_gains_by_restarts(case: Case, model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    settings = {"steps": 8, "finetune_steps": 0}
    one = case.run(model, inputs, labels, settings=settings)
    ten = case.run(model, inputs, labels, settings={**settings, "restarts": 10})
    assert (ten.distances < one.distances).any()


def test_what_the_first_restarts_found_stays_when_more_are_played(case: Case, model: Affine, inputs: Tensor) -> None:
    """Where the third and later restarts bring nothing better, the point of the first two is returned."""
    labels = model.labels(inputs)
    settings = {"steps": 10, "finetune_steps": 0}
    two = case.run(model, inputs, labels, settings={**settings, "restarts": 2})
    four = case.run(model, inputs, labels, settings={**settings, "restarts": 4})
    same = torch.isclose(four.distances, two.distances, rtol=1e-9)
    assert same.any()
    torch.testing.assert_close(four.adversarials[same], two.adversarials[same])
    assert (four.distances[~same] < two.distances[~same]).all()


def test_fine_tuning_never_makes_it_worse(case: Case, model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    rough = case.run(model, inputs, labels, settings={"finetune_steps": 0})
    fine = case.run(model, inputs, labels, settings={"finetune_steps": 40})
    assert (fine.distances <= rough.distances).all()
    if "l0" not in case.name:
        assert (fine.distances < rough.distances).any()
