"""Loading the data and the models that an experiment names, once and before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pdpgd.classifier import Classifier
from pdpgd.data.dataset import SampleRange, Samples
from pdpgd.errors import InvalidInputError, LoadError, MissingExtraError, ModelError, PdpgdError
from pdpgd.evaluation.model_handle import ModelHandle, handle_of, identity_of, samples_of
from pdpgd.experiments.entries import DatasetSpec, ModelSpec
from pdpgd.experiments.spec import ExperimentSpec
from pdpgd.models.normalization import parse_normalization


@dataclass(frozen=True)
class IdentifiedSamples:
    """Samples with the entries that identify them in the spec of a run."""

    samples: Samples
    identity: Mapping[str, Any]


@dataclass(frozen=True)
class IdentifiedModel:
    """A model handle with the entries that identify the model in the spec of a run."""

    handle: ModelHandle
    identity: Mapping[str, Any]


@dataclass(frozen=True)
class ExperimentInputs:
    """The samples and models of one data set of an experiment."""

    reported: IdentifiedSamples
    """Samples on which the results are reported."""
    held_out: IdentifiedSamples | None
    """Samples that follow them, on which settings are selected; None if nothing is tuned."""
    models: Mapping[str, IdentifiedModel]
    """Models by their name in the spec."""


def load_inputs(
    spec: ExperimentSpec, *, device: str, data_dir: str | None, trust_model_code: bool
) -> dict[str, ExperimentInputs]:
    """Load the data and the models of an experiment.

    Args:
        spec: Spec of the experiment.
        device: Device on which each model is called once, with the first sample.
        data_dir: Directory that contains the data sets.
        trust_model_code: Consent to run the code that the files of the models contain.

    Returns:
        Samples and models, by the name of their data set.

    Raises:
        PdpgdError: Something cannot be loaded; one error lists everything that cannot.
    """
    if not trust_model_code:
        _check_consent(spec)
    inputs: dict[str, ExperimentInputs] = {}
    errors: dict[str, PdpgdError] = {}
    for dataset in spec.datasets:
        place = f"datasets.{dataset.name}"
        image, models = None, {}
        try:
            inputs[dataset.name] = _load_samples(dataset, data_dir, spec.tune)
            image, _ = inputs[dataset.name].reported.samples.batch([0])
        except PdpgdError as error:
            errors[place] = error
        for model in dataset.models:
            try:
                models[model.name] = _load_model(model, image, device, trust_model_code)
            except PdpgdError as error:
                errors[f"{place}.models.{model.name} ({model.source})"] = error
        if dataset.name in inputs:
            inputs[dataset.name] = replace(inputs[dataset.name], models=models)
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise InvalidInputError(
            f"expected the data and the models of the experiment, got {len(errors)} errors:\n"
            + "\n".join(f"- {place}: {error}" for place, error in errors.items())
        ) from next(iter(errors.values()))
    return inputs


def _load_samples(dataset: DatasetSpec, data_dir: str | None, tune: int) -> ExperimentInputs:
    """Load the reported and the held-out samples; the models are added later."""
    whole = samples_of(dataset.source, limit=None, root=data_dir)
    count = len(whole) if dataset.limit is None else min(dataset.limit, len(whole))
    held_out = None
    if tune:
        if len(whole) <= count:
            raise InvalidInputError(
                f"tune: expected samples of {dataset.source} after the first {count}, to select settings on, got "
                f"{len(whole)} in all; set a smaller limit"
            )
        held_out = _identified(SampleRange(whole, count, min(len(whole), count + tune)))
    return ExperimentInputs(_identified(whole.first(count)), held_out, {})


def _identified(samples: Samples) -> IdentifiedSamples:
    return IdentifiedSamples(samples, identity_of(samples))


def _load_model(spec: ModelSpec, image: Tensor | None, device: str, trust_model_code: bool) -> IdentifiedModel:
    """Load a model and call it with the first image, so that a broken model is refused before anything runs."""
    try:
        handle = handle_of(
            spec.source,
            weights=spec.weights,
            normalization=parse_normalization(spec.mean, spec.std),
            pool=spec.pool,
            trust_model_code=trust_model_code,
        )
        if image is not None:
            with torch.no_grad():
                Classifier(handle.load(device)).logits(image.to(device), None)
    except (LoadError, ModelError, MissingExtraError) as error:
        raise type(error)(
            f"{error}\n  --model {spec.name}=SOURCE replaces this model, --without {spec.name} leaves it out"
        ) from error
    return IdentifiedModel(handle, handle.identity())


def _check_consent(spec: ExperimentSpec) -> None:
    """Refuse models whose files contain code: the spec declares them, but only the user can consent to run it."""
    needing = [
        f"datasets.{dataset.name}.models.{model.name} ({model.source})"
        for dataset in spec.datasets
        for model in dataset.models
        if model.trust_model_code
    ]
    if needing:
        raise InvalidInputError(
            f"expected consent to run the code in the files of {', '.join(needing)}, got it from the spec alone, which "
            "cannot give it; if you trust the authors of these files, give --trust-model-code (trust_model_code=True "
            "in Python)"
        )
