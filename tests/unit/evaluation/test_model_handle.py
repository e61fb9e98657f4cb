"""Models and samples are identified by their bits, wherever they are loaded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from pdpgd import compare, evaluate
from pdpgd.data.dataset import ArraySamples
from pdpgd.data.loading import load_data
from pdpgd.errors import InvalidInputError, LoadError, ModelError
from pdpgd.evaluation import model_handle
from pdpgd.evaluation.model_handle import (
    LiveModel,
    ModelHandle,
    NamedModel,
    checksum_of,
    handle_of,
    identity_of,
    samples_of,
)
from pdpgd.models.loading import load_model
from support.models import TinyConv

NOT_GIVEN: dict[str, Any] = {"weights": None, "normalization": None, "trust_model_code": False}


def test_the_checksum_is_of_the_weights_and_their_names(model: TinyConv, generator: torch.Generator) -> None:
    twin = TinyConv(generator)
    assert checksum_of(twin) != checksum_of(model)
    twin.load_state_dict(model.state_dict())
    assert checksum_of(twin) == checksum_of(model)
    twin.last.bias.data[3] = torch.nextafter(twin.last.bias.data[3], torch.tensor(1.0))
    assert checksum_of(twin) != checksum_of(model)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": torch.zeros(4)}, {"b": torch.zeros(4)}),
        ({"a": torch.zeros(4)}, {"a": torch.zeros(2, 2)}),
        ({"a": torch.zeros(4)}, {"a": torch.zeros(4, dtype=torch.int32)}),
        ({"a": torch.zeros(4)}, {"a": -torch.zeros(4)}),
        ({"a": torch.zeros(4)}, {"a": torch.zeros(4), "b": torch.zeros(0)}),
        ({"a": torch.tensor(True)}, {"a": torch.tensor(False)}),
        ({"a": torch.zeros(4, dtype=torch.bfloat16)}, {"a": torch.ones(4, dtype=torch.bfloat16)}),
    ],
    ids=["name", "shape", "dtype", "sign", "empty", "bool", "bfloat16"],
)
def test_the_checksum_distinguishes_buffers(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    def module(buffers: dict[str, Tensor]) -> nn.Module:
        holder = nn.Module()
        for name, value in buffers.items():
            holder.register_buffer(name, value)
        return holder

    assert checksum_of(module(one)) == checksum_of(module(one))
    assert checksum_of(module(one)) != checksum_of(module(other))


def test_the_checksum_does_not_depend_on_how_the_weights_lie_in_memory(model: TinyConv) -> None:
    before, weight = checksum_of(model), model.first.weight
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert checksum_of(model) == before


def test_a_model_by_name_is_the_same_in_every_process(generator: torch.Generator) -> None:
    handle = handle_of("mnist-plain", **NOT_GIVEN)
    sent: ModelHandle = pickle.loads(pickle.dumps(handle))
    assert sent == handle
    assert sent.identity() == handle.identity()
    assert sent.identity()["sha256"] == checksum_of(load_model("mnist-plain"))
    assert handle.device() is None
    image = torch.rand(2, 1, 28, 28, generator=generator)
    assert torch.equal(sent.load("cpu")(image), handle.load("cpu")(image))


@pytest.mark.parametrize("keyword", ["trust_model_code", "trust_pickle"])
def test_a_file_with_code_is_evaluated_and_compared_only_with_consent(
    keyword: str, model: TinyConv, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    path = str(tmp_path / "m.pt2")
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (images[:4],), dynamic_shapes=({0: batch},)), path)
    question: Any = {"norms": ["l2"], "budget": 4, "limit": 2}
    for ask in (evaluate, partial(compare, attacks=["pgd"], radii={"l2": [1.0]})):
        with pytest.raises(LoadError, match="--trust-model-code"):
            ask(path, (images, labels), **question)
        ask(path, (images, labels), **question, **{keyword: True})


def test_a_model_that_was_changed_since_the_run_was_started_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"mnist-plain: expected the model that the run was started with, 000000000000\.\.\."
    ):
        NamedModel("mnist-plain", sha256="0" * 64).load("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="device: expected one that torch has here, got 'abacus'"):
        NamedModel("mnist-plain").load("abacus")


def test_a_live_model_is_called_as_it_is(model: TinyConv) -> None:
    handle = handle_of(model, **NOT_GIVEN)
    assert handle.load("cpu") is model
    assert handle.device() == "cpu"
    assert handle.identity()["source"] == "support.models.TinyConv"


def test_a_function_is_a_model_without_weights_or_place() -> None:
    def logits(x: Tensor) -> Tensor:
        return x.flatten(1)

    handle = LiveModel(logits)
    assert handle.device() is None
    assert handle.identity()["source"].endswith("<locals>.logits")


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (3, {}, "model: expected a name, a path or something that maps inputs to logits, got int"),
        (nn.Identity(), {"weights": "there.pt"}, "weights, normalization, pool: expected none"),
        (nn.Identity(), {"normalization": "mnist"}, "weights, normalization, pool: expected none"),
        (nn.Identity(), {"pool": "restricted-imagenet"}, "weights, normalization, pool: expected none"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{words}"):
        handle_of(model, **{**NOT_GIVEN, **given})


def test_a_pair_of_tensors_are_samples_and_the_limit_takes_the_first(images: Tensor, labels: Tensor) -> None:
    samples = samples_of((images, labels.int()), limit=4, root=None)
    assert len(samples) == 4
    assert torch.equal(samples.labels, labels[:4])
    got, theirs = samples.batch(torch.arange(4))
    assert torch.equal(got, images[:4])
    assert torch.equal(theirs, labels[:4])
    assert len(samples_of([images, labels], limit=99, root=None)) == len(images)


def test_bytes_and_doubles_become_the_same_images(images: Tensor, labels: Tensor) -> None:
    pixels = (images * 255).round().to(torch.uint8)
    forms = (images, images.double(), pixels)
    assert len({identity_of(samples_of((form, labels), limit=None, root=None))["sha256"] for form in forms}) == 1


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, "3"])
def test_a_limit_that_is_none_is_refused(limit: Any, images: Tensor, labels: Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"^limit: expected an integer >= 1, got"):
        samples_of((images, labels), limit=limit, root=None)


def test_the_identity_of_samples_is_of_their_images_labels_order_and_number(images: Tensor, labels: Tensor) -> None:
    def sha256(images: Tensor, labels: Tensor, limit: int | None = None) -> str:
        identity = identity_of(samples_of((images, labels), limit=limit, root=None))
        assert identity["samples"] == (limit or len(images))
        assert identity["shape"] == [3, 6, 6]
        return str(identity["sha256"])

    other = labels.clone()
    other[2] = (other[2] + 1) % 5
    nudged = images.clone()
    nudged[9, 2, 5, 5] += 1e-6
    variants = [(images, labels), (images, other), (nudged, labels), (images.flip(0), labels.flip(0))]
    assert len({*(sha256(*variant) for variant in variants), sha256(images, labels, 9)}) == 5
    assert sha256(images, labels) == sha256(images.clone(), labels.clone())


def test_the_identity_distinguishes_samples_beyond_the_first_batch(
    images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_handle, "READ_AT_ONCE", 4)
    swapped = torch.arange(10)
    swapped[[5, 9]] = swapped[[9, 5]]
    one, other = (
        identity_of(samples_of((images[order], labels[order]), limit=None, root=None))
        for order in (torch.arange(10), swapped)
    )
    assert one["sha256"] != other["sha256"]


class Endless(IterableDataset[tuple[Tensor, int]]):
    """Gives samples as long as it is asked."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            yield torch.full((1, 2, 2), 0.5), 1


def test_a_data_set_is_read_no_further_than_the_limit() -> None:
    assert len(samples_of(Endless(), limit=3, root=None)) == 3


def test_samples_that_were_loaded_already_are_taken_as_they_are() -> None:
    assert len(samples_of(load_data("mnist-1000"), limit=7, root=None)) == 7


def test_samples_of_ones_own_that_end_the_process_are_an_error(images: Tensor, labels: Tensor) -> None:
    class Leaving(ArraySamples):
        def batch(self, rows: Any) -> tuple[Tensor, Tensor]:
            raise SystemExit(0)

    with pytest.raises(LoadError, match="mine: expected samples, got SystemExit: 0"):
        identity_of(Leaving("mine", images, labels, tuple("abcde")))


def test_the_pool_is_a_part_of_what_a_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nine_groups.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 1000))\n"
    )
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(12, 1000)).state_dict(), "w.pt")
    given = {**NOT_GIVEN, "weights": "w.pt"}
    plain = handle_of("nine_groups:net", **given)
    pooled = handle_of("nine_groups:net", **given, pool="restricted-imagenet")
    assert "pool" not in plain.identity()
    assert pooled.identity()["pool"] == "restricted-imagenet"
    images = torch.rand(2, 3, 2, 2)
    assert plain.load("cpu")(images).shape == (2, 1000)
    assert pooled.load("cpu")(images).shape == (2, 9)
    run = {"norms": ("l2",), "budget": 4, "checks": False, "weights": "w.pt"}
    data = (images, torch.tensor([0, 1]))
    specs = [evaluate("nine_groups:net", data, pool=pool, **run).spec for pool in (None, "restricted-imagenet")]
    assert specs[0].digest() != specs[1].digest()
    assert [spec.model_name for spec in specs] == [
        "nine_groups:net",
        "nine_groups:net pooled over restricted-imagenet",
    ]
