"""Names that changed: what is on disk keeps the former ones, and Python warns of them and still accepts them."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pdpgd import errors, evaluate, models
from pdpgd.evaluation.model_handle import LiveModel, NamedModel
from pdpgd.models import architectures
from pdpgd.models.adapters.huggingface import Logits
from pdpgd.models.import_shims import FORMER_NAMES, name_on_disk
from pdpgd.models.loading import load_model
from pdpgd.models.normalization import POOLS, Normalization, Normalized, Pooled
from pdpgd.models.programs import Exported, Script
from support.models import TinyConv

HALF = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Normalized, "pdpgd.subjects.normalise.Normalised"),
        (Pooled, "pdpgd.subjects.pooling.Pooled"),
        (Script, "pdpgd.subjects.programs.Script"),
        (Exported, "pdpgd.subjects.programs.Exported"),
        (Logits, "pdpgd.subjects.adapters.huggingface.Logits"),
        (architectures._Residual, "pdpgd.subjects.architectures._Residual"),
        (TinyConv, "support.models.TinyConv"),
        (nn.Sequential, "torch.nn.modules.container.Sequential"),
    ],
)
def test_a_spec_names_the_class_of_a_live_model_as_the_first_version_did(kind: type, name: str) -> None:
    assert name_on_disk(kind) == name


def test_the_identity_of_a_live_model_has_that_name(model: TinyConv) -> None:
    assert LiveModel(Normalized(model, HALF)).identity()["source"] == "pdpgd.subjects.normalise.Normalised"


def test_the_identity_of_a_named_model_spells_its_normalization_as_the_first_version_did() -> None:
    identity = NamedModel("nowhere:net", normalization=HALF, sha256="0" * 64).identity()
    assert identity["normalisation"] == "Normalisation(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))"
    assert NamedModel("nowhere:net", normalization="none", sha256="0" * 64).identity()["normalisation"] == "none"
    assert NamedModel("nowhere:net", sha256="0" * 64).identity()["normalisation"] is None


def test_every_class_with_a_former_name_is_where_the_table_says() -> None:
    for name in FORMER_NAMES:
        module, _, attribute = name.rpartition(".")
        assert inspect.isclass(getattr(importlib.import_module(module), attribute))


def test_every_net_of_the_models_room_is_in_the_table() -> None:
    for found in pkgutil.walk_packages(models.__path__, "pdpgd.models."):
        module = importlib.import_module(found.name)
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, nn.Module) and kind.__module__ == found.name:
                assert f"{found.name}.{name}" in FORMER_NAMES


class FormerPickler(pickle._Pickler):  # type: ignore[name-defined]  # the one in Python, to be overridden
    """Names our classes as the first version did."""

    def save_global(self, obj: type, name: str | None = None) -> None:
        former = FORMER_NAMES.get(f"{obj.__module__}.{obj.__qualname__}")
        if former is None:
            super().save_global(obj, name)
            return
        module, _, attribute = former.rpartition(".")
        self.write(f"c{module}\n{attribute}\n".encode())
        self.memoize(obj)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_model_that_the_first_version_saved_is_loaded(
    zipped: bool, model: TinyConv, images: torch.Tensor, tmp_path: Path
) -> None:
    expected, path = Pooled(Normalized(model, HALF), POOLS["restricted-imagenet"]), tmp_path / "model.pt"
    former = SimpleNamespace(__name__="pickle", Pickler=FormerPickler, dump=pickle.dump)
    torch.save(expected, path, pickle_module=former, _use_new_zipfile_serialization=zipped)
    assert b"pdpgd.subjects.normalise\nNormalised" in path.read_bytes()
    loaded = load_model(str(path), trust_model_code=True)
    assert type(loaded) is Pooled
    assert loaded.pool == expected.pool
    assert type(loaded.model) is Normalized
    assert torch.equal(loaded.model(images), expected.model(images))


def test_the_former_spelling_of_normalization_is_accepted_with_a_warning(
    model: TinyConv, images: torch.Tensor, labels: torch.Tensor, tmp_path: Path
) -> None:
    torch.save(model, tmp_path / "model.pt")
    path = str(tmp_path / "model.pt")
    with pytest.warns(DeprecationWarning, match=r"load_model\(normalisation=...\) is deprecated: write norm") as seen:
        loaded = load_model(path, normalisation=HALF, trust_model_code=True)
    assert isinstance(loaded, Normalized)
    assert [warning.filename for warning in seen] == [__file__]
    question = {"norms": ["l2"], "budget": 4, "limit": 2, "threads": 1, "trust_model_code": True}
    with pytest.warns(DeprecationWarning, match=r"evaluate\(normalisation=...\) is deprecated"):
        run = evaluate(path, (images, labels), normalisation=HALF, **question)
    assert run.spec.model["normalisation"].startswith("Normalisation(mean=(0.5,")
    with pytest.raises(errors.InvalidInputError, match="normalization: expected it once, got normalisation="):
        load_model(path, normalization=HALF, normalisation=HALF)
