"""Stats of jobs survive their receipts, and receipts of older runs are read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pdpgd.runs.stats import ChunkStats, Passes, PreflightStats

CHUNK = ChunkStats(
    seconds=1.5,
    batch_size=8,
    halved=True,
    machine={"platform": "here", "processor": "this one"},
    forwards=Passes(attacks=90, checks=10),
    backwards=Passes(attacks=80, checks=7),
    seconds_by_stage={"l2": 1.0, "cheap": 0.25},
    faults={"3 (l2)": "ValueError: no"},
)
MEASURED = PreflightStats(
    samples=64,
    classes=10,
    modules_in_train_mode=1,
    repeated=0.5,
    alone=2.0,
    probabilities=0.25,
    no_gradient=0.125,
    broken_gradient=0.0,
    shaken=0.0625,
    gradient_path=True,
    random_parameters=12,
    random_parameters_measured=True,
)
PREFLIGHT = replace(CHUNK, seconds_by_stage={}, faults={}, preflight=MEASURED)


def through_json(stats: ChunkStats) -> ChunkStats:
    return ChunkStats.from_json(json.loads(json.dumps(stats.as_json())))


@pytest.mark.parametrize(
    "stats",
    [
        CHUNK,
        PREFLIGHT,
        replace(PREFLIGHT, preflight=replace(MEASURED, gradient_path=False)),
        replace(PREFLIGHT, preflight=replace(MEASURED, gradient_path=None)),
        replace(PREFLIGHT, preflight=replace(MEASURED, random_parameters=None)),
        replace(PREFLIGHT, preflight=replace(MEASURED, random_parameters=None, random_parameters_measured=False)),
    ],
    ids=["chunk", "preflight", "no path", "path not measured", "random unknown", "random not measured"],
)
def test_stats_are_the_same_after_a_receipt(stats: ChunkStats) -> None:
    assert through_json(stats) == stats


def test_measurements_are_the_same_after_a_receipt() -> None:
    assert PreflightStats.from_json(MEASURED.as_json()) == MEASURED


def test_the_keys_of_a_receipt_are_those_of_older_runs() -> None:
    common = {"forwards", "backwards", "seconds", "batch_size", "halved", "machine"}
    assert set(CHUNK.as_json()) == common | {"seconds_of", "faults"}
    assert set(PREFLIGHT.as_json()) == common | set(MEASURED.as_json())
    assert "random_parameters_measured" not in PREFLIGHT.as_json()


def test_a_chunk_of_an_older_run_has_no_faults() -> None:
    entries = CHUNK.as_json()
    del entries["faults"]
    assert ChunkStats.from_json(entries) == replace(CHUNK, faults={})


def test_a_preflight_of_an_older_run_lacks_what_it_did_not_measure() -> None:
    entries = PREFLIGHT.as_json()
    del entries["gradient_path"], entries["random_parameters"]
    read = ChunkStats.from_json(entries).preflight
    assert read == replace(MEASURED, gradient_path=None, random_parameters=None, random_parameters_measured=False)
    # What was not measured is not claimed to be when the receipt is written again.
    assert read is not None
    assert not {"gradient_path", "random_parameters"} & set(read.as_json())


def test_a_receipt_whose_number_of_random_parameters_is_unknown_was_measured() -> None:
    read = PreflightStats.from_json({**MEASURED.as_json(), "random_parameters": None})
    assert read.random_parameters_measured
    assert "random_parameters" in read.as_json()


@pytest.mark.parametrize("name", ["seconds", "batch_size", "halved", "machine", "forwards", "backwards"])
def test_other_missing_entries_are_refused(name: str) -> None:
    entries = CHUNK.as_json()
    del entries[name]
    with pytest.raises(ValueError, match=f"expected the timings and counts of a job .*{name}"):
        ChunkStats.from_json(entries)


def test_missing_measurements_are_refused() -> None:
    entries = PREFLIGHT.as_json()
    del entries["shaken"]
    with pytest.raises(ValueError, match="expected the measurements of a model, got"):
        ChunkStats.from_json(entries)
