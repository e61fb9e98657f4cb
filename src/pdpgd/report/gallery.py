"""The gallery: pictures of inputs, adversarial examples and their difference, as many as the page has room for."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import need
from pdpgd.report import wording
from pdpgd.report.inputs import ExamplesByRun, ReportedModel, RunExamples
from pdpgd.runs import records
from pdpgd.runs.result import Evaluation

# Most bytes of all pictures of a page, in the form in which they are written into it.
BYTES = 4_000_000
# One in this many cards of a norm may be of each status other than fooled.
OTHERS = 10
# Most cards of all norms and models together.
CARDS = 480
# Colors of the largest negative (darker) and positive (lighter) difference.
DARKER, LIGHTER = np.array([0, 114, 178]), np.array([213, 94, 0])


@dataclass(frozen=True)
class Card:
    """One sample in one norm, with its pictures."""

    model: str
    attack: str
    norm: str
    sample: int
    label: int
    label_name: str
    status: str
    before: str
    """Predicted class of the input, with its confidence."""
    after: str
    """The same for the adversarial example; empty if there is none."""
    distance: float
    distance_text: str
    fragile: bool
    pictures: tuple[str, ...]
    """Data URLs of input, adversarial example and difference; only the input if no adversarial example was found."""
    factor: str
    """Factor by which the difference is magnified."""
    width: int

    @property
    def order(self) -> float:
        """The distance as a finite number, to sort by in HTML."""
        return 1e300 if np.isinf(self.distance) else self.distance


@dataclass(frozen=True)
class Gallery:
    """The cards of a page, and notes on what it does not show."""

    cards: tuple[Card, ...]
    notes: tuple[str, ...]


def rows_of(models: Sequence[ReportedModel], most: int) -> dict[int, dict[str, list[int]]]:
    """Choose the rows (samples) of each run whose pictures the gallery may show.

    Args:
        models: The models of the page.
        most: Largest number of rows per norm and model.

    Returns:
        Rows by norm, by the id of their run.
    """
    pictured = [(model.pictured(norm).runs[norm], norm) for model in models for norm in model.norms]
    fewer = min(most, max(3, CARDS // max(1, len(pictured))))
    rows: dict[int, dict[str, list[int]]] = {}
    for run, norm in pictured if most else ():
        if not _no_image(run):
            rows.setdefault(id(run), {})[norm] = chosen(run, norm, fewer)
    return rows


def gallery_of(models: Sequence[ReportedModel], examples: ExamplesByRun, *, room: int = BYTES) -> Gallery:
    """Build the cards of all norms and models, equally fewer of each if they exceed `room` bytes."""
    decks, notes = [], []
    for model in models:
        for norm in model.norms:
            run = model.pictured(norm).runs[norm]
            fault = _no_image(run) or _no_inputs(examples.of(run))
            if fault:
                notes.append(f"{model.label} ({norm}): {fault}")
            else:
                decks.append(_Deck(model, norm, run, examples.of(run)))
    cards: dict[tuple[int, int], Card] = {}
    for rank in range(max((len(deck) for deck in decks), default=0)):
        for number, deck in enumerate(decks):
            if rank >= len(deck):
                continue
            card = deck.card(rank)
            room -= sum(len(picture) for picture in card.pictures)
            if room < 0:
                notes.append(f"Fewer pictures than requested: a page has room for {BYTES / 1e6:.0f} MB of them.")
                return Gallery(_in_order(cards), tuple(notes))
            cards[number, rank] = card
    return Gallery(_in_order(cards), tuple(notes))


def chosen(evaluation: Evaluation, norm: str, most: int) -> list[int]:
    """Choose rows to show: easiest, hardest, then ever finer steps between, so that any first few are spread out."""
    distances, status = evaluation.distances(norm), evaluation.column("status", norm)
    order = np.lexsort((evaluation.column("sample", norm), distances))
    by_status = {name: [row for row in order.tolist() if status[row] == name] for name in records.STATUSES}
    others = [
        row
        for name in (records.NOT_FOOLED, records.UNVERIFIED, records.INITIALLY_WRONG)
        for row in by_status[name][: max(1, most // OTHERS)]
    ]
    fooled = by_status[records.FOOLED]
    count = min(len(fooled), max(1, most - len(others)))
    places: list[int] = np.unique(np.linspace(0, len(fooled) - 1, count).round().astype(int)).tolist() if fooled else []
    spread = [fooled[place] for place in places]
    return [*(spread[place] for place in _from_coarse_to_fine(len(spread))), *others][:most]


class _Deck:
    """The cards of one norm of a model, built one by one."""

    def __init__(self, model: ReportedModel, norm: str, evaluation: Evaluation, examples: RunExamples) -> None:
        self.model, self.norm, self.evaluation = model, norm, evaluation
        self._pixels = {row: pair for (of, row), pair in examples.pixels.items() if of == norm}
        self._rows = [row for row in examples.rows.get(norm, ()) if row in self._pixels]

    def __len__(self) -> int:
        return len(self._rows)

    def card(self, rank: int) -> Card:
        row = self._rows[rank]
        value = {name: self.evaluation.column(name, self.norm)[row] for name in NEEDED}
        fooled = value["status"] == records.FOOLED
        before, point = self._pixels[row]
        delta = point.astype(np.float64) - before
        factor = _factor(delta)
        pictures = [_data_url(_bytes(before))]
        if fooled:
            pictures += [_data_url(_bytes(point)), _data_url(_difference(delta, factor))]
        return Card(
            model=self.model.label,
            attack=str(self.evaluation.spec.attack),
            norm=self.norm,
            sample=int(value["sample"]),
            label=int(value["label"]),
            label_name=class_name(self.model.classes, int(value["label"])),
            status=str(value["status"]),
            before=self._prediction(value["input_prediction"], value["input_confidence"]),
            after=self._prediction(value["prediction"], value["confidence"]) if fooled else "",
            distance=float(value["distance"]),
            distance_text=wording.size_in_words(float(value["distance"]), self.norm),
            fragile=bool(value["fragile"]) and fooled,
            pictures=tuple(pictures),
            factor=f"{factor:g}",
            width=before.shape[-1],
        )

    def _prediction(self, prediction: int, confidence: float) -> str:
        if prediction < 0:
            return "unknown"
        name = class_name(self.model.classes, int(prediction))
        return name if np.isnan(confidence) else f"{name} ({100 * confidence:.0f}%)"


NEEDED = (
    *("sample", "label", "status", "distance", "fragile"),
    *("input_prediction", "input_confidence", "prediction", "confidence"),
)


def class_name(classes: Sequence[str] | None, label: int) -> str:
    """The name of a class, or its number if it has no name."""
    return str(classes[label]) if classes is not None and 0 <= label < len(classes) else str(label)


def _no_image(run: Evaluation) -> str | None:
    """Why the samples of a run cannot be shown as pictures; None if they can."""
    shape = list(run.spec.data["shape"])
    if len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3)):
        return None
    return f"no pictures, since samples of the shape {' by '.join(map(str, shape))} are not images with 1 or 3 channels"


def _no_inputs(examples: RunExamples) -> str | None:
    if examples.has_inputs:
        return None
    return (
        "no pictures, since this run is from a version that did not store the inputs; run it again in another directory"
    )


def _factor(delta: NDArray[Any]) -> float:
    """The largest of 1, 2, 5, 10 ... that keeps the magnified difference within the scale."""
    largest = float(np.abs(delta).max(initial=0.0))
    if largest == 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(1 / largest))
    return float(max(step * power for step in (1, 2, 5) if step * power * largest <= 1 + 1e-9))


def _difference(delta: NDArray[Any], factor: float) -> NDArray[Any]:
    """Picture of a signed difference: blue (darker) and orange (lighter) for one channel, around gray for three."""
    scaled = np.clip(factor * delta, -1, 1)
    if delta.ndim == 2 or len(delta) == 1:
        amount = np.abs(scaled.reshape(scaled.shape[-2:]))[..., None]
        end = np.where(scaled.reshape(scaled.shape[-2:])[..., None] < 0, DARKER, LIGHTER)
        signed: NDArray[Any] = np.round((1 - amount) * 255 + amount * end).astype(np.uint8)
        return signed
    return _bytes(0.5 + scaled / 2)


def _bytes(pixels: NDArray[Any]) -> NDArray[Any]:
    """Quantize pixels to 8 bits, with channels last, as picture files have them."""
    levels: NDArray[Any] = np.clip(np.round(255 * pixels.astype(np.float64)), 0, 255).astype(np.uint8)
    if levels.ndim == 2:
        return levels
    return levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0)


def _data_url(pixels: NDArray[Any]) -> str:
    pillow = need("PIL.Image", extra="report", purpose="pictures in a report")
    buffer = io.BytesIO()
    pillow.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _from_coarse_to_fine(length: int) -> list[int]:
    """Order the numbers 0 to length - 1: both ends first, then the middles of ever smaller gaps."""
    if length < 3:
        return list(range(length))
    order = [0, length - 1]
    gaps = [(0, length - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


def _in_order(cards: dict[tuple[int, int], Card]) -> tuple[Card, ...]:
    """Order cards by norm, hardest first in each: distances of different norms are not comparable."""
    return tuple(card for _, card in sorted(cards.items(), key=lambda entry: (entry[0][0], -entry[1].order)))
