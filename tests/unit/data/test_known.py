"""Restricted ImageNet, on folders that the test writes: ImageNet itself may not be redistributed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pdpgd import errors
from pdpgd.data import folders
from pdpgd.data.known import CLASSES, LABELS, PAPER_CLASSES, PAPER_DOGS
from pdpgd.data.loading import load_data

# One class of each group, and its name in WordNet, looked up by hand.
ONE_OF_EACH = {
    "n02099601": "dog",  # golden retriever
    "n02123045": "cat",  # tabby
    "n01641577": "frog",  # bullfrog
    "n01664065": "turtle",  # loggerhead
    "n01818515": "bird",  # macaw
    "n02481823": "primate",  # chimpanzee
    "n02655020": "fish",  # puffer
    "n01978287": "crab",  # Dungeness crab
    "n02165456": "insect",  # ladybug
}
# Classes of ImageNet next to a group and outside it: great gray owl and white stork, timber wolf, cougar, bee's
# neighbor ringlet, lionfish's neighbor abacus, tench.
OUTSIDE = ["n01622779", "n02002556", "n02114367", "n02125311", "n02319095", "n02666196", "n01440764"]


def grow(folder: Path, wnids: list[str], images: int = 1) -> None:
    for place, wnid in enumerate(wnids):
        for number in range(images):
            path = folder / wnid / f"ILSVRC2012_val_{number:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (300, 260 + place), (20 * place, 100, 10 * number)).save(path, "JPEG")


def test_the_groups_stand_in_wordnet_order_as_their_ranges_do() -> None:
    groups = [[wnid for wnid, label in LABELS.items() if label == group] for group in range(9)]
    assert all(group == sorted(group) for group in groups)
    in_order = sorted(groups)
    assert [CLASSES[LABELS[group[0]]] for group in in_order] == [
        "frog", "turtle", "bird", "crab", "dog", "cat", "insect", "primate", "fish"
    ]  # fmt: skip
    assert [wnid for group in in_order for wnid in group] == sorted(LABELS)


@pytest.mark.usefixtures("cache")
def test_a_small_tree_is_grouped_and_the_rest_left_out(tmp_path: Path) -> None:
    grow(tmp_path / "val", [*ONE_OF_EACH, *OUTSIDE])
    samples = load_data("restricted-imagenet", root=tmp_path)
    assert samples.classes == tuple(ONE_OF_EACH.values())
    assert samples.labels.tolist() == list(range(9))
    images, labels = samples.batch([3, 8])
    assert images.shape == (2, 3, 224, 224)
    assert labels.tolist() == [3, 8]
    # Each image has one color, which identifies it up to JPEG's rounding.
    assert torch.allclose(images[:, 0].mean((1, 2)) * 255, torch.tensor([60.0, 160.0]), atol=3)


@pytest.mark.usefixtures("cache")
def test_a_group_with_more_classes_is_dealt_class_by_class(tmp_path: Path) -> None:
    grow(tmp_path / "train", ["n02085620", "n02085782", "n01641577"], images=2)
    samples = load_data("restricted-imagenet", root=tmp_path, split="train", count=5)
    files = [(file.parent.name, file.stem[-1]) for file in samples.files]  # type: ignore[attr-defined]
    assert files == [
        ("n02085620", "0"), ("n01641577", "0"), ("n02085782", "0"), ("n01641577", "1"), ("n02085620", "1")
    ]  # fmt: skip
    assert samples.labels.tolist() == [0, 2, 0, 2, 0]


def number(folder: Path, wnid: str, count: int) -> None:
    """Write an image of a class at a position of ImageNet's validation set."""
    path = folder / "val" / wnid / f"ILSVRC2012_val_{count:08d}.JPEG"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (256, 256)).save(path, "JPEG")


FROG, CAT, BEAGLE, LHASA = "n01641577", "n02123045", "n02088364", "n02098413"
NUMBERED = [(CAT, 7), (BEAGLE, 2), (FROG, 30), (LHASA, 11), (BEAGLE, 5), (FROG, 1)]


@pytest.mark.parametrize(
    ("source", "order", "labels"),
    [
        ("restricted-imagenet", [2, 7, 1, 11, 30, 5], [0, 1, 2, 0, 2, 0]),
        ("restricted-imagenet:first", [1, 2, 5, 7, 11, 30], [2, 0, 0, 1, 0, 2]),
        ("restricted-imagenet:paper", [1, 7, 11, 30], [2, 1, 0, 2]),
    ],
)
@pytest.mark.usefixtures("cache")
def test_the_images_are_dealt_or_come_by_their_numbers(
    source: str, order: list[int], labels: list[int], tmp_path: Path
) -> None:
    for wnid, count in NUMBERED:
        number(tmp_path, wnid, count)
    samples = load_data(source, root=tmp_path)
    assert samples.name == source
    assert [int(file.stem[-8:]) for file in samples.files] == order  # type: ignore[attr-defined]
    assert samples.labels.tolist() == labels
    assert samples.first(2).labels.tolist() == labels[:2]


def test_the_papers_list_has_96_classes_with_11_breeds_of_dogs() -> None:
    """Write 4800 images of ImageNet's validation set, 50 per class."""
    assert len(PAPER_CLASSES) == 96
    assert sum(LABELS[wnid] == 0 for wnid in PAPER_CLASSES) == len(PAPER_DOGS) == 11
    assert {wnid for wnid, label in LABELS.items() if label} < PAPER_CLASSES


@pytest.mark.usefixtures("cache")
def test_an_order_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(errors.UnknownNameError, match="did you mean 'restricted-imagenet:first'"):
        load_data("restricted-imagenet:frist", root=tmp_path)
    with pytest.raises(errors.UnknownNameError, match="expected one of mnist-1000, got 'mnist-1000:first'"):
        load_data("mnist-1000:first")


@pytest.mark.usefixtures("cache")
def test_images_are_resized_by_cubic_interpolation_as_the_papers_authors_did(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 401, 3), dtype=np.uint8)
    path = tmp_path / "val" / FROG / "1.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(pixels).save(path)
    images, _ = load_data("restricted-imagenet", root=tmp_path).batch([0])
    # 401 * 256 / 300 = 342.2
    expected = folders.resized(pixels, 256, 342)[16:240, 59:283]
    assert torch.equal(images[0], torch.from_numpy(expected).permute(2, 0, 1).float() / 255)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
@pytest.mark.usefixtures("cache")
def test_gray_and_cmyk_files_of_imagenet_are_brought_to_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "val" / "n02085620" / "1.JPEG"
    path.parent.mkdir(parents=True)
    Image.new(mode, (300, 300)).save(path, "JPEG")
    assert load_data("restricted-imagenet", root=tmp_path).batch([0])[0].shape == (1, 3, 224, 224)


@pytest.mark.usefixtures("cache")
def test_a_tree_of_something_else_is_refused(tmp_path: Path) -> None:
    grow(tmp_path / "val", OUTSIDE)
    with pytest.raises(errors.LoadError, match="got none of the 203 that Restricted ImageNet is made of"):
        load_data("restricted-imagenet", root=tmp_path)


def test_where_there_is_no_tree_the_message_says_what_to_put_where(cache: Path) -> None:
    with pytest.raises(errors.LoadError) as caught:
        load_data("restricted-imagenet")
    message = str(caught.value)
    assert "cannot be downloaded. Put\n  val\ninto " in message
    assert str(cache / "restricted-imagenet") in message
    assert "PDPGD_DATA" in message
    assert "https://www.image-net.org" in message
