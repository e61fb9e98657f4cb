"""The model and the samples of a run: how they are named, identified by checksums, and sent to other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pdpgd.classifier import Model
from pdpgd.data.dataset import ArraySamples, Samples, numbered_classes, reading, wrap
from pdpgd.data.loading import load_data
from pdpgd.errors import InvalidInputError, ModelError
from pdpgd.models.import_shims import name_on_disk
from pdpgd.models.loading import is_factory, load_model
from pdpgd.models.normalization import Normalization, NormalizationChoice
from pdpgd.random import seeded_globally

DataSource = str | Path | Dataset[Any] | DataLoader[Any] | tuple[Tensor, Tensor] | list[Tensor] | Samples
"""A name, a path, a torch data set or loader, a pair (images, labels), or samples that are loaded."""

READ_AT_ONCE = 100
ANOTHER_SEED = 20260705
"""Seed under which a factory builds its model a second time; a model that loads its own weights is the same then."""


class ModelHandle(Protocol):
    """A model that can be loaded in any process."""

    def load(self, device: str) -> Model:
        """Return the model on a device."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return the entries of the spec: source, weights, normalization and checksum."""
        ...

    def device(self) -> str | None:
        """Return the device of the model; None if it can be loaded to any."""
        ...

    @property
    def random_parameters(self) -> int | None:
        """Number of parameters that are drawn at random when the model is built; None if unknown."""
        ...


@dataclass(frozen=True)
class NamedModel:
    """A model by name or path: each process loads its own copy and verifies its checksum."""

    source: str
    weights: str | None = None
    normalization: NormalizationChoice = None
    trust_model_code: bool = False
    pool: str | None = None
    """Groups of classes that the logits are pooled over."""
    sha256: str | None = None
    random_parameters: int = 0
    """Number of entries of parameters and buffers that are drawn at random when the model is built."""

    def load(self, device: str) -> Model:
        """Load the model and check that it is the one of the run."""
        model = self._loaded()
        found = checksum_of(model)
        if self.sha256 is not None and found != self.sha256:
            raise ModelError(
                f"{self.source}: expected the model that the run was started with, {self.sha256[:12]}..., "
                f"got {found[:12]}..."
            )
        try:
            return model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InvalidInputError(f"device: expected one that torch has here, got {device!r} ({error})") from error

    def identity(self) -> dict[str, Any]:
        """Return the entries of spec.json that identify the model."""
        normalization = _on_disk(self.normalization)
        sha256 = self.sha256 or checksum_of(self._loaded())
        facts = {"source": self.source, "weights": self.weights, "normalisation": normalization, "sha256": sha256}
        # Only if there are any, so that the specs of all other runs do not change.
        more = {"pool": self.pool, "random_parameters": self.random_parameters}
        return {**facts, **{name: value for name, value in more.items() if value}}

    def device(self) -> None:
        """Return None: the model is loaded to the device of the run."""
        return None

    def pinned(self) -> NamedModel:
        """Return the handle with the checksum that every process verifies, and the number of random parameters."""
        model, random = self._loaded(), 0
        if self.weights is None and is_factory(self.source):
            with seeded_globally(ANOTHER_SEED):
                random = _drawn(model, self._loaded())
        return replace(self, sha256=checksum_of(model), random_parameters=random)

    def _loaded(self) -> nn.Module:
        return load_model(
            self.source,
            weights=self.weights,
            normalization=self.normalization,
            pool=self.pool,
            trust_model_code=self.trust_model_code,
        )


@dataclass(frozen=True)
class LiveModel:
    """A model object of the user, which is called as it is on its own device."""

    model: Model

    def load(self, device: str) -> Model:
        """Return the model itself."""
        return self.model

    def identity(self) -> dict[str, Any]:
        """Return the entries of spec.json that identify the model."""
        kind = self.model if hasattr(self.model, "__qualname__") else type(self.model)
        return {
            "source": name_on_disk(kind),
            "weights": None,
            "normalisation": None,
            "sha256": checksum_of(self.model),
        }

    @property
    def random_parameters(self) -> None:
        """None: where the weights of a model object come from is unknown."""
        return None

    def device(self) -> str | None:
        """Return the device of its parameters; None if it has none."""
        if isinstance(self.model, nn.Module):
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                return str(tensor.device)
        return None


def _on_disk(normalization: NormalizationChoice) -> str | None:
    """Return a normalization as spec.json has always spelled it."""
    if isinstance(normalization, Normalization):
        return f"Normalisation(mean={normalization.mean}, std={normalization.std})"
    return normalization


def checksum_of(model: Model) -> str:
    """Compute the checksum of the names and bits of parameters and buffers, in their order; it excludes the code."""
    digest = hashlib.sha256()
    state: Mapping[str, object] = model.state_dict() if isinstance(model, nn.Module) else {}
    for name, value in state.items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(_bytes(value))
    return digest.hexdigest()


def checksums_of(model: nn.Module) -> dict[str, str]:
    """Compute the checksum of each parameter and buffer, by its name."""
    return {
        name: hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode() + _bytes(value)).hexdigest()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def _drawn(model: nn.Module, again: nn.Module) -> int:
    """Count the entries of all tensors that differ between two builds of one model under different seeds."""
    first, second, state = checksums_of(model), checksums_of(again), model.state_dict()
    return sum(state[name].numel() for name, digest in first.items() if second.get(name) != digest)


def handle_of(
    model: str | Model,
    *,
    weights: str | None,
    normalization: NormalizationChoice,
    trust_model_code: bool,
    pool: str | None = None,
) -> ModelHandle:
    """Create the handle of a model; raise InvalidInputError if it is none, or an object with options for loading."""
    if isinstance(model, str):
        return NamedModel(model, weights, normalization, trust_model_code, pool).pinned()
    if not callable(model):
        raise InvalidInputError(
            f"model: expected a name, a path or something that maps inputs to logits, got {type(model).__name__}"
        )
    if weights is not None or normalization is not None or pool is not None:
        raise InvalidInputError(
            "weights, normalization, pool: expected none with a model that is loaded already, got some"
        )
    return LiveModel(model)


def samples_of(data: DataSource, *, limit: int | None, root: str | None) -> Samples:
    """Load the first `limit` samples of a data source."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        images, labels = data
        images = images if images.dtype == torch.uint8 else images.float()
        labels = labels.long().cpu()
        data = ArraySamples("inputs", images.detach().cpu(), labels, numbered_classes("inputs", labels))
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidInputError(f"limit: expected an integer >= 1, got {limit!r}")
    if isinstance(data, Dataset | DataLoader):
        # Read only as many as needed: the data may be endless.
        return wrap(data, count=limit)
    # Samples are a protocol: they may come from load_data or be of a user's own class.
    ready = hasattr(data, "batch") and hasattr(data, "first")
    samples = cast(Samples, data) if ready else load_data(cast(str, data), root=root)
    return samples if limit is None else samples.first(min(limit, len(samples)))


def identity_of(samples: Samples) -> dict[str, Any]:
    """Read all samples once and compute their checksum, so that a run is resumed with the same samples."""
    digest = hashlib.sha256()
    shape: tuple[int, ...] = ()
    for first in range(0, len(samples), READ_AT_ONCE):
        with reading(samples.name):
            images, labels = samples.batch(torch.arange(first, min(first + READ_AT_ONCE, len(samples))))
        digest.update(_bytes(images))
        digest.update(_bytes(labels))
        shape = tuple(images.shape[1:])
    entries = {"name": samples.name, "samples": len(samples), "shape": list(shape), "sha256": digest.hexdigest()}
    named = [name for place, name in enumerate(samples.classes) if name != str(place)]
    return {**entries, "classes": list(samples.classes)} if named else entries


def _bytes(tensor: Tensor) -> bytes:
    content: bytes = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return content
