"""Models by name or path: the model of each kind of source, and the error for each mistake."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from pdpgd.errors import InvalidInputError, LoadError, UnknownNameError
from pdpgd.models import zoo
from pdpgd.models.loading import load_model
from pdpgd.models.normalization import Normalization, Normalized
from pdpgd.models.weights import write_weights
from support.models import TinyConv
from support.pickled_code import LeavesMarker

HALF = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NETS = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(12, 3)).train()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 3)
    def forward(self, x):
        return self.layer(x.flatten(1))

ready = net()
number = 3

def text(): return "no model"
def broken(): raise KeyError("no layer 7")
def leaves(): raise SystemExit(0)
def late():
    import lent_by_the_directory
    return net()
def wants(classes): return net()
"""


FILES = {
    "nets_for_a_test": NETS,
    "lent_by_the_directory": "",
    "imports_the_missing": "import nowhere_to_be_found",
    "does_not_parse": "def net(:",
    "leaves_at_once": "import sys; sys.exit(0)",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a directory with modules, which are removed from sys.modules afterwards."""
    for name, content in FILES.items():
        (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    for name in FILES:
        sys.modules.pop(name, None)


def assert_ready(model: nn.Module) -> None:
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_shipped_net_is_found_by_its_name() -> None:
    model = load_model("mnist-plain")
    assert_ready(model)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_shipped_net_takes_no_other_weights_and_no_normalization() -> None:
    with pytest.raises(InvalidInputError, match="weights: expected none, as mnist-plain is shipped whole"):
        load_model("mnist-plain", weights="other.safetensors")
    with pytest.raises(InvalidInputError, match="normalization: expected none, as mnist-plain is shipped whole"):
        load_model("mnist-plain", normalization=HALF)
    assert not isinstance(load_model("mnist-plain", normalization="none"), Normalized)


def test_weights_with_their_card_beside_them_are_a_model(tmp_path: Path) -> None:
    for suffix in (".json", ".safetensors"):
        shutil.copy(zoo.path("mnist-plain").with_suffix(suffix), tmp_path / f"mine{suffix}")
    images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(load_model(str(tmp_path / "mine.safetensors"))(images), load_model("mnist-plain")(images))


@pytest.mark.parametrize("architecture", ["sys:exit", "os:abort", "leaves_a_marker:make", "mnist-huge", ""])
def test_a_card_may_name_only_architectures_of_ours_and_nothing_is_imported_for_others(
    architecture: object, here: Path
) -> None:
    (here / "leaves_a_marker.py").write_text("open('ran', 'w').close()")
    shutil.copy(zoo.path("mnist-plain"), here / "mine.safetensors")
    card = json.loads(zoo.path("mnist-plain").with_suffix(".json").read_text())
    (here / "mine.json").write_text(json.dumps({**card, "architecture": architecture}))
    with pytest.raises(LoadError) as caught:
        load_model("mine.safetensors")
    assert f"got {architecture!r}" in str(caught.value)
    assert "give package.module:factory as the model and this file as its weights (--weights mine.safetensors)" in str(
        caught.value
    )
    assert not (here / "ran").exists()
    assert "leaves_a_marker" not in sys.modules


@pytest.mark.parametrize("name", ["net", "Net", "ready", "late"])
def test_a_factory_a_class_and_an_instance_of_the_current_directory_are_models(name: str, here: Path) -> None:
    model = load_model(f"nets_for_a_test:{name}")
    assert_ready(model)
    assert model(torch.zeros(2, 3, 2, 2)).shape == (2, 3)


def test_building_a_model_leaves_the_random_state_as_it_was(here: Path) -> None:
    before = torch.get_rng_state()
    load_model("nets_for_a_test:Net")
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_are_loaded_into_a_factorys_model(generator: torch.Generator, here: Path) -> None:
    weight = torch.rand(3, 12, generator=generator)
    write_weights("w.safetensors", {"layer.weight": weight, "layer.bias": torch.zeros(3)})
    model = load_model("nets_for_a_test:Net", weights="w.safetensors")
    images = torch.rand(2, 3, 2, 2, generator=generator)
    torch.testing.assert_close(model(images), images.flatten(1) @ weight.T)
    assert_ready(model)


def test_a_normalization_is_put_inside_the_model(here: Path) -> None:
    plain = load_model("nets_for_a_test:ready")
    model = load_model("nets_for_a_test:ready", normalization=HALF)
    assert_ready(model)
    torch.testing.assert_close(model(torch.full((1, 3, 2, 2), 0.75)), plain(torch.full((1, 3, 2, 2), 0.5)))


def test_without_a_normalization_nothing_is_put_inside(here: Path) -> None:
    assert not isinstance(load_model("nets_for_a_test:net"), Normalized)
    assert not isinstance(load_model("nets_for_a_test:net", normalization="none"), Normalized)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere_to_be_found:net", "got no module 'nowhere_to_be_found'"),
        ("nets_for_a_test.inner:net", "got no module 'nets_for_a_test.inner'"),
        ("tim:resnet18", "did you mean timm:resnet18?"),
        ("imports_the_missing:net", "was found, but imports nowhere_to_be_found, which was not"),
        ("does_not_parse:net", "importing does_not_parse failed with SyntaxError"),
        ("nets_for_a_test:number", "expected a function that builds a model, got int"),
        ("nets_for_a_test:text", "expected it to return a torch.nn.Module, got str"),
        ("nets_for_a_test:broken", "got KeyError: 'no layer 7'"),
        ("nets_for_a_test:leaves", "expected a model, got SystemExit: 0"),
        ("leaves_at_once:net", "importing leaves_at_once failed with SystemExit: 0"),
        ("nets_for_a_test:wants", "got TypeError: wants() missing 1 required positional argument"),
        (":net", "got no module name before the colon"),
        ("my-nets:net", "got no module name before the colon"),
        ("nowhere.pt", "expected a file, got none there"),
        ("nowhere/net", "expected a file, got none there"),
        ("./nets", "expected a file, got none there"),
        ("nets_for_a_test.py", "cannot be read"),
    ],
)
def test_a_source_that_gives_no_model_is_answered_with_the_reason(source: str, message: str, here: Path) -> None:
    with pytest.raises(LoadError) as caught:
        load_model(source)
    assert message in str(caught.value)
    assert source.removeprefix("./") in str(caught.value)


@pytest.mark.parametrize("source", ["nets_for_a_test:nte", "nets_for_a_test:redy"])
def test_a_misspelt_factory_is_answered_with_a_suggestion(source: str, here: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown name in nets_for_a_test: .* did you mean '(net|ready)'"):
        load_model(source)


def test_the_error_of_a_factory_is_kept_as_the_cause(here: Path) -> None:
    with pytest.raises(LoadError) as caught:
        load_model("nets_for_a_test:broken")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("source", ["mnist-plane", "", "resnet18", "nets_for_a_test"])
def test_a_name_that_is_nothing_is_answered_with_all_forms(source: str, here: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"mnist-plain, package\.module:factory, paper:NAME, robustbench:NAME, timm:NAME"
    ):
        load_model(source)


def test_a_misspelt_net_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mnist-plain'"):
        load_model("mnist-plane")


@pytest.mark.parametrize("source", ["timm:", "hf:", "robustbench:"])
def test_a_zoo_without_a_name_is_an_error(source: str) -> None:
    with pytest.raises(InvalidInputError, match="NAME, got no name"):
        load_model(source)


@pytest.mark.parametrize("source", [3, Path("net.pt"), nn.Identity()])
def test_a_source_that_is_no_string_is_an_error(source: object) -> None:
    with pytest.raises(InvalidInputError, match="expected its name or path as a string"):
        load_model(source)  # type: ignore[arg-type]  # the mistake is the test


@pytest.mark.parametrize("save", [write_weights, lambda path, model: torch.save(model.state_dict(), path)])
def test_a_file_of_weights_alone_is_no_model(
    save: Callable[[Path, nn.Module], None], generator: torch.Generator, tmp_path: Path
) -> None:
    save(tmp_path / "w.bin", TinyConv(generator))
    with pytest.raises(LoadError, match=r"with weights alone: give the model as package\.module:factory"):
        load_model(str(tmp_path / "w.bin"))


def test_a_file_that_holds_a_model_takes_no_weights(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="weights: expected none"):
        load_model(str(tmp_path / "m.pt"), weights="w.safetensors")


@pytest.mark.parametrize("keyword", ["trust_model_code", "trust_pickle"])
def test_a_pickled_model_is_loaded_only_if_trusted(keyword: str, generator: torch.Generator, tmp_path: Path) -> None:
    model, path, marker = TinyConv(generator), tmp_path / "m.pt", tmp_path / "ran"
    model.note = LeavesMarker(marker)
    torch.save(model, path)
    with pytest.raises(LoadError, match=r"runs code when it is loaded.*--trust-model-code"):
        load_model(str(path))
    assert not marker.exists()
    loaded = load_model(str(path), **{keyword: True})
    assert marker.exists()
    assert_ready(loaded)
    images = torch.rand(2, 3, 6, 6, generator=generator)
    torch.testing.assert_close(loaded(images), model(images))


def test_a_file_in_the_current_directory_needs_no_suffix(generator: torch.Generator, here: Path) -> None:
    torch.save(TinyConv(generator), "model")
    assert_ready(load_model("model", trust_model_code=True))
