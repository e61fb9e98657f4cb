"""Comparing attacks: each is a run of its own on the same samples, judged by the same referee.

DIR/NORM/ATTACK           the run of an attack in a norm: a directory of `evaluate`, resumed as one
DIR/NORM/ATTACK-tuning    the runs that its settings were selected by, on held-out samples
DIR/comparison.json       the numbers of all of them, with a checksum
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pdpgd.attacks import catalogue
from pdpgd.classifier import Model
from pdpgd.data.dataset import SampleRange, Samples
from pdpgd.errors import (
    AttackError,
    InvalidInputError,
    MissingExtraError,
    NoGradientError,
    UnfinishedError,
    renamed_keyword,
)
from pdpgd.evaluation.attack_call import DEFAULT_BUDGET
from pdpgd.evaluation.evaluate import RunOptions, run_evaluation
from pdpgd.evaluation.model_handle import DataSource, ModelHandle, handle_of, samples_of
from pdpgd.files import check_file, output_path, replace_file, sealed
from pdpgd.models.normalization import NormalizationChoice
from pdpgd.paper import MODEL_KINDS, PAPER_RADII, START_RADIUS, paper_case
from pdpgd.progress import ProgressListener, Retitled
from pdpgd.runs import metrics
from pdpgd.runs.comparison import Comparison, Row
from pdpgd.runs.result import Evaluation
from pdpgd.runs.spec import AttackSpec

NUMBERS = "comparison.json"
PRESETS = ("paper",)
# Where neither the user nor the paper gives radii: those at which the union of all attacks leaves these shares.
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
# Number of held-out samples that settings are selected on.
TUNED_ON = 50


@renamed_keyword("normalisation", "normalization")
def compare(
    model: str | Model,
    data: DataSource,
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
    seed: int = 0,
    chunk_size: int = 100,
    batch_size: int = 100,
    threads: int | None = None,
    device: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    weights: str | None = None,
    normalization: NormalizationChoice = None,
    pool: str | None = None,
    trust_model_code: bool = False,
    trust_pickle: bool = False,
    data_dir: str | None = None,
    draws: int = 1,
    progress: ProgressListener | None = None,
) -> Comparison:
    """Run several attacks on the same samples and compare the adversarial examples that each finds by itself.

    An attack that fails becomes a row with the reason; the others continue.

    Args:
        model: A name or path (see `load_model`), or your own module, which is called as it is.
        data: A name, a path, a torch data set or loader, or a pair (images, labels).
        norms: Norms in which the attacks are compared.
        attacks: Names of attacks in the catalogue, or NAME:RESTARTS.
        budget: Maximum number of forward plus backward passes per sample and attack (default 1000).
        preset: "paper" for the settings that the paper ran each attack with; attacks that the paper does not have get
            the budget.
        radii: Radii at which robust accuracy is compared, by norm. Attacks within a radius are run at these, the
            smallest first. Default: those of the paper, or quantiles of the smallest distances found.
        tune: Select settings from the paper's grids, on held-out samples that follow the first `limit` ones.
        like: Data set and kind of model of the paper whose settings and radii apply, such as "mnist:linf-at". Default:
            taken from the names of model and data where these say it.
        limit: Compare on the first `limit` samples.
        out: Directory that results are written to as they come; the same call resumes a comparison.
        seed: Random seed for attack initialization.
        chunk_size: Number of samples that are attacked and written together.
        batch_size: Maximum number of rows that the model gets at once.
        threads: CPU threads per chunk.
        device: Device to run on.
        engine: "local" or "ray".
        workers: Number of chunks processed at once.
        address: Address of an existing Ray cluster.
        weights: A file of weights to load into the model.
        normalization: The normalization to put inside the model.
        pool: The name of groups of classes that the logits are pooled over (see `load_model`).
        trust_model_code: Consent to run the code that the file of the model or of its weights holds.
        trust_pickle: Alias of `trust_model_code`.
        data_dir: Directory that the data set lies in.
        draws: Number of draws of a randomized model, as in `evaluate`.
        progress: Listener that receives the progress of each run.

    Returns:
        One row per attack and norm, with the paper's statistics.

    Raises:
        InvalidInputError: The call is wrong: the message says what was expected.

    Example:
        >>> comparison = pdpgd.compare(
        ...     "mnist-plain", "mnist-1000", norms=["l2"], attacks=["auto", "pdpgd"], limit=4, budget=200
        ... )
        >>> [row.label for row in comparison.rows]
        ['auto', 'pdpgd']
    """
    folder = None if out is None else output_path(out)
    if folder is not None:
        check_file(folder / NUMBERS)
    specs = [AttackSpec.parse(text) for text in attacks]
    _check(specs, norms, preset)
    every = samples_of(data, limit=None, root=data_dir)
    count = len(every) if limit is None else min(limit, len(every))
    samples = every.first(count)
    held_out = _held_out(every, count) if tune else None
    case = _case(like, model, every.name, required=preset is not None)
    thresholds = _thresholds(radii or {}, norms, case)
    asked = _asked(specs, norms, case if preset else None, budget, thresholds)
    handle = handle_of(
        model,
        weights=weights,
        normalization=normalization,
        pool=pool,
        trust_model_code=trust_model_code or trust_pickle,
    )
    options = RunOptions(
        seed=seed,
        chunk_size=chunk_size,
        batch_size=batch_size,
        threads=threads,
        device=device,
        engine=engine,
        workers=workers,
        address=address,
        draws=draws,
    )
    run = _ComparisonRun(handle, samples, held_out, options, folder, progress or ProgressListener())
    rows = [run.row(norm, spec) for norm, spec in asked]
    found = {norm: thresholds.get(norm) or _quantiles([row for row in rows if row.norm == norm]) for norm in norms}
    comparison = Comparison(tuple(rows), found, folder)
    if folder is not None and folder.is_dir():
        content = f"{json.dumps(sealed(comparison.as_json()), indent=1)}\n".encode()
        replace_file(folder / NUMBERS, content)
    return comparison


@dataclass(frozen=True)
class _ComparisonRun:
    """What the runs of one comparison share."""

    handle: ModelHandle
    samples: Samples
    held_out: Samples | None
    """Samples that settings are selected on; None if they are not selected."""
    options: RunOptions
    folder: Path | None
    progress: ProgressListener

    def row(self, norm: str, spec: AttackSpec) -> Row:
        """Run an attack in a norm; if it fails, return the reason."""
        place = None if self.folder is None else self.folder / norm / spec.label.replace(":", "-")
        try:
            tuned = spec if self.held_out is None else self._tuned(spec, norm, self.held_out, place)
            return Row(spec, norm, self._evaluated(f"{norm} {spec.label}", norm, self.samples, tuned, place), None)
        except (MissingExtraError, AttackError, NoGradientError, UnfinishedError) as error:
            return Row(spec, norm, None, str(error))

    def _tuned(self, spec: AttackSpec, norm: str, samples: Samples, place: Path | None) -> AttackSpec:
        """Select the settings of an attack from the paper's grid; with one start each, as the paper did."""
        choices = catalogue.info_of(spec.name).combinations(norm)
        folder = None if place is None else place.with_name(f"{place.name}-tuning")
        runs = [
            self._evaluated(
                f"{norm} {spec.name}, settings {number + 1} of {len(choices)}",
                norm,
                samples,
                replace(spec, settings={**spec.settings, **choice}, restarts=None),
                None if folder is None else folder / f"{number:02d}",
            )
            for number, choice in enumerate(choices)
        ]
        return replace(spec, settings=selected(norm, spec.settings, choices, runs))

    def _evaluated(
        self, title: str, norm: str, samples: Samples, attack: AttackSpec, folder: Path | None
    ) -> Evaluation:
        return run_evaluation(
            self.handle,
            samples,
            attack,
            norms=(norm,),
            checks=False,
            options=self.options,
            folder=folder,
            progress=Retitled(self.progress, title),
        )


def selected(
    norm: str, settings: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], runs: Sequence[Evaluation]
) -> dict[str, Any]:
    """Select from a grid of settings by what their runs found; attacks within radii have a choice for each radius.

    Args:
        norm: Norm of the runs.
        settings: Settings that all of them share.
        choices: Settings of each run beyond these.
        runs: The runs, on held-out samples.

    Returns:
        The shared settings with the best choice; unchanged if there is none.
    """
    if not choices:
        return dict(settings)
    if "radii" in settings:
        best = [_strongest(runs, norm, radius) for radius in settings["radii"]]
        return {**settings, "per_radius": [choices[number] for number in best]}
    return {**settings, **choices[_smallest(runs, norm)]}


def _strongest(runs: Sequence[Evaluation], norm: str, radius: float) -> int:
    """Return the run with the least robust accuracy; the first in a tie."""
    return int(np.argmin([metrics.robust_accuracy(run.own_distances(norm), radius) for run in runs]))


def _smallest(runs: Sequence[Evaluation], norm: str) -> int:
    """Return the run that fools the most samples; in a tie, the one with the smallest mean distance."""

    def rank(number: int) -> tuple[int, float]:
        distances = runs[number].own_distances(norm)
        mean = metrics.mean(distances)
        return int(np.isinf(distances).sum()), math.inf if math.isnan(mean) else mean

    return min(range(len(runs)), key=rank)


def _asked(
    specs: Sequence[AttackSpec],
    norms: Sequence[str],
    case: tuple[str, str] | None,
    budget: int | None,
    radii: Mapping[str, tuple[float, ...]],
) -> list[tuple[str, AttackSpec]]:
    """Pair every norm with the attacks that can do it, with their budget or settings; refuse what one cannot do."""
    asked = [
        (norm, _resolved(spec, norm, case, budget, radii.get(norm)))
        for norm in norms
        for spec in specs
        if catalogue.info_of(spec.name).can_do(norm)
    ]
    for norm, spec in asked:
        _check_attack(spec, norm)
    return asked


def _resolved(
    spec: AttackSpec, norm: str, case: tuple[str, str] | None, budget: int | None, radii: tuple[float, ...] | None
) -> AttackSpec:
    """Give an attack its budget, or the paper's settings for a data set and kind of model; and its radii."""
    info = catalogue.info_of(spec.name)
    settings: dict[str, Any] = {}
    if case is not None and info.in_paper:
        dataset, kind = case
        settings = catalogue.paper_settings(spec.name, dataset, norm, kind, restarts=spec.restarts or 1)
        budget = None
    elif budget is None:
        budget = DEFAULT_BUDGET
    if info.is_ball and radii is not None:
        settings["radii"] = list(radii)
    return replace(spec, budget=budget, settings=settings)


def _check_attack(spec: AttackSpec, norm: str) -> None:
    """Raise InvalidInputError, before anything runs, for what the attack cannot do."""
    with suppress(MissingExtraError):  # it becomes a row with the reason
        catalogue.prepared(spec.name, norm, budget=spec.budget, settings=spec.all_settings, max_batch=1)


def _check(specs: Sequence[AttackSpec], norms: Sequence[str], preset: str | None) -> None:
    if not specs:
        raise InvalidInputError("attacks: expected at least one, got none")
    for spec in specs:
        catalogue.info_of(spec.name)
    labels = [spec.label for spec in specs]
    if len(set(labels)) < len(labels):
        raise InvalidInputError(f"attacks: expected each one once, got {', '.join(labels)}")
    if preset is not None and preset not in PRESETS:
        raise InvalidInputError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    if not norms or len(set(norms)) < len(norms):
        raise InvalidInputError(f"norms: expected at least one, and each one once, got {', '.join(norms) or 'none'}")
    for norm in norms:
        if not any(catalogue.info_of(spec.name).can_do(norm) for spec in specs):
            raise InvalidInputError(f"attacks: expected one that can do {norm}, got {', '.join(labels)}")


def _held_out(every: Samples, count: int) -> Samples:
    if len(every) <= count:
        raise InvalidInputError(
            f"tune: expected held-out samples after the first {count}, to select settings on, got {len(every)} in all; "
            "use a smaller limit"
        )
    return SampleRange(every, count, min(len(every), count + TUNED_ON))


def _case(like: str | None, model: object, data: str, *, required: bool) -> tuple[str, str] | None:
    """Return the data set and kind of model of the paper whose settings and radii apply."""
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
    """Return the radii that are known before the run, by norm."""
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
    """Return radii that separate the attacks: quantiles of the smallest distances that any of them found."""
    finished = [row.distances for row in rows if row.evaluation is not None]
    if not finished:
        return ()
    least = np.min(finished, axis=0)
    radii = {metrics.quantile(least, share) for share in QUANTILES}
    return tuple(sorted(radius for radius in radii if np.isfinite(radius)))
