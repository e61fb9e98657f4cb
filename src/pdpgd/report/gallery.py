"""Pictures of samples: as they came, as they fool the model, and the difference; as many as the page has room for."""

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
from pdpgd.report.inputs import Excerpt, Shelf, Source
from pdpgd.runs import records
from pdpgd.runs.result import Evaluation

# Of all pictures of a page, as they are written into it.
BYTES = 4_000_000
# Of the cards of a norm, the part that each status other than fooled may have.
OTHERS = 10
# Of all norms and sources together.
CARDS = 480
# The ends of the scale of signed differences: what is darker, and what is lighter.
DARKER, LIGHTER = np.array([0, 114, 178]), np.array([213, 94, 0])


@dataclass(frozen=True)
class Card:
    """One sample in one norm."""

    source: str
    attack: str
    norm: str
    sample: int
    label: int
    label_name: str
    status: str
    before: str
    """What the model said, and how sure it was."""
    after: str
    distance: float
    distance_text: str
    fragile: bool
    pictures: tuple[str, ...]
    """As data addresses: input, adversarial, difference; only the input where no point was found."""
    factor: str
    """By which the difference is magnified."""
    width: int

    @property
    def order(self) -> float:
        """Hardest last; JSON and HTML have no infinity."""
        return 1e300 if np.isinf(self.distance) else self.distance


@dataclass(frozen=True)
class Gallery:
    cards: tuple[Card, ...]
    notes: tuple[str, ...]


def rows_of(sources: Sequence[Source], most: int) -> dict[int, dict[str, list[int]]]:
    """The rows of each run, by norm, whose pictures a gallery may show: at most so many a norm and source."""
    pictured = [(source.pictured(norm).runs[norm], norm) for source in sources for norm in source.norms]
    fewer = min(most, max(3, CARDS // max(1, len(pictured))))
    rows: dict[int, dict[str, list[int]]] = {}
    for run, norm in pictured if most else ():
        if not _no_image(run):
            rows.setdefault(id(run), {})[norm] = chosen(run, norm, fewer)
    return rows


def gallery_of(sources: Sequence[Source], shelf: Shelf, *, room: int = BYTES) -> Gallery:
    """The hardest and the easiest of each norm and source, and some between; fewer of each where they do not fit."""
    drawers, notes = [], []
    for source in sources:
        for norm in source.norms:
            run = source.pictured(norm).runs[norm]
            fault = _no_image(run) or _no_inputs(shelf.of(run))
            if fault:
                notes.append(f"{source.label} ({norm}): {fault}")
            else:
                drawers.append(_Drawer(source, norm, run, shelf.of(run)))
    cards: dict[tuple[int, int], Card] = {}
    for rank in range(max((len(drawer) for drawer in drawers), default=0)):
        for number, drawer in enumerate(drawers):
            if rank >= len(drawer):
                continue
            card = drawer.card(rank)
            room -= sum(len(picture) for picture in card.pictures)
            if room < 0:
                notes.append(f"Fewer pictures than asked for: {BYTES / 1e6:.0f} MB are what a page has room for.")
                return Gallery(_in_order(cards), tuple(notes))
            cards[number, rank] = card
    return Gallery(_in_order(cards), tuple(notes))


def chosen(evaluation: Evaluation, norm: str, most: int) -> list[int]:
    """Rows to show, so that the first few are as well spread as all: easiest, hardest, then between these."""
    distances, status = evaluation.distances(norm), evaluation.column("status", norm)
    order = np.lexsort((evaluation.column("sample", norm), distances))
    by_status = {name: [row for row in order.tolist() if status[row] == name] for name in records.STATUSES}
    others = [
        row
        for name in (records.NOT_FOOLED, records.UNVERIFIED, records.INITIALLY_WRONG)
        for row in by_status[name][: max(1, most // OTHERS)]
    ]
    fooled = by_status[records.FOOLED]
    kept = min(len(fooled), max(1, most - len(others)))
    places: list[int] = np.unique(np.linspace(0, len(fooled) - 1, kept).round().astype(int)).tolist() if fooled else []
    spread = [fooled[place] for place in places]
    return [*(spread[place] for place in _from_coarse_to_fine(len(spread))), *others][:most]


class _Drawer:
    """The cards of a norm of a source, made one by one."""

    def __init__(self, source: Source, norm: str, evaluation: Evaluation, kept: Excerpt) -> None:
        self.source, self.norm, self.evaluation = source, norm, evaluation
        self._pixels = {row: pair for (of, row), pair in kept.pixels.items() if of == norm}
        self._rows = [row for row in kept.wanted.get(norm, ()) if row in self._pixels]

    def __len__(self) -> int:
        return len(self._rows)

    def card(self, rank: int) -> Card:
        row = self._rows[rank]
        value = {name: self.evaluation.column(name, self.norm)[row] for name in NEEDED}
        fooled = value["status"] == records.FOOLED
        before, point = self._pixels[row]
        delta = point.astype(np.float64) - before
        factor = _factor(delta)
        pictures = [_address(_bytes(before))]
        if fooled:
            pictures += [_address(_bytes(point)), _address(_difference(delta, factor))]
        return Card(
            source=self.source.label,
            attack=str(self.evaluation.spec.attack),
            norm=self.norm,
            sample=int(value["sample"]),
            label=int(value["label"]),
            label_name=class_name(self.source.classes, int(value["label"])),
            status=str(value["status"]),
            before=self._said(value["input_prediction"], value["input_confidence"]),
            after=self._said(value["prediction"], value["confidence"]) if fooled else "",
            distance=float(value["distance"]),
            distance_text=wording.change(float(value["distance"]), self.norm),
            fragile=bool(value["fragile"]) and fooled,
            pictures=tuple(pictures),
            factor=f"{factor:g}",
            width=before.shape[-1],
        )

    def _said(self, prediction: int, confidence: float) -> str:
        if prediction < 0:
            return "unknown"
        name = class_name(self.source.classes, int(prediction))
        return name if np.isnan(confidence) else f"{name} ({100 * confidence:.0f}%)"


NEEDED = (
    *("sample", "label", "status", "distance", "fragile"),
    *("input_prediction", "input_confidence", "prediction", "confidence"),
)


def class_name(classes: Sequence[str] | None, label: int) -> str:
    return str(classes[label]) if classes is not None and 0 <= label < len(classes) else str(label)


def _no_image(run: Evaluation) -> str | None:
    """Why its samples can have no pictures."""
    shape = list(run.spec.data["shape"])
    if len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3)):
        return None
    return f"no pictures, since samples of the shape {' by '.join(map(str, shape))} are not images of 1 or 3 channels"


def _no_inputs(kept: Excerpt) -> str | None:
    if kept.inputs:
        return None
    return "no pictures, since this run was made before the inputs were kept; run it again into another directory"


def _factor(delta: NDArray[Any]) -> float:
    """1, 2, 5, 10 ...: the largest that keeps the difference within the scale."""
    largest = float(np.abs(delta).max(initial=0.0))
    if largest == 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(1 / largest))
    return float(max(step * power for step in (1, 2, 5) if step * power * largest <= 1 + 1e-9))


def _difference(delta: NDArray[Any], factor: float) -> NDArray[Any]:
    """Signed: of one channel, blue where it is darker and orange where lighter; of three, around grey."""
    scaled = np.clip(factor * delta, -1, 1)
    if delta.ndim == 2 or len(delta) == 1:
        amount = np.abs(scaled.reshape(scaled.shape[-2:]))[..., None]
        end = np.where(scaled.reshape(scaled.shape[-2:])[..., None] < 0, DARKER, LIGHTER)
        signed: NDArray[Any] = np.round((1 - amount) * 255 + amount * end).astype(np.uint8)
        return signed
    return _bytes(0.5 + scaled / 2)


def _bytes(pixels: NDArray[Any]) -> NDArray[Any]:
    """As a picture file has them: 8 bits, channels last."""
    grey: NDArray[Any] = np.clip(np.round(255 * pixels.astype(np.float64)), 0, 255).astype(np.uint8)
    if grey.ndim == 2:
        return grey
    return grey[0] if len(grey) == 1 else grey.transpose(1, 2, 0)


def _address(pixels: NDArray[Any]) -> str:
    pillow = need("PIL.Image", extra="report", purpose="pictures in a report")
    buffer = io.BytesIO()
    pillow.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _from_coarse_to_fine(length: int) -> list[int]:
    """0 to length - 1, both ends first, then halves of what is between."""
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
    """The hardest of all norms first would be those of one norm: by norm, and hardest first in each."""
    return tuple(card for _, card in sorted(cards.items(), key=lambda entry: (entry[0][0], -entry[1].order)))
