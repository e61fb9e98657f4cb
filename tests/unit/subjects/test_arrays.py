from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pdpgd import errors
from pdpgd.subjects.arrays import read_npz

RNG_SEED = 5
PIXELS = np.random.default_rng(RNG_SEED).integers(0, 256, (4, 3, 6, 5)).astype(np.uint8)
LABELS = np.array([0, 2, 1, 2])


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1), PIXELS),
        (PIXELS[:, 0], PIXELS[:, :1]),
        (PIXELS[:, :1], PIXELS[:, :1]),
        (PIXELS[:, 0, :, :, np.newaxis], PIXELS[:, :1]),
    ],
    ids=["channels first", "channels last", "no channel", "one channel first", "one channel last"],
)
def test_every_layout_is_read_as_channels_first(images: np.ndarray, expected: np.ndarray, tmp_path: Path) -> None:
    samples = read_npz(saved(tmp_path, images=images, labels=LABELS))
    assert torch.equal(samples.pixels, torch.from_numpy(expected))
    assert (samples.name, samples.classes, samples.labels.tolist()) == ("mine", ("0", "1", "2"), LABELS.tolist())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_become_float32_and_keep_their_values(dtype: str, tmp_path: Path) -> None:
    images = (PIXELS / 256).astype(dtype)
    batch, labels = read_npz(saved(tmp_path, images=images, labels=LABELS.astype(np.uint8))).batch([1, 3])
    assert batch.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(batch, torch.from_numpy(PIXELS[[1, 3]]).float() / 256)


NAN = np.where(np.arange(120).reshape(4, 6, 5) == 70, np.nan, 0.5)


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (PIXELS.astype(np.int64), LABELS, "expected images as uint8 .* got int64"),
        (PIXELS[0, 0], LABELS, r"expected images of shape .* got \(6, 5\)"),
        (PIXELS[:, [0, 1]], LABELS, r"got \(4, 2, 6, 5\), which has neither"),
        (PIXELS[..., :3], LABELS, r"got \(4, 3, 6, 3\), which may be read both ways"),
        (PIXELS.astype(np.float32), LABELS, r"expected values in \[0, 1\] .* got 0 to 25\d"),
        (PIXELS / 256 - 0.5, LABELS, r"expected values in \[0, 1\] .* got -0.5 to"),
        (NAN, LABELS, r"expected values in \[0, 1\] .* samples \[2\]"),
        (PIXELS[:0], LABELS[:0], "expected images of shape"),
        (PIXELS, LABELS[:3], r"expected one label an image, got \(3,\) labels for 4 images"),
        (PIXELS, LABELS.astype(float), "expected labels as integers, got float64"),
        (PIXELS, LABELS[:, np.newaxis], r"expected labels of shape \(samples,\), got \(4, 1\)"),
        (PIXELS, LABELS - 1, r"expected labels 0 to 1, got \[-1\] for samples \[0\]"),
        (PIXELS, LABELS * 10**9, "expected labels 0 to 99999, got 2000000000"),
        (PIXELS.astype(object), LABELS, "refused: expected images as an array of numbers, got one of pickled objects"),
        (PIXELS, LABELS.astype(object), "refused: expected labels as an array of numbers"),
    ],
)
def test_each_wrong_array_has_its_own_complaint(
    images: np.ndarray, labels: np.ndarray, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(errors.SubjectError, match=complaint):
        read_npz(saved(tmp_path, images=images, labels=labels))


def test_a_missing_array_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(errors.SubjectError, match=r"got no images \(it has: x, labels\)"):
        read_npz(saved(tmp_path, x=PIXELS, labels=LABELS))
    with pytest.raises(errors.SubjectError, match=r"got no images and no labels \(it has: nothing\)"):
        read_npz(saved(tmp_path))


def test_what_is_no_zip_archive_is_told_from_a_broken_one(tmp_path: Path) -> None:
    path = saved(tmp_path, images=PIXELS, labels=LABELS)
    content = path.read_bytes()
    path.write_bytes(content[:-50])
    with pytest.raises(errors.SubjectError, match=r"corrupt: expected an .npz file"):
        read_npz(path)
    path.write_bytes(content.replace(PIXELS.tobytes()[:50], bytes(50)))
    with pytest.raises(errors.SubjectError, match=r"corrupt: expected an .npz file"):
        read_npz(path)
    np.save(tmp_path / "one.npy", PIXELS)
    for other in (b"", b"text", (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(other)
        with pytest.raises(errors.SubjectError, match=r"expected an .npz file .* got a file that starts with"):
            read_npz(path)
