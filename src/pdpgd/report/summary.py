"""What a reader learns first: a sentence a norm, and the facts that the sentences rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.report import sheets, wording
from pdpgd.report.inputs import ReportInputs, Source
from pdpgd.report.provenance import verdict_of
from pdpgd.report.sheets import Sheet
from pdpgd.runs import metrics
from pdpgd.runs.metrics import wilson


@dataclass(frozen=True)
class Fact:
    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class TrustNote:
    """The reliability of a source."""

    label: str
    trusted: bool
    verdict: str


def title_of(subject: ReportInputs) -> str:
    names = list(dict.fromkeys(source.label for source in subject.sources))
    data = list(dict.fromkeys(str(source.evaluation.spec.data["name"]) for source in subject.sources))
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return f"Robustness of {wording.listed(names)} on {wording.listed(data)}"


def sentences_of(subject: ReportInputs) -> list[str]:
    """One a norm; of several sources, one a source or a norm of it, with its name before it."""
    if len(subject.sources) == 1:
        (source,) = subject.sources
        return [_of(source, norm) for norm in source.norms]
    sentences = []
    for source in subject.sources:
        medians = {norm: metrics.quantile(source.distances(norm), 0.5) for norm in source.norms}
        if source.comparison is None and np.isfinite(list(medians.values())).all():
            changes = [f"{wording.change(median, norm)} ({norm})" for norm, median in medians.items()]
            sentences.append(
                f"{source.label}: half of the right {_things(source)} are fooled by {_or(changes)} or less."
            )
            continue
        sentences += [f"{source.label}: {_uncapitalised(_of(source, norm))}" for norm in source.norms]
    return sentences


def facts_of(source: Source) -> list[Fact]:
    """Of a page about one model."""
    evaluation = source.evaluation
    spec = evaluation.spec
    samples, clean = evaluation.samples, evaluation.clean_accuracy
    low, high = wilson(clean, samples)
    attacks = [series.label for series in source.series]
    attack = str(spec.attack) if source.comparison is None else wording.count(len(attacks), "attack")
    budgets = {run.spec.budget for run in source.runs}
    return [
        Fact(
            "Clean accuracy", wording.share(clean), f"95%: {wording.share(float(low))} to {wording.share(float(high))}"
        ),
        Fact("Samples", f"{samples:,}", f"of {spec.data['name']}"),
        Fact("Model", wording.shortened(spec.model_name), f"sha256 {str(spec.model['sha256'])[:12]}"),
        Fact("Attack", attack, ", ".join(attacks) if source.comparison is not None else _settings(source)),
        Fact("Budget", _budget(budgets), "forward + backward passes a sample and norm" if budgets != {None} else ""),
    ]


def trust_of(source: Source) -> TrustNote:
    """Of a comparison, that of its first run: the look at the model is the same for all."""
    reliability = source.evaluation.reliability
    return TrustNote(source.label, reliability.trusted, verdict_of(source.evaluation))


def overview(sources: Sequence[Source], caption: str) -> Sheet:
    """The facts of several sources, a row each."""
    rows = []
    for source in sources:
        evaluation = source.evaluation
        spec = evaluation.spec
        attacks = ", ".join(series.label for series in source.series) if source.comparison else str(spec.attack)
        rows.append(
            [
                sheets.words(source.label),
                sheets.share(evaluation.clean_accuracy),
                sheets.number(evaluation.samples),
                sheets.words(spec.data["name"]),
                sheets.words(attacks),
                sheets.words(_budget({run.spec.budget for run in source.runs})),
                sheets.words(verdict_of(evaluation)),
                sheets.words(source.folder or "in memory"),
            ]
        )
    headings = ("model", "clean", "samples", "data", "attack", "budget", "reliability", "from")
    return sheets.sheet("overview", caption, headings, rows)


def _of(source: Source, norm: str) -> str:
    return _of_distances(source, norm) if source.comparison is None else _of_attacks(source, norm)


def _things(source: Source) -> str:
    return "images" if len(source.evaluation.spec.data["shape"]) == 3 else "samples"


def _or(changes: list[str]) -> str:
    return " or ".join([", ".join(changes[:-1]), changes[-1]] if len(changes) > 1 else changes)


def _uncapitalised(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def _of_distances(source: Source, norm: str) -> str:
    found, things = source.distances(norm), _things(source)
    right = found[found > 0]
    if not len(right):
        return f"None of the {things} was right to begin with ({norm})."
    median = metrics.quantile(found, 0.5)
    unfooled = int(np.isinf(right).sum())
    if np.isinf(median):
        return (
            f"Most of the right {things} withstood every change that was tried: {unfooled:,} of {len(right):,} were "
            f"not fooled ({norm})."
        )
    rest = f" {unfooled:,} of {len(right):,} were not fooled." if unfooled else ""
    return (
        f"Half of the right {things} are fooled by a change of {wording.change(median, norm)} or less ({norm}).{rest}"
    )


def _of_attacks(source: Source, norm: str) -> str:
    assert source.comparison is not None
    statistics = source.comparison.statistics(norm)
    radii = len(source.comparison.radii[norm])
    if len(statistics) == 1:
        (name,) = statistics
        return f"In {norm}, {name} alone came to an end: it leaves {wording.share(statistics[name].mean_accuracy)}."
    order = sorted(statistics, key=lambda name: (statistics[name].mean_accuracy, -statistics[name].times_best))
    first, second = order[:2]
    over = "at the radius" if radii == 1 else f"on average over {radii} radii"
    least = f"{wording.share(statistics[first].mean_accuracy)} {over}"
    if statistics[first].mean_accuracy == statistics[second].mean_accuracy:
        return f"In {norm}, {first} and {second} leave the least robust accuracy: {least}."
    return (
        f"In {norm}, {first} leaves the least robust accuracy: {least}, best at {statistics[first].times_best}; "
        f"{second} follows with {wording.share(statistics[second].mean_accuracy)}."
    )


def _settings(source: Source) -> str:
    settings = source.evaluation.spec.settings
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _budget(budgets: set[int | None]) -> str:
    given = sorted(budget for budget in budgets if budget is not None)
    if not given:
        return "own settings"
    return f"{given[0]:,}" if len(given) == 1 else f"{given[0]:,} to {given[-1]:,}"
