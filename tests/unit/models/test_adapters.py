"""Models of other libraries: with the real library where it is installed, and tiny models that need no network."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pdpgd
from pdpgd.errors import InvalidInputError, LoadError, MissingExtraError
from pdpgd.models import import_shims
from pdpgd.models.adapters import huggingface as huggingface_adapter
from pdpgd.models.adapters import robustbench as robustbench_adapter
from pdpgd.models.adapters import timm as timm_adapter
from pdpgd.models.loading import load_model
from pdpgd.models.normalization import PRESETS, Normalization, Normalized
from pdpgd.models.weights import write_weights
from support.pickled_code import LeavesMarker

CODE = """
from pathlib import Path
from transformers import ViTConfig, ViTForImageClassification

Path({marker!r}).touch()

class Config(ViTConfig):
    model_type = "mine"

class Model(ViTForImageClassification):
    config_class = Config
"""
TINY_TIMM = "test_efficientnet"
TINY_ROBUSTBENCH = "cifar10/corruptions/Hendrycks2020AugMix_ResNeXt"


def installed(library: str) -> None:
    """Skip a test without robustbench, and fail without any other library.

    robustbench needs an older timm than the tests install, so that its tests run only where it is installed alone.
    find_spec is used instead of importorskip because robustbench cannot be imported without our workarounds.
    """
    if importlib.util.find_spec(library) is None:
        assert library == "robustbench", f"{library} is not installed"
        pytest.skip("robustbench is not installed")


def assert_usable(model: nn.Module, images: Tensor, expected: Tensor) -> None:
    """Assert that the model is frozen, in eval mode, and has the expected logits and a gradient."""
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    leaf = images.clone().requires_grad_()
    logits = model(leaf)
    assert type(logits) is Tensor
    torch.testing.assert_close(logits, expected)
    (slope,) = torch.autograd.grad(logits[:, 0].sum(), leaf)
    assert slope.abs().sum() > 0


def normalized(images: Tensor, by: Normalization) -> Tensor:
    return (images - torch.tensor(by.mean).reshape(3, 1, 1)) / torch.tensor(by.std).reshape(3, 1, 1)


@pytest.mark.parametrize(
    ("source", "library", "extra"),
    [
        ("timm:resnet18", "timm", "timm"),
        ("hf:some/model", "transformers", "huggingface"),
        ("robustbench:Standard", "robustbench.utils", "robustbench"),
    ],
)
def test_without_the_library_the_extra_is_named(
    source: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library.partition(".")[0], None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"needs {library}: pip install 'pdpgd\[{extra}\]'"):
        load_model(source)


class TestTimm:
    @pytest.fixture
    def timm(self) -> Any:
        installed("timm")
        return timm_adapter._library()

    @pytest.fixture
    def tiny(self, timm: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = timm.create_model(TINY_TIMM, num_classes=7).eval()
        return model

    def test_local_weights_are_loaded_and_its_own_normalization_is_inside(
        self, tiny: nn.Module, generator: torch.Generator, tmp_path: Path
    ) -> None:
        write_weights(tmp_path / "w.safetensors", tiny)
        model = load_model(f"timm:{TINY_TIMM}", weights=tmp_path / "w.safetensors")
        images = torch.rand(2, 3, 32, 32, generator=generator)
        assert_usable(model, images, tiny(normalized(images, PRESETS["imagenet"])))

    def test_a_given_normalization_or_none_comes_before_its_own(
        self, tiny: nn.Module, generator: torch.Generator, tmp_path: Path
    ) -> None:
        torch.save({"state_dict": tiny.state_dict()}, tmp_path / "w.pth")
        images = torch.rand(2, 3, 32, 32, generator=generator)
        bare = load_model(f"timm:{TINY_TIMM}", weights=tmp_path / "w.pth", normalization="none")
        assert_usable(bare, images, tiny(images))
        chosen = load_model(f"timm:{TINY_TIMM}", weights=tmp_path / "w.pth", normalization=PRESETS["cifar10"])
        assert_usable(chosen, images, tiny(normalized(images, PRESETS["cifar10"])))

    def test_without_weights_the_pretrained_ones_are_asked_for(
        self, timm: Any, tiny: nn.Module, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = {}

        def create_model(name: str, **options: object) -> nn.Module:
            asked.update(options, name=name)
            return tiny

        monkeypatch.setattr(timm, "create_model", create_model)
        assert isinstance(load_model(f"timm:{TINY_TIMM}.r160_in1k"), Normalized)
        assert asked == {"name": f"{TINY_TIMM}.r160_in1k", "pretrained": True}

    def test_the_random_state_is_left_as_it_was(self, tiny: nn.Module, tmp_path: Path) -> None:
        write_weights(tmp_path / "w.safetensors", tiny)
        before = torch.get_rng_state()
        load_model(f"timm:{TINY_TIMM}", weights=tmp_path / "w.safetensors")
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_misspelt_name_is_answered_with_suggestions(self, timm: Any) -> None:
        with pytest.raises(
            InvalidInputError, match=r"unknown timm model: .*timm\.list_models.*did you mean 'resnet18'"
        ):
            load_model("timm:resnt18")

    def test_an_unknown_tag_is_reported(self, timm: Any) -> None:
        with pytest.raises(LoadError, match=r"timm:resnet18\.nothing: expected a model, got RuntimeError: .*nothing"):
            load_model("timm:resnet18.nothing")

    def test_weights_of_another_model_are_reported(self, timm: Any, tmp_path: Path) -> None:
        write_weights(tmp_path / "w.safetensors", nn.Linear(2, 2))
        with pytest.raises(LoadError, match=r"expected the weights of EfficientNet, got others: \d+ missing"):
            load_model(f"timm:{TINY_TIMM}", weights=tmp_path / "w.safetensors")


class TestHuggingFace:
    PROCESSOR = (
        '{"image_processor_type": "ViTImageProcessor", "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]'
    )
    OWN = Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))

    @pytest.fixture
    def transformers(self) -> ModuleType:
        installed("transformers")
        library = huggingface_adapter._library("transformers")
        library.logging.disable_progress_bar()
        return library

    @pytest.fixture
    def config(self, transformers: Any) -> Any:
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        return transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)

    @pytest.fixture
    def tiny(self, transformers: Any, config: Any, tmp_path: Path) -> nn.Module:
        """A tiny vision transformer, saved in `tmp_path`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = transformers.ViTForImageClassification(config).eval()
        model.save_pretrained(tmp_path)
        (tmp_path / "preprocessor_config.json").write_text(f"{self.PROCESSOR}}}")
        return model  # type: ignore[no-any-return]  # transformers is untyped here

    @pytest.fixture
    def images(self, generator: torch.Generator) -> Tensor:
        return torch.rand(2, 3, 16, 16, generator=generator)

    def test_a_local_directory_is_a_model_with_its_processors_normalization(
        self, tiny: nn.Module, images: Tensor, tmp_path: Path
    ) -> None:
        expected = tiny(normalized(images, self.OWN)).logits
        assert_usable(load_model(f"hf:{tmp_path}"), images, expected)

    def test_a_given_normalization_or_none_needs_no_processor(
        self, tiny: nn.Module, images: Tensor, tmp_path: Path
    ) -> None:
        (tmp_path / "preprocessor_config.json").unlink()
        assert_usable(load_model(f"hf:{tmp_path}", normalization="none"), images, tiny(images).logits)
        expected = tiny(normalized(images, PRESETS["cifar10"])).logits
        assert_usable(load_model(f"hf:{tmp_path}", normalization=PRESETS["cifar10"]), images, expected)

    def test_other_weights_are_loaded_into_its_configuration(
        self, tiny: nn.Module, images: Tensor, tmp_path: Path
    ) -> None:
        (tmp_path / "model.safetensors").unlink()
        write_weights(tmp_path / "other.safetensors", tiny)
        model = load_model(f"hf:{tmp_path}", weights=tmp_path / "other.safetensors")
        assert_usable(model, images, tiny(normalized(images, self.OWN)).logits)

    def test_a_processor_that_does_not_normalise_is_taken_at_its_word(
        self, tiny: nn.Module, images: Tensor, tmp_path: Path
    ) -> None:
        (tmp_path / "preprocessor_config.json").write_text(f'{self.PROCESSOR}, "do_normalize": false}}')
        assert_usable(load_model(f"hf:{tmp_path}"), images, tiny(images).logits)

    @pytest.mark.parametrize("setting", ['"rescale_offset": true', '"rescale_factor": 0.0078', '"do_rescale": false'])
    def test_a_processor_with_another_scale_is_not_guessed_at(
        self, setting: str, tiny: nn.Module, tmp_path: Path
    ) -> None:
        (tmp_path / "preprocessor_config.json").write_text(f"{self.PROCESSOR}, {setting}}}")
        with pytest.raises(LoadError, match=r"expected pixels scaled to \[0, 1\], got another scale"):
            load_model(f"hf:{tmp_path}")

    def test_a_model_without_a_processor_is_not_guessed_at(self, tiny: nn.Module, tmp_path: Path) -> None:
        (tmp_path / "preprocessor_config.json").unlink()
        with pytest.raises(LoadError, match="expected an image processor, got none that can be read: give the norm"):
            load_model(f"hf:{tmp_path}")

    def test_a_processor_without_numbers_is_reported(self, tiny: nn.Module, tmp_path: Path) -> None:
        (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
        with pytest.raises(LoadError, match="expected image_mean and image_std of its image processor, got none"):
            load_model(f"hf:{tmp_path}")

    def test_a_checkpoint_without_a_classifier_is_not_filled_with_random_numbers(
        self, transformers: Any, config: Any, tmp_path: Path
    ) -> None:
        transformers.ViTModel(config).save_pretrained(tmp_path)
        with pytest.raises(LoadError, match=r"expected a trained classifier, got no weights for classifier\.bias"):
            load_model(f"hf:{tmp_path}")

    def test_a_checkpoint_that_runs_code_is_refused_and_does_not_run(self, tiny: nn.Module, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").unlink()
        marker = tmp_path / "ran"
        torch.save({**tiny.state_dict(), "code": LeavesMarker(marker)}, tmp_path / "pytorch_model.bin")
        with pytest.raises(LoadError, match="runs code when it is loaded"):
            load_model(f"hf:{tmp_path}")
        assert not marker.exists()

    @pytest.mark.parametrize("weights", [False, True])
    def test_code_beside_a_checkpoint_runs_only_if_trusted(
        self, weights: bool, tiny: nn.Module, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from transformers import dynamic_module_utils

        marker, config = tmp_path / "ran", tmp_path / "config.json"
        (tmp_path / "code_of_its_own.py").write_text(CODE.format(marker=str(marker)))
        names = {"AutoConfig": "code_of_its_own.Config", "AutoModelForImageClassification": "code_of_its_own.Model"}
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "mine", "auto_map": names}))
        write_weights(tmp_path / "w.safetensors", tiny)
        monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr("builtins.input", lambda question: "y")  # transformers asks on the terminal
        given: Any = {"weights": tmp_path / "w.safetensors"} if weights else {}
        with pytest.raises(LoadError, match=r"got one with Python code of its own.*--trust-model-code"):
            load_model(f"hf:{tmp_path}", **given)
        assert not marker.exists()
        loaded = load_model(f"hf:{tmp_path}", trust_model_code=True, **given)
        assert marker.exists()
        assert_usable(loaded, images, tiny(normalized(images, self.OWN)).logits)

    @pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all"])
    def test_a_missing_directory_is_reported(self, name: str, transformers: Any) -> None:
        with pytest.raises(LoadError, match="expected a directory of save_pretrained, got none there"):
            load_model(f"hf:{name}")


class TestRobustBench:
    """The real library."""

    @pytest.fixture
    def entry(self) -> Any:
        installed("robustbench")
        zoo = robustbench_adapter._library("robustbench.model_zoo").model_dicts
        dataset, threat, name = TINY_ROBUSTBENCH.split("/")
        return next(
            models[name]
            for data, threats in zoo.items()
            for kind, models in threats.items()
            if (data.value, kind.value) == (dataset, threat)
        )

    @pytest.fixture
    def tiny(self, entry: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = entry["model"]().eval()
        return model

    def test_a_file_stands_in_for_the_download(
        self, tiny: nn.Module, generator: torch.Generator, tmp_path: Path
    ) -> None:
        torch.save({"state_dict": tiny.state_dict()}, tmp_path / "mine.pt")
        images = torch.rand(1, 3, 32, 32, generator=generator)
        model = load_model(f"robustbench:{TINY_ROBUSTBENCH}", weights=tmp_path / "mine.pt")
        assert type(model) is type(tiny)
        assert_usable(model, images, tiny(images))

    def test_code_in_a_download_runs_only_if_trusted(self, tiny: nn.Module, tmp_path: Path) -> None:
        marker, downloads = tmp_path / "ran", tmp_path / f"{TINY_ROBUSTBENCH}.pt"
        downloads.parent.mkdir(parents=True)
        torch.save({"state_dict": tiny.state_dict(), "code": LeavesMarker(marker)}, downloads)
        with pytest.raises(LoadError, match=r"runs code when it is loaded.*--trust-model-code"):
            load_model(f"robustbench:{TINY_ROBUSTBENCH}", weights=tmp_path)
        assert not marker.exists()
        load_model(f"robustbench:{TINY_ROBUSTBENCH}", weights=tmp_path, trust_model_code=True)
        assert marker.exists()

    def test_weights_of_another_model_are_reported(self, entry: Any, tmp_path: Path) -> None:
        torch.save({"weight": torch.zeros(2)}, tmp_path / "mine.pt")
        with pytest.raises(LoadError, match="expected a model, got RuntimeError: Error"):
            load_model(f"robustbench:{TINY_ROBUSTBENCH}", weights=tmp_path / "mine.pt")

    def test_the_names_it_lent_are_given_back(self, entry: Any) -> None:
        lent = [name for name, module in sys.modules.items() if name == "autoattack" != module.__name__]
        assert not lent


class Data(Enum):
    CIFAR = "cifar10"
    IMAGENET = "imagenet"


class Threat(Enum):
    LINF = "Linf"
    L2 = "L2"


class TestRobustBenchCalls:
    """Calls of the adapter to the library, recorded by a stub with the same model zoo and load_model signature."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
        made = []

        def load_model(model_name: str, model_dir: Path, dataset: str, threat_model: str) -> nn.Module:
            file = Path(model_dir, dataset, threat_model, f"{model_name}.pt")
            content = file.read_bytes() if file.exists() else None
            made.append(SimpleNamespace(name=model_name, folder=model_dir, file=content, of=(dataset, threat_model)))
            return nn.Linear(2, 2)

        one, several, none = {"gdrive_id": "id"}, {"gdrive_id": ["a", "b"]}, {"gdrive_id": None}
        zoo = {
            Data.CIFAR: {Threat.LINF: {"Wong2020Fast": one, "Deck": several, "XCiT": none}, Threat.L2: {"Rony": one}},
            Data.IMAGENET: {Threat.LINF: {"Salman": one}},
        }
        library = {
            "robustbench.utils": SimpleNamespace(load_model=load_model),
            "robustbench.model_zoo": SimpleNamespace(model_dicts=zoo),
        }
        monkeypatch.setattr(robustbench_adapter, "_library", library.__getitem__)
        return made

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("Wong2020Fast", ("cifar10", "Linf")),
            ("cifar10/L2/Rony", ("cifar10", "L2")),
            ("imagenet/Linf/Salman", ("imagenet", "Linf")),
        ],
    )
    def test_data_set_and_threat_are_passed_on_and_downloads_go_to_torchs_cache(
        self, name: str, expected: tuple[str, str], calls: list[SimpleNamespace]
    ) -> None:
        load_model(f"robustbench:{name}")
        assert [(call.name, call.of) for call in calls] == [(name.rpartition("/")[2], expected)]
        assert calls[0].folder == Path(torch.hub.get_dir(), "robustbench")

    def test_a_file_of_weights_is_where_the_library_looks(self, calls: list[SimpleNamespace], tmp_path: Path) -> None:
        (tmp_path / "mine.pt").write_bytes(b"mine")
        load_model("robustbench:cifar10/L2/Rony", weights=tmp_path / "mine.pt")
        assert calls[0].file == b"mine"

    def test_a_folder_of_downloads_is_passed_on(self, calls: list[SimpleNamespace], tmp_path: Path) -> None:
        load_model("robustbench:Deck", weights=tmp_path)
        assert calls[0].folder == tmp_path

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Wong2020Fats", "unknown robustbench model: .*cifar10 and Linf, .*did you mean 'Wong2020Fast'"),
            ("cifar/Linf/Wong2020Fast", "unknown data set of robustbench: .*did you mean 'cifar10'"),
            ("cifar10/linf/Wong2020Fast", "unknown threat of robustbench's cifar10: expected one of L2, Linf"),
            ("cifar10/Wong2020Fast", "expected NAME or DATASET/THREAT/NAME"),
        ],
    )
    def test_an_unknown_name_is_answered_with_what_there_is(
        self, name: str, message: str, calls: list[SimpleNamespace]
    ) -> None:
        with pytest.raises(InvalidInputError, match=message):
            load_model(f"robustbench:{name}")

    @pytest.mark.parametrize(
        ("name", "file", "message"),
        [
            ("Wong2020Fast", "nowhere.pt", "expected a file or a folder of downloads, got none there"),
            ("XCiT", "mine.pt", "expected none, as robustbench loads those of XCiT through timm"),
            ("Deck", "mine.pt", "expected a folder, as Deck has 2 files of weights"),
        ],
    )
    def test_weights_that_the_library_would_pass_over_are_refused(
        self, name: str, file: str, message: str, calls: list[SimpleNamespace], tmp_path: Path
    ) -> None:
        (tmp_path / "mine.pt").touch()
        with pytest.raises(LoadError, match=message):
            load_model(f"robustbench:{name}", weights=tmp_path / file)
        assert not calls

    def test_it_is_not_normalized_twice(self, calls: list[SimpleNamespace]) -> None:
        with pytest.raises(InvalidInputError, match="normalizes its inputs itself"):
            load_model("robustbench:Wong2020Fast", normalization=PRESETS["cifar10"])
        assert isinstance(load_model("robustbench:Wong2020Fast", normalization="none"), nn.Linear)


class TestTorchvision:
    def test_a_fresh_interpreter_can_import_it_and_is_not_warned(self) -> None:
        installed("torchvision")
        program = (
            "from pdpgd.models.import_shims import make_torchvision_importable as make; make(); make(); "
            "from torchvision.transforms import Normalize"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(pdpgd.__file__).parents[1])}
        subprocess.run([sys.executable, "-W", "error", "-c", program], env=environment, check=True)

    @pytest.fixture
    def imports(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Have imports return these values one after the other, or raise those that are errors."""
        answers: list[Exception | None] = []
        declared: list[bool] = []

        def import_module(name: str) -> None:
            answer = answers.pop(0)
            if answer is not None:
                raise answer

        monkeypatch.setattr(import_shims.importlib, "import_module", import_module)
        monkeypatch.setattr(import_shims, "_declare_operators", lambda: declared.append(True))
        return SimpleNamespace(answers=answers, declared=declared)

    @pytest.mark.parametrize(
        ("answers", "declared"),
        [
            ([None], False),
            ([ModuleNotFoundError("No module named 'torchvision'")], False),
            ([RuntimeError("operator torchvision::nms does not exist"), None], True),
        ],
    )
    def test_operators_are_declared_only_where_their_absence_stops_the_import(
        self, answers: list[Exception | None], declared: bool, imports: Any
    ) -> None:
        imports.answers.extend(answers)
        import_shims.make_torchvision_importable.__wrapped__()
        assert imports.declared == [True] * declared
        assert not imports.answers

    def test_an_import_that_fails_otherwise_is_not_hidden(self, imports: Any) -> None:
        imports.answers.append(RuntimeError("compiled with different CUDA major versions"))
        with pytest.raises(RuntimeError, match="different CUDA"):
            import_shims.make_torchvision_importable.__wrapped__()
        assert not imports.declared
