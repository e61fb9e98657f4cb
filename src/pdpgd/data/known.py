"""Data sets that are known by name: their files, checksums, licenses and readers.

Restricted ImageNet, nine groups of ImageNet's animals as in Tsipras et al. (ICLR 2019) and their library, has its
reader here: it is a choice of ImageNet's folders rather than a file format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pdpgd.data.download import DataFile, Wanted, idx_file
from pdpgd.data.folders import FolderSamples, Frame, class_folders, dealt, images_in
from pdpgd.data.readers import CIFAR_FOLDER, read_cifar10, read_idx_pair
from pdpgd.errors import LoadError

EMBEDDED = "embedded"
NOT_HERE = "not here"

Reader = Callable[[list[Path], str], tuple[Tensor, Tensor] | FolderSamples]


@dataclass(frozen=True)
class DataSet:
    """A data set that is known by its name.

    Args:
        name: Its name.
        shape: Channels, height and width of an image.
        classes: Names of the classes.
        sizes: Number of samples of each split that exists; None where it is not fixed.
        license: License of the data.
        origin: Authors and home page.
        files: Files of each split, in the order that `read` takes; none for data that this package contains.
        read: Reader of the files of a split; None for data that this package contains.
        orders: Readers that sort the samples in another order, selected by NAME:ORDER.
        system: Folder in which a package of the operating system installs the files.
        note: Advice for users who have to get the files by hand.
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    sizes: Mapping[str, int | None]
    license: str
    origin: str
    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    read: Reader | None = None
    orders: Mapping[str, Reader] = field(default_factory=dict)
    system: Path | None = None
    note: str = ""

    def wanted(self, split: str) -> Wanted:
        """Return the files of a split, and where to look for them."""
        return Wanted(self.name, self.files[split], self.system, self.note)

    def place(self) -> str:
        """Return the folder that it is in on this machine, "embedded" or "not here"."""
        if self.read is None:
            return EMBEDDED
        found = next((paths for split in self.sizes if (paths := self.wanted(split).found())), None)
        return NOT_HERE if found is None else str(found[0].parent)


NAME = "restricted-imagenet"
# As the authors of the paper read it: OpenCV's cubic interpolation through tensorpack.
FRAME = Frame(resize=256, crop=224, like="tensorpack")

# WordNet numbers of ImageNet's classes by group (n02085620 is 2085620), in the order of the labels; classes that are
# not listed belong to no group.
GROUPS = {
    "dog": """
        2085620 2085782 2085936 2086079 2086240 2086646 2086910 2087046 2087394 2088094 2088238 2088364 2088466
        2088632 2089078 2089867 2089973 2090379 2090622 2090721 2091032 2091134 2091244 2091467 2091635 2091831
        2092002 2092339 2093256 2093428 2093647 2093754 2093859 2093991 2094114 2094258 2094433 2095314 2095570
        2095889 2096051 2096177 2096294 2096437 2096585 2097047 2097130 2097209 2097298 2097474 2097658 2098105
        2098286 2098413 2099267 2099429 2099601 2099712 2099849 2100236 2100583 2100735 2100877 2101006 2101388
        2101556 2102040 2102177 2102318 2102480 2102973 2104029 2104365 2105056 2105162 2105251 2105412 2105505
        2105641 2105855 2106030 2106166 2106382 2106550 2106662 2107142 2107312 2107574 2107683 2107908 2108000
        2108089 2108422 2108551 2108915 2109047 2109525 2109961 2110063 2110185 2110341 2110627 2110806 2110958
        2111129 2111277 2111500 2111889 2112018 2112137 2112350 2112706 2113023 2113186 2113624 2113712 2113799
        2113978
    """,
    "cat": """
        2123045 2123159 2123394 2123597 2124075
    """,
    "frog": """
        1641577 1644373 1644900
    """,
    "turtle": """
        1664065 1665541 1667114 1667778 1669191
    """,
    "bird": """
        1795545 1796340 1797886 1798484 1806143 1806567 1807496 1817953 1818515 1819313 1820546 1824575 1828970
        1829413 1833805 1843065 1843383 1847000 1855032 1855672 1860187
    """,
    "primate": """
        2480495 2480855 2481823 2483362 2483708 2484975 2486261 2486410 2487347 2488291 2488702 2489166 2490219
        2492035 2492660 2493509 2493793 2494079
    """,
    "fish": """
        2514041 2526121 2536864 2606052 2607072 2640242 2641379 2643566 2655020
    """,
    "crab": """
        1978287 1978455 1980166 1981276
    """,
    "insect": """
        2165105 2165456 2167151 2168699 2169497 2172182 2174001 2177972 2190166 2206856 2219486 2226429 2229544
        2231487 2233338 2236044 2256656 2259212 2264363 2268443
    """,
}
CLASSES = tuple(GROUPS)
LABELS = {f"n{int(number):08d}": label for label, group in enumerate(GROUPS.values()) for number in group.split()}
# Indices of each group among the 1000 classes of ImageNet, which are sorted by their WordNet numbers: the outputs of an
# ImageNet classifier for the group.
PLACES = {
    "dog": range(151, 269),
    "cat": range(281, 286),
    "frog": range(30, 33),
    "turtle": range(33, 38),
    "bird": range(80, 101),
    "primate": range(365, 383),
    "fish": range(389, 398),
    "crab": range(118, 122),
    "insect": range(300, 320),
}
# Dogs in the list of images that came with the paper's nets (MadryLab/robust-features-code, ilsvrc_metadata/val.txt):
# 11 breeds, so that dogs are not the majority. The list consists of all 4800 images of these breeds and of the other
# eight groups, by file name; the paper's 1000 images are its first. The list does not name the breeds: five were found
# in the list of training images next to it, the others follow from what its first 516 images show.
PAPER_DOGS = frozenset(
    f"n{number:08d}"
    for number in (
        *(2086646, 2093991, 2097474, 2098105, 2098413, 2100877),
        *(2101556, 2109961, 2112018, 2113186, 2113978),
    )
)
PAPER_CLASSES = frozenset(wnid for wnid, label in LABELS.items() if CLASSES[label] != "dog" or wnid in PAPER_DOGS)


def read_restricted_imagenet(folder: Path, *, order: str | None = None) -> FolderSamples:
    """Find the images in `folder/<wnid>/*` whose class is in a group; some of the 1000 classes are enough.

    Every image is converted to RGB, since ImageNet has gray and CMYK files.

    Args:
        folder: The folder of a split, one sub-folder per class.
        order: With None, the groups take turns, one image each, and so do the classes within a group. "first" sorts
            the images of all classes by file name, as ImageNet numbers them. "paper" does the same with the 96
            classes of the paper's list, so that its first 1000 images are those of the paper.

    Returns:
        The samples, read when a batch contains them.

    Raises:
        LoadError: There is no folder of any of these classes.
    """
    wanted = PAPER_CLASSES if order == "paper" else frozenset(LABELS)
    found = [(LABELS[path.name], images_in(path)) for path in class_folders(folder) if path.name in wanted]
    if not found:
        raise LoadError(
            f"{folder}: expected ImageNet's folders, one per class and named like n02085620, got none of the "
            f"{len(wanted)} that Restricted ImageNet is made of"
        )
    if order is None:
        groups = [[images for label, images in found if label == group] for group in range(len(CLASSES))]
        files, labels = dealt(dealt(group)[0] for group in groups)
        return FolderSamples(NAME, files, labels, CLASSES, frame=FRAME)
    # Equal file names, which ImageNet does not have, are ordered by their folders.
    pairs = sorted(
        ((file, label) for label, images in found for file in images), key=lambda pair: (pair[0].name, pair[0])
    )
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    return FolderSamples(f"{NAME}:{order}", tuple(file for file, _ in pairs), labels, CLASSES, frame=FRAME)


def _idx_files(base: str, **md5s: str) -> dict[str, tuple[DataFile, ...]]:
    """Describe the images and labels of both splits, named as in MNIST."""
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
            license="CC BY-SA 3.0",
            origin="the first 1000 test images of MNIST, contained in this package",
        ),
        DataSet(
            name="mnist",
            shape=(1, 28, 28),
            classes=DIGITS,
            sizes={"test": 10_000, "train": 60_000},
            license="CC BY-SA 3.0",
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
            license="MIT",
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
            license="none stated; its authors ask to cite Krizhevsky (2009)",
            origin="Krizhevsky, Nair and Hinton, https://www.cs.toronto.edu/~kriz/cifar.html",
            files={"test": (CIFAR_ARCHIVE,), "train": (CIFAR_ARCHIVE,)},
            read=lambda paths, split: read_cifar10(paths[0], split),
        ),
        DataSet(
            name="restricted-imagenet",
            shape=(3, 224, 224),
            classes=CLASSES,
            # 203 classes with 50 validation images each.
            sizes={"test": 10_150, "train": None},
            license="ImageNet's terms of access: non-commercial use only, no redistribution",
            origin="ImageNet (ILSVRC 2012), https://www.image-net.org, grouped as by Tsipras et al. (2019)",
            files={"test": (DataFile("val"),), "train": (DataFile("train"),)},
            read=lambda paths, split: read_restricted_imagenet(paths[0]),
            orders={
                "first": lambda paths, split: read_restricted_imagenet(paths[0], order="first"),
                "paper": lambda paths, split: read_restricted_imagenet(paths[0], order="paper"),
            },
            note="Each is a folder with one sub-folder per class, as in val/n02085620/*.JPEG. ImageNet's terms forbid "
            "redistribution: get ILSVRC 2012 from https://www.image-net.org.",
        ),
    )
}
