"""Restricted ImageNet, on trees that the test grows: ImageNet itself may not be passed on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from pdpgd import errors
from pdpgd.subjects.data import load_data
from pdpgd.subjects.restricted_imagenet import CLASSES, LABELS

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
# Classes of ImageNet next to a group and outside it: great grey owl and white stork, timber wolf, cougar, bee's
# neighbour ringlet, lionfish's neighbour abacus, tench.
OUTSIDE = ["n01622779", "n02002556", "n02114367", "n02125311", "n02319095", "n02666196", "n01440764"]


def grow(folder: Path, wnids: list[str], images: int = 1) -> None:
    for place, wnid in enumerate(wnids):
        for number in range(images):
            path = folder / wnid / f"ILSVRC2012_val_{number:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (300, 260 + place), (20 * place, 100, 10 * number)).save(path, "JPEG")


def test_each_group_has_as_many_classes_as_its_range() -> None:
    counts = Counter(CLASSES[label] for label in LABELS.values())
    ranges = {
        "dog": (151, 268), "cat": (281, 285), "frog": (30, 32), "turtle": (33, 37), "bird": (80, 100),
        "primate": (365, 382), "fish": (389, 397), "crab": (118, 121), "insect": (300, 319),
    }  # fmt: skip
    assert list(ranges) == list(CLASSES)
    assert counts == {name: last - first + 1 for name, (first, last) in ranges.items()}


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
    # Each image is of one colour, which tells whose it is; JPEG may be off by little.
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


@pytest.mark.parametrize("mode", ["L", "CMYK"])
@pytest.mark.usefixtures("cache")
def test_grey_and_cmyk_files_of_imagenet_are_brought_to_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "val" / "n02085620" / "1.JPEG"
    path.parent.mkdir(parents=True)
    Image.new(mode, (300, 300)).save(path, "JPEG")
    assert load_data("restricted-imagenet", root=tmp_path).batch([0])[0].shape == (1, 3, 224, 224)


@pytest.mark.usefixtures("cache")
def test_a_tree_of_something_else_is_refused(tmp_path: Path) -> None:
    grow(tmp_path / "val", OUTSIDE)
    with pytest.raises(errors.SubjectError, match="got none of the 203 that Restricted ImageNet is made of"):
        load_data("restricted-imagenet", root=tmp_path)


def test_where_there_is_no_tree_the_message_says_what_to_put_where(cache: Path) -> None:
    with pytest.raises(errors.SubjectError) as caught:
        load_data("restricted-imagenet")
    message = str(caught.value)
    assert "cannot be downloaded. Put\n  val\ninto " in message
    assert str(cache / "restricted-imagenet") in message
    assert "PDPGD_DATA" in message
    assert "https://www.image-net.org" in message
