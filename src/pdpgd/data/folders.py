"""Samples in a folder of image files, one sub-folder per class, resized and cropped as published models need them."""

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

ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"))
# Modes of Pillow.
COLOR, GRAY = ("RGB", "P"), ("L", "1")
# Exceptions that Pillow raises on a file that is not an image or is truncated.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error)
# Parameter of Keys' kernel in OpenCV; Pillow uses -1/2, and widens the kernel to reduce an image.
SLOPE = -0.75
# Weights of the interpolation are multiples of 1/2048.
BITS = 11


def read_folder(folder: Path, *, frame: Frame | None = None) -> FolderSamples:
    """Find the images in `folder/<class>/*`; they are read when a batch contains them.

    All images are in color or all are gray. The classes are the sub-folders, sorted by name. The samples take turns:
    the first file of every class, then the second of every class, and so on, so that the first samples cover many
    classes.

    Args:
        folder: The folder.
        frame: How to resize and crop the images; if None, all must have the same size.

    Returns:
        The samples.

    Raises:
        LoadError: A folder or image is missing or unreadable, or the images differ in mode or size.

    Example:
        >>> from pathlib import Path
        >>> from pdpgd.data.folders import Frame
        >>> samples = read_folder(Path("photos"), frame=Frame(resize=32, crop=28))
        >>> samples.classes
        ('cat', 'dog')
        >>> images, labels = samples.batch(range(4))
        >>> images.shape
        torch.Size([4, 3, 28, 28])
    """
    folders = class_folders(folder)
    files, labels = dealt(images_in(path) for path in folders)
    mode = _common_mode(files, frame)
    return FolderSamples(folder.resolve().name, files, labels, tuple(path.name for path in folders), mode, frame)


@dataclass(frozen=True)
class Frame:
    """How to bring images to one size: resize the shorter side, then crop the center.

    Args:
        resize: Length of the shorter side; the other is scaled in proportion.
        crop: Side of the square that is cut out of the center.
        like: Whose interpolation and rounding: "torchvision" (Pillow's bilinear with antialiasing), which most
            published models were trained on, or "tensorpack" (OpenCV's cubic without antialiasing).

    Raises:
        UnknownNameError: `like` is neither.
        InvalidInputError: `crop` is larger than `resize` or below 1.

    Example:
        >>> frame = Frame(resize=256, crop=224)
        >>> frame.like
        'torchvision'
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
    """Samples in image files, each read when a batch contains it and converted to `mode`, RGB or L."""

    name: str
    files: tuple[Path, ...]
    labels: Tensor
    classes: tuple[str, ...]
    mode: str = "RGB"
    frame: Frame | None = None

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Read some samples; see `Samples.batch`."""
        rows = torch.as_tensor(rows)
        images = torch.stack([self._image(self.files[row]) for row in rows.tolist()])
        return images.float().div_(255), self.labels[rows]

    def first(self, count: int) -> FolderSamples:
        """Return the first samples."""
        return replace(self, files=self.files[:count], labels=self.labels[:count])

    def _image(self, file: Path) -> Tensor:
        """Read one image as uint8 of shape (channels, height, width)."""
        pillow = _pillow()
        try:
            with pillow.open(file) as image:
                pixels = _framed(pillow, image.convert(self.mode), self.frame)
        except (*UNREADABLE, pillow.DecompressionBombError) as error:
            raise _unreadable(file, error) from error
        return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def class_folders(folder: Path) -> list[Path]:
    """Return the sub-folders, sorted by name, without hidden ones."""
    if not folder.is_dir():
        raise LoadError(f"{folder}: expected a folder with one sub-folder per class, got none of that name")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise LoadError(f"{folder}: expected one sub-folder per class, got no sub-folder")
    return folders


def images_in(folder: Path) -> list[Path]:
    """Return the images of one class, sorted by name, without other files."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())
    if not files:
        raise LoadError(f"{folder}: expected images of this class ({' '.join(sorted(ENDINGS))}), got none")
    return files


def dealt(groups: Iterable[Sequence[Path]]) -> tuple[tuple[Path, ...], Tensor]:
    """Take turns between groups of files, one file each, and label each file with the index of its group."""
    rounds = zip_longest(*groups)
    pairs = [(file, label) for turn in rounds for label, file in enumerate(turn) if file is not None]
    return tuple(file for file, _ in pairs), torch.tensor([label for _, label in pairs], dtype=torch.long)


def _common_mode(files: tuple[Path, ...], frame: Frame | None) -> str:
    """Return the mode of all images by their headers: "RGB" if any is in color, "L" if all are gray."""
    headers = {file: _header(file) for file in files}
    in_color = [file for file, (mode, _) in headers.items() if mode in COLOR]
    if in_color:
        _refuse_gray(headers, in_color[0])
    if frame is None:
        _refuse_other_sizes(headers)
    return "RGB" if in_color else "L"


Header = tuple[str, tuple[int, int]]


def _header(file: Path) -> Header:
    """Return mode and size of an image; raise LoadError if we cannot use it."""
    pillow = _pillow()
    try:
        with pillow.open(file) as image:
            mode, size, transparent = image.mode, image.size, image.has_transparency_data
    except (*UNREADABLE, pillow.DecompressionBombError) as error:
        raise _unreadable(file, error) from error
    if transparent:
        raise LoadError(
            f"{file}: expected RGB or gray, got mode {mode} with transparency: put it on a background first"
        )
    if mode not in COLOR + GRAY:
        raise LoadError(f"{file}: expected RGB or gray of 8 bits, got mode {mode}: convert it first")
    return mode, size


def _refuse_gray(headers: Mapping[Path, Header], example: Path) -> None:
    """Raise LoadError if a gray image is among those in color."""
    for file, (mode, _) in headers.items():
        if mode in GRAY:
            raise LoadError(f"{file}: expected RGB, as {example} and others here are, got mode {mode} (gray)")


def _refuse_other_sizes(headers: Mapping[Path, Header]) -> None:
    """Raise LoadError unless all images have one size."""
    example, (_, expected) = next(iter(headers.items()))
    for file, (_, size) in headers.items():
        if size != expected:
            raise LoadError(
                f"{file}: expected {expected[0]} x {expected[1]} pixels, as {example} has, got {size[0]} x {size[1]}; "
                f"read_folder(..., frame=Frame(resize, crop)) brings images to one size"
            )


def _framed(pillow: ModuleType, image: Any, frame: Frame | None) -> NDArray[np.uint8]:
    """Return the pixels, resized and cropped, of shape (rows, columns) or (rows, columns, channels)."""
    return np.array(image) if frame is None else FRAMES[frame.like](pillow, image, frame)


def _as_torchvision(pillow: ModuleType, image: Any, frame: Frame) -> NDArray[np.uint8]:
    """Resize and crop as torchvision's transforms Resize and CenterCrop do."""
    width, height = image.size
    short = min(width, height)
    size = (frame.resize * width // short, frame.resize * height // short)
    if size != (width, height):
        image = image.resize(size, pillow.Resampling.BILINEAR)
    left, top = (round((side - frame.crop) / 2) for side in size)
    return np.array(image.crop((left, top, left + frame.crop, top + frame.crop)))


def _as_tensorpack(pillow: ModuleType, image: Any, frame: Frame) -> NDArray[np.uint8]:
    """Resize and crop as tensorpack's transforms do."""
    width, height = image.size
    short = min(width, height)
    # The longer side is rounded to the nearest pixel, halves up; the position of the crop is rounded down.
    new_width, new_height = ((2 * frame.resize * side + short) // (2 * short) for side in (width, height))
    pixels = resized(np.array(image).reshape(height, width, -1), new_height, new_width)
    top, left = (new_height - frame.crop) // 2, (new_width - frame.crop) // 2
    return pixels[top : top + frame.crop, left : left + frame.crop]


Framing = Callable[[ModuleType, Any, Frame], NDArray[np.uint8]]
FRAMES: dict[str, Framing] = {"torchvision": _as_torchvision, "tensorpack": _as_tensorpack}


def resized(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize an image of shape (rows, columns, channels) as OpenCV's `INTER_CUBIC` does, to within one gray level.

    Each new pixel is the sum of 4 x 4 old ones, weighted by Keys' kernel with a = -3/4, without antialiasing. Beyond
    the border the outermost pixel is repeated. The arithmetic is in integers, so that all processors agree.
    """
    wide = _added(pixels[:, place] * weight[:, None] for place, weight in _neighbors(pixels.shape[1], width))
    sums = _added(wide[place] * weight[:, None, None] for place, weight in _neighbors(pixels.shape[0], height))
    half = 1 << (2 * BITS - 1)
    result: NDArray[np.uint8] = np.clip((sums + half) >> (2 * BITS), 0, 255).astype(np.uint8)
    return result


def _added(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Sum arrays in a fixed order."""
    return reduce(np.add, parts)


def _neighbors(old: int, new: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the four old neighbors of each of `new` pixels on a side of `old` pixels, and their weights in 1/2048.

    The center of pixel i is at i + 1/2 in both images: new pixel i is at ((2i + 1) old / new - 1) / 2 in the old one.
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
    """Evaluate the cubic convolution kernel of Keys (1981) at distances below 2."""
    near = ((SLOPE + 2) * distance - (SLOPE + 3)) * distance * distance + 1
    far = ((SLOPE * distance - 5 * SLOPE) * distance + 8 * SLOPE) * distance - 4 * SLOPE
    return np.where(distance <= 1, near, far)


def _unreadable(file: Path, error: Exception) -> LoadError:
    """Return the error for a file that Pillow cannot read."""
    return LoadError(f"{file}: unreadable: expected an image, got {type(error).__name__}: {error}")


def _pillow() -> ModuleType:
    """Import Pillow on first use."""
    return need("PIL.Image", extra="data", purpose="reading images from a folder")
