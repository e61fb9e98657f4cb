from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from pdpgd import errors
from pdpgd.data.dataset import ArraySamples, DatasetSamples
from pdpgd.data.loading import load_data

IMAGES = torch.arange(5 * 12).reshape(5, 1, 3, 4).float() / 60
LABELS = torch.tensor([1, 0, 2, 1, 0])


class Counted(Dataset[tuple[object, object]]):
    """A data set that records which samples were read."""

    def __init__(self, **attributes: object) -> None:
        self.read: list[int] = []
        self.change: Callable[[Tensor, int], object] = lambda image, label: (image, label)
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, row: int) -> object:
        self.read.append(row)
        return self.change(IMAGES[row], int(LABELS[row]))


class Stream(IterableDataset[tuple[Tensor, int]]):
    """More images than the test asks for: reading to the end fails."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for _ in range(4):
            yield from zip(IMAGES, LABELS.tolist(), strict=True)
        raise AssertionError("read to the end")


def test_a_data_set_is_read_only_where_a_batch_asks() -> None:
    dataset = Counted(targets=LABELS.tolist(), classes=["a", "b", "c"])
    samples = load_data(dataset)
    assert isinstance(samples, DatasetSamples)
    assert dataset.read == []
    images, labels = samples.batch([4, 2])
    assert dataset.read == [4, 2]
    assert torch.equal(images, IMAGES[[4, 2]])
    assert labels.tolist() == [0, 2]
    assert (samples.name, samples.classes, len(samples)) == ("Counted", ("a", "b", "c"), 5)


@pytest.mark.parametrize(
    "attributes",
    [{}, {"targets": [0, 1]}, {"targets": list("babab")}, {"targets": [0] * 5, "target_transform": int}],
    ids=["none", "too few", "no integers", "transformed"],
)
def test_labels_are_read_where_targets_do_not_hold_them(attributes: dict[str, object]) -> None:
    dataset = Counted(**attributes)
    samples = load_data(dataset)
    assert dataset.read == [0, 1, 2, 3, 4]
    assert samples.labels.tolist() == LABELS.tolist()
    assert samples.classes == ("0", "1", "2")


def test_targets_that_are_not_the_labels_are_found_out() -> None:
    samples = load_data(Counted(targets=[1, 0, 2, 1, 1]))
    samples.batch([0, 1])
    with pytest.raises(errors.LoadError, match="expected label 1 of sample 4 again, got 0"):
        samples.batch([3, 4])


def test_count_limits_what_is_read() -> None:
    dataset = Counted()
    samples = load_data(dataset, count=2)
    assert (len(samples), dataset.read) == (2, [0, 1])
    with pytest.raises(errors.InvalidInputError, match="expected at most 5, all that Counted has, got 6"):
        load_data(dataset, count=6)


@pytest.mark.parametrize("batch_size", [2, None])
def test_a_loader_is_read_into_memory(batch_size: int | None) -> None:
    samples = load_data(DataLoader(TensorDataset(IMAGES, LABELS), batch_size=batch_size))
    assert isinstance(samples, ArraySamples)
    assert torch.equal(samples.pixels, IMAGES)
    assert samples.labels.tolist() == LABELS.tolist()
    assert samples.classes == ("0", "1", "2")


def test_a_stream_is_read_as_far_as_count() -> None:
    samples = load_data(Stream(), count=7)
    assert samples.labels.tolist() == [1, 0, 2, 1, 0, 1, 0]
    assert load_data(DataLoader(Stream(), batch_size=3), count=7).labels.tolist() == samples.labels.tolist()


def test_a_loader_knows_the_classes_of_the_data_set_it_cuts_from() -> None:
    dataset = Counted(classes=["a", "b", "c", "d"])
    assert load_data(DataLoader(Subset(dataset, [0, 1]))).classes == ("a", "b", "c", "d")
    assert load_data(Subset(dataset, [0, 1])).classes == ("a", "b", "c", "d")


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.float64])
def test_images_of_other_types_become_float32_in_0_to_1(kind: torch.dtype) -> None:
    scale = 255 if kind == torch.uint8 else 1
    images = (IMAGES * scale).to(kind)
    batch, _ = load_data(TensorDataset(images, LABELS)).batch([0, 4])
    assert batch.dtype == torch.float32
    assert torch.equal(batch, images[[0, 4]].float() / scale)


def picture(image: Tensor) -> Image.Image:
    return Image.fromarray((image[0] * 255).byte().numpy())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda image, label: (picture(image), label), r"got PIL\.Image\.Image; give .* a transform"),
        (lambda image, label: (image.numpy(), label), r"got numpy\.ndarray; give .* a transform"),
        (lambda image, label: (image.long(), label), "got a tensor of torch.int64"),
        (lambda image, label: (image[0], label), r"shape \(channels, height, width\), got \(3, 4\)"),
        (lambda image, label: (image - 0.5, label), r"expected values in \[0, 1\] \(a normalization .* got -0.5"),
        (lambda image, label: (image * float("nan"), label), r"expected values in \[0, 1\]"),
        (lambda image, label: image, r"expected sample 0 as \(image, label\), got a tensor"),
        (lambda image, label: {"image": image, "label": label}, "got builtins.dict"),
        (lambda image, label: (image, "cat"), r"the label of sample 0 as an integer, got builtins\.str"),
        (lambda image, label: (image, 0.5), r"the label of sample 0 as an integer, got builtins\.float"),
        (lambda image, label: (image, -1), r"expected labels 0 to 0, got \[-1, -1, -1, -1, -1\]"),
        (
            lambda image, label: (image[..., : 2 + label], label),
            r"images of one shape, got \(1, 3, 3\) and \(1, 3, 2\)",
        ),
    ],
)
def test_what_is_no_image_or_no_label_is_refused(change: Callable[[Tensor, int], object], complaint: str) -> None:
    with pytest.raises(errors.LoadError, match=complaint):
        load_data(Counted(change=change)).batch(range(5))


class Leaving(Stream):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        sys.exit(0)


def leave(image: Tensor, label: int) -> object:
    sys.exit(0)


@pytest.mark.parametrize("source", [Counted(change=leave), DataLoader(Counted(change=leave)), Leaving()])
def test_data_that_end_the_process_are_an_error(source: Dataset[object] | DataLoader[object]) -> None:
    with pytest.raises(errors.LoadError, match=r"(Counted|Leaving): expected samples, got SystemExit: 0"):
        load_data(source)


def test_data_that_end_the_process_when_they_are_read_again_are_an_error() -> None:
    dataset = Counted(targets=LABELS.tolist())
    samples = load_data(dataset)
    dataset.change = leave
    with pytest.raises(errors.LoadError, match="Counted: expected samples, got SystemExit: 0"):
        samples.batch([1])


def test_labels_may_be_tensors_or_numpy_integers() -> None:
    for kind in (torch.tensor, np.int32):
        dataset = Counted(change=lambda image, label, kind=kind: (image, kind(label)))
        assert load_data(dataset).labels.tolist() == LABELS.tolist()


def test_a_loader_of_something_else_is_refused() -> None:
    with pytest.raises(errors.LoadError, match=r"expected batches of \(images, labels\)"):
        load_data(DataLoader(TensorDataset(IMAGES)))


def test_nothing_in_it_is_an_error() -> None:
    empty = TensorDataset(IMAGES[:0], LABELS[:0])
    for source in (empty, DataLoader(empty)):
        with pytest.raises(errors.LoadError, match="expected at least one sample, got none"):
            load_data(source)


def test_a_data_set_without_a_length_is_refused() -> None:
    with pytest.raises(errors.LoadError, match="expected a data set with a length"):
        load_data(type("Endless", (Dataset,), {})())


def test_what_is_no_source_at_all_is_refused() -> None:
    with pytest.raises(errors.InvalidInputError, match=r"source: expected a name, .* got SimpleNamespace"):
        load_data(SimpleNamespace())  # type: ignore[arg-type]
