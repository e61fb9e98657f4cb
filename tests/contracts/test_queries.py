"""One forward and one backward pass per iteration, one forward for the input, one for the last point: no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from support.models import Counting, Stubborn, TinyConv

if TYPE_CHECKING:
    from .conftest import Case

STEPS, FINETUNE = 17, 6


def never_finishes_early(case: Case) -> bool:
    return "l0" not in case.name


@pytest.mark.parametrize("sample", [0, 5, 11])
def test_one_start_costs_two_forwards_more_than_its_iterations(
    case: Case, sample: int, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    model = Counting(conv)
    rows = slice(sample, sample + 1)
    result = case.run(model, images[rows], labels[rows], settings={"steps": STEPS, "finetune_steps": 0})
    assert result.forwards.tolist() == [sum(model.forwards)]
    assert result.backwards.tolist() == [sum(model.backwards)]
    assert sum(model.forwards) <= STEPS + 2
    assert sum(model.backwards) <= STEPS + 1
    if never_finishes_early(case):
        assert (sum(model.forwards), sum(model.backwards)) == (STEPS + 2, STEPS)


def test_the_rows_the_model_saw_are_the_rows_in_the_books(
    case: Case, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    model = Counting(conv)
    settings = {"steps": STEPS, "finetune_steps": FINETUNE, "restarts": 3, "max_batch": 5}
    result = case.run(model, images, labels, settings=settings)
    assert result.forwards.sum() == sum(model.forwards)
    assert result.backwards.sum() == sum(model.backwards)
    assert max(model.forwards) <= 5


def test_every_restart_and_the_fine_tuning_are_starts_of_their_own(case: Case, images: Tensor, conv: TinyConv) -> None:
    with torch.no_grad():
        labels = conv(images).argmax(1)
    settings = {"steps": STEPS, "finetune_steps": FINETUNE, "restarts": 2}
    result = case.run(conv, images, labels, settings=settings)
    forwards = 1 + 2 * (STEPS + 1) + torch.where(result.found, FINETUNE + 1, 0)
    backwards = 2 * STEPS + torch.where(result.found, FINETUNE, 0)
    if never_finishes_early(case):
        assert torch.equal(result.forwards, forwards)
        assert torch.equal(result.backwards, backwards)
    else:
        assert (result.forwards <= forwards).all()
        assert (result.backwards <= backwards).all()


def test_a_hopeless_sample_costs_its_restarts_and_no_fine_tuning(case: Case, images: Tensor) -> None:
    model = Counting(Stubborn())
    labels = torch.zeros(len(images), dtype=torch.long)
    settings = {"steps": STEPS, "finetune_steps": FINETUNE, "restarts": 3}
    result = case.run(model, images, labels, settings=settings)
    assert result.forwards.tolist() == [1 + 3 * (STEPS + 1)] * 12
    assert result.backwards.tolist() == [3 * STEPS] * 12
    assert sum(model.forwards) == result.forwards.sum()
    assert sum(model.backwards) == result.backwards.sum()


def test_forward_and_backward_passes_of_the_game_go_together(
    case: Case, conv: TinyConv, images: Tensor, labels: Tensor
) -> None:
    """No pass is made twice: between the first and the last forward, each has its backward."""
    model = Counting(conv)
    case.run(model, images, labels, settings={"steps": STEPS, "finetune_steps": 0})
    played = model.forwards[1 : 1 + len(model.backwards)]
    assert played == model.backwards
    assert len(model.forwards) - len(model.backwards) <= 2
