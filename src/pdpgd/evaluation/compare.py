"""Settings by selection from a grid, as the paper made them: on samples apart from those that are reported."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdpgd import catalogue
from pdpgd.attacks.config import MODEL_KINDS, PAPER_RADII, START_RADIUS, paper_case
from pdpgd.data.dataset import SampleRange, Samples
from pdpgd.errors import AttackError, InvalidInputError, MissingExtraError, NoGradientError, UnfinishedError
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.evaluation.model_handle import samples_of
from pdpgd.files import check_file, output_path, replace_file, sealed
from pdpgd.progress import ProgressListener, Retitled
from pdpgd.runs import metrics
from pdpgd.runs.comparison import Comparison, Row
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import AttackSpec

Run = Callable[[str, Samples, Mapping[str, Any], Path | None], Evaluation]
"""(what it is, samples, settings, directory) -> what came of it."""


def tuned(
    name: str, norm: str, settings: dict[str, Any], samples: Samples, place: Path | None, run: Run
) -> dict[str, Any]:
    """The settings with the best choice of the attack's grid; as they are if there is nothing to choose.

    An attack within given radii has its own choice at each of them.
    """
    choices = catalogue.entry_of(name).combinations(norm)
    folder = None if place is None else place.with_name(f"{place.name}-tuning")
    trials = [
        run(
            f"{norm} {name}, settings {number + 1} of {len(choices)}",
            samples,
            {**settings, **choice},
            None if folder is None else folder / f"{number:02d}",
        )
        for number, choice in enumerate(choices)
    ]
    return selected(norm, settings, choices, trials)


def selected(
    norm: str, settings: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], trials: Sequence[Evaluation]
) -> dict[str, Any]:
    """The settings with the choice whose trial came out best."""
    if not choices:
        return dict(settings)
    if "radii" in settings:
        best = [_strongest(trials, norm, radius) for radius in settings["radii"]]
        return {**settings, "per_radius": [choices[number] for number in best]}
    return {**settings, **choices[_smallest(trials, norm)]}


def _strongest(trials: Sequence[Evaluation], norm: str, radius: float) -> int:
    """The trial that leaves the least robust accuracy; of equals the first."""
    return int(np.argmin([metrics.robust_accuracy(trial.own_distances(norm), radius) for trial in trials]))


def _smallest(trials: Sequence[Evaluation], norm: str) -> int:
    """The trial that fools the most, and of these the one with the smallest mean."""

    def rank(number: int) -> tuple[int, float]:
        distances = trials[number].own_distances(norm)
        mean = metrics.mean(distances)
        return int(np.isinf(distances).sum()), math.inf if math.isnan(mean) else mean

    return min(range(len(trials)), key=rank)


NUMBERS = "comparison.json"
PRESETS = ("paper",)
# Where neither the user nor the paper gives radii: those at which the best of all attacks leaves these shares.
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
# Forward + backward passes, where none are given.
BUDGET = 1000
# Samples that settings are selected on.
TUNED_ON = 50


def compare(
    model: Any,
    data: Any,
    *,
    norms: Sequence[str],
    attacks: Sequence[str],
    budget: int | None = None,
    preset: str | None = None,
    radii: Mapping[str, Sequence[float]] | None = None,
    tune: bool = False,
    like: str | None = None,
    limit: int | None = None,
    out: str | Path | None = None,
    data_dir: str | None = None,
    progress: ProgressListener | None = None,
    **how: Any,
) -> Comparison:
    """Run the attacks on the same samples and compare what each of them finds on its own.

    An attack is a name of the catalogue, or NAME:RESTARTS. They get `budget` forward + backward passes a sample each
    (1000 if not given), or, with `preset="paper"`, the settings that the paper ran them with on the data set and the
    kind of model that `like` names ("mnist:linf-at"; taken from the names of model and data where these say it);
    attacks that the paper does not have get the budget then too. `tune`
    selects what the paper selected, from its grids, on the samples behind the first `limit` ones. `radii` are where
    robust accuracy is compared; attacks within a radius are then run at these, the smallest first. `how` goes to
    `evaluate`.

    An attack that fails is a row that says why; the others go on.
    """
    folder = None if out is None else output_path(out)
    if folder is not None:
        check_file(folder / NUMBERS)
    contenders = [AttackSpec.parse(text) for text in attacks]
    _check(contenders, norms, preset)
    whole = samples_of(data, limit=None, root=data_dir)
    count = len(whole) if limit is None else min(limit, len(whole))
    samples = whole.first(count)
    apart = _apart(whole, count) if tune else None
    case = _case(like, model, whole.name, required=preset is not None)
    thresholds = _thresholds(radii or {}, norms, case)
    entries = [
        _Entry(
            contender,
            norm,
            case if preset else None,
            budget,
            thresholds.get(norm),
            apart,
            folder,
            progress or ProgressListener(),
        )
        for norm in norms
        for contender in contenders
        if catalogue.entry_of(contender.name).can_do(norm)
    ]
    for entry in entries:
        entry.check()
    rows = [_run(entry, model, samples, how) for entry in entries]
    found = {norm: thresholds.get(norm) or _quantiles([row for row in rows if row.norm == norm]) for norm in norms}
    comparison = Comparison(tuple(rows), found, folder)
    if folder is not None and folder.is_dir():
        content = f"{json.dumps(sealed(comparison.as_json()), indent=1)}\n".encode()
        replace_file(folder / NUMBERS, content)
    return comparison


@dataclass(frozen=True)
class _Entry:
    """One attack in one norm, and what is asked of it."""

    contender: AttackSpec
    norm: str
    case: tuple[str, str] | None
    """Whose settings of the paper it gets; None: a budget."""
    passes: int | None
    radii: tuple[float, ...] | None
    apart: Samples | None
    folder: Path | None
    progress: ProgressListener

    @property
    def place(self) -> Path | None:
        return None if self.folder is None else self.folder / self.norm / self.contender.label.replace(":", "-")

    @property
    def as_in_paper(self) -> bool:
        return self.case is not None and catalogue.entry_of(self.contender.name).in_paper

    @property
    def budget(self) -> int | None:
        if self.as_in_paper:
            return None
        return BUDGET if self.passes is None else self.passes

    def check(self) -> None:
        """Refuse, before anything runs, what the attack cannot do."""
        try:
            settings = self.with_restarts(self.settings())
            catalogue.prepared(self.contender.name, self.norm, budget=self.budget, settings=settings, max_batch=1)
        except MissingExtraError:
            pass  # a row that says so

    def with_restarts(self, settings: dict[str, Any]) -> dict[str, Any]:
        restarts = self.contender.restarts
        return settings if restarts is None else {**settings, "restarts": restarts}

    def settings(self) -> dict[str, Any]:
        """Before any selection."""
        settings: dict[str, Any] = {}
        if self.as_in_paper:
            assert self.case is not None
            dataset, kind = self.case
            restarts = self.contender.restarts or 1
            settings = catalogue.paper_settings(self.contender.name, dataset, self.norm, kind, restarts=restarts)
        if catalogue.entry_of(self.contender.name).is_ball and self.radii is not None:
            settings["radii"] = list(self.radii)
        return settings


def _run(entry: _Entry, model: Any, samples: Samples, how: Mapping[str, Any]) -> Row:
    contender, norm = entry.contender, entry.norm

    def run(what: str, part: Samples, settings: Mapping[str, Any], out: Path | None) -> Evaluation:
        return evaluate(
            model,
            part,
            norms=(norm,),
            attack=contender.name,
            budget=entry.budget,
            settings=settings,
            checks=False,
            out=out,
            progress=Retitled(entry.progress, what),
            **how,
        )

    try:
        settings = entry.settings()
        if entry.apart is not None:
            settings = tuned(contender.name, norm, settings, entry.apart, entry.place, run)
        evaluation = run(f"{norm} {contender.label}", samples, entry.with_restarts(settings), entry.place)
    except (MissingExtraError, AttackError, NoGradientError, UnfinishedError) as error:
        return Row(contender, norm, None, str(error))
    return Row(contender, norm, evaluation, None)


def _check(contenders: Sequence[AttackSpec], norms: Sequence[str], preset: str | None) -> None:
    if not contenders:
        raise InvalidInputError("attacks: expected at least one, got none")
    labels = [contender.label for contender in contenders]
    if len(set(labels)) < len(labels):
        raise InvalidInputError(f"attacks: expected each one once, got {', '.join(labels)}")
    if preset is not None and preset not in PRESETS:
        raise InvalidInputError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    if not norms or len(set(norms)) < len(norms):
        raise InvalidInputError(f"norms: expected at least one, and each one once, got {', '.join(norms) or 'none'}")
    for norm in norms:
        if not any(catalogue.entry_of(contender.name).can_do(norm) for contender in contenders):
            raise InvalidInputError(f"attacks: expected one that can do {norm}, got {', '.join(labels)}")


def _apart(whole: Samples, count: int) -> Samples:
    if len(whole) <= count:
        raise InvalidInputError(
            f"tune: expected samples behind the first {count}, to select settings on, got {len(whole)} in all; "
            "take a smaller limit"
        )
    return SampleRange(whole, count, min(len(whole), count + TUNED_ON))


def _case(like: str | None, model: object, data: str, *, required: bool) -> tuple[str, str] | None:
    """The data set and the kind of model that the paper has settings and radii for."""
    if like is not None:
        dataset, _, kind = like.partition(":")
        if dataset not in START_RADIUS or kind not in MODEL_KINDS:
            raise InvalidInputError(
                f"like: expected DATASET:KIND, with one of {', '.join(START_RADIUS)} and one of "
                f"{', '.join(MODEL_KINDS)}, got {like!r}"
            )
        return dataset, kind
    name = model if isinstance(model, str) else ""
    case = paper_case(name, data)
    if case is None and required:
        raise InvalidInputError(
            f"like: expected DATASET:KIND such as mnist:plain, to know which of the paper's settings to take for "
            f"{name or 'the model'} on {data}, got nothing"
        )
    return case


def _thresholds(
    radii: Mapping[str, Sequence[float]], norms: Sequence[str], case: tuple[str, str] | None
) -> dict[str, tuple[float, ...]]:
    """Those that are known before the run."""
    unasked = sorted(set(radii) - set(norms))
    if unasked:
        raise InvalidInputError(f"radii: expected norms of the comparison, {', '.join(norms)}, got {unasked[0]!r}")
    found: dict[str, tuple[float, ...]] = {}
    for norm in norms:
        given = tuple(sorted({float(radius) for radius in radii.get(norm, ())}))
        if given and not 0 < given[0] <= given[-1] < np.inf:
            raise InvalidInputError(f"radii: expected numbers above 0, got {', '.join(map(str, given))}")
        if not given and case is not None:
            given = PAPER_RADII.get((case[0], norm, case[1]), ())
        if given:
            found[norm] = given
    return found


def _quantiles(rows: Sequence[Row]) -> tuple[float, ...]:
    """Radii that tell the attacks apart, from the least that any of them found."""
    finished = [row.distances for row in rows if row.evaluation is not None]
    if not finished:
        return ()
    least = np.min(finished, axis=0)
    radii = {metrics.quantile(least, share) for share in QUANTILES}
    return tuple(sorted(radius for radius in radii if np.isfinite(radius)))
