"""A classifier of ImageNet as one of Restricted ImageNet: the largest logit of each group."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pdpgd.data.known import CLASSES, GROUPS, LABELS, PLACES
from pdpgd.errors import ModelError, UnknownNameError
from pdpgd.models.loading import load_model
from pdpgd.models.normalization import POOLS, PRESETS, Normalized, Pooled, pool_by_name

POOL = POOLS["restricted-imagenet"]
NETS = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, {outputs}))
"""


class Given(nn.Module):
    """Answers with its input."""

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
