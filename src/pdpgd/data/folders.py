"""Cubic interpolation as OpenCV does it: without antialiasing, in whole numbers, so the same on every processor."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdpgd.data.dataset import Rows
from pdpgd.errors import InvalidInputError, LoadError, UnknownNameError, need

# Keys' parameter; Pillow has -1/2, and widens the kernel where an image is made smaller.
SLOPE = -0.75
# Weights are multiples of 1/2048.
BITS = 11


def resized(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize an image of shape (rows, columns, channels), as OpenCV's `INTER_CUBIC` does to within a gray level.

    Each new pixel is the sum of 4 x 4 old ones, weighted by Keys' kernel with a = -3/4. Beyond the border the
    outermost pixel is repeated.
    """
    wide = _added(pixels[:, place] * weight[:, None] for place, weight in _neighbors(pixels.shape[1], width))
    sums = _added(wide[place] * weight[:, None, None] for place, weight in _neighbors(pixels.shape[0], height))
    half = 1 << (2 * BITS - 1)
    result: NDArray[np.uint8] = np.clip((sums + half) >> (2 * BITS), 0, 255).astype(np.uint8)
    return result


def _added(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return reduce(np.add, parts)


def _neighbors(old: int, new: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The four old neighbors of each of `new` places on a side of `old` pixels, and their weights in 2048ths.

    The center of pixel i lies at i + 1/2 in both images: place i is the old place ((2i + 1) old / new - 1) / 2.
    """
    whole, part = np.divmod((2 * np.arange(new) + 1) * old - new, 2 * new)
    return [
        (
            np.clip(whole + step, 0, old - 1),
            np.rint(_kernel(np.abs(part / (2 * new) - step)) * (1 << BITS)).astype(np.int64),
        )
        for step in (-1, 0, 1, 2)
    ]


def _kernel(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys (1981), for distances below 2."""
    near = ((SLOPE + 2) * distance - (SLOPE + 3)) * distance * distance + 1
    far = ((SLOPE * distance - 5 * SLOPE) * distance + 8 * SLOPE) * distance - 4 * SLOPE
    return np.where(distance <= 1, near, far)


ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"))
COLOUR, GREY = ("RGB", "P"), ("L", "1")
# What Pillow raises on a file that is no image, or half of one.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error)


@dataclass(frozen=True)
class Frame:
    """The shorter side is made `resize` long, the other in proportion; then the middle, `crop` x `crop`, is kept.

    `like` says whose interpolation and rounding: "torchvision" (Pillow's bilinear, which averages where an image is
    made smaller), which most published models were trained on, or "tensorpack" (OpenCV's cubic, which does not).
    """

    resize: int
    crop: int
    like: str = "torchvision"

    def __post_init__(self) -> None:
        if self.like not in FRAMES:
            raise UnknownNameError("frame", self.like, FRAMES)
        if not 1 <= self.crop <= self.resize:
            raise InvalidInputError(f"frame: expected 1 <= crop <= resize, got {self.crop} and {self.resize}")


@dataclass(frozen=True)
class FolderSamples:
    """Samples that lie in files, each read when a batch asks for it and brought to `mode`, RGB or L."""

    name: str
    files: tuple[Path, ...]
    labels: Tensor
    classes: tuple[str, ...]
    mode: str = "RGB"
    frame: Frame | None = None

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(rows)
        images = torch.stack([self._image(self.files[row]) for row in rows.tolist()])
        return images.float().div_(255), self.labels[rows]

    def first(self, count: int) -> FolderSamples:
        return replace(self, files=self.files[:count], labels=self.labels[:count])

    def _image(self, file: Path) -> Tensor:
        pillow = _pillow()
        try:
            with pillow.open(file) as image:
                pixels = _framed(pillow, image.convert(self.mode), self.frame)
        except (*UNREADABLE, pillow.DecompressionBombError) as error:
            raise _unreadable(file, error) from error
        return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def read_folder(folder: Path, *, frame: Frame | None = None) -> FolderSamples:
    """Images in `folder/<class>/*`, all in colour or all grey, and without a `frame` all of one size.

    The classes are the sub-folders in the order of their names. The samples are dealt: the first file of every class,
    then the second of every class, and so on, so that the first few are of many classes.
    """
    folders = class_folders(folder)
    files, labels = dealt(images_in(path) for path in folders)
    mode = _common_mode(files, frame)
    return FolderSamples(folder.resolve().name, files, labels, tuple(path.name for path in folders), mode, frame)


def class_folders(folder: Path) -> list[Path]:
    """The sub-folders, sorted by name; hidden ones are passed over."""
    if not folder.is_dir():
        raise LoadError(f"{folder}: expected a folder with one sub-folder a class, got none of that name")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise LoadError(f"{folder}: expected one sub-folder a class, got no sub-folder")
    return folders


def images_in(folder: Path) -> list[Path]:
    """The images of one class, sorted by name; other files are passed over."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())
    if not files:
        raise LoadError(f"{folder}: expected images of this class ({' '.join(sorted(ENDINGS))}), got none")
    return files


def dealt(groups: Iterable[Sequence[Path]]) -> tuple[tuple[Path, ...], Tensor]:
    """The files in turn, one of each group, with the place of their group as their label."""
    rounds = zip_longest(*groups)
    pairs = [(file, label) for turn in rounds for label, file in enumerate(turn) if file is not None]
    return tuple(file for file, _ in pairs), torch.tensor([label for _, label in pairs], dtype=torch.long)


def _common_mode(files: tuple[Path, ...], frame: Frame | None) -> str:
    """Look at the header of every file: "RGB" if any is in colour, "L" if all are grey."""
    headers = {file: _header(file) for file in files}
    in_colour = [file for file, (mode, _) in headers.items() if mode in COLOUR]
    if in_colour:
        _refuse_grey(headers, in_colour[0])
    if frame is None:
        _refuse_other_sizes(headers)
    return "RGB" if in_colour else "L"


Header = tuple[str, tuple[int, int]]


def _header(file: Path) -> Header:
    pillow = _pillow()
    try:
        with pillow.open(file) as image:
            mode, size, transparent = image.mode, image.size, image.has_transparency_data
    except (*UNREADABLE, pillow.DecompressionBombError) as error:
        raise _unreadable(file, error) from error
    if transparent:
        raise LoadError(f"{file}: expected RGB or grey, got mode {mode} with transparency: lay it on a background")
    if mode not in COLOUR + GREY:
        raise LoadError(f"{file}: expected RGB or grey of 8 bits, got mode {mode}: convert it first")
    return mode, size


def _refuse_grey(headers: Mapping[Path, Header], example: Path) -> None:
    for file, (mode, _) in headers.items():
        if mode in GREY:
            raise LoadError(f"{file}: expected RGB, as {example} and others here are, got mode {mode} (grey)")


def _refuse_other_sizes(headers: Mapping[Path, Header]) -> None:
    example, (_, expected) = next(iter(headers.items()))
    for file, (_, size) in headers.items():
        if size != expected:
            raise LoadError(
                f"{file}: expected {expected[0]} x {expected[1]} pixels, as {example} has, got {size[0]} x {size[1]}; "
                f"read_folder(..., frame=Frame(resize, crop)) brings images to one size"
            )


def _framed(pillow: ModuleType, image: Any, frame: Frame | None) -> NDArray[np.uint8]:
    """The pixels, of shape (rows, columns) or (rows, columns, channels)."""
    return np.array(image) if frame is None else FRAMES[frame.like](pillow, image, frame)


def _as_torchvision(pillow: ModuleType, image: Any, frame: Frame) -> NDArray[np.uint8]:
    width, height = image.size
    short = min(width, height)
    size = (frame.resize * width // short, frame.resize * height // short)
    if size != (width, height):
        image = image.resize(size, pillow.Resampling.BILINEAR)
    left, top = (round((side - frame.crop) / 2) for side in size)
    return np.array(image.crop((left, top, left + frame.crop, top + frame.crop)))


def _as_tensorpack(pillow: ModuleType, image: Any, frame: Frame) -> NDArray[np.uint8]:
    width, height = image.size
    short = min(width, height)
    # The longer side is rounded to the nearest pixel, halves up; the place of the crop is rounded down.
    new_width, new_height = ((2 * frame.resize * side + short) // (2 * short) for side in (width, height))
    pixels = resized(np.array(image).reshape(height, width, -1), new_height, new_width)
    top, left = (new_height - frame.crop) // 2, (new_width - frame.crop) // 2
    return pixels[top : top + frame.crop, left : left + frame.crop]


Framing = Callable[[ModuleType, Any, Frame], NDArray[np.uint8]]
FRAMES: dict[str, Framing] = {"torchvision": _as_torchvision, "tensorpack": _as_tensorpack}


def _unreadable(file: Path, error: Exception) -> LoadError:
    return LoadError(f"{file}: unreadable: expected an image, got {type(error).__name__}: {error}")


def _pillow() -> ModuleType:
    return need("PIL.Image", extra="data", purpose="reading images from a folder")
