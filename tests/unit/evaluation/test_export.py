from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator

from pdpgd import Evaluation, evaluate
from pdpgd.errors import InvalidInputError, StorageError, UnknownNameError
from pdpgd.evaluation.export import export
from support.models import Stubborn, TinyConv


@pytest.fixture
def model(generator: Generator) -> TinyConv:
    return TinyConv(generator)


@pytest.fixture
def evaluation(model: TinyConv, generator: Generator) -> Evaluation:
    images = torch.randint(0, 256, (8, 3, 6, 6), generator=generator, dtype=torch.uint8)
    labels = model(images.float() / 255).argmax(1)
    labels[0] = (labels[0] + 1) % 5  # wrong to begin with
    return evaluate(model, (images, labels), norms=["linf", "l0"], budget=60, chunk_size=4)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "index.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_picture_is_still_adversarial_when_it_is_read_back(
    evaluation: Evaluation, model: TinyConv, tmp_path: Path
) -> None:
    count = export(evaluation, tmp_path / "pictures")
    found = rows(tmp_path / "pictures")
    assert len(found) == count == 14
    for row in found:
        with Image.open(tmp_path / "pictures" / row["file"]) as picture:
            pixels = np.asarray(picture, dtype=np.float32) / 255
        answer = int(model(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]).argmax())
        assert answer == int(row["prediction"]) != int(row["label"])
        assert float(row["distance"]) > 0
    assert {row["norm"] for row in found} == {"linf", "l0"}
    assert "0" not in {row["sample"] for row in found}, "what was wrong to begin with is no adversarial example"


def test_norms_and_number_can_be_chosen(evaluation: Evaluation, tmp_path: Path) -> None:
    assert export(evaluation, tmp_path, norms=("l0",), limit=3) == 3
    assert [row["norm"] for row in rows(tmp_path)] == ["l0"] * 3


def test_what_cannot_be_exported_is_refused(evaluation: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="norm of this run"):
        export(evaluation, tmp_path, norms=("l2",))
    with pytest.raises(InvalidInputError, match="limit: expected an integer >= 1, got 0"):
        export(evaluation, tmp_path, limit=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="expected a directory to write the results to"):
        export(evaluation, tmp_path / "file" / "below")


def test_a_run_without_adversarial_examples_gives_no_files_and_says_so(tmp_path: Path) -> None:
    images, labels = torch.zeros(2, 3, 6, 6), torch.zeros(2, dtype=torch.long)
    evaluation = evaluate(Stubborn(), (images, labels), norms=["linf"], budget=20)
    with pytest.raises(InvalidInputError, match="expected adversarial examples in linf, verified at 8 bits, got none"):
        export(evaluation, tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()
