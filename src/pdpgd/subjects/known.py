"""The data sets that are known by name: what they are, where they come from, and how their files are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from pdpgd.subjects.cifar import FOLDER as CIFAR_FOLDER
from pdpgd.subjects.cifar import read_cifar10
from pdpgd.subjects.fetch import DataFile, Wanted, idx_file
from pdpgd.subjects.folders import FolderSamples
from pdpgd.subjects.idx import read_idx_pair
from pdpgd.subjects.restricted_imagenet import CLASSES as IMAGENET_GROUPS
from pdpgd.subjects.restricted_imagenet import read_restricted_imagenet

EMBEDDED = "embedded"
NOT_HERE = "not here"

Reader = Callable[[list[Path], str], tuple[Tensor, Tensor] | FolderSamples]


@dataclass(frozen=True)
class DataSet:
    """A data set that is known by its name."""

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    sizes: Mapping[str, int | None]
    """How many samples each split has; None where nobody counted. A split that is not here does not exist."""
    licence: str
    origin: str
    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    """The files of each split, in the order in which `read` takes them; none for what this package carries."""
    read: Reader | None = None
    orders: Mapping[str, Reader] = field(default_factory=dict)
    """Readers that put the samples into another order, asked for as NAME:ORDER."""
    system: Path | None = None
    """Where a package of the operating system puts the files."""
    note: str = ""
    """What to say to whoever has to get the files by hand."""

    def wanted(self, split: str) -> Wanted:
        return Wanted(self.name, self.files[split], self.system, self.note)

    def place(self) -> str:
        """Where it is on this machine now."""
        if self.read is None:
            return EMBEDDED
        found = next((paths for split in self.sizes if (paths := self.wanted(split).found())), None)
        return NOT_HERE if found is None else str(found[0].parent)


def _idx_files(base: str, **md5s: str) -> dict[str, tuple[DataFile, ...]]:
    """The images and labels of both splits, named as MNIST named them."""
    return {
        split: tuple(
            idx_file(f"{prefix}-{part}-ubyte.gz", base=base, md5=md5s[f"{split}_{part[:6]}"])
            for part in ("images-idx3", "labels-idx1")
        )
        for split, prefix in (("test", "t10k"), ("train", "train"))
    }


CIFAR_ARCHIVE = DataFile(
    "cifar-10-python.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    also=(CIFAR_FOLDER,),
)
DIGITS = tuple("0123456789")

DATA: dict[str, DataSet] = {
    known.name: known
    for known in (
        DataSet(
            name="mnist-1000",
            shape=(1, 28, 28),
            classes=DIGITS,
            sizes={"test": 1000},
            licence="CC BY-SA 3.0",
            origin="the first 1000 test images of MNIST, carried by this package",
        ),
        DataSet(
            name="mnist",
            shape=(1, 28, 28),
            classes=DIGITS,
            sizes={"test": 10_000, "train": 60_000},
            licence="CC BY-SA 3.0",
            origin="LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist/",
            files=_idx_files(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                test_images="9fb629c4189551a2d022fa330f9573f3",
                test_labels="ec29112dd5afa0611ce80d1b7f02629c",
                train_images="f68b3c2dcbeaaa9fbdd348bbdeb94873",
                train_labels="d53e105ee54ea40749a09fcbcd1e9432",
            ),
            read=lambda paths, split: read_idx_pair(*paths),
        ),
        DataSet(
            name="fashion-mnist",
            shape=(1, 28, 28),
            classes=(
                *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
                *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
            ),
            sizes={"test": 10_000, "train": 60_000},
            licence="MIT",
            origin="Xiao, Rasul and Vollgraf (Zalando), https://github.com/zalandoresearch/fashion-mnist",
            files=_idx_files(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                test_images="bef4ecab320f06d8554ea6380940ec79",
                test_labels="bb300cfdad3c16e7a12a480ee83cd310",
                train_images="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                train_labels="25c81989df183df01b3e8a0aad5dffbe",
            ),
            read=lambda paths, split: read_idx_pair(*paths),
            system=Path("/usr/share/datasets/fashion-mnist"),  # Debian's package dataset-fashion-mnist.
        ),
        DataSet(
            name="cifar10",
            shape=(3, 32, 32),
            classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            sizes={"test": 10_000, "train": 50_000},
            licence="none stated; its authors ask to cite Krizhevsky (2009)",
            origin="Krizhevsky, Nair and Hinton, https://www.cs.toronto.edu/~kriz/cifar.html",
            files={"test": (CIFAR_ARCHIVE,), "train": (CIFAR_ARCHIVE,)},
            read=lambda paths, split: read_cifar10(paths[0], split),
        ),
        DataSet(
            name="restricted-imagenet",
            shape=(3, 224, 224),
            classes=IMAGENET_GROUPS,
            # 203 classes with 50 validation images each.
            sizes={"test": 10_150, "train": None},
            licence="ImageNet's terms of access: not for commerce, not to be passed on",
            origin="ImageNet (ILSVRC 2012), https://www.image-net.org, grouped as by Tsipras et al. (2019)",
            files={"test": (DataFile("val"),), "train": (DataFile("train"),)},
            read=lambda paths, split: read_restricted_imagenet(paths[0]),
            orders={
                "first": lambda paths, split: read_restricted_imagenet(paths[0], order="first"),
                "paper": lambda paths, split: read_restricted_imagenet(paths[0], order="paper"),
            },
            note="Each is a folder with one sub-folder a class, as in val/n02085620/*.JPEG; ImageNet's terms forbid to "
            "pass it on: get ILSVRC 2012 from https://www.image-net.org.",
        ),
    )
}
