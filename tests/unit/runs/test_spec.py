"""A spec is the identity of a run: it survives JSON, and nothing in it changes unnoticed."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from pdpgd import evaluate
from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.runs.spec import RunSpec, differences

SPEC = RunSpec(
    model={"source": "mnist-plain", "weights": None, "sha256": "a" * 64},
    data={"name": "mnist", "samples": 100, "shape": [1, 28, 28], "sha256": "b" * 64},
    norms=("linf", "l2"),
    attack="pdpgd",
    budget=1000,
    seed=0,
    chunk_size=100,
    batch_size=50,
    threads=2,
    device="cpu",
    made_with={"torch": "2.2", "pdpgd": "0.1"},
)
OTHER: dict[str, Any] = {
    "model": {**SPEC.model, "sha256": "c" * 64},
    "data": {**SPEC.data, "samples": 99},
    "norms": ("l2", "linf"),
    "attack": "pdgd",
    "budget": None,
    "seed": 1,
    "chunk_size": 99,
    "batch_size": 49,
    "threads": 1,
    "device": "cuda",
    "made_with": {**SPEC.made_with, "torch": "2.3"},
    "settings": {"steps": 7},
    "checks": False,
    "draws": 4,
    "format": 4,
}


def test_a_spec_comes_back_from_json() -> None:
    back = RunSpec.from_json(json.loads(json.dumps(SPEC.as_json())))
    assert back == SPEC
    assert back.digest() == SPEC.digest()
    assert differences(back, SPEC) == []


def test_the_digest_is_the_same_tomorrow() -> None:
    assert SPEC.digest() == "273a6ab52f5a07d98d08488430c1b7b07715d5a15d5f92a8f385be1410f084b7"


def test_a_single_draw_is_not_written_so_that_runs_of_before_go_on() -> None:
    assert "draws" not in SPEC.as_json()
    assert RunSpec.from_json(SPEC.as_json()).draws == 1
    drawn = replace(SPEC, draws=4)
    assert drawn.as_json()["draws"] == 4
    assert RunSpec.from_json(drawn.as_json()) == drawn


def test_radii_that_a_run_asked_about_are_in_its_settings_and_those_of_runs_of_before_are_none() -> None:
    assert SPEC.only_radii == {}
    assert replace(SPEC, settings={"radii": [0.1, 0.2]}).only_radii == {}, "an attack within a radius has a list"
    asked = replace(SPEC, settings={"radii": {"l2": [1.0], "linf": [0.1, 0.2]}})
    back = RunSpec.from_json(json.loads(json.dumps(asked.as_json())))
    assert back.only_radii == {"linf": (0.1, 0.2), "l2": (1.0,)}
    assert differences(replace(asked, settings={"radii": {"l2": [2.0], "linf": [0.1, 0.2]}}), asked) == [
        "settings.radii.l2: 2.0 stored, 1.0 requested"
    ]


def test_the_digest_does_not_depend_on_the_order_of_a_mapping() -> None:
    assert replace(SPEC, model=dict(reversed(list(SPEC.model.items())))).digest() == SPEC.digest()


def test_every_field_has_another_value_here() -> None:
    assert set(OTHER) == {field.name for field in fields(RunSpec)}


@pytest.mark.parametrize("name", OTHER)
def test_the_digest_changes_with_every_field_and_the_difference_names_it(name: str) -> None:
    other = replace(SPEC, **{name: OTHER[name]})
    assert other.digest() != SPEC.digest()
    (line,) = differences(SPEC, other)
    assert line.startswith(name)


def test_a_difference_says_what_is_there_and_what_is_asked() -> None:
    other = replace(SPEC, seed=7, norms=("l1",), data={**SPEC.data, "samples": 5, "more": "x"})
    assert differences(SPEC, other) == [
        "data.more: nothing stored, x requested",
        "data.samples: 100 stored, 5 requested",
        "norms: linf, l2 stored, l1 requested",
        "seed: 0 stored, 7 requested",
    ]


def test_a_long_value_is_cut() -> None:
    (line,) = differences(SPEC, replace(SPEC, model={**SPEC.model, "sha256": "c" * 64}))
    assert line == f"model.sha256: {'a' * 12}... stored, {'c' * 12}... requested"


@pytest.mark.parametrize("name", ["chunk_size", "batch_size", "threads"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "4", True, None])
def test_a_size_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=rf"Spec\.{name}: expected an integer of at least 1, got {value!r}"):
        replace(SPEC, **{name: value})  # type: ignore[arg-type]  # it is what is refused


@pytest.mark.parametrize("value", [-1, 0.5, None, False])
def test_a_seed_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=rf"Spec\.seed: expected an integer of at least 0, got {value!r}"):
        replace(SPEC, seed=value)


def test_norms_that_are_missing_doubled_or_unknown_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="norms: expected at least one, got none"):
        replace(SPEC, norms=())
    with pytest.raises(InvalidInputError, match="norms: expected each one once, got l2, l1, l2"):
        replace(SPEC, norms=("l2", "l1", "l2"))
    with pytest.raises(UnknownNameError, match=r"expected one of .*, got 'l3'"):
        evaluate("mnist-plain", "mnist-1000", norms=("l3",), limit=2)


def test_a_run_in_a_norm_that_is_not_registered_here_can_be_read() -> None:
    """Reading needs no torch, and so no operators of the norm."""
    assert RunSpec.from_json(replace(SPEC, norms=("columns",)).as_json()).norms == ("columns",)


@pytest.mark.parametrize(
    "entries",
    [
        None,
        [],
        {},
        {**SPEC.as_json(), "format": 1},
        {**SPEC.as_json(), "more": 1},
        {name: value for name, value in SPEC.as_json().items() if name != "seed"},
    ],
)
def test_json_that_is_no_spec_is_refused(entries: object) -> None:
    with pytest.raises(InvalidInputError, match="expected a spec of format 3 with the entries attack, batch_size"):
        RunSpec.from_json(entries)


def test_a_spec_of_the_format_before_is_read_as_what_it_meant() -> None:
    old = {name: value for name, value in SPEC.as_json().items() if name not in ("settings", "checks")}
    assert RunSpec.from_json({**old, "format": 2}) == SPEC


def test_json_with_a_bad_setting_is_refused_like_the_setting() -> None:
    with pytest.raises(InvalidInputError, match=r"Spec\.threads: expected an integer of at least 1, got 0"):
        RunSpec.from_json({**SPEC.as_json(), "threads": 0})
