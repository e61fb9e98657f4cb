from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from pdpgd import Evaluation
from pdpgd.report.gallery import BYTES, Gallery, chosen, gallery_of, rows_of
from pdpgd.report.inputs import ExamplesByRun, ReportedModel, model_of_run

SPREAD = [0.0, *np.linspace(0.1, 0.5, 11), np.inf, np.inf]


def pixels(address: str) -> np.ndarray:
    head, _, content = address.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def gallery(model: ReportedModel, most: int, *, room: int = BYTES) -> Gallery:
    return gallery_of([model], ExamplesByRun(model.runs, rows_of([model], most)), room=room)


@pytest.fixture
def model(evaluation: Evaluation) -> ReportedModel:
    return model_of_run(evaluation)


@pytest.mark.parametrize("most", [2, 4, 7, 14, 40])
def test_the_hardest_and_the_easiest_are_chosen_first(most: int, changed: Callable[..., Evaluation]) -> None:
    run = changed(distances={"linf": SPREAD})
    rows = chosen(run, "linf", most)
    assert len(rows) == len(set(rows)) <= most
    distances = np.array(SPREAD)[rows]
    assert distances[0] == 0.1
    assert most < 5 or distances[1] == 0.5
    if most >= 7:
        assert {"initially wrong", "fooled", "not fooled"} == set(run.column("status", "linf")[rows])


def test_the_first_few_are_spread_as_all_are(changed: Callable[..., Evaluation]) -> None:
    run = changed(distances={"linf": np.arange(1.0, 15.0)})
    distances = np.arange(1.0, 15.0)[chosen(run, "linf", 14)]
    assert distances[:3].tolist() == [1, 14, 7]
    assert sorted(distances) == list(range(1, 15))


def test_pictures_are_the_input_the_point_and_their_difference(model: ReportedModel, evaluation: Evaluation) -> None:
    inputs, points = evaluation.inputs(), evaluation.examples("linf")
    assert inputs is not None
    cards = [card for card in gallery(model, 40).cards if card.norm == "linf" and card.status == "fooled"]
    assert cards
    for card in cards:
        before, after, difference = map(pixels, card.pictures)
        image = inputs[card.sample].transpose(1, 2, 0)
        point = points[card.sample].transpose(1, 2, 0).astype(float)
        assert np.array_equal(before, np.round(255 * image))
        assert np.array_equal(after, np.round(255 * point))
        delta = float(card.factor) * (point - image)
        assert 0.4 <= np.abs(delta).max() <= 1 + 1e-6
        assert np.abs(difference / 255 - (0.5 + delta / 2)).max() <= 0.5 / 255 + 1e-6
        assert card.distance == evaluation.distances("linf")[card.sample]


def test_what_was_not_fooled_has_its_input_alone(changed: Callable[..., Evaluation]) -> None:
    cards = gallery(model_of_run(changed(distances={"linf": np.inf, "l0": 0.0})), 5).cards
    assert {card.status for card in cards} == {"not fooled", "initially wrong"}
    assert all(len(card.pictures) == 1 and not card.after for card in cards)


def test_every_norm_has_as_many_fewer_where_there_is_no_room(model: ReportedModel) -> None:
    every = gallery(model, 40)
    size = sum(len(picture) for card in every.cards for picture in card.pictures)
    some = gallery(model, 40, room=size // 3)
    assert sum(len(picture) for card in some.cards for picture in card.pictures) <= size // 3
    counts = [sum(card.norm == norm for card in some.cards) for norm in ("linf", "l0")]
    assert abs(counts[0] - counts[1]) <= 1
    assert min(counts) >= 2
    assert any("room" in note for note in some.notes)


def test_classes_have_their_names(changed: Callable[..., Evaluation]) -> None:
    names = ["ant", "bee", "cat", "dog", "elk"]
    cards = gallery(model_of_run(changed(data={"classes": names})), 40).cards
    assert {card.label_name for card in cards} <= set(names)
    assert all(card.after.split(" ")[0] in names for card in cards if card.status == "fooled")


def test_samples_that_are_no_images_are_said_to_have_no_pictures(changed: Callable[..., Evaluation]) -> None:
    found = gallery(model_of_run(changed(data={"shape": [108]})), 40)
    assert not found.cards
    assert "samples of the shape 108 are not images" in found.notes[0]


def test_a_run_that_did_not_keep_its_inputs_is_said_to_have_no_pictures(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = evaluation.store.examples
    monkeypatch.setattr(
        evaluation.store, "examples", lambda name: {key: each for key, each in stored(name).items() if key != "input"}
    )
    found = gallery(model_of_run(evaluation), 40)
    assert not found.cards
    assert "version that did not store the inputs" in found.notes[0]


def test_each_chunk_is_read_once_for_traces_and_pictures(
    evaluation: Evaluation, model: ReportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    stored = evaluation.store.examples
    monkeypatch.setattr(evaluation.store, "examples", lambda name: (read.append(name), stored(name))[1])
    examples = ExamplesByRun(model.runs, rows_of([model], 40))
    assert read == list(evaluation.chunks)
    for norm in evaluation.norms:
        expected, found = evaluation.trace(norm), examples.of(evaluation).traces[norm]
        assert expected is not None
        assert found is not None
        assert np.array_equal(found.distances, expected.distances, equal_nan=True)
