"""Damaged results are never used: they are computed again, or an error names the file."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pdpgd.errors import PdpgdError, StorageError, UnfinishedError
from pdpgd.evaluation.evaluate import evaluate
from pdpgd.runs import records
from pdpgd.runs.disk_store import DiskStore
from pdpgd.runs.result import Evaluation, load_evaluation
from support.models import TinyConv

FLIPS = 60
FILES = ("records/{}.parquet", "examples/{}.npz", "receipts/{}.json")

Run = Callable[..., Evaluation]


@pytest.fixture
def run(model: TinyConv, images: Tensor, labels: Tensor) -> Run:
    """The same call, but for the directory and what a test changes."""

    def call(out: Path, **changes: Any) -> Evaluation:
        settings = {"norms": ("linf", "l2"), "budget": 4, "chunk_size": 2, "limit": 6}
        return evaluate(model, (images, labels), out=out, **{**settings, **changes})

    return call


@pytest.fixture
def undisturbed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made once for all tests; each damages a copy."""
    folder = tmp_path_factory.getbasetemp() / "undisturbed"
    if not folder.exists():
        run(folder)
    return folder


@pytest.fixture
def damaged(undisturbed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "run"))


def results(folder: Path) -> dict[str, bytes]:
    """What must be the same to the last bit whatever happened on the way."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for directory in ("records", "examples")
        for path in (folder / directory).iterdir()
    }


def numbers(folder: Path) -> dict[str, Any]:
    """The summary without where it lies, what it took, and what happened on the way."""
    summary = json.loads((folder / "summary.json").read_text())
    passes = {name: summary.pop(name)["attacks"] for name in ("forwards", "backwards")}
    return {**passes, **{name: value for name, value in summary.items() if name not in ("folder", "seconds", "notes")}}


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def flips(folder: Path) -> Iterator[tuple[str, int]]:
    """Random bits of random files; every kind of file is as likely as every other."""
    chance = random.Random(20261118)
    kinds: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        inner = path.relative_to(folder)
        kinds.setdefault((str(inner.parent) if len(inner.parts) > 1 else inner.name, path.suffix), []).append(path)
    assert len(kinds) == 8
    for number in range(FLIPS):
        path = chance.choice(list(kinds.values())[number % len(kinds)])
        yield str(path.relative_to(folder)), chance.randrange(8 * path.stat().st_size)


def same(one: Evaluation, other: Evaluation) -> bool:
    return (one.spec, one.stats, one.check_stats) == (other.spec, other.stats, other.check_stats) and all(
        np.array_equal(column, other.columns[name], equal_nan=column.dtype.kind == "f")
        for name, column in one.columns.items()
    )


def tried(function: Run, folder: Path) -> Evaluation | str:
    """What came of it, or what an error of ours says; any other error is one."""
    try:
        return function(folder)
    except PdpgdError as error:
        return str(error)


def test_no_flipped_bit_of_a_finished_run_is_believed(run: Run, undisturbed: Path, tmp_path: Path) -> None:
    """The same command ends with the same bits or names the broken file; reading alone does the same."""
    true, expected, summary = load_evaluation(undisturbed), results(undisturbed), numbers(undisturbed)
    named = 0
    for number, (file, bit) in enumerate(flips(undisturbed)):
        folder = Path(shutil.copytree(undisturbed, tmp_path / str(number)))
        flip(folder / file, bit)
        where = f"bit {bit} of {file}"
        read = tried(load_evaluation, folder)
        assert Path(file).name in read if isinstance(read, str) else same(read, true), where
        done = tried(run, folder)
        if isinstance(done, str):
            assert Path(file).name in done, where
            named += 1
        else:
            assert results(folder) == expected, where
            assert numbers(folder) == summary, where
    assert 0 < named < FLIPS / 4, "what can be computed again is"


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_no_flipped_bit_of_a_spec_is_believed_where_threads_and_device_are_not_given(
    norm: str, run: Run, tmp_path: Path
) -> None:
    """A run takes these from the spec that is there."""
    run(tmp_path / "whole", norms=(norm,), limit=2, checks=False)
    content = (tmp_path / "whole/spec.json").read_text()
    threads = f'"threads": {torch.get_num_threads()},'
    assert threads in content
    for old, new in ((threads, '"threads": 3,'), ('"device": "cpu"', '"device": "bpu"'), (norm, "l1")):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / new.strip('", :')))
        (folder / "spec.json").write_text(content.replace(old, new))
        for read in (load_evaluation, lambda place: run(place, norms=(norm,), limit=2, checks=False)):
            with pytest.raises(PdpgdError, match=r"spec\.json: expected the spec of the results in the directory"):
                read(folder)


def test_a_spec_that_says_the_same_in_other_bytes_is_written_as_it_was(run: Run, damaged: Path) -> None:
    content = (damaged / "spec.json").read_bytes()
    (damaged / "spec.json").write_bytes(content.replace(b"\n", b"\n\n"))
    assert run(damaged).notes == ()
    assert (damaged / "spec.json").read_bytes() == content


def every_key_changed(entries: Any) -> Iterator[Any]:
    """Copies of a JSON document with one key of it, at any depth, spelled differently."""
    if isinstance(entries, dict):
        for name, value in entries.items():
            rest = {other: content for other, content in entries.items() if other != name}
            yield {**rest, f"{name[:-1]}{chr(ord(name[-1]) ^ 1)}": value}
            for changed in every_key_changed(value):
                yield {**entries, name: changed}


def unread(entries: dict[str, Any]) -> dict[str, Any]:
    """The entries without those whose keys nothing depends on."""
    seconds = {name: value for name, value in entries.get("seconds_of", {}).items() if name in ("linf", "l2")}
    machine = {"machine": None} if "machine" in entries else {}
    return {**entries, **machine, **({"seconds_of": seconds} if "seconds_of" in entries else {})}


@pytest.mark.parametrize("job", ["chunk-00001", "second-start", "preflight"])
@pytest.mark.parametrize("age", ["new", "old"])
def test_a_receipt_with_a_damaged_key_is_never_used(job: str, age: str, damaged: Path) -> None:
    """Of an old one, which has no checksum, those that every receipt has and that anything is read from."""
    if age == "old":
        made_old(damaged)
    store = DiskStore(damaged)
    path = next(damaged.glob(f"*/{job}.json"))
    entries = json.loads(path.read_text())
    assert store.fault(job) is None
    for changed in every_key_changed(entries):
        if age == "old" and unread(changed) == unread(entries):
            continue
        path.write_text(json.dumps(changed))
        fault = store.fault(job)
        assert fault is not None
        assert fault.startswith("broken (")
        assert path.name in fault


OLD_STATS = (
    *("seconds_of", "forwards", "backwards", "faults", "seconds", "batch_size", "halved", "machine"),
    *("samples", "classes", "modules_in_train_mode", "repeated", "alone", "probabilities"),
    *("no_gradient", "broken_gradient", "shaken"),
)


def made_old(folder: Path) -> None:
    """What runs looked like before receipts and starts had a checksum."""
    for path in (*folder.glob("receipts/*.json"), *folder.glob("checks/*.json")):
        entries = json.loads(path.read_text())
        if "receipt" in entries:
            files, stats = entries["receipt"]["files"], entries["receipt"]["facts"]
            old = {name: stats[name] for name in OLD_STATS if name in stats}
            path.write_text(json.dumps({"files": files, **old}, indent=1))
    history = json.loads((folder / "history.json").read_text())
    for start in history:
        start.pop("sha256", None)
    (folder / "history.json").write_text(json.dumps(history, indent=1))


def test_an_older_run_is_read_and_none_of_its_jobs_is_repeated(run: Run, undisturbed: Path, damaged: Path) -> None:
    made_old(damaged)
    before = {path: path.read_bytes() for path in damaged.rglob("*.json") if path.name != "summary.json"}
    read, whole = load_evaluation(damaged), load_evaluation(undisturbed)
    assert read.as_json()["norms"] == whole.as_json()["norms"]
    assert [each.seconds for each in read.stats] == [each.seconds for each in whole.stats]
    assert run(damaged).notes == ()
    assert {path: path.read_bytes() for path in before} == before


def test_an_older_run_whose_spec_has_another_format_is_read_and_resumed(
    run: Run, undisturbed: Path, damaged: Path
) -> None:
    """Its results have the digest of the spec as it lies there, or as a later version read it."""
    whole = load_evaluation(undisturbed)
    entries = {**whole.spec.as_json(), "format": 2}
    del entries["settings"], entries["checks"]
    (damaged / "spec.json").write_text(f"{json.dumps(entries, indent=1)}\n")
    for name in ("chunk-00000", "chunk-00001"):
        shutil.rmtree(damaged / "checks", ignore_errors=True)
        for directory in FILES:
            (damaged / directory.format(name)).unlink()
    assert run(damaged).notes == ()
    mixed = results(damaged)
    assert mixed["records/chunk-00002.parquet"] == results(undisturbed)["records/chunk-00002.parquet"]
    assert mixed["records/chunk-00000.parquet"] != results(undisturbed)["records/chunk-00000.parquet"]
    assert run(damaged).notes == ()
    assert results(damaged) == mixed
    read = load_evaluation(damaged)
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(read.columns[name], column)
    (damaged / "spec.json").write_text(json.dumps({**entries, "threads": 3}))
    with pytest.raises(StorageError, match=r"spec\.json: expected the spec of the results in the directory"):
        load_evaluation(damaged)


@pytest.mark.parametrize("age", ["new", "old"])
@pytest.mark.parametrize(("one", "other"), [("00000", "00001"), ("00000", "00002"), ("00001", "00002")])
def test_chunks_that_were_swapped_are_done_again(
    age: str, one: str, other: str, run: Run, undisturbed: Path, damaged: Path
) -> None:
    if age == "old":
        made_old(damaged)
    for directory in FILES:
        first, second = (damaged / directory.format(f"chunk-{number}") for number in (one, other))
        first.rename(damaged / "between")
        second.rename(first)
        (damaged / "between").rename(second)
    with pytest.raises(UnfinishedError, match=f"chunk-{one} is broken .expected the result of chunk-{one}, got that"):
        load_evaluation(damaged)
    notes = run(damaged).notes
    assert [note.split(" is broken")[0] for note in notes] == [f"chunk-{one}", f"chunk-{other}"]
    assert results(damaged) == results(undisturbed)
    assert numbers(damaged)["norms"] == numbers(undisturbed)["norms"]


@pytest.mark.parametrize(
    ("age", "job"),
    [
        *itertools.product(("new", "old"), ("chunk-00000", "chunk-00002", "second-start")),
        ("new", "preflight"),  # an old receipt without records does not say whose it is
    ],
)
def test_what_was_copied_from_another_run_is_done_again(
    age: str, job: str, run: Run, undisturbed: Path, damaged: Path, tmp_path: Path
) -> None:
    run(tmp_path / "other", seed=1)
    for folder in (damaged, tmp_path / "other") if age == "old" else ():
        made_old(folder)
    copied = [path.relative_to(tmp_path / "other") for path in (tmp_path / "other").glob(f"*/{job}.*")]
    assert copied
    for path in copied:
        shutil.copy(tmp_path / "other" / path, damaged / path)
    with pytest.raises(UnfinishedError, match=f"{job} is broken .expected a result of this run, got one of another"):
        load_evaluation(damaged)
    (note,) = run(damaged).notes
    assert note.startswith(f"{job} is broken (expected a result of this run, got one of another")
    assert results(damaged) == results(undisturbed)
    assert numbers(damaged)["norms"] == numbers(undisturbed)["norms"]


def test_records_of_other_samples_are_done_again(run: Run, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a receipt says of them."""
    store = DiskStore(damaged)
    result = store.result("chunk-00001")
    assert result.columns is not None
    store.spec()
    store.save("chunk-00001", type(result)(result.stats, {**result.columns, "sample": result.columns["sample"] + 1}))
    assert store.fault("chunk-00001") is not None


@pytest.mark.parametrize("distance", [0.0, float("nan"), float("inf"), -1.0])
def test_a_fooled_sample_without_a_distance_is_neither_stored_nor_read(
    distance: float, undisturbed: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(damaged)
    store.spec()
    result = store.result("chunk-00002")
    assert result.columns is not None
    examples = store.examples("chunk-00002")
    wrong = result.columns["distance"].copy()
    (row, *_) = np.flatnonzero(result.columns["status"] == records.FOOLED)
    wrong[row] = distance
    broken = type(result)(result.stats, {**result.columns, "distance": wrong}, examples)
    before = results(damaged)
    with pytest.raises(PdpgdError, match=rf"expected a distance above 0 for a fooled sample, got {distance}"):
        store.save("chunk-00002", broken)
    assert results(damaged) == before
    monkeypatch.setattr("pdpgd.runs.disk_store.refuse_contradictions", lambda columns: None)
    store.save("chunk-00002", broken)
    fault = store.fault("chunk-00002")
    assert fault is not None
    assert "expected a distance above 0 for a fooled sample" in fault


def test_a_run_whose_results_contradict_themselves_is_not_finished_and_says_why(
    run: Run, model: TinyConv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fooled_by_nothing(columns: dict[str, Any]) -> records.Columns:
        whole = typed(columns)
        return {**whole, "distance": np.zeros_like(whole["distance"])}

    typed = records.typed
    monkeypatch.setattr(records, "typed", fooled_by_nothing)
    for out in (tmp_path / "run", None):
        with pytest.raises(
            UnfinishedError, match=r"chunk-00000 .*\n?.*expected a distance above 0 for a fooled sample"
        ):
            run(out)


def test_a_damaged_start_is_set_aside_and_the_others_remain(run: Run, damaged: Path) -> None:
    (damaged / "receipts/chunk-00000.json").unlink()
    run(damaged)
    whole = json.loads((damaged / "history.json").read_text())
    assert len(whole) == 2
    torn = (damaged / "history.json").read_text().replace('"engine": "local"', '"engine": "focal"', 1)
    (damaged / "history.json").write_text(torn)
    (note,) = run(damaged).notes
    assert note.startswith(f"{damaged / 'history.json'} has 1 of 2 starts damaged: set aside in")
    assert json.loads((damaged / "history.json").read_text()) == whole[1:]
    assert (damaged / "set-aside/history.0.json").read_text() == torn
    assert run(damaged).notes == ()


def test_a_start_whose_checksum_lost_its_name_is_not_taken_for_one_of_before(run: Run, damaged: Path) -> None:
    history = (damaged / "history.json").read_text()
    (damaged / "history.json").write_text(history.replace('"sha256"', '"sha257"'))
    (note,) = run(damaged).notes
    assert "history.json has 1 of 1 starts damaged" in note


def test_what_is_damaged_while_it_is_being_read_is_named(damaged: Path) -> None:
    evaluation = load_evaluation(damaged)
    flip(damaged / "examples/chunk-00001.npz", 1000)
    with pytest.raises(StorageError, match=r"examples/chunk-00001\.npz does not match the checksum in its receipt"):
        evaluation.examples("linf")


@pytest.mark.parametrize("name", ["spec.json", "history.json", "summary.json"])
def test_a_directory_in_the_place_of_a_file_is_named_before_any_work(name: str, run: Run, tmp_path: Path) -> None:
    run(tmp_path / "run", limit=2)
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).mkdir()
    (tmp_path / "run/receipts/chunk-00000.json").unlink()
    with pytest.raises(StorageError, match=rf"{name}: expected .* got "):
        run(tmp_path / "run", limit=2)
    assert not (tmp_path / "run/receipts/chunk-00000.json").exists()
