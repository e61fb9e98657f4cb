from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from pdpgd import Observation
from support.models import Stubborn, TinyConv

if TYPE_CHECKING:
    from .conftest import Case


@pytest.fixture
def right(conv: TinyConv, images: Tensor) -> Tensor:
    with torch.no_grad():
        return conv(images).argmax(1)


def test_the_hook_is_called_once_an_iteration_of_each_batch_and_ends_at_the_total(
    case: Case, conv: TinyConv, images: Tensor, right: Tensor
) -> None:
    seen: list[Observation] = []
    settings = {"steps": 9, "finetune_steps": 4, "restarts": 2, "max_batch": 5, "start_radius": 0.5}
    result = case.run(conv, images, right, settings=settings, observe=seen.append)
    # 24 starts in batches of 5, then 12 points to fine-tune in batches of 5.
    assert {moment.total for moment in seen} == {5 * 9 + 3 * 4}
    done = [moment.done for moment in seen]
    assert all(later > earlier for earlier, later in pairwise(done))
    if "l0" not in case.name:
        assert result.found.all()
        assert done == list(range(1, 58))
        assert [moment.phase for moment in seen] == ["search"] * 45 + ["finetune"] * 12


def test_wrong_inputs_are_no_work_to_be_done(conv: TinyConv, images: Tensor, labels: Tensor, case: Case) -> None:
    seen: list[Observation] = []
    case.run(conv, images, labels, settings={"steps": 3, "finetune_steps": 0, "max_batch": 5}, observe=seen.append)
    # Ten samples are open: two batches.
    assert seen[0].total == 6
    assert not {3, 8} & {sample for moment in seen for sample in moment.samples.tolist()}


def test_a_run_that_finds_nothing_ends_without_its_fine_tuning(case: Case, images: Tensor) -> None:
    seen: list[Observation] = []
    labels = torch.zeros(12, dtype=torch.long)
    case.run(Stubborn(), images, labels, settings={"steps": 6, "finetune_steps": 3}, observe=seen.append)
    assert [moment.done for moment in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].total == 9


def test_the_hook_sees_the_rows_of_its_batch(case: Case, conv: TinyConv, images: Tensor, right: Tensor) -> None:
    seen: list[Observation] = []
    result = case.run(conv, images, right, settings={"steps": 30, "finetune_steps": 5}, observe=seen.append)
    smallest = torch.full((12,), torch.inf)
    for moment in seen:
        rows = len(moment.samples)
        assert moment.margin.shape == moment.size.shape == moment.penalty.shape == (rows,)
        assert (moment.penalty > 0).all()
        smallest[moment.samples] = smallest[moment.samples].minimum(moment.size)
    # The last point of a phase is judged after the last observation.
    assert (result.distances <= smallest).all()
    assert smallest.isfinite().any()
    if "l0" not in case.name:
        assert seen[0].samples.tolist() == list(range(12))


def test_the_hook_changes_nothing(case: Case, conv: TinyConv, images: Tensor, right: Tensor) -> None:
    watched = case.run(conv, images, right, observe=lambda moment: None)
    alone = case.run(conv, images, right)
    assert torch.equal(watched.adversarials, alone.adversarials)


def test_an_error_in_the_hook_reaches_the_caller(case: Case, conv: TinyConv, images: Tensor, right: Tensor) -> None:
    def stop(moment: Observation) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.run(conv, images, right, observe=stop)
