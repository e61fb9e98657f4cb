"""Wrappers of a model: normalization of its inputs, and pooling of ImageNet's classes to Restricted ImageNet."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pdpgd.data.known import CLASSES, GROUPS, LABELS, PLACES
from pdpgd.errors import InvalidInputError, ModelError, UnknownNameError
from pdpgd.models.loading import load_model
from pdpgd.models.normalization import (
    POOLS,
    PRESETS,
    Normalization,
    NormalizationChoice,
    Normalized,
    Pooled,
    parse_normalization,
    pool_by_name,
)
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
        ("0.5", None, "--std: expected numbers as well as for --mean"),
        (None, "0.5", "--mean: expected numbers as well as for --std"),
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


POOL = POOLS["restricted-imagenet"]
NETS = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, {outputs}))
"""


class Given(nn.Module):
    """Returns its input."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def test_the_places_are_those_of_the_groups_among_the_sorted_thousand() -> None:
    timm = importlib.util.find_spec("timm")
    assert timm is not None
    assert timm.origin is not None
    thousand = (Path(timm.origin).parent / "data/_info/imagenet_synsets.txt").read_text().split()
    assert len(thousand) == 1000
    assert thousand == sorted(thousand)
    found = {
        group: [thousand.index(wnid) for wnid, label in LABELS.items() if CLASSES[label] == group] for group in CLASSES
    }
    assert found == {group: list(places) for group, places in PLACES.items()}


def test_there_are_as_many_places_as_classes_in_the_order_of_the_labels() -> None:
    assert list(PLACES) == list(GROUPS) == list(CLASSES)
    assert [len(places) for places in PLACES.values()] == [len(group.split()) for group in GROUPS.values()]


def test_each_group_gets_the_largest_logit_of_its_classes(generator: torch.Generator) -> None:
    logits = torch.randn(5, 1000, generator=generator)
    found = Pooled(Given(), POOL)(logits)
    assert found.shape == (5, 9)
    for row in range(5):
        for label, places in enumerate(PLACES.values()):
            largest = -float("inf")
            for place in places:
                largest = max(largest, float(logits[row, place]))
            assert float(found[row, label]) == largest


def test_the_slope_of_a_group_is_that_of_its_largest_class(generator: torch.Generator) -> None:
    logits = torch.randn(3, 1000, generator=generator).requires_grad_()
    (slope,) = torch.autograd.grad(Pooled(Given(), POOL)(logits)[:, 2].sum(), logits)
    expected = torch.zeros(3, 1000)
    for row in range(3):
        expected[row, 30 + int(logits[row, 30:33].argmax())] = 1.0
    assert torch.equal(slope, expected)


def test_a_model_of_the_nine_groups_answers_as_it_is(generator: torch.Generator) -> None:
    logits = torch.randn(4, 9, generator=generator)
    assert torch.equal(Pooled(Given(), POOL)(logits), logits)


@pytest.mark.parametrize("outputs", [8, 10, 999, 1001])
def test_a_model_of_other_classes_is_refused(outputs: int) -> None:
    with pytest.raises(ModelError, match=f"expected a model of 1000 outputs.* or of 9.*, got one of {outputs}"):
        Pooled(Given(), POOL)(torch.zeros(2, outputs))


@pytest.mark.parametrize("outputs", [9, 1000])
def test_a_model_is_loaded_behind_its_normalization_and_before_its_pool(
    outputs: int, generator: torch.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"pooled_net_{outputs}.py").write_text(NETS.format(outputs=outputs))
    net = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, outputs))
    torch.save(net.state_dict(), "w.pt")
    source = f"pooled_net_{outputs}:net"
    model = load_model(source, weights="w.pt", normalization=PRESETS["imagenet"], pool="restricted-imagenet")
    images = torch.rand(2, 3, 4, 4, generator=generator)
    assert model(images).shape == (2, 9)
    assert torch.equal(model(images), Pooled(Normalized(net, PRESETS["imagenet"]), POOL)(images))
    assert not model.training


def test_a_pool_of_another_name_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'restricted-imagenet'"):
        load_model("nowhere:net", pool="restricted-imagnet")
    with pytest.raises(UnknownNameError, match="unknown pool"):
        pool_by_name("imagenet-9")
