"""The directory of a run: files are complete, broken ones are named and computed again, foreign ones are untouched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd.errors import InvalidInputError, StorageError, UnfinishedError
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.runs.disk_store import DiskStore
from pdpgd.runs.result import Evaluation, load_evaluation
from support.models import Counting, TinyConv

Run = Callable[..., Evaluation]


@pytest.fixture
def run(model: TinyConv, images: Tensor, labels: Tensor, tmp_path: Path) -> Run:
    """The same call, but for what a test changes."""

    def call(
        classifier: nn.Module = model, *, data: tuple[Tensor, Tensor] = (images, labels), **changes: Any
    ) -> Evaluation:
        settings = {"norms": ("linf", "l2"), "budget": 4, "chunk_size": 4, "threads": 1, "out": tmp_path / "run"}
        return evaluate(classifier, data, **{**settings, **changes})

    return call


@pytest.fixture
def finished(run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that run's directory; it is made once for all tests."""
    first = tmp_path_factory.getbasetemp() / "finished"
    if not first.exists():
        run(out=first)
    return Path(shutil.copytree(first, tmp_path / "run"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder: Path) -> dict[str, bytes]:
    """What must be the same to the last bit whatever happened on the way."""
    return {name: content for name, content in files(folder).items() if name.startswith(("records/", "examples/"))}


def test_a_directory_holds_a_record_an_example_and_a_receipt_of_each_chunk(run: Run, tmp_path: Path) -> None:
    run()
    chunks = [f"chunk-0000{number}" for number in range(3)]
    expected = {f"{where}/{chunk}.{kind}" for where, kind in DRAWERS for chunk in chunks}
    checks = {"checks/preflight.json", "checks/second-start.json", "checks/second-start.parquet"}
    assert set(files(tmp_path / "run")) == expected | checks | {".lock", "spec.json", "history.json", "summary.json"}


DRAWERS = (("records", "parquet"), ("examples", "npz"), ("receipts", "json"))


def test_memory_and_disk_hold_the_same(run: Run, tmp_path: Path) -> None:
    stored, held = run(), run(out=None)
    read = load_evaluation(tmp_path / "run")
    for name, column in held.columns.items():
        np.testing.assert_array_equal(stored.columns[name], column)
        np.testing.assert_array_equal(read.columns[name], column)
    for norm in ("linf", "l2"):
        np.testing.assert_array_equal(stored.examples(norm), held.examples(norm))
        np.testing.assert_array_equal(read.examples(norm, eight_bit=True), held.examples(norm, eight_bit=True))
    assert read.reliability == stored.reliability == held.reliability


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"{}")


@pytest.mark.parametrize(
    ("damage", "file", "why"),
    [
        (flipped, "records/chunk-00001.parquet", "chunk-00001.parquet does not match the checksum in its receipt"),
        (flipped, "examples/chunk-00001.npz", "chunk-00001.npz does not match the checksum in its receipt"),
        (truncated, "examples/chunk-00001.npz", "chunk-00001.npz does not match the checksum in its receipt"),
        (truncated, "receipts/chunk-00001.json", ""),
        (emptied, "receipts/chunk-00001.json", "files"),
        (Path.unlink, "records/chunk-00001.parquet", "No such file"),
        (Path.unlink, "examples/chunk-00001.npz", "No such file"),
        (flipped, "checks/second-start.parquet", "second-start.parquet does not match the checksum in its receipt"),
        (truncated, "checks/preflight.json", ""),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_broken_files_are_named_set_aside_and_computed_again(
    damage: Callable[[Path], None], file: str, why: str, run: Run, finished: Path
) -> None:
    folder, job = finished, Path(file).stem
    before, stamps = files(folder), times(folder)
    damage(folder / file)
    broken = files(folder)
    evaluation = run()
    (note,) = evaluation.notes
    assert note.startswith(f"{job} is broken (")
    assert why in note
    assert str(folder / "set-aside") in note
    assert results(folder) == {name: content for name, content in before.items() if name in results(folder)}
    assert len(results(folder)) == 6
    assert (folder / "checks/second-start.parquet").read_bytes() == before["checks/second-start.parquet"]
    aside = {path.name: path.read_bytes() for path in (folder / "set-aside").iterdir()}
    mine = {Path(name).name: content for name, content in broken.items() if Path(name).stem == job}
    assert aside == {name.replace(".", ".0."): content for name, content in mine.items()}
    untouched = {name: stamp for name, stamp in times(folder).items() if stamps.get(name) == stamp}
    assert {name for name in results(folder) if job not in name} <= set(untouched)


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_what_breaks_twice_is_set_aside_twice(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        run()
        flipped(tmp_path / "run/records/chunk-00002.parquet")
    run()
    aside = sorted(path.name for path in (tmp_path / "run/set-aside").glob("*.parquet"))
    assert aside == ["chunk-00002.0.parquet", "chunk-00002.1.parquet"]


def test_files_without_a_receipt_and_drafts_are_what_a_killed_run_leaves_and_are_written_over(
    run: Run, finished: Path
) -> None:
    folder = finished
    before = results(folder)
    (folder / "receipts/chunk-00001.json").unlink()
    truncated(folder / "records/chunk-00001.parquet")
    (folder / "examples/.chunk-00001.npz.tmp").write_bytes(b"half")
    assert run().notes == ()
    assert results(folder) == before
    assert not (folder / "set-aside").exists()


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"norms": ("linf", "l1")}, ["norms: linf, l2 stored, linf, l1 requested"]),
        ({"norms": ("l2", "linf")}, ["norms: linf, l2 stored, l2, linf requested"]),
        ({"budget": 5}, ["budget: 4 stored, 5 requested"]),
        ({"seed": 1}, ["seed: 0 stored, 1 requested"]),
        ({"limit": 7}, ["data.samples: 10 stored, 7 requested", "data.sha256: "]),
        (
            {"chunk_size": 5, "batch_size": 2},
            ["batch_size: 100 stored, 2 requested", "chunk_size: 4 stored, 5 requested"],
        ),
        ({"threads": 2}, ["threads: 1 stored, 2 requested"]),
        ({"attack": "pdgd"}, ["attack: auto stored, pdgd requested"]),
    ],
    ids=lambda value: ",".join(value),
)
def test_another_spec_is_refused_with_what_differs_and_nothing_is_changed(
    changes: dict[str, Any], lines: list[str], run: Run, finished: Path
) -> None:
    before, stamps = files(finished), times(finished)
    with pytest.raises(InvalidInputError, match="expected the spec that this run was started with") as refusal:
        run(**changes)
    said = str(refusal.value).splitlines()[1:-1]
    assert len(said) == len(lines)
    assert all(one.strip().startswith(other) for one, other in zip(said, lines, strict=True)), said
    assert "--out" in str(refusal.value)
    assert files(finished) == before
    stamps.pop(".lock")
    assert stamps.items() <= times(finished).items()


def test_a_model_with_other_weights_or_other_images_are_another_run(
    run: Run, images: Tensor, labels: Tensor, generator: torch.Generator, finished: Path
) -> None:
    with pytest.raises(InvalidInputError, match=r"\n  model\.sha256: \w{12}\.\.\. stored, \w{12}\.\.\. requested\n"):
        run(TinyConv(generator))
    with pytest.raises(
        InvalidInputError, match=r"another:\n  data\.sha256: \w{12}\.\.\. stored, \w{12}\.\.\. requested\n"
    ):
        run(data=(1 - images, labels))


def test_threads_and_device_default_to_those_that_the_run_was_started_with(run: Run, finished: Path) -> None:
    torch.set_num_threads(2)
    again = run(threads=None)
    assert (again.spec.threads, again.spec.device) == (1, "cpu")


def test_a_finished_run_starts_no_work_and_asks_the_model_nothing(run: Run, model: TinyConv, tmp_path: Path) -> None:
    watched = Counting(model)
    first = run(watched)
    assert watched.forwards
    watched.forwards.clear()
    before, stamps = files(tmp_path), times(tmp_path / "run")
    again = run(watched)
    assert watched.forwards == []
    assert files(tmp_path) == before
    assert {name for name, stamp in times(tmp_path / "run").items() if stamps[name] != stamp} <= {".lock"}
    assert again.as_json() == first.as_json()


def test_the_history_has_an_entry_for_each_start_of_work(run: Run, finished: Path) -> None:
    (finished / "receipts/chunk-00000.json").unlink()
    run()
    history = json.loads((finished / "history.json").read_text())
    assert [(start["engine"], start["workers"]) for start in history] == [("local", None)] * 2


def test_a_history_that_cannot_be_read_is_replaced_with_a_note(run: Run, finished: Path) -> None:
    (finished / "receipts/chunk-00000.json").unlink()
    truncated(finished / "history.json")
    assert any("history.json could not be read" in note for note in run().notes)
    assert len(json.loads((finished / "history.json").read_text())) == 1


def test_a_directory_with_other_things_in_it_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("finally")
    with pytest.raises(InvalidInputError, match=r"expected a new directory or that of a run, got one with thesis\.tex"):
        run()
    assert files(tmp_path) == {"run/thesis.tex": b"finally"}


@pytest.mark.parametrize("place", ["file", "file/run", "file/deep/run"])
def test_a_place_that_cannot_be_a_directory_is_refused(place: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StorageError, match=r"expected a directory to write the results to, got an error: .*--out"):
        run(out=tmp_path / place)
    assert files(tmp_path) == {"file": b"a file"}


def test_a_spec_that_cannot_be_read_is_not_overwritten(run: Run, finished: Path) -> None:
    truncated(finished / "spec.json")
    before = files(finished)
    with pytest.raises(StorageError, match=r"spec.json: expected the spec of a run, got a file that cannot be read"):
        run()
    assert files(finished) == before


def test_a_second_run_is_kept_out_and_let_in_when_the_first_is_gone(run: Run, finished: Path) -> None:
    before = files(finished)
    with (
        DiskStore(finished).exclusive(),
        pytest.raises(StorageError, match="another run is using this directory"),
    ):
        run()
    assert files(finished) == before
    run()


def test_an_unfinished_run_does_not_load_and_says_what_it_lacks(run: Run, finished: Path) -> None:
    (finished / "receipts/chunk-00001.json").unlink()
    (finished / "checks/second-start.json").unlink()
    with pytest.raises(UnfinishedError, match="got one where chunk-00001 is missing, second-start is missing; start"):
        load_evaluation(finished)


def test_a_directory_that_is_no_runs_does_not_load(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StorageError, match=r"expected the directory of a run, got one without spec\.json"):
            load_evaluation(folder)
    assert files(tmp_path) == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for a chunk or two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(run: Run, finished: Path, small_disk: Path) -> None:
    full = small_disk / "run"
    for _ in range(2):
        with pytest.raises(StorageError, match=r"No space left.*no finished work is lost.*free some space") as failure:
            run(out=full)
    done = sorted(path.stem for path in (full / "receipts").iterdir() if not path.name.startswith("."))
    assert 0 < len(done) < 3
    assert f"({len(done)} chunks)" in str(failure.value)
    store = DiskStore(full)
    assert all(store.has(name) for name in done)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert run(out=full).notes == ()
    assert results(full) == results(finished)
