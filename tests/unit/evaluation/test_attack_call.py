"""An attack gets copies and only the arguments it accepts, and what it returns is checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd.classifier import Counted
from pdpgd.errors import AttackError, InvalidInputError, ModelError, UnknownNameError
from pdpgd.evaluation.attack_call import check_attack, passes_of, run_attack
from pdpgd.runs.spec import AttackSpec
from support.models import Affine, TinyConv, WithLogits, ramp_affine


def call(function: Any, inputs: Tensor | None = None, *, starts: Tensor | None = None) -> Any:
    inputs = torch.full((2, 4), 0.75) if inputs is None else inputs
    return run_attack(
        AttackSpec(name="mine", function=function),
        ramp_affine(4),
        inputs,
        torch.zeros(len(inputs), dtype=torch.long),
        norm="l2",
        batch_size=2,
        seed=5,
        indices=torch.arange(len(inputs)) + 10,
        starts=starts,
        observe=lambda seen: None,
    )


def result(inputs: Tensor) -> SimpleNamespace:
    return SimpleNamespace(adversarials=inputs, found=torch.ones(len(inputs), dtype=torch.bool))


def test_a_function_that_takes_only_the_basics_gets_only_these() -> None:
    def plain(model: nn.Module, inputs: Tensor, labels: Tensor, norm: str) -> SimpleNamespace:
        assert norm == "l2"
        return result(inputs)

    assert call(plain).found.all()


def test_a_function_is_offered_what_it_names() -> None:
    def seeded(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str, seed: int, indices: Tensor) -> Any:
        assert seed == 5
        assert indices.tolist() == [10, 11]
        return result(inputs)

    call(seeded)


def test_a_function_that_takes_anything_is_offered_everything() -> None:
    def greedy(model: nn.Module, inputs: Tensor, labels: Tensor, **rest: Any) -> SimpleNamespace:
        assert set(rest) == {"norm", "seed", "indices", "starts", "observe"}
        return result(inputs)

    call(greedy)


def test_what_an_attack_does_to_its_arguments_stays_with_it() -> None:
    inputs, starts = torch.full((2, 4), 0.75), torch.full((2, 4), 0.25)

    def careless(
        model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str, starts: Tensor, indices: Tensor
    ) -> SimpleNamespace:
        for given in (inputs, labels, starts, indices):
            given.fill_(9)
        return result(inputs)

    call(careless, inputs, starts=starts)
    assert (inputs == 0.75).all()
    assert (starts == 0.25).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "got NoneType with no adversarials"),
        (torch.zeros(2, 4), "got Tensor with no adversarials"),
        (SimpleNamespace(adversarials=torch.zeros(2, 4)), "got SimpleNamespace with no found"),
        (SimpleNamespace(adversarials=[[0.0] * 4] * 2, found=torch.ones(2)), "with no adversarials"),
        (SimpleNamespace(adversarials=torch.zeros(3, 4), found=torch.ones(2)), r"got \(3, 4\) and \(2,\)"),
        (SimpleNamespace(adversarials=torch.zeros(2, 4), found=torch.ones(2, 4)), r"got \(2, 4\) and \(2, 4\)"),
    ],
)
def test_what_is_no_result_is_refused_and_named(given: object, message: str) -> None:
    with pytest.raises(AttackError, match=f"attack mine: expected .*{message}"):
        call(lambda model, inputs, labels, norm: given)


def test_an_error_of_the_users_own_code_is_reported_with_its_cause() -> None:
    def broken(model: nn.Module, inputs: Tensor, labels: Tensor, norm: str) -> Any:
        raise KeyError("epsilon")

    with pytest.raises(
        AttackError, match=r"attack mine: expected adversarial examples, got KeyError: 'epsilon'"
    ) as caught:
        call(broken)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_ours_passes_through() -> None:
    def broken(model: nn.Module, inputs: Tensor, labels: Tensor, norm: str) -> Any:
        raise ModelError("no logits")

    with pytest.raises(ModelError, match="no logits"):
        call(broken)


def test_an_unknown_attack_norm_or_budget_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'pdpgd'"):
        check_attack(AttackSpec(name="pdpgdd", budget=10), ("l2",), 4)
    with pytest.raises(InvalidInputError, match="attack pdgd: expected one of the norms"):
        check_attack(AttackSpec(name="pdgd", budget=10), ("l2", "l0"), 4)
    with pytest.raises(InvalidInputError, match="budget: expected an integer >= 1, got 0"):
        check_attack(AttackSpec(name="pdpgd", budget=0), ("l2",), 4)


def test_every_row_through_the_model_is_counted(model: TinyConv, images: Tensor) -> None:
    counted = Counted(model)
    with torch.no_grad():
        counted(images[:3])
    leaf = images[:4].clone().requires_grad_()
    counted(leaf).sum().backward()
    assert (counted.forwards, counted.backwards) == (7, 4)


def test_an_output_with_logits_is_counted_and_passed_on(model: TinyConv, images: Tensor) -> None:
    counted = Counted(WithLogits(model))
    output = counted(images[:4].clone().requires_grad_())
    output.logits.sum().backward()
    assert output.hidden is None
    assert (counted.forwards, counted.backwards) == (4, 4)


def test_the_mode_and_the_parameters_are_out_of_an_attacks_reach(model: TinyConv, images: Tensor) -> None:
    counted = Counted(model)
    assert list(counted.parameters()) == []
    assert not counted.training
    counted.train()
    assert not model.training
    with torch.no_grad():
        assert torch.equal(counted(images), model(images))


def test_the_mode_of_the_model_is_shown() -> None:
    model = Affine(torch.eye(2), torch.zeros(2)).train()
    assert Counted(model).training
    assert not Counted(lambda x: x).training


def test_passes_count_only_if_the_attack_reports_them_per_sample() -> None:
    reported: Any = SimpleNamespace(forwards=torch.tensor([3, 4]), backwards=torch.tensor(7))
    assert passes_of(reported, "forwards", 2).tolist() == [3, 4]
    assert passes_of(reported, "backwards", 2).tolist() == [0, 0]
    assert passes_of(reported, "others", 2).tolist() == [0, 0]
