"""Files that hold a whole model: they have the logits and gradients of the model that was saved."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pdpgd.errors import LoadError, ModelError, PdpgdWarning
from pdpgd.models.loading import load_model
from pdpgd.models.normalization import Normalization
from support.models import TinyConv
from support.pickled_code import LeavesMarker

SHAPE = (3, 6, 6)


@pytest.fixture
def model(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


def save_traced(model: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(model, torch.zeros(2, *SHAPE)), path)


def save_scripted(model: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(108, 5))), path)


def export(model: nn.Module, batch: int | torch.export.Dim) -> torch.export.ExportedProgram:
    """A number fixes the batch; a dimension leaves it open."""
    sizes = None if isinstance(batch, int) else ({0: batch},)
    example = torch.zeros(batch if isinstance(batch, int) else 4, *SHAPE)
    return torch.export.export(model, (example,), dynamic_shapes=sizes)


def save_exported(model: nn.Module, path: Path) -> None:
    torch.export.save(export(model, torch.export.Dim("batch")), path)


def load(path: Path) -> nn.Module:
    return load_model(str(path), trust_model_code=True)


def logits_and_slope(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    leaf = images.clone().requires_grad_()
    logits = model(leaf)
    (slope,) = torch.autograd.grad(logits[:, 1].sum(), leaf)
    return logits.detach(), slope


@pytest.mark.parametrize(("save", "name"), [(save_traced, "m.pt"), (save_traced, "m.ts"), (save_exported, "m.pt2")])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_saved_program_answers_and_slopes_as_the_model_does(
    save: Callable[[nn.Module, Path], None],
    name: str,
    batch: int,
    model: TinyConv,
    generator: torch.Generator,
    tmp_path: Path,
) -> None:
    save(model, tmp_path / name)
    loaded = load(tmp_path / name)
    images = torch.rand(batch, *SHAPE, generator=generator)
    for got, expected in zip(logits_and_slope(loaded, images), logits_and_slope(model, images), strict=True):
        torch.testing.assert_close(got, expected)
    assert not any(module.training for module in loaded.modules())
    assert list(loaded.parameters())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize(("save", "name"), [(save_traced, "m.pt"), (save_exported, "m.pt2")])
def test_a_saved_program_is_normalized_like_any_model(
    save: Callable[[nn.Module, Path], None], name: str, model: TinyConv, generator: torch.Generator, tmp_path: Path
) -> None:
    save(model, tmp_path / name)
    loaded = load_model(
        str(tmp_path / name), trust_model_code=True, normalization=Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    )
    images = torch.rand(2, *SHAPE, generator=generator)
    shifted = images - torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1)
    torch.testing.assert_close(loaded(images), model(shifted / torch.tensor([0.5, 0.6, 0.7]).reshape(3, 1, 1)))
    assert not loaded.eval().training


def test_a_script_saved_in_train_mode_is_put_into_eval_mode(generator: torch.Generator, tmp_path: Path) -> None:
    save_scripted(nn.Identity(), tmp_path / "m.pt")
    loaded = load(tmp_path / "m.pt")
    images = torch.rand(3, *SHAPE, generator=generator)
    assert torch.equal(loaded(images), loaded(images))


def test_a_fixed_batch_takes_that_batch_and_explains_itself_to_others(model: TinyConv, tmp_path: Path) -> None:
    torch.export.save(export(model, 2), tmp_path / "m.pt2")
    loaded = load(tmp_path / "m.pt2")
    assert loaded(torch.zeros(2, *SHAPE)).shape == (2, 5)
    with pytest.raises(ModelError, match=r"exported for a batch of 2, got 3: export it with a dynamic batch dimension"):
        loaded(torch.zeros(3, *SHAPE))


def test_a_limited_batch_explains_itself(model: TinyConv, tmp_path: Path) -> None:
    torch.export.save(export(model, torch.export.Dim("batch", min=2, max=8)), tmp_path / "m.pt2")
    loaded = load(tmp_path / "m.pt2")
    assert loaded(torch.zeros(8, *SHAPE)).shape == (8, 5)
    for batch in (1, 9):
        with pytest.raises(ModelError, match=f"exported for a batch of 2 to 8, got {batch}"):
            loaded(torch.zeros(batch, *SHAPE))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 6, 6), (2, 108)])
def test_images_of_another_size_than_exported_are_an_error_that_says_so(
    shape: tuple[int, ...], model: TinyConv, tmp_path: Path
) -> None:
    save_exported(model, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"exported for inputs of shape \(batch, 3, 6, 6\), got \(2, "):
        load(tmp_path / "m.pt2")(torch.zeros(shape))


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm2d(3)])
def test_a_program_exported_in_train_mode_is_warned_of(layer: nn.Module, tmp_path: Path) -> None:
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(108, 5))
    torch.export.save(export(model.train(), 2), tmp_path / "train.pt2")
    torch.export.save(export(model.eval(), 2), tmp_path / "eval.pt2")
    with pytest.warns(PdpgdWarning, match="exported in train mode"):
        load(tmp_path / "train.pt2")
    load(tmp_path / "eval.pt2")


class Two(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second


def test_a_program_of_two_inputs_is_refused(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Two(), (torch.zeros(2), torch.zeros(2))), tmp_path / "m.pt2")
    with pytest.raises(LoadError, match="expected a program of one input, got 2: first, second"):
        load(tmp_path / "m.pt2")


def with_entries(path: Path, **entries: bytes) -> None:
    """Replace or add entries, named by their paths inside the archive's folder."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    folder = next(iter(contents)).partition("/")[0]
    contents.update({f"{folder}/{name}": content for name, content in entries.items()})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def code_in_the_example(path: Path, marker: Path) -> None:
    buffer = io.BytesIO()
    torch.save(((torch.zeros(2, *SHAPE),), {"code": LeavesMarker(marker)}), buffer)
    with_entries(path, **{"data/sample_inputs/model.pt": buffer.getvalue()})


def code_in_a_constant(path: Path, marker: Path) -> None:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = {"config": {"code": entry}}
    with_entries(
        path,
        **{
            "data/constants/model_constants_config.json": json.dumps(config).encode(),
            "data/constants/opaque_obj_0": pickle.dumps(LeavesMarker(marker)),
        },
    )


def code_in_a_size(path: Path, marker: Path) -> None:
    """torch has sympy evaluate the symbolic sizes of the inputs, which are text: no pickle is involved."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        graph = archive.read(name).decode()
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    changed = re.sub(r'"expr_str": "([^"]+)"', rf'"expr_str": "[{code}, \1][1]"', graph)
    assert changed != graph
    with_entries(path, **{"models/model.json": changed.encode()})


@pytest.mark.parametrize("hide", [code_in_the_example, code_in_a_constant, code_in_a_size])
def test_code_hidden_in_an_exported_program_is_refused_and_does_not_run(
    hide: Callable[[Path, Path], None], model: TinyConv, tmp_path: Path
) -> None:
    path, marker = tmp_path / "m.pt2", tmp_path / "ran"
    save_exported(model, path)
    hide(path, marker)
    with pytest.raises(LoadError, match=r"got a torch\.export archive, which runs code .*--trust-model-code"):
        load_model(str(path))
    assert not marker.exists()
    # After the code has run, torch may or may not return a model.
    with contextlib.suppress(LoadError):
        load(path)
    assert marker.exists()


class Writing(nn.Module):
    """Overwrites a file whenever it is called."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, self.place)
        return x.flatten(1)


def test_a_script_that_writes_files_is_refused_and_does_not_run(tmp_path: Path) -> None:
    path, precious = tmp_path / "m.pt", tmp_path / "precious"
    precious.write_text("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Writing(str(precious))), path)
    with pytest.raises(LoadError, match=r"got a TorchScript program, which runs code .*--trust-model-code"):
        load_model(str(path))(torch.zeros(2, *SHAPE))
    assert precious.read_text() == "mine"
    load(path)(torch.zeros(2, *SHAPE))
    assert precious.read_bytes() != b"mine"


@pytest.mark.parametrize(("save", "name"), [(save_traced, "m.pt"), (save_exported, "m.pt2")])
def test_a_program_without_a_trap_is_refused_too(
    save: Callable[[nn.Module, Path], None], name: str, model: TinyConv, tmp_path: Path
) -> None:
    save(model, tmp_path / name)
    with pytest.raises(LoadError, match=rf"{name}: expected .*, got .* if you trust .* give --trust-model-code"):
        load_model(str(tmp_path / name))
    load_model(str(tmp_path / name), trust_pickle=True)


@pytest.mark.parametrize(("save", "name"), [(save_traced, "m.pt"), (save_exported, "m.pt2")])
def test_a_program_that_is_cut_short_is_reported(
    save: Callable[[nn.Module, Path], None], name: str, model: TinyConv, tmp_path: Path
) -> None:
    path = tmp_path / name
    save(model, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LoadError, match="cut short or damaged"):
        load(path)


def test_a_script_with_damaged_code_is_reported(model: TinyConv, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    save_traced(model, path)
    with zipfile.ZipFile(path) as archive:
        sources = [name.partition("/")[2] for name in archive.namelist() if name.endswith(".py")]
    with_entries(path, **dict.fromkeys(sources, b"this is no code"))
    with pytest.raises(LoadError, match="expected a TorchScript model, got one that torch cannot load"):
        load(path)


def test_an_export_with_a_damaged_graph_is_reported(model: TinyConv, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    save_exported(model, path)
    with_entries(path, **{"models/model.json": b"{}"})
    with pytest.raises(LoadError, match="expected an exported program, got one that torch cannot load"):
        load(path)


@pytest.mark.parametrize(("save", "name"), [(save_traced, "m.pt"), (save_exported, "m.pt2")])
def test_a_program_given_as_weights_is_reported(
    save: Callable[[nn.Module, Path], None], name: str, model: TinyConv, tmp_path: Path
) -> None:
    from pdpgd.models.weights import read_weights

    save(model, tmp_path / name)
    with pytest.raises(LoadError, match=r"expected weights, got a whole model of torch\.(jit|export)"):
        read_weights(tmp_path / name)
