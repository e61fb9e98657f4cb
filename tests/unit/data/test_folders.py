"""Folders of images: what is found, read, framed and rejected, and the cubic interpolation of a frame.

The interpolation is compared with the formula, pixel by pixel, and with torch's, which has the same kernel.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from pdpgd import errors
from pdpgd.data import folders
from pdpgd.data.folders import BITS, Frame, read_folder, resized


def save(path: Path, mode: str = "RGB", size: tuple[int, int] = (4, 3), value: int = 0) -> Path:
    """Save an image of `mode` whose pixels depend on `value`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[1], size[0]) + value
    Image.fromarray(np.stack([levels, levels + 60, levels + 120], axis=2)).convert(mode).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with two dogs and a cat, and with files that are not images."""
    for name, value in (("dog/1.png", 0), ("dog/2.PNG", 20), ("cat/1.bmp", 40)):
        save(tmp_path / "pets" / name, value=value)
    (tmp_path / "pets" / "dog" / "notes.txt").write_text("good dogs")
    (tmp_path / "pets" / ".thumbnails").mkdir()
    return tmp_path / "pets"


def test_the_first_of_every_class_comes_before_the_second_of_any(tmp_path: Path) -> None:
    for name in ("a/1", "a/2", "a/3", "b/1", "c/1", "c/2"):
        save(tmp_path / f"{name}.png")
    samples = read_folder(tmp_path)
    assert samples.labels.tolist() == [0, 1, 2, 0, 2, 0]
    assert [file.stem for file in samples.files] == ["1", "1", "1", "2", "2", "3"]


def test_classes_are_sorted_and_what_is_no_image_is_passed_over(folder: Path) -> None:
    samples = read_folder(folder)
    assert (samples.name, samples.classes, len(samples)) == ("pets", ("cat", "dog"), 3)
    assert [file.name for file in samples.files] == ["1.bmp", "1.png", "2.PNG"]
    assert samples.labels.tolist() == [0, 1, 1]


def test_a_batch_holds_the_pixels_of_the_rows_it_was_asked_for(folder: Path) -> None:
    images, labels = read_folder(folder).batch(torch.tensor([2, 0]))
    assert images.shape == (2, 3, 3, 4)
    assert images.dtype == torch.float32
    assert labels.tolist() == [1, 0]
    expected = torch.arange(12).reshape(3, 4) + torch.tensor([[[20]], [[80]], [[140]]])
    assert torch.equal(images[0], expected.float() / 255)


def test_the_first_samples_are_a_smaller_set(folder: Path) -> None:
    samples = read_folder(folder).first(2)
    assert len(samples) == 2
    assert samples.labels.tolist() == [0, 1]


def test_only_gray_images_have_one_channel(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", "L")
    save(tmp_path / "b" / "1.png", "1")
    images, _ = read_folder(tmp_path).batch([0, 1])
    assert images.shape == (2, 1, 3, 4)


def test_a_palette_is_read_as_the_colors_it_stands_for(tmp_path: Path) -> None:
    color = save(tmp_path / "a" / "1.png", "RGB")
    with Image.open(color) as image:
        image.quantize(256).save(tmp_path / "a" / "2.png")
    images, _ = read_folder(tmp_path).batch([0, 1])
    assert torch.allclose(images[0], images[1], atol=8 / 255)


@pytest.mark.parametrize("mode", ["L", "1"])
def test_a_gray_png_among_color_ones_is_named(folder: Path, mode: str) -> None:
    save(folder / "dog" / "3.png", mode)
    with pytest.raises(errors.LoadError, match=rf"3\.png: expected RGB, as .* got mode {mode} \(gray\)"):
        read_folder(folder)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_refused(folder: Path, mode: str) -> None:
    save(folder / "dog" / "3.png", mode)
    with pytest.raises(errors.LoadError, match=rf"3\.png: expected RGB or gray, got mode {mode} with transparency"):
        read_folder(folder)


@pytest.mark.parametrize(("mode", "ending"), [("CMYK", "jpg"), ("I;16", "png")])
def test_modes_that_are_neither_rgb_nor_gray_are_refused(folder: Path, mode: str, ending: str) -> None:
    path = folder / "dog" / f"3.{ending}"
    Image.new(mode, (4, 3)).save(path)
    with pytest.raises(errors.LoadError, match=rf"3\.{ending}: expected RGB or gray of 8 bits, got mode {mode}"):
        read_folder(folder)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.LoadError, match="nowhere: expected a folder"):
        read_folder(tmp_path / "nowhere")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.LoadError, match="expected one sub-folder per class, got no sub-folder"):
        read_folder(tmp_path)


def test_a_class_without_images_is_named(folder: Path) -> None:
    (folder / "mouse").mkdir()
    with pytest.raises(errors.LoadError, match=r"mouse: expected images of this class .* got none"):
        read_folder(folder)


def test_a_file_that_is_no_image_is_found_at_once(folder: Path) -> None:
    (folder / "dog" / "3.png").write_bytes(b"no image")
    with pytest.raises(errors.LoadError, match=r"3\.png: unreadable: expected an image"):
        read_folder(folder)


def test_half_an_image_is_found_when_it_is_read(tmp_path: Path) -> None:
    whole = save(tmp_path / "a" / "1.png", size=(64, 64)).read_bytes()
    (tmp_path / "a" / "2.png").write_bytes(whole[: len(whole) // 2])
    samples = read_folder(tmp_path)
    samples.batch([0])
    with pytest.raises(errors.LoadError, match=r"2\.png: unreadable: expected an image"):
        samples.batch([1])


def test_images_of_two_sizes_need_a_frame(folder: Path) -> None:
    save(folder / "dog" / "3.png", size=(8, 5))
    with pytest.raises(errors.LoadError, match=r"3\.png: expected 4 x 3 pixels, as .*1\.bmp has, got 8 x 5"):
        read_folder(folder)
    images, _ = read_folder(folder, frame=Frame(resize=3, crop=2)).batch(range(4))
    assert images.shape == (4, 3, 2, 2)


@pytest.mark.parametrize("size", [(9, 6), (6, 9), (6, 6)])
def test_a_frame_that_needs_no_resize_keeps_the_middle(tmp_path: Path, size: tuple[int, int]) -> None:
    save(tmp_path / "a" / "1.png", size=size)
    whole, _ = read_folder(tmp_path).batch([0])
    framed, _ = read_folder(tmp_path, frame=Frame(resize=6, crop=4)).batch([0])
    # Half a pixel is rounded to the even side, as torchvision does: (9 - 4) / 2 is 2.
    top, left = ((2 if side == 9 else 1) for side in (size[1], size[0]))
    assert torch.equal(framed, whole[:, :, top : top + 4, left : left + 4])


def test_a_frame_makes_the_shorter_side_as_long_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a" / "1.png"
    path.parent.mkdir()
    half = np.zeros((16, 40, 3), dtype=np.uint8)
    half[:, 20:] = 200
    Image.fromarray(half).save(path)
    images, _ = read_folder(tmp_path, frame=Frame(resize=8, crop=8)).batch([0])
    assert images.shape == (1, 3, 8, 8)
    # 40 x 16 becomes 20 x 8, cropped to columns 6 to 13: the edge in the middle stays in the middle.
    assert images[..., :3].max() == 0
    assert images[..., 5:].min() == pytest.approx(200 / 255)


def test_a_frame_like_tensorpack_rounds_the_longer_side_to_the_nearest_and_the_place_of_the_crop_down(
    tmp_path: Path,
) -> None:
    # The sides 10 x 13 become 6 x 7.8, so 8; the middle 5 begins at (0.5, 1.5), so at (0, 1).
    path = save(tmp_path / "a" / "1.png", size=(13, 10))
    images, _ = read_folder(tmp_path, frame=Frame(resize=6, crop=5, like="tensorpack")).batch([0])
    whole = folders.resized(np.array(Image.open(path)), 6, 8)
    assert torch.equal(images[0], torch.from_numpy(whole[0:5, 1:6]).permute(2, 0, 1).float() / 255)


def test_a_frame_like_tensorpack_takes_gray_images(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", mode="L", size=(13, 10))
    images, _ = read_folder(tmp_path, frame=Frame(resize=6, crop=5, like="tensorpack")).batch([0])
    assert images.shape == (1, 1, 5, 5)


def test_a_frame_like_nothing_known_is_refused() -> None:
    with pytest.raises(errors.UnknownNameError, match=r"unknown frame: .*did you mean 'torchvision'"):
        Frame(resize=6, crop=5, like="torch-vision")


@pytest.mark.parametrize(("resize", "crop"), [(4, 5), (4, 0)])
def test_a_frame_that_cannot_be_is_refused(resize: int, crop: int) -> None:
    with pytest.raises(errors.InvalidInputError, match="expected 1 <= crop <= resize"):
        Frame(resize=resize, crop=crop)


SIZES = [((9, 12), (6, 8)), ((7, 5), (3, 11)), ((4, 6), (9, 4)), ((1, 3), (2, 5))]
# The absolute values of the four weights of a pixel sum to at most 1.375, and each is rounded by at most 1/4096.
WEIGHTS, OFF = 1.375, 4 * 0.5 / (1 << BITS)
TOLERANCE = 255 * ((WEIGHTS + OFF) ** 2 - WEIGHTS**2) + 0.5


def image(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def weight(distance: float) -> float:
    """Keys' kernel with a = -3/4."""
    a, t = -0.75, abs(distance)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def by_hand(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float64]:
    rows, columns, channels = pixels.shape
    result = np.zeros((height, width, channels))
    for y in range(height):
        for x in range(width):
            row, column = (y + 0.5) * rows / height - 0.5, (x + 0.5) * columns / width - 0.5
            for i in range(math.floor(row) - 1, math.floor(row) + 3):
                for j in range(math.floor(column) - 1, math.floor(column) + 3):
                    pixel = pixels[min(max(i, 0), rows - 1), min(max(j, 0), columns - 1)]
                    result[y, x] += weight(row - i) * weight(column - j) * pixel
    return result.clip(0, 255)


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_each_pixel_is_the_weighted_sum_of_its_sixteen_neighbors(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = image(*old)
    found = resized(pixels, *new)
    assert found.dtype == np.uint8
    assert found.shape == (*new, 3)
    assert np.abs(found - by_hand(pixels, *new)).max() <= TOLERANCE


@pytest.mark.parametrize(("old", "new"), [*SIZES, ((375, 500), (256, 341))])
def test_it_is_torchs_bicubic_without_antialiasing(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = image(*old)
    planes = torch.from_numpy(pixels).double().permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(planes, new, mode="bicubic", align_corners=False)[0].clamp(0, 255)
    assert np.abs(resized(pixels, *new) - theirs.permute(1, 2, 0).numpy()).max() <= TOLERANCE


def test_an_image_of_that_size_stays_as_it_is_and_a_flat_one_flat() -> None:
    pixels = image(6, 7)
    assert np.array_equal(resized(pixels, 6, 7), pixels)
    for level in (0, 1, 128, 255):
        flat = np.full((9, 12, 3), level, dtype=np.uint8)
        assert np.array_equal(resized(flat, 5, 7), np.full((5, 7, 3), level))
