from __future__ import annotations

import pytest
import torch
from torch import nn

from pdpgd.errors import InvalidInputError, ModelError, UnknownNameError
from pdpgd.models.normalization import PRESETS, Normalization, NormalizationChoice, Normalized, parse_normalization
from support.models import Affine, TinyConv, random_affine

THREE = Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


def test_each_channel_is_shifted_and_scaled_by_its_own_numbers(generator: torch.Generator) -> None:
    pixels = torch.rand(4, 3, 2, 5, generator=generator)
    got = Normalized(nn.Identity(), THREE)(pixels)
    for channel in range(3):
        expected = (pixels[:, channel] - THREE.mean[channel]) / THREE.std[channel]
        torch.testing.assert_close(got[:, channel], expected)


def test_the_gradient_is_that_of_the_pixels(generator: torch.Generator) -> None:
    inner = random_affine(generator, features=12)
    pixels = torch.rand(2, 3, 2, 2, generator=generator, requires_grad=True)
    (gradient,) = torch.autograd.grad(Normalized(inner, THREE)(pixels)[:, 4].sum(), pixels)
    expected = inner.weight[4].reshape(3, 2, 2) / torch.tensor(THREE.std).reshape(3, 1, 1)
    torch.testing.assert_close(gradient, expected.expand(2, 3, 2, 2))


def test_the_constants_are_not_saved_with_the_weights(generator: torch.Generator) -> None:
    inner = TinyConv(generator)
    assert set(Normalized(inner, THREE).state_dict()) == {f"model.{name}" for name in inner.state_dict()}


def test_double_pixels_stay_double(generator: torch.Generator) -> None:
    pixels = torch.rand(2, 3, 2, 2, generator=generator, dtype=torch.float64)
    assert Normalized(nn.Identity(), THREE)(pixels).dtype == torch.float64


def test_features_without_height_and_width_are_normalized_too(generator: torch.Generator) -> None:
    features = torch.rand(2, 3, generator=generator)
    expected = (features - torch.tensor(THREE.mean)) / torch.tensor(THREE.std)
    torch.testing.assert_close(Normalized(nn.Identity(), THREE)(features), expected)


def test_the_mode_of_the_model_is_kept(generator: torch.Generator) -> None:
    assert not Normalized(Affine(torch.eye(3), torch.zeros(3)), THREE).training
    assert Normalized(nn.Identity().train(), THREE).training


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 4, 4, 3), (3,)])
def test_another_number_of_channels_is_an_error_that_says_so(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="expected inputs of 3 channels"):
        Normalized(nn.Identity(), THREE)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((), (), "got 0 and 0"),
        ((0.5, 0.5), (0.5,), "got 2 and 1"),
        ((float("nan"),), (1.0,), "finite means"),
        ((0.5,), (0.0,), "deviations > 0"),
        ((0.5,), (-1.0,), "deviations > 0"),
        ((0.5,), (float("inf"),), "deviations > 0"),
    ],
)
def test_a_normalization_that_cannot_be_is_refused(mean: tuple[float], std: tuple[float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Normalization(mean, std)


def test_the_presets_are_the_published_numbers() -> None:
    assert PRESETS["imagenet"] == Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert PRESETS["cifar10"] == Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        (None, None, None),
        ("0.1,0.2,0.3", "0.5, 0.6, 0.7", THREE),
        ("-1", "2e-1", Normalization((-1.0,), (0.2,))),
        (".5", "+1", Normalization((0.5,), (1.0,))),
        ("imagenet", None, PRESETS["imagenet"]),
        (None, "cifar10", PRESETS["cifar10"]),
        (" imagenet", "imagenet", PRESETS["imagenet"]),
        ("none", None, "none"),
    ],
)
def test_the_options_are_read_as_numbers_or_as_a_preset(
    mean: str | None, std: str | None, expected: NormalizationChoice
) -> None:
    assert parse_normalization(mean, std) == expected


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ("0.5", None, "--std: expected numbers beside those of --mean"),
        (None, "0.5", "--mean: expected numbers beside those of --std"),
        ("0.5,x", "1,1", "--mean: expected numbers with commas"),
        ("0.5,0.5", "1,", "--std: expected numbers with commas"),
        ("", "1", "--mean: expected numbers with commas"),
        ("0.5,0.5", "1", "got 2 and 1"),
        ("imagenet", "cifar10", "one preset for both"),
        ("imagenet", "0.5", "one preset for both"),
        ("0.5", "none", "one preset for both"),
    ],
)
def test_options_that_do_not_go_together_are_refused(mean: str | None, std: str | None, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_normalization(mean, std)


def test_an_unknown_preset_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet'"):
        parse_normalization("imagnet", None)
