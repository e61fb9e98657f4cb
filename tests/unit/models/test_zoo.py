"""The shipped nets are complete and as their cards describe them, and damaged ones are rejected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from pdpgd.data.loading import load_data
from pdpgd.errors import LoadError, UnknownNameError
from pdpgd.models import zoo
from pdpgd.models.architectures import ARCHITECTURES, architecture_by_name
from pdpgd.models.loading import load_model
from pdpgd.models.weights import load_weights, write_weights
from pdpgd.models.zoo import ModelCard

SHIPPED = ("cifar10-l2-at", "cifar10-linf-at", "cifar10-plain", "mnist-l2-at", "mnist-linf-at", "mnist-plain")
MOST_BYTES = {"mnist": 1_000_000, "cifar10": 4_000_000}


def test_six_nets_are_shipped() -> None:
    assert zoo.names() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_net_is_small_and_says_how_it_was_made(name: str) -> None:
    card = zoo.card(name)
    assert zoo.path(name).stat().st_size <= MOST_BYTES[card.data]
    assert card.name == name
    assert f"--name {name}" in card.command
    assert card.accuracies[0]["samples"] == 10_000
    assert all(entry["samples"] == 1000 for entry in card.accuracies[1:])
    model = load_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == card.parameters
    assert not model.training
    assert model(torch.rand(2, *card.shape, generator=torch.Generator().manual_seed(0))).shape == (2, len(card.classes))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("mnist")])
def test_the_accuracy_of_a_card_is_that_of_the_net(name: str) -> None:
    """The first 1000 of 10,000 images agree with the accuracy of the card within three standard deviations."""
    images, labels = load_data("mnist-1000").batch(range(1000))
    share = float((load_model(name)(images).argmax(1) == labels).float().mean())
    clean = zoo.card(name).clean()
    assert share == pytest.approx(clean, abs=3 * (clean * (1 - clean) / 1000) ** 0.5)


def test_loading_leaves_the_global_random_state_as_it_was() -> None:
    before = torch.get_rng_state()
    load_model("mnist-plain")
    assert torch.equal(before, torch.get_rng_state())


def test_an_unknown_net_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mnist-plain'"):
        load_model("mnist-plane")
    with pytest.raises(UnknownNameError, match="did you mean 'mnist-plain'"):
        zoo.card("mnist-plane")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a copy of one net, for a test to damage."""
    for suffix in (".json", ".safetensors"):
        shutil.copy(zoo.path("mnist-plain").with_suffix(suffix), tmp_path)
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    return tmp_path


def test_weights_that_are_not_those_of_the_card_are_refused(copied: Path) -> None:
    weights = copied / "mnist-plain.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(LoadError, match=r"mnist-plain.safetensors: expected the checksum .* of its card, got"):
        load_model("mnist-plain")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "mnist-plain"}'])
def test_a_card_that_is_none_is_refused(copied: Path, content: str) -> None:
    (copied / "mnist-plain.json").write_text(content)
    with pytest.raises(LoadError, match=r"mnist-plain.json: expected a model card"):
        load_model("mnist-plain")


def test_a_card_of_a_later_format_is_refused(copied: Path) -> None:
    card = copied / "mnist-plain.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "format": 2}))
    with pytest.raises(LoadError, match="expected a model card of format 1"):
        load_model("mnist-plain")


@pytest.mark.parametrize("name", ["architecture", "accuracies", "shape", "classes", "training", "parameters", "sha256"])
def test_an_entry_of_a_card_that_is_of_another_kind_is_named(name: str, copied: Path) -> None:
    card = copied / "mnist-plain.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), name: None}))
    with pytest.raises(LoadError, match=rf"mnist-plain.json: expected {name} as a .*, got NoneType"):
        load_model("mnist-plain")


def test_a_card_comes_back_as_it_was_written(tmp_path: Path) -> None:
    card = zoo.card("mnist-linf-at")
    card.write(tmp_path / "card.json")
    assert ModelCard.read(tmp_path / "card.json") == card


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mnist-paper", 3_274_634),
        ("mnist-compact", 166_406),
        ("cifar10-paper", 9_260_986),
        ("cifar10-paper-linf-at", 9_259_450),
        ("cifar10-paper-l2-at", 9_259_450),
        ("cifar10-compact", 731_530),
    ],
)
def test_an_architecture_has_the_size_its_layers_add_up_to(name: str, parameters: int) -> None:
    model = architecture_by_name(name).untrained()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(1, *ARCHITECTURES[name].shape)).shape == (1, 10)


def test_weights_of_the_papers_cifar_net_from_before_its_padding_was_put_right_are_refused(tmp_path: Path) -> None:
    model = architecture_by_name("cifar10-paper").untrained()
    former = torch.nn.Sequential(*(layer for layer in model if not isinstance(layer, torch.nn.ZeroPad2d)))
    write_weights(tmp_path / "former.safetensors", former)
    with pytest.raises(LoadError, match="expected the weights of Sequential, got others"):
        load_weights(model, tmp_path / "former.safetensors")


def test_the_seed_decides_the_initial_weights() -> None:
    build = architecture_by_name("mnist-compact").untrained
    one, same, other = (next(build(seed).parameters()) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
