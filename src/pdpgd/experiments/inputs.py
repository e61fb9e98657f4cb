"""The data and the models that an experiment names, read once, before anything runs."""

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
from pdpgd.experiments.spec import DatasetAsk, ExperimentSpec, ModelAsk
from pdpgd.models.normalization import parse_normalization


@dataclass(frozen=True)
class Subjects:
    """The models and samples of a data set, read once."""

    samples: Samples
    identity: Mapping[str, Any]
    apart: Samples | None
    """Those behind them, that settings are selected on."""
    apart_identity: Mapping[str, Any]
    models: Mapping[str, tuple[ModelHandle, Mapping[str, Any]]]
    """By name: the model and its identity."""


def read_subjects(
    spec: ExperimentSpec, *, device: str, data_dir: str | None, trust_model_code: bool
) -> dict[str, Subjects]:
    """Read the data and the models of an experiment.

    Args:
        spec: What is asked.
        device: Device that the models are tried on, each with the first sample.
        data_dir: Directory that the data sets lie in.
        trust_model_code: Consent to run the code that the files of the models hold.

    Returns:
        Samples and models by the name of their data set.

    Raises:
        PdpgdError: Something cannot be had; one error names all that cannot.
    """
    if not trust_model_code:
        _refuse_to_trust(spec)
    subjects: dict[str, Subjects] = {}
    faults: dict[str, PdpgdError] = {}
    for dataset in spec.datasets:
        place = f"datasets.{dataset.name}"
        image, models = None, {}
        try:
            subjects[dataset.name] = _samples(dataset, data_dir, spec.tune)
            image, _ = subjects[dataset.name].samples.batch([0])
        except PdpgdError as error:
            faults[place] = error
        for model in dataset.models:
            try:
                models[model.name] = _model(model, image, device, trust_model_code)
            except PdpgdError as error:
                faults[f"{place}.models.{model.name} ({model.source})"] = error
        if dataset.name in subjects:
            subjects[dataset.name] = replace(subjects[dataset.name], models=models)
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        raise InvalidInputError(
            f"expected the data and the models of the experiment, got {len(faults)} errors:\n"
            + "\n".join(f"- {place}: {error}" for place, error in faults.items())
        ) from next(iter(faults.values()))
    return subjects


def _samples(dataset: DatasetAsk, data_dir: str | None, tune: int) -> Subjects:
    """The samples that are reported and those that settings are selected on, without models."""
    whole = samples_of(dataset.source, limit=None, root=data_dir)
    count = len(whole) if dataset.limit is None else min(dataset.limit, len(whole))
    samples, apart = whole.first(count), None
    if tune:
        if len(whole) <= count:
            raise InvalidInputError(
                f"tune: expected samples of {dataset.source} behind the first {count}, to select settings on, got "
                f"{len(whole)} in all"
            )
        apart = SampleRange(whole, count, min(len(whole), count + tune))
    return Subjects(samples, identity_of(samples), apart, {} if apart is None else identity_of(apart), {})


def _model(
    ask: ModelAsk, image: Tensor | None, device: str, trust_model_code: bool
) -> tuple[ModelHandle, Mapping[str, Any]]:
    """A model and its identity; one that does not answer to the first image is refused before anything runs."""
    try:
        subject = handle_of(
            ask.source,
            weights=ask.weights,
            normalization=parse_normalization(ask.mean, ask.std),
            pool=ask.pool,
            trust_model_code=trust_model_code,
        )
        if image is not None:
            with torch.no_grad():
                Classifier(subject.load(device)).logits(image.to(device), None)
    except (LoadError, ModelError, MissingExtraError) as error:
        raise type(error)(
            f"{error}\n  --model {ask.name}=SOURCE gives another one, --without {ask.name} leaves it out"
        ) from error
    return subject, subject.identity()


def _refuse_to_trust(spec: ExperimentSpec) -> None:
    """A spec says which models hold code, but consent to run it is not the file's to give."""
    needing = [
        f"datasets.{dataset.name}.models.{model.name} ({model.source})"
        for dataset in spec.datasets
        for model in dataset.models
        if model.trust_model_code
    ]
    if needing:
        raise InvalidInputError(
            f"expected consent to run the code in the files of {', '.join(needing)}, got it from the spec alone, which "
            "cannot give it; if you trust whoever made them, give --trust-model-code (trust_model_code=True in Python)"
        )
