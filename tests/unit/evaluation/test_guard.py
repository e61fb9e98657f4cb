"""Results of an attack that changes the model are discarded, and the changes are named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from pdpgd.errors import ModelChangedError, PdpgdWarning, UnfinishedError
from pdpgd.evaluation.engines import Failure, Worker
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.evaluation.guard import Guard
from pdpgd.evaluation.job import Job, run_job
from pdpgd.evaluation.model_handle import LiveModel, NamedModel
from pdpgd.models.loading import load_model
from pdpgd.runs.spec import AttackSpec
from pdpgd.runs.stats import JobResult
from support.bad_models import Dropping, Noisy
from support.models import Counting, TinyConv
from support.specs import small_spec

Tamper = Callable[[nn.Module], object]


def rolled(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return output.roll(1, 1)


def real(model: Any) -> nn.Module:
    """The model behind the counter that an attack is given."""
    inner: nn.Module = model._counted()
    return inner


def leaves_a_hook(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    """In a module of its own, so that it can be sent to other processes."""
    real(model).register_forward_hook(rolled)
    return SimpleNamespace(adversarials=inputs, found=torch.ones(len(inputs), dtype=torch.bool))


def tampering(tamper: Tamper, *, once: bool = False) -> Callable[..., Any]:
    left = [True]

    def attack(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        if left[0]:
            tamper(real(model))
            left[0] = not once
        return SimpleNamespace(adversarials=1 - inputs, found=torch.ones(len(inputs), dtype=torch.bool))

    return attack


def halve(model: nn.Module) -> None:
    with torch.no_grad():
        model.last.weight.mul_(0.5)


def replace_forward(model: nn.Module) -> None:
    usual = model.forward
    model.forward = lambda x: usual(x)  # type: ignore[method-assign]  # on purpose


class Scaled(nn.Module):
    """A plain attribute decides what it answers: neither a weight nor a hook."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.scale = model, 1.0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return self.scale * logits


def rescale(model: nn.Module) -> None:
    model.scale = -1.0  # type: ignore[assignment]  # of Scaled


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda model: model.register_forward_hook(rolled), r"hooks of the outermost module \(forward_hooks\), logits"),
        (lambda model: model.first.register_forward_pre_hook(lambda *_: None), r"hooks of first \(forward_pre_hooks\)"),
        (
            lambda model: model.last.register_full_backward_hook(lambda *_: None),
            r"hooks of last \(backward_hooks\)",
        ),
        (
            lambda model: model.last.register_forward_hook(lambda *_, **__: None, with_kwargs=True),
            r"hooks of last \(forward_hooks\), hooks of last \(forward_hooks_with_kwargs\)",
        ),
        (halve, r"weights last\.weight, logits of the clean inputs \(by "),
        (replace_forward, "forward of the outermost module"),
        (lambda model: model.second.train(), "mode of second"),
        (lambda model: setattr(model, "second", nn.Identity()), r"weights second\.weight, .* more"),
    ],
    ids=["hook", "pre-hook", "backward hook", "hook with kwargs", "weights", "forward", "mode", "module"],
)
def test_changes_of_the_model_by_an_attack_are_named_and_no_point_is_stored(
    tamper: Tamper, words: str, model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    with pytest.raises(UnfinishedError, match=rf"(?s)expected the model as it was loaded, got one with other {words}"):
        evaluate(model, (images, labels), norms=("l2",), attack=tampering(tamper), threads=1)


def test_logits_that_moved_are_enough(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    changed = Scaled(model)
    with pytest.raises(UnfinishedError, match="got one with other logits of the clean inputs"):
        evaluate(changed, (images, labels), norms=("l2",), attack=tampering(rescale), threads=1)


class Holder:
    """No module, but it has one."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, x: Tensor) -> Any:
        return self.model(x)


def passed_on(model: nn.Module, x: Tensor) -> Any:
    return model(x)


@pytest.mark.parametrize(
    "made",
    [lambda net: lambda x: net(x), lambda net: net.forward, Holder, lambda net: partial(passed_on, net)],
    ids=["function", "method", "object", "partial"],
)
def test_a_hook_that_spares_the_clean_inputs_is_seen_behind_a_function_too(
    made: Callable[[nn.Module], Any], model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    def on_others(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output

    attack = tampering(lambda _: model.last.register_forward_hook(on_others))
    with pytest.raises(UnfinishedError, match=r"got one with other hooks of \w+\.last \(forward_hooks\)"):
        evaluate(made(model), (images, labels), norms=("l2",), attack=attack, threads=1)


@pytest.fixture
def cleaned() -> Iterator[list[Any]]:
    handles: list[Any] = []
    yield handles
    for handle in handles:
        handle.remove()


def test_a_global_hook_is_seen(cleaned: list[Any], model: TinyConv, images: Tensor, labels: Tensor) -> None:
    def register(model: nn.Module) -> None:
        cleaned.append(nn.modules.module.register_module_forward_hook(lambda *_: None))

    with pytest.raises(UnfinishedError, match=r"global hooks \(forward_hooks\)"):
        evaluate(model, (images, labels), norms=("l2",), attack=tampering(register), threads=1)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_model_object_stays_changed_and_every_later_chunk_says_so(
    scaled: bool, model: TinyConv, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    """What the first chunk left must not become what the second is held to."""
    attacked = Scaled(model) if scaled else model
    attack = tampering(rescale if scaled else halve, once=True)
    with pytest.raises(UnfinishedError) as error:
        evaluate(attacked, (images, labels), norms=("l2",), attack=attack, threads=1, chunk_size=4, out=tmp_path)
    message = str(error.value)
    assert message.count("expected the model as it was loaded") == 4, "three chunks and the second start"
    assert "0 of 3 chunks are stored" in message
    assert not list(tmp_path.glob("records/*"))


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A factory in the current directory, whose weights are always the same."""
    (tmp_path / "guarded_net.py").write_text(
        "import torch\nfrom support.models import TinyConv\n\n"
        "def net():\n    return TinyConv(torch.Generator().manual_seed(5))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    yield "guarded_net:net"
    sys.modules.pop("guarded_net", None)


def test_a_model_by_name_is_loaded_anew_for_the_next_chunk(named: str, images: Tensor) -> None:
    labels = TinyConv(Generator().manual_seed(5))(images).argmax(1)
    for tamper in (halve, lambda model: model.register_forward_hook(rolled)):
        with pytest.raises(UnfinishedError) as error:
            evaluate(
                named, (images, labels), norms=("l2",), attack=tampering(tamper, once=True), threads=1, chunk_size=4
            )
        assert "1 jobs failed:\n  chunk-00000" in str(error.value)
        assert "2 of 3 chunks are stored" in str(error.value)


def test_processes_of_their_own_see_it_too(generator: Generator) -> None:
    data = labelled(torch.rand(20, 1, 28, 28, generator=generator))
    with pytest.raises(UnfinishedError, match=r"(?s)3 jobs failed:.*hooks of the outermost module.*0 of 2 chunks"):
        evaluate("mnist-plain", data, norms=("l2",), attack=leaves_a_hook, threads=1, chunk_size=10, workers=2)


def labelled(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """With the classes that mnist-plain gives them."""
    return pictures, load_model("mnist-plain")(pictures).argmax(1)


SPEC = small_spec(norms=("l2",), attack="mine", budget=None)


def job(images: Tensor, labels: Tensor, attack: Callable[..., Any], *, name: str = "chunk-00000") -> Job:
    return Job(name, "chunk", SPEC, AttackSpec(name="mine", function=attack), images, labels, torch.arange(len(images)))


def honest(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
    model(inputs)
    return SimpleNamespace(adversarials=1 - inputs, found=torch.ones(len(inputs), dtype=torch.bool))


class TrainMode(nn.Module):
    """Batch normalization in train mode: its buffers move with every pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.norm, self.model = nn.BatchNorm2d(3), model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(self.norm(x) / 4 + 0.5)
        return logits


class Lazy(nn.Module):
    """Registers a hook of its own in its first pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.ready = model, False
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.model.register_forward_hook(lambda *_: None)
            self.ready = True
        logits: Tensor = self.model(x)
        return logits


@pytest.mark.filterwarnings("ignore::pdpgd.errors.PdpgdWarning")
@pytest.mark.parametrize("kind", ["train mode", "noise", "dropout", "lazy", "lambda"])
def test_a_model_that_changes_by_itself_or_answers_by_chance_is_not_held_against_the_attack(
    kind: str, model: TinyConv, images: Tensor, labels: Tensor, generator: Generator
) -> None:
    fickle: Any = {
        "train mode": lambda: TrainMode(model),
        "noise": lambda: Noisy(model, generator, 0.5),
        "dropout": lambda: Dropping(model, generator),
        "lazy": lambda: Lazy(model),
        "lambda": lambda: lambda x: model(x),
    }[kind]()
    guard = Guard()
    for _ in range(3):
        run_job(job(images, labels, honest), fickle, guard=guard)
    assert not guard.changed


def test_weights_that_an_attack_changes_are_seen_where_others_change_by_themselves(
    model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    def change(model: nn.Module) -> None:
        halve(model.model)  # type: ignore[arg-type]  # of TrainMode

    with (
        pytest.warns(PdpgdWarning, match="train mode"),
        pytest.raises(ModelChangedError, match=r"got one with other weights model\.last\.weight"),
    ):
        run_job(job(images, labels, tampering(change)), TrainMode(model))


def test_an_attack_that_fails_after_it_changed_the_model_spoils_no_later_chunk() -> None:
    def breaks(model: nn.Module, inputs: Tensor, labels: Tensor, *, norm: str) -> Any:
        real(model).register_forward_hook(rolled)
        raise ArithmeticError("no")

    pictures = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    worker = Worker({"": NamedModel("mnist-plain")}, "cpu")
    clean = labelled(pictures)[1]
    failed = worker.run(job(pictures, clean, breaks))
    assert isinstance(failed, Failure)
    assert "ArithmeticError: no" in failed.message
    assert isinstance(worker.run(job(pictures, clean, honest)), JobResult)


def test_a_fresh_model_costs_two_passes_of_eight_samples_and_a_chunk_one_pass_more(
    model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    counting, guard = Counting(model), Guard()
    first = run_job(job(images, labels, honest), counting, guard=guard).stats
    assert first.forwards.total == sum(counting.forwards)
    second = run_job(job(images, labels, honest), counting, guard=guard).stats
    assert first.forwards.total - second.forwards.total == 16


def test_a_live_model_that_was_changed_is_refused_before_its_next_job(
    model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    worker = Worker({"": LiveModel(model)}, "cpu")
    for attack in (tampering(halve), honest, honest):
        failed = worker.run(job(images, labels, attack))
        assert isinstance(failed, Failure)
        assert "got one with other weights last.weight" in failed.message
