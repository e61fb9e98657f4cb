"""pdpgd compare and pdpgd attacks as users run them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pdpgd.cli import main

CALL = ["compare", "mnist-plain", "mnist-1000", "--limit", "12", "--threads", "1", "--budget", "60"]


def compared(capsys: pytest.CaptureFixture[str], *options: str, out: Path, call: list[str] = CALL) -> Any:
    assert main([*call, *options, "--out", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_draws_are_those_of_every_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--norm", "l2", "--attacks", "auto,pgd"]
    once, twice = (
        compared(capsys, *options, "--budget", str(60 * draws), "--draws", str(draws), out=tmp_path / str(draws))
        for draws in (1, 2)
    )
    for one, two in zip(once["l2"]["attacks"], twice["l2"]["attacks"], strict=True):
        assert two["passes"] == 2 * one["passes"]


def test_a_comparison_has_the_papers_statistics_of_every_attack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, "--norm", "l2", "--norm", "l0", "--attacks", "auto,pgd,jsma", out=tmp_path / "run")
    assert found["l2"]["radii"] == [0.5, 1, 1.5, 2, 2.5], "the paper's, by the name of the net"
    assert [row["attack"] for row in found["l2"]["attacks"]] == ["auto", "pgd"]
    assert [row["attack"] for row in found["l0"]["attacks"]] == ["auto", "pgd", "jsma"]
    for norm in ("l2", "l0"):
        rows = found[norm]["attacks"]
        best = [min(shares) for shares in zip(*(row["robust_accuracy"] for row in rows), strict=True)]
        for row in rows:
            gaps = [share - least for share, least in zip(row["robust_accuracy"], best, strict=True)]
            assert row["mean_accuracy"] == pytest.approx(sum(row["robust_accuracy"]) / 5)
            assert row["mean_gap"] == pytest.approx(sum(gaps) / 5)
            assert row["max_gap"] == pytest.approx(max(gaps))
            assert row["times_best"] == sum(gap < 1e-9 for gap in gaps)
            assert row["passes"] > 0
            assert row["samples"] == row["right"] == 12
        assert rows[0]["mean_distance"] > 0
        # An attack at given radii finds points within them, not the smallest perturbations.
        assert rows[1]["settings"]["radii"] == found[norm]["radii"]
        assert rows[1]["mean_distance"] is None
    stored = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert len(stored.pop("sha256")) == 64
    assert stored == found


def test_the_same_command_repeats_no_work_and_gives_the_same_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--norm", "linf", "--attacks", "auto,pgd:2")
    first = compared(capsys, *options, out=tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("linf/*/receipts/*")}
    assert {path.parts[-3] for path in written} == {"auto", "pgd-2"}
    assert compared(capsys, *options, out=tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("linf/*/receipts/*")} == written


def test_autoattack_is_compared_at_the_radius_and_pays_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [*CALL[:4], "4", *CALL[5:-1], "300"]
    options = ("--norm", "linf", "--attacks", "auto,autoattack", "--radius", "linf:0.06")
    found = compared(capsys, *options, out=tmp_path, call=call)["linf"]
    auto, autoattack = found["attacks"]
    assert found["radii"] == autoattack["settings"]["radii"] == [0.06]
    assert (auto["attack"], autoattack["attack"]) == ("auto", "autoattack")
    assert auto["right"] == autoattack["right"] == 4
    assert 0 < autoattack["passes"] <= 305
    for row in (auto, autoattack):
        assert row["robust_accuracy"] != [1.0]


def test_a_comparison_resumes_with_the_remaining_attacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = compared(capsys, "--norm", "linf", "--attacks", "auto", out=tmp_path)
    more = compared(capsys, "--norm", "linf", "--attacks", "auto,pgd", out=tmp_path)
    for name in ("robust_accuracy", "mean_distance", "seconds"):
        assert more["linf"]["attacks"][0][name] == first["linf"]["attacks"][0][name]


def test_an_attack_whose_library_is_missing_is_a_row_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    found = compared(capsys, "--norm", "l2", "--attacks", "cw,auto", out=tmp_path / "a")
    assert found["l2"]["attacks"][0] == {
        "attack": "cw",
        "failure": "attack cw needs foolbox: pip install 'pdpgd[foolbox]'",
    }
    assert found["l2"]["attacks"][1]["fooled"] == 12
    # If no attack succeeds, the command fails.
    assert main([*CALL, "--norm", "l2", "--attacks", "cw", "--out", str(tmp_path / "b")]) == 4
    assert "cw (l2) failed: attack cw needs foolbox: pip install 'pdpgd[foolbox]'" in capsys.readouterr().out


def test_an_attack_that_raises_is_a_row_with_the_reason_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("it divides by nothing")

    from pdpgd.baselines.jsma import JSMA

    monkeypatch.setattr(JSMA, "__call__", broken)
    found = compared(capsys, "--norm", "l0", "--attacks", "jsma,auto", out=tmp_path)
    jsma, auto = found["l0"]["attacks"]
    assert "attack jsma: expected adversarial examples, got ZeroDivisionError: it divides by nothing" in jsma["failure"]
    assert auto["failure"] is None
    monkeypatch.undo()
    again = compared(capsys, "--norm", "l0", "--attacks", "jsma,auto", out=tmp_path)
    assert again["l0"]["attacks"][0]["failure"] is None


def test_settings_are_selected_at_each_radius_on_held_out_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["compare", "mnist-plain", "mnist-1000", "--limit", "990", "--threads", "1", "--budget", "10", "--tune"]
    radii = ("--radius", "linf:0.05", "--radius", "linf:0.1")
    found = compared(capsys, "--norm", "linf", "--attacks", "pgd", *radii, out=tmp_path, call=call)
    (row,) = found["linf"]["attacks"]
    chosen = row["settings"]["per_radius"]
    assert [sorted(choice) for choice in chosen] == [["step", "surrogate"]] * 2
    tuning = json.loads((tmp_path / "linf" / "pgd-tuning" / "00" / "spec.json").read_text())
    assert tuning["data"]["name"] == "mnist-1000[990:1000]"
    assert len(list((tmp_path / "linf" / "pgd-tuning").iterdir())) == 14


def test_the_preset_uses_the_settings_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", "mnist-l2-at", "mnist-1000", "--limit", "2", "--threads", "1", "--preset", "paper"]
    found = compared(capsys, "--norm", "l1", "--attacks", "sparsefool,pdpgd:2,auto", out=tmp_path, call=call)
    sparsefool, ours, auto = found["l1"]["attacks"]
    # The paper does not have this attack.
    assert auto["settings"] == {}
    assert auto["budget"] == 1000
    assert sparsefool["settings"] == {"steps": 20, "overshoot": 0.02, "lambdas": [1, 2, 3, 4, 5]}
    assert sparsefool["budget"] is None
    assert ours["settings"]["steps"] == ours["settings"]["finetune_steps"] == 500
    assert ours["settings"]["restarts"] == 2
    assert found["l1"]["radii"] == [5, 8.75, 12.5, 16.25, 20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--norm", "l2", "--attacks", "auto,dnn"],
            "unknown attack: .*, got 'dnn'; did you mean 'ddn'",
        ),
        (["--norm", "l2", "--attacks", "pgd:0"], "attacks: expected NAME or NAME:RESTARTS such as pgd:10, got 'pgd:0'"),
        (["--norm", "l2", "--attacks", "auto,auto"], "attacks: expected each one once, got auto, auto"),
        (["--norm", "l0", "--attacks", "ddn"], "attacks: expected one that can do l0, got ddn"),
        (["--norm", "l3", "--attacks", "auto"], "unknown norm: expected one of l0, l1, l2, linf, got 'l3'"),
        (["--norm", "l2", "--attacks", "auto", "--radius", "l1:3"], "radii: expected norms of the comparison, l2"),
        (["--norm", "l2", "--attacks", "auto", "--radius", "l2:-3"], "radii: expected numbers above 0, got -3"),
        (["--norm", "l2", "--attacks", "auto", "--like", "mnist"], "like: expected DATASET:KIND, with one of mnist"),
        (["--norm", "l2", "--norm", "l2", "--attacks", "auto"], "norms: expected at least one, and each one once"),
        (["--norm", "l2", "--attacks", "auto,jsma:3", "--norm", "l0"], "attack jsma: expected .*, got restarts"),
        (["--norm", "l2", "--attacks", "auto", "--budget", "0"], "budget: expected an integer >= 1, got 0"),
        (["--norm", "l2", "--attacks", "pdpgd", "--preset", "mine"], "preset: expected one of paper, got 'mine'"),
        (
            ["--norm", "l2", "--attacks", "auto", "--tune", "--limit", "1000"],
            "tune: expected held-out samples after the first",
        ),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CALL, *options, "--out", str(tmp_path / "run")]) == 2
    assert_matches(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def assert_matches(pattern: str, text: str) -> None:
    import re

    assert re.search(pattern, text), text


def test_the_tables_fit_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*CALL, "--norm", "linf", "--attacks", "auto,pgd", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for word in (
        "mnist-plain on 12 samples",
        "auto",
        "pgd",
        "robust",
        "acc.",
        "passes",
        "0.03",
        "0.11",
        "not checked",
        "Results:",
    ):
        assert word in shown
    tables = [line for line in shown.splitlines() if "%" in line]
    assert max(map(len, tables)) <= 80
    assert "…" not in shown


def test_the_list_has_every_attack_with_its_source_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["attacks"]) == 0
    everything = capsys.readouterr().out
    assert "not installed" not in everything
    for module in ("foolbox", "adv_lib", "art", "pyautoattack"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["attacks"]) == 0
    shown = capsys.readouterr().out
    assert "Foolbox is not installed: pip install 'pdpgd[foolbox]'" in shown
    assert "adv-lib is not installed: pip install --no-deps adv-lib" in shown
    assert "pyautoattack is not installed: pip install 'pdpgd[autoattack]'" in shown
    assert main(["attacks", "--norm", "l0", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "jsma" in {entry["name"] for entry in listed}
    assert "ddn" not in {entry["name"] for entry in listed}
    assert all(entry["citation"] and entry["cost"] for entry in listed)
