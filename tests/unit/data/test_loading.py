from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pdpgd
from pdpgd import errors
from pdpgd.data.known import DATA, EMBEDDED, NOT_HERE
from pdpgd.data.loading import describe_data, load_data
from support.data_files import cifar_batch, cifar_pixels

PROGRAM = """
import json, sys
from pdpgd.data.loading import load_data
load_data("mnist-1000").batch([0])
print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))
"""


def test_the_embedded_slice_is_the_start_of_mnists_test_set() -> None:
    samples = load_data("mnist-1000")
    assert (samples.name, len(samples), samples.classes) == ("mnist-1000", 1000, tuple("0123456789"))
    assert samples.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    images, labels = samples.batch([0, 999])
    assert images.shape == (2, 1, 28, 28)
    assert (images.min(), images.max()) == (0, 1)
    assert torch.equal(labels, samples.labels[[0, 999]])


def test_the_embedded_slice_is_small_and_carries_its_license() -> None:
    folder = resources.files("pdpgd.data") / "embedded"
    assert len((folder / "mnist-1000.npz").read_bytes()) < 300_000
    license = (folder / "LICENSE-MNIST.txt").read_text()
    assert "https://creativecommons.org/licenses/by-sa/3.0/" in license
    assert all(name in license for name in ("LeCun", "Cortes", "Burges", "NIST"))


def test_the_embedded_slice_has_no_other_split() -> None:
    with pytest.raises(errors.InvalidInputError, match="split: expected test, all that mnist-1000 has, got train"):
        load_data("mnist-1000", split="train")


def test_reading_it_needs_no_optional_library() -> None:
    home = str(Path(pdpgd.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert not {"PIL", "pooch", "torchvision"} & set(json.loads(done.stdout))


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_count_takes_the_first(count: int) -> None:
    assert torch.equal(load_data("mnist-1000", count=count).labels, load_data("mnist-1000").labels[:count])


@pytest.mark.parametrize("count", [0, -1, 2.0, "3", True])
def test_a_count_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(errors.InvalidInputError, match="count: expected an integer >= 1, got"):
        load_data("mnist-1000", count=count)


def test_a_count_above_all_there_are_says_how_many_there_are() -> None:
    with pytest.raises(
        errors.InvalidInputError, match="count: expected at most 1000, all that mnist-1000 has, got 1001"
    ):
        load_data("mnist-1000", count=1001)


def test_an_unknown_name_is_answered_with_a_suggestion() -> None:
    with pytest.raises(errors.UnknownNameError, match=r"unknown data set .* got 'mnits'; did you mean 'mnist'"):
        load_data("mnits")
    with pytest.raises(errors.UnknownNameError, match=r"unknown split.* got 'tests'; did you mean 'test'"):
        load_data("mnist-1000", split="tests")


@pytest.mark.parametrize("path", ["some/folder", "mine.npz", Path("mnist-1000")])
def test_a_path_that_leads_nowhere_is_no_unknown_name(
    path: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.LoadError, match=f"{path}: expected an .npz file or a folder .* got nothing"):
        load_data(path)


def test_a_path_to_a_file_or_a_folder_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=np.zeros((2, 5, 5), np.uint8), labels=np.array([1, 0]))
    (tmp_path / "images" / "cat").mkdir(parents=True)
    Image.new("RGB", (5, 5)).save(tmp_path / "images" / "cat" / "1.png")
    assert load_data(str(tmp_path / "mine.npz")).batch([0])[0].shape == (1, 1, 5, 5)
    assert load_data(tmp_path / "images").batch([0])[0].shape == (1, 3, 5, 5)
    assert load_data(tmp_path / "mine.npz", count=1).labels.tolist() == [1]


def test_a_file_that_is_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("1,2")
    with pytest.raises(errors.LoadError, match=r"mine\.csv: expected an .npz file .* a file that ends in '\.csv'"):
        load_data(tmp_path / "mine.csv")


def test_a_known_name_comes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist-1000").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(load_data("mnist-1000")) == 1000
    with pytest.raises(errors.LoadError, match="expected one sub-folder per class"):
        load_data("./mnist-1000")


def test_cifar_is_found_as_a_folder_and_must_be_whole(cache: Path) -> None:
    folder = cache / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "test_batch").write_bytes(cifar_batch(cifar_pixels(10_000), [3] * 10_000))
    samples = load_data("cifar10", count=1)
    assert samples.classes[int(samples.labels[0])] == "cat"
    assert samples.batch([0])[0].shape == (1, 3, 32, 32)
    (folder / "test_batch").write_bytes(cifar_batch(cifar_pixels(2), [3, 3]))
    with pytest.raises(errors.LoadError, match=r"expected test images of shape \(10000, 3, 32, 32\), got \(2, "):
        load_data("cifar10")


@pytest.mark.usefixtures("cache")
def test_every_known_data_set_is_described() -> None:
    described = {one.name: one for one in describe_data()}
    assert list(described) == list(DATA)
    assert {name: one.place for name, one in described.items()} == {
        name: EMBEDDED if name == "mnist-1000" else NOT_HERE for name in DATA
    }
    sizes = {name: (one.shape, one.classes, one.train, one.test) for name, one in described.items()}
    assert sizes == {
        "mnist-1000": ((1, 28, 28), 10, 0, 1000),
        "mnist": ((1, 28, 28), 10, 60_000, 10_000),
        "fashion-mnist": ((1, 28, 28), 10, 60_000, 10_000),
        "cifar10": ((3, 32, 32), 10, 50_000, 10_000),
        "restricted-imagenet": ((3, 224, 224), 9, None, 10_150),
    }
    assert all(one.license and one.origin for one in described.values())


def test_the_checksums_are_the_published_ones() -> None:
    published = {
        "mnist": "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
        "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
        "fashion-mnist": "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
        "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
        "cifar10": "c58f30108f718f92721af3b95e74349a c58f30108f718f92721af3b95e74349a",
    }
    for name, md5s in published.items():
        files = DATA[name].files
        assert [file.md5 for split in ("train", "test") for file in files[split]] == md5s.split()
    images, labels = DATA["mnist"].files["train"]
    assert images.url == "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"
    assert labels.name == "train-labels-idx1-ubyte.gz"
