"""The top of a page: its title, one sentence per norm, and the key facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdpgd.report import wording
from pdpgd.report.inputs import ReportedModel, ReportInputs
from pdpgd.report.provenance import verdict_of
from pdpgd.report.table import Table, number_cell, share_cell, table_of, text_cell
from pdpgd.runs import metrics
from pdpgd.runs.metrics import wilson
from pdpgd.runs.summary import robust_at_radii


@dataclass(frozen=True)
class Fact:
    """A key number of a page about one model."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class TrustNote:
    """The reliability verdict of a model's run."""

    label: str
    trusted: bool
    verdict: str


def title_of(inputs: ReportInputs) -> str:
    """The title of a page, if the user gives none."""
    names = list(dict.fromkeys(model.label for model in inputs.models))
    data = list(dict.fromkeys(str(model.evaluation.spec.data["name"]) for model in inputs.models))
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return f"Robustness of {wording.listed(names)} on {wording.listed(data)}"


def sentences_of(inputs: ReportInputs) -> list[str]:
    """One sentence per norm; with several models, one per model, or per model and norm, that begins with its label.

    Runs that asked about radii only have a sentence that says what their distances are.
    """
    return [*_measured(inputs), *([ONLY_RADII] if inputs.only_radii else [])]


ONLY_RADII = (
    "The run asked about these radii only, not for the smallest perturbations: all its distances, and robust accuracy "
    "at other radii, are upper bounds only."
)


def _measured(inputs: ReportInputs) -> list[str]:
    if len(inputs.models) == 1:
        (model,) = inputs.models
        return [_sentence(model, norm) for norm in model.norms]
    sentences = []
    for model in inputs.models:
        medians = {norm: metrics.quantile(model.distances(norm), 0.5) for norm in model.norms}
        asked = bool(model.evaluation.spec.only_radii)
        if model.comparison is None and not asked and np.isfinite(list(medians.values())).all():
            sizes = [f"{wording.size_in_words(median, norm)} ({norm})" for norm, median in medians.items()]
            sentences.append(
                f"{model.label}: half of the correctly classified {_things(model)} are fooled by a perturbation of "
                f"size {_alternatives(sizes)} or less."
            )
            continue
        sentences += [f"{model.label}: {_uncapitalized(_sentence(model, norm))}" for norm in model.norms]
    return sentences


def facts_of(model: ReportedModel) -> list[Fact]:
    """The key facts of a page about one model."""
    evaluation = model.evaluation
    spec = evaluation.spec
    samples, clean = evaluation.samples, evaluation.clean_accuracy
    low, high = (wording.share(float(end)) for end in wilson(clean, samples))
    compared = model.comparison is not None
    attack = wording.count(len(model.series), "attack") if compared else model.attacks
    return [
        Fact("Clean accuracy", wording.share(clean), f"95% interval: {low} to {high}"),
        Fact("Samples", f"{samples:,}", f"from {spec.data['name']}"),
        Fact("Model", wording.shortened(spec.model_name), f"sha256 {str(spec.model['sha256'])[:12]}"),
        Fact("Attack", attack, model.attacks if compared else _settings(model)),
        Fact(
            "Budget",
            _budget(model.budgets),
            "forward + backward passes per sample and norm" if model.budgets != {None} else "",
        ),
    ]


def trust_of(model: ReportedModel) -> TrustNote:
    """The reliability verdict. All runs of a comparison share the checks of the model, so its first run has it."""
    reliability = model.evaluation.reliability
    return TrustNote(model.label, reliability.trusted, verdict_of(model.evaluation))


def overview(models: Sequence[ReportedModel], title: str) -> Table:
    """The key facts of several models, one row per model."""
    rows = []
    for model in models:
        evaluation = model.evaluation
        rows.append(
            [
                text_cell(model.label),
                share_cell(evaluation.clean_accuracy),
                number_cell(evaluation.samples),
                text_cell(evaluation.spec.data["name"]),
                text_cell(model.attacks),
                text_cell(_budget(model.budgets)),
                text_cell(verdict_of(evaluation)),
                text_cell(model.folder or "in memory"),
            ]
        )
    headings = ("model", "clean accuracy", "samples", "data", "attack", "budget", "reliability", "directory")
    return table_of("overview", title, headings, rows)


def _sentence(model: ReportedModel, norm: str) -> str:
    if model.comparison is None and norm in model.evaluation.spec.only_radii:
        return ". ".join(str(found) for found in robust_at_radii(model.evaluation) if found.norm == norm) + "."
    return _sentence_on_distances(model, norm) if model.comparison is None else _sentence_on_attacks(model, norm)


def _things(model: ReportedModel) -> str:
    return "images" if len(model.evaluation.spec.data["shape"]) == 3 else "samples"


def _alternatives(texts: list[str]) -> str:
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _uncapitalized(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def _sentence_on_distances(model: ReportedModel, norm: str) -> str:
    found, things = model.distances(norm), _things(model)
    correct = found[found > 0]
    if not len(correct):
        return f"The model classified none of the {things} correctly, even without an attack ({norm})."
    median = metrics.quantile(found, 0.5)
    unfooled = int(np.isinf(correct).sum())
    if np.isinf(median):
        return (
            f"For most of the correctly classified {things} no adversarial example was found: "
            f"{unfooled:,} of {len(correct):,} were not fooled ({norm})."
        )
    rest = f" {unfooled:,} of {len(correct):,} were not fooled." if unfooled else ""
    return (
        f"Half of the correctly classified {things} are fooled by a perturbation of size "
        f"{wording.size_in_words(median, norm)} or less ({norm}).{rest}"
    )


def _sentence_on_attacks(model: ReportedModel, norm: str) -> str:
    assert model.comparison is not None
    statistics = model.comparison.statistics(norm)
    radii = len(model.comparison.radii[norm])
    if len(statistics) == 1:
        (name,) = statistics
        accuracy = wording.share(statistics[name].mean_accuracy)
        return f"In {norm}, only {name} finished: it leaves a robust accuracy of {accuracy}."
    order = sorted(statistics, key=lambda name: (statistics[name].mean_accuracy, -statistics[name].times_best))
    first, second = order[:2]
    over = "at the radius" if radii == 1 else f"on average over {radii} radii"
    least = f"{wording.share(statistics[first].mean_accuracy)} {over}"
    if statistics[first].mean_accuracy == statistics[second].mean_accuracy:
        return f"In {norm}, {first} and {second} leave the lowest robust accuracy: {least}."
    return (
        f"In {norm}, {first} leaves the lowest robust accuracy: {least}, best at {statistics[first].times_best} of "
        f"{radii}; "
        f"{second} follows with {wording.share(statistics[second].mean_accuracy)}."
    )


def _settings(model: ReportedModel) -> str:
    settings = model.evaluation.spec.settings
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _budget(budgets: set[int | None]) -> str:
    given = sorted(budget for budget in budgets if budget is not None)
    if not given:
        return "own settings"
    return f"{given[0]:,}" if len(given) == 1 else f"{given[0]:,} to {given[-1]:,}"
