"""Weights on disk: which files are read, which are rejected, and what a failed write leaves behind."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pdpgd
from pdpgd.errors import InvalidInputError, LoadError, MissingExtraError
from pdpgd.models.weights import checksum, load_weights, read_weights, weights_file, write_weights
from support.hub import offline_hub, put
from support.models import TinyConv
from support.pickled_code import LeavesMarker


@pytest.fixture
def model(generator: torch.Generator) -> TinyConv:
    return TinyConv(generator)


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def save_old(content: object, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def save_bare(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


def test_what_was_written_is_read_again(model: TinyConv, tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", model, metadata={"made": "here"})
    assert_same(read_weights(tmp_path / "w.safetensors"), model.state_dict())


def test_safetensors_are_known_by_their_content(model: TinyConv, tmp_path: Path) -> None:
    write_weights(tmp_path / "weights.bin", model)
    assert_same(read_weights(tmp_path / "weights.bin"), model.state_dict())


def test_metadata_are_in_the_file(model: TinyConv, tmp_path: Path) -> None:
    from safetensors import safe_open

    write_weights(tmp_path / "w.safetensors", model, metadata={"made": "here"})
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert file.metadata() == {"made": "here"}


def test_shared_and_strided_tensors_can_be_written(tmp_path: Path) -> None:
    tied = torch.arange(6.0).reshape(2, 3)
    state = {"a": tied, "b": tied, "c": tied.T, "d": tied[:, 1]}
    write_weights(tmp_path / "w.safetensors", state)
    assert_same(read_weights(tmp_path / "w.safetensors"), state)


@pytest.mark.parametrize("save", [torch.save, save_old])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
    ],
)
def test_common_torch_files_are_read_without_unpickling(
    save: Callable[[object, Path], None],
    wrap: Callable[[dict[str, Tensor]], object],
    model: TinyConv,
    tmp_path: Path,
) -> None:
    save(wrap(model.state_dict()), tmp_path / "w.pt")
    assert_same(read_weights(tmp_path / "w.pt"), model.state_dict())


def test_a_prefix_that_is_the_models_own_is_kept(model: TinyConv, generator: torch.Generator, tmp_path: Path) -> None:
    parallel, other = nn.DataParallel(model), nn.DataParallel(TinyConv(generator))
    write_weights(tmp_path / "w.safetensors", parallel)
    load_weights(other, tmp_path / "w.safetensors")
    assert_same(other.state_dict(), parallel.state_dict())


def test_two_sets_of_weights_in_one_file_are_not_chosen_from(model: TinyConv, tmp_path: Path) -> None:
    torch.save({"model": model.state_dict(), "ema": model.state_dict()}, tmp_path / "w.pt")
    with pytest.raises(LoadError, match="expected one set of weights, got 2: model, ema"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("save", [torch.save, save_old, save_bare])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(
    save: Callable[[object, Path], None], tmp_path: Path
) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.pt"
    save({"weight": LeavesMarker(marker)}, path)
    with pytest.raises(LoadError, match=r"runs code when it is loaded.*--trust-model-code"):
        read_weights(path)
    assert not marker.exists()


@pytest.mark.parametrize("save", [torch.save, save_old])
def test_a_trusted_pickle_runs(save: Callable[[object, Path], None], model: TinyConv, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.pt"
    save({"state_dict": model.state_dict(), "note": LeavesMarker(marker)}, path)
    assert_same(read_weights(path, trust_model_code=True), model.state_dict())
    assert marker.exists()


def test_a_pickled_model_is_refused_and_if_trusted_gives_its_weights(model: TinyConv, tmp_path: Path) -> None:
    torch.save(model, tmp_path / "w.pt")
    with pytest.raises(LoadError, match=r"asks for support\.models\.TinyConv"):
        read_weights(tmp_path / "w.pt")
    assert_same(read_weights(tmp_path / "w.pt", trust_model_code=True), model.state_dict())


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def long_header(content: bytes) -> bytes:
    return struct.pack("<Q", 1 << 40) + content[8:]


def bad_header(content: bytes) -> bytes:
    return content[:8] + b"}" + content[9:]


@pytest.mark.parametrize("damage", [cut, long_header, bad_header, lambda content: content[:12]])
def test_damaged_safetensors_are_reported_as_such(
    damage: Callable[[bytes], bytes], model: TinyConv, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, model)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(LoadError, match="expected safetensors, got a file that is cut short or damaged"):
        read_weights(path)


def test_a_torch_file_that_is_cut_short_is_reported_as_such(model: TinyConv, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(model.state_dict(), path)
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(LoadError, match="cut short or damaged"):
        read_weights(path)


def test_an_old_torch_file_that_is_cut_short_is_damaged_not_dangerous(model: TinyConv, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    save_old(model.state_dict(), path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(LoadError, match="cannot be read"):
        read_weights(path)


def test_a_damaged_pickle_inside_a_torch_file_is_reported(model: TinyConv, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(model.state_dict(), path)
    path.write_bytes(path.read_bytes().replace(b"first.weight", b"first.\xff\xffight", 1))
    with pytest.raises(LoadError, match="cannot be read"):
        read_weights(path)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize(
    ("content", "message"), [(b"", "got an empty file"), (b"not weights at all", "cannot be read")]
)
def test_a_file_that_is_no_weights_is_reported(content: bytes, message: str, trust: bool, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(LoadError, match=message):
        read_weights(tmp_path / "w.pt", trust_model_code=trust)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "got none"),
        ([torch.zeros(1)], "got list"),
        ({"epoch": 3}, "got int for 'epoch'"),
        ({"weight": torch.zeros(1), "epoch": 3}, "got int for 'epoch'"),
        ({3: torch.zeros(1)}, "got Tensor for 3"),
        (torch.zeros(1), "got Tensor"),
    ],
)
def test_a_torch_file_without_named_tensors_is_reported(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(LoadError, match=f"expected tensors by name, {message}"):
        read_weights(tmp_path / "w.pt")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    for use in (read_weights, checksum):
        with pytest.raises(LoadError, match="expected a file, got none there"):
            use(tmp_path / "w.pt")


def test_a_directory_is_reported(tmp_path: Path) -> None:
    for use in (read_weights, checksum):
        with pytest.raises(LoadError, match="expected a file, got a directory"):
            use(tmp_path)


def test_another_zip_file_is_reported(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(LoadError, match=r"got another zip file, with \['readme.txt'\]"):
        read_weights(tmp_path / "w.pt")


def test_weights_are_loaded_into_the_model(model: TinyConv, generator: torch.Generator, tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", model)
    other = TinyConv(generator)
    load_weights(other, tmp_path / "w.safetensors")
    assert_same(other.state_dict(), model.state_dict())


def test_weights_that_do_not_fit_are_listed_and_nothing_is_loaded(model: TinyConv, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: tensor + 1 for name, tensor in before.items()}
    state["last.bias"] = torch.zeros(7)
    del state["first.weight"]
    state.update({f"extra{number}": torch.zeros(1) for number in range(6)})
    write_weights(tmp_path / "w.safetensors", state)
    with pytest.raises(LoadError) as caught:
        load_weights(model, tmp_path / "w.safetensors")
    assert str(caught.value).endswith(
        "expected the weights of TinyConv, got others: 1 missing (first.weight); "
        "6 unexpected (extra0, extra1, extra2, extra3 and 2 more); "
        "1 of another shape (last.bias expected (5,), got (7,))"
    )
    assert_same(model.state_dict(), before)


def test_a_full_disk_leaves_the_old_file_as_it_was(
    model: TinyConv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LoadError, match=r"No space left on device; the former content is unchanged"):
        write_weights(path, model)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


LIMITED = """
import resource, sys, torch
from pathlib import Path
from pdpgd.errors import LoadError
from pdpgd.models.weights import write_weights
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_weights(Path(sys.argv[1]), {"weight": torch.zeros(1 << 16)})
except LoadError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of a file")
def test_a_write_that_the_system_stops_midway_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"old")
    home = str(Path(pdpgd.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    assert "File too large; the former content is unchanged" in done.stdout
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_weights_are_not_written_over_a_directory_or_a_device(model: TinyConv, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="got a directory or a device"):
        write_weights(tmp_path, model)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(LoadError, match="got a directory or a device"):
        write_weights(pipe, model)
    assert pipe.is_fifo()


@pytest.mark.parametrize("parent", ["nowhere", "file"])
def test_a_place_that_cannot_be_written_is_reported(parent: str, model: TinyConv, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoadError, match="expected enough space and permission to write"):
        write_weights(tmp_path / parent / "w.safetensors", model)


def test_a_link_stays_a_link(model: TinyConv, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_weights(tmp_path / "link", model)
    assert (tmp_path / "link").is_symlink()
    assert_same(read_weights(tmp_path / "real"), model.state_dict())


def test_what_is_no_tensor_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected tensors, got int for 'epoch'"):
        write_weights(tmp_path / "w.safetensors", {"epoch": 3})  # type: ignore[dict-item]  # the mistake is the test


def test_without_safetensors_the_extra_is_named(
    model: TinyConv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_weights(tmp_path / "w.safetensors", model)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pdpgd\[models\]'"):
        read_weights(tmp_path / "w.safetensors")
    with pytest.raises(MissingExtraError, match=r"pip install 'pdpgd\[models\]'"):
        write_weights(tmp_path / "w.safetensors", model)


def test_the_checksum_is_sha_256(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def robustness_checkpoint(model: nn.Module) -> dict[str, object]:
    """Save a classifier like MadryLab's robustness library: with its normalization, and both again for its attacks."""
    state = model.state_dict()
    normalizer = {"new_mean": torch.zeros(3, 1, 1), "new_std": torch.ones(3, 1, 1)}
    names = {
        **{f"module.normalizer.{name}": value for name, value in normalizer.items()},
        **{f"module.model.{name}": value for name, value in state.items()},
        **{f"module.attacker.normalize.{name}": value for name, value in normalizer.items()},
        **{f"module.attacker.model.{name}": value + 1 for name, value in state.items()},
    }
    return {"model": names, "epoch": 90, "schedule": {"last_epoch": 90, "_last_lr": [0.1]}}


def test_the_classifier_of_a_checkpoint_of_the_robustness_library_is_read(
    model: TinyConv, generator: torch.Generator, tmp_path: Path
) -> None:
    torch.save(robustness_checkpoint(model), tmp_path / "l2.ckpt")
    assert_same(read_weights(tmp_path / "l2.ckpt"), model.state_dict())
    other = TinyConv(generator)
    load_weights(other, tmp_path / "l2.ckpt")
    assert_same(other.state_dict(), model.state_dict())


def test_weights_beside_a_normalizer_that_are_not_the_robustness_librarys_are_left_as_they_are(tmp_path: Path) -> None:
    weights = {"normalizer.mean": torch.zeros(3), "model.bias": torch.zeros(2), "head.bias": torch.ones(2)}
    torch.save(weights, tmp_path / "w.pt")
    assert_same(read_weights(tmp_path / "w.pt"), weights)


def test_a_path_of_weights_is_taken_as_it_is() -> None:
    assert weights_file("some/w.pt") == Path("some/w.pt")
    assert weights_file(Path("w.pt")) == Path("w.pt")


def test_a_file_of_the_hub_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline_hub(tmp_path, monkeypatch)
    put(tmp_path, "lab/nets", "deep/net.ckpt").write_bytes(b"weights")
    assert weights_file("hf:lab/nets/deep/net.ckpt").read_bytes() == b"weights"


def test_a_file_that_cannot_be_had_is_named_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_hub(tmp_path, monkeypatch)
    with pytest.raises(LoadError) as caught:
        weights_file("hf:lab/nets/deep/net.ckpt")
    assert "hf:lab/nets/deep/net.ckpt: expected a file in the cache of Hugging Face" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "`hf download lab/nets deep/net.ckpt`" in str(caught.value)


@pytest.mark.parametrize("source", ["hf:net.ckpt", "hf:lab/nets", "hf:lab/nets/", "hf:/nets/net.ckpt"])
def test_a_source_on_the_hub_without_a_file_is_refused(source: str) -> None:
    with pytest.raises(InvalidInputError, match="expected hf:OWNER/REPOSITORY/FILE"):
        weights_file(source)
