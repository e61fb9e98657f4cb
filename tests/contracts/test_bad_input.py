"""A wrong call raises an error that says what was expected and what was given; a doubtful one warns, once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd import (
    AttackResult,
    InvalidInputError,
    ModelError,
    PDGDConfig,
    PDPGDConfig,
    PdpgdError,
    PdpgdWarning,
    UnknownNameError,
    pdgd,
    pdpgd,
)
from support.models import Affine, random_affine

SAMPLES, FEATURES, CLASSES = 6, 5, 4
SHORT = {"steps": 3, "finetune_steps": 2}
Run = Callable[..., AttackResult]


@pytest.fixture
def model(generator: torch.Generator) -> Affine:
    return random_affine(generator, features=FEATURES, classes=CLASSES)


@pytest.fixture
def inputs(model: Affine, generator: torch.Generator) -> Tensor:
    return 0.2 + 0.6 * torch.rand(SAMPLES, FEATURES, generator=generator)


@pytest.fixture(params=["pdgd", "pdpgd"])
def run(request: pytest.FixtureRequest, model: Affine, inputs: Tensor) -> Run:
    """A valid call, with some arguments replaced."""

    def call(**instead: Any) -> AttackResult:
        given = {"model": model, "inputs": inputs, "labels": model.labels(inputs), "norm": "l2", **instead}
        attack, config = (pdgd, PDGDConfig) if request.param == "pdgd" else (pdpgd, PDPGDConfig)
        given.setdefault("config", config(**SHORT))
        return attack(**given)

    return call


def changed(values: Tensor, row: int, value: Any) -> Tensor:
    values = values.clone()
    values[row] = value
    return values


def refused(run: Run, kind: type[PdpgdError], *words: str, **instead: Any) -> None:
    with pytest.raises(kind) as caught:
        run(**instead)
    message = str(caught.value)
    for word in ("expected", *words):
        assert word in message, message


def test_the_call_itself_is_in_order(run: Run) -> None:
    assert run().found.any()


@pytest.mark.parametrize("name", ["labels", "targets"])
def test_classes_of_the_wrong_shape_are_refused(run: Run, name: str) -> None:
    refused(run, InvalidInputError, name, "(6,)", "got (5,)", **{name: torch.zeros(5, dtype=torch.long)})
    refused(run, InvalidInputError, name, "(6,)", "got (6, 1)", **{name: torch.zeros(6, 1, dtype=torch.long)})


@pytest.mark.parametrize("name", ["labels", "targets"])
def test_classes_that_are_no_integers_are_refused(run: Run, name: str) -> None:
    refused(run, InvalidInputError, name, "integers", "got torch.float32", **{name: torch.zeros(6)})
    refused(run, InvalidInputError, name, "integers", "got torch.bool", **{name: torch.zeros(6, dtype=torch.bool)})
    refused(run, InvalidInputError, name, "tensor", "got list", **{name: [0] * 6})


@pytest.mark.parametrize("name", ["labels", "targets"])
@pytest.mark.parametrize("wrong", [CLASSES, -1, 99])
def test_classes_out_of_range_are_refused_and_their_sample_named(run: Run, name: str, wrong: int) -> None:
    column = changed(torch.zeros(6, dtype=torch.long), 4, wrong)
    refused(run, InvalidInputError, name, "0 to 3", f"got [{wrong}]", "samples [4]", **{name: column})


def test_labels_out_of_range_are_refused_in_a_targeted_call_too(run: Run) -> None:
    column = changed(torch.zeros(6, dtype=torch.long), 2, 7)
    targets = torch.ones(6, dtype=torch.long)
    refused(run, InvalidInputError, "labels", "0 to 3", "got [7]", "samples [2]", labels=column, targets=targets)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite_are_refused_and_their_sample_named(run: Run, inputs: Tensor, value: float) -> None:
    refused(run, InvalidInputError, "finite", "got NaN or inf", "samples [4]", inputs=changed(inputs, 4, value))


@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_inputs_outside_the_box_are_refused_and_their_sample_named(run: Run, inputs: Tensor, value: float) -> None:
    words = ("inside the box", f"{value:.6g}", "samples [1]")
    refused(run, InvalidInputError, *words, inputs=changed(inputs, 1, value))


def test_inputs_outside_the_box_by_float_noise_are_clipped(run: Run, inputs: Tensor) -> None:
    noisy = inputs.clone()
    noisy[0, 0], noisy[1, 1] = -5e-5, 1 + 5e-5
    result = run(inputs=noisy)
    assert result.adversarials.min() >= 0
    assert result.adversarials.max() <= 1
    assert noisy[0, 0] == torch.tensor(-5e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16, torch.bfloat16])
def test_inputs_of_another_dtype_are_refused(run: Run, dtype: torch.dtype) -> None:
    words = ("float32 or float64", f"got {dtype}")
    refused(run, InvalidInputError, *words, inputs=torch.zeros(6, 5, dtype=dtype))


def test_inputs_that_are_no_tensor_are_refused(run: Run) -> None:
    refused(run, InvalidInputError, "tensor", "got list", inputs=[[0.5]])


def test_an_empty_batch_is_refused(run: Run) -> None:
    none = torch.zeros(0, dtype=torch.long)
    refused(run, InvalidInputError, "(batch, ...)", "got (0, 5)", inputs=torch.zeros(0, 5), labels=none)


def test_inputs_without_a_batch_are_refused(run: Run) -> None:
    refused(run, InvalidInputError, "(batch, ...)", "got (5,)", inputs=torch.zeros(5))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((1.0, 0.0), ("low < high", "got (1.0, 0.0)")),
        ((0.5, 0.5), ("low < high", "got (0.5, 0.5)")),
        ((0.0, float("inf")), ("finite", "inf")),
        ((float("nan"), 1.0), ("finite", "nan")),
        ((torch.zeros(3), torch.ones(3)), ("(5,)", "got shape (3,)")),
        ((torch.zeros(6, 5), torch.ones(6, 5)), ("(5,)", "got shape (6, 5)")),
        ((0.0, 0.5, 1.0), ("(low, high)", "got (0.0, 0.5, 1.0)")),
        (1.0, ("(low, high)", "got 1.0")),
        (("0", "1"), ("a number", "str")),
    ],
    ids=["reversed", "empty", "infinite", "nan", "too few", "with a batch", "three", "one", "strings"],
)
def test_bounds_that_make_no_box_are_refused(run: Run, bounds: Any, words: tuple[str, ...]) -> None:
    refused(run, InvalidInputError, *words, bounds=bounds)


def test_per_channel_bounds_of_another_number_of_channels_are_refused(run: Run) -> None:
    images = torch.full((6, 3, 2, 2), 0.5)
    refused(run, InvalidInputError, "(3, 2, 2)", "got shape", inputs=images, bounds=(torch.zeros(4), torch.ones(4)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_refused_and_their_sample_named(run: Run, model: Affine, value: float) -> None:
    def broken(x: Tensor) -> Tensor:
        return changed(model(x), 3, value)

    refused(run, ModelError, "finite logits", "got NaN or inf", "samples [3]", model=broken)


def test_the_sample_is_named_by_its_place_in_the_call_even_in_the_middle_of_the_game(run: Run, model: Affine) -> None:
    """Sample 0 is wrong to begin with and leaves the batch: row 2 of the game is sample 3 of the call."""
    inputs = torch.full((SAMPLES, FEATURES), 0.5)
    labels = model.labels(inputs)
    labels[0] = (labels[0] + 1) % CLASSES

    def breaks_later(x: Tensor) -> Tensor:
        logits = model(x)
        return changed(logits, 2, float("nan")) if len(x) == SAMPLES - 1 else logits

    refused(run, ModelError, "finite logits", "samples [3]", model=breaks_later, inputs=inputs, labels=labels)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda x: x[:, 0], ("(6, classes >= 2)", "got (6,)")),
        (lambda x: x[:, :1], ("(6, classes >= 2)", "got (6, 1)")),
        (lambda x: x[:3], ("(6, classes >= 2)", "got (3, 5)")),
        (lambda x: x[:, None], ("(6, classes >= 2)", "got (6, 1, 5)")),
        (lambda x: (10 * x).long(), ("floating-point", "got torch.int64")),
        (lambda x: (x, x), ("tensor of logits", "got tuple")),
        (lambda x: None, ("tensor of logits", "got NoneType")),
    ],
    ids=["one dimension", "one column", "too few rows", "three dimensions", "integers", "a tuple", "nothing"],
)
def test_answers_that_are_no_logits_are_refused(run: Run, output: Any, words: tuple[str, ...]) -> None:
    refused(run, ModelError, *words, model=output)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, AssertionError, KeyError, SystemExit])
def test_a_model_that_fails_is_named_with_its_cause(run: Run, kind: type[BaseException]) -> None:
    def failing(x: Tensor) -> Tensor:
        raise kind("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(ModelError, match=r"mat1 and mat2") as caught:
        run(model=failing)
    assert "(6, 5)" in str(caught.value)
    assert "torch.float32" in str(caught.value)
    assert isinstance(caught.value.__cause__, kind)


class Leaving(torch.autograd.Function):
    """The identity, whose gradient ends the process."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> Tensor:
        raise SystemExit(0)


def test_a_model_that_ends_the_process_in_its_gradient_is_a_model_error(run: Run, model: Affine) -> None:
    with pytest.raises(ModelError, match="the model failed in its backward pass: SystemExit: 0"):
        run(model=lambda x: model(Leaving.apply(x)))


def test_a_model_of_the_wrong_width_is_a_model_error(run: Run) -> None:
    with pytest.raises(ModelError) as caught:
        run(model=nn.Linear(7, 3).eval())
    assert caught.value.__cause__ is not None


def test_logits_that_do_not_depend_on_the_input_are_refused(run: Run, model: Affine, inputs: Tensor) -> None:
    fixed = torch.tensor([3.0, 1.0, 0.0, 0.0])
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    learned = nn.Parameter(fixed)
    refused(run, ModelError, "depend on the inputs", "got", model=lambda x: fixed.expand(len(x), -1), labels=labels)
    refused(run, ModelError, "depend on the inputs", "got", model=lambda x: learned.expand(len(x), -1), labels=labels)
    refused(run, ModelError, "depend on the inputs", "got", model=lambda x: model(x.detach()))


@pytest.mark.parametrize(("norm", "near"), [("l_inf", "'linf'"), ("L2", "'l2'"), ("l3", "'l")])
def test_an_unknown_norm_is_answered_with_the_list_and_a_suggestion(run: Run, norm: str, near: str) -> None:
    words = ("l0, l1, l2, linf", f"got {norm!r}", f"did you mean {near}")
    refused(run, UnknownNameError, *words, norm=norm)


@pytest.mark.parametrize("config", [PDGDConfig, PDPGDConfig])
def test_an_unknown_surrogate_is_answered_with_the_list_and_a_suggestion(config: Any) -> None:
    words = ("logistic", "got 'hing'", "did you mean 'hinge'")
    refused(lambda: config(surrogate="hing"), UnknownNameError, *words)


def test_an_unknown_way_to_the_prox_is_answered_with_the_list() -> None:
    refused(lambda: PDPGDConfig(prox="loop"), UnknownNameError, "exact", "released", "got 'loop'")


@pytest.mark.parametrize("config", [PDGDConfig, PDPGDConfig])
@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("steps", 0, "at least 1"),
        ("restarts", 0, "at least 1"),
        ("max_batch", 0, "at least 1"),
        ("finetune_steps", -1, "at least 0"),
        ("start_radius", -0.1, "at least 0"),
        ("dual_rate", -0.1, "at least 0"),
        ("primal_rate", 0.0, "above 0"),
        ("primal_rate", float("nan"), "above 0"),
        ("primal_decay", 0.0, "above 0"),
        ("dual_decay", -1.0, "above 0"),
        ("penalty", 0.0, "above 0"),
        ("finetune_primal", 0.0, "above 0"),
        ("finetune_dual", 0.0, "above 0"),
        ("dual_average", 1.0, "in [0, 1)"),
        ("weight_floor", 0.0, "in (0, 1)"),
        ("weight_floor", 1.0, "in (0, 1)"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(config: Any, setting: str, value: float, expected: str) -> None:
    words = (f"{config.__name__}.{setting}", expected, f"got {value!r}")
    refused(lambda: config(**{setting: value}), InvalidInputError, *words)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None])
def test_a_seed_that_is_no_natural_number_is_refused(run: Run, seed: Any) -> None:
    refused(run, InvalidInputError, "seed", "integer >= 0", f"got {seed!r}", seed=seed)


@pytest.mark.parametrize(
    "indices", [torch.arange(5), torch.zeros(6), -torch.arange(6)], ids=["few", "float", "below 0"]
)
def test_indices_that_are_no_places_are_refused(run: Run, indices: Tensor) -> None:
    refused(run, InvalidInputError, "indices", "6 integers >= 0", "got", indices=indices)


def test_indices_that_are_no_tensor_are_refused(run: Run) -> None:
    refused(run, InvalidInputError, "indices", "got list", indices=[0, 1, 2, 3, 4, 5])


def test_pdgd_refuses_l0_and_names_the_attack_that_takes_it(model: Affine, inputs: Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"expected a norm that has one, got 'l0'; use pdpgd"):
        pdgd(model, inputs, model.labels(inputs), norm="l0")


def test_every_error_is_one_of_ours_and_of_the_builtin_kind() -> None:
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(ModelError, RuntimeError)
    assert issubclass(UnknownNameError, InvalidInputError)
    assert all(issubclass(kind, PdpgdError) for kind in (InvalidInputError, ModelError, UnknownNameError))


def warned(run: Run, **instead: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(**instead)
    return list(caught)


def test_train_mode_is_warned_of_once_at_the_callers_line(run: Run, model: Affine) -> None:
    caught = warned(run, model=model.train(), config=None)
    assert [warning.category for warning in caught] == [PdpgdWarning]
    assert "model.eval()" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_probabilities_are_warned_of_once_at_the_callers_line(run: Run, model: Affine) -> None:
    caught = warned(run, model=lambda x: model(x).softmax(1))
    assert [warning.category for warning in caught] == [PdpgdWarning]
    assert "probabilities" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_an_ordinary_model_is_not_warned_of(run: Run, model: Affine) -> None:
    assert warned(run) == []
    assert warned(run, model=lambda x: model(x)) == []
    assert warned(run, model=lambda x: model(x).log_softmax(1)) == []


def test_a_config_of_the_other_attack_is_refused(model: Affine, inputs: Tensor) -> None:
    labels = model.labels(inputs)
    with pytest.raises(InvalidInputError, match="expected a PDPGDConfig, got a PDGDConfig"):
        pdpgd(model, inputs, labels, norm="l1", config=PDGDConfig())  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidInputError, match="expected a PDGDConfig, got a PDPGDConfig"):
        pdgd(model, inputs, labels, config=PDPGDConfig())  # type: ignore[arg-type]  # what is tested


def test_steps_that_are_no_whole_number_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"steps: expected an integer, got 2\.5"):
        PDPGDConfig(steps=2.5)  # type: ignore[arg-type]  # what is tested


def test_a_model_that_cannot_be_called_is_refused(run: Run) -> None:
    refused(run, InvalidInputError, "model", "got dict", model={})


def test_a_norm_that_is_no_name_is_refused(run: Run) -> None:
    refused(run, UnknownNameError, "norm", "got ['l2']", norm=["l2"])
