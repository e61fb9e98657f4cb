"""The comparison with public attacks: which rows are kept, and what the page says about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import against_peers
import peers_report
import shared_zoo
from peers_report import OURS, Plan, Row

SMALL = Plan("mnist", "mnist-plain", "l2", 200, 0, 2, attacks=("fmn", "ddn", OURS))
LARGE = replace(SMALL, budget=1000)
PLANS = [SMALL, LARGE]


def row(plan: Plan, attack: str, *distances: float | None) -> Row:
    versions = against_peers.made_by(own=attack == OURS)
    return {**plan.about(attack), "made_by": versions, "passes": 200, "seconds": 1.0, "distances": list(distances)}


def rows() -> list[Row]:
    """Ours is behind at the large budget, where ddn does not find everything and fmn does."""
    small = [row(SMALL, "fmn", 1.0, 2.0), row(SMALL, "ddn", 2.0, 2.0), row(SMALL, OURS, 1.0, 1.0)]
    return [*small, row(LARGE, "fmn", 0.5, 1.0), row(LARGE, "ddn", 0.1, None), row(LARGE, OURS, 1.0, 0.75)]


def test_a_kept_row_is_one_line_of_valid_json_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows" / "peers.json"
    for each in reversed(rows()):
        against_peers.keep(path, each)
    against_peers.keep(path, row(SMALL, "fmn", 3.0, 3.0))
    lines = path.read_text().splitlines()
    assert len(lines) == len(rows()) + 2
    kept = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert [each["distances"] for each in kept if each["attack"] == "fmn"] == [[3.0, 3.0], [0.5, 1.0]]
    assert [path] == list(path.parent.iterdir())


def test_a_row_counts_for_the_versions_and_the_images_that_made_it() -> None:
    ours, theirs = row(SMALL, OURS, 1.0, 1.0), row(SMALL, "fmn", 1.0, 1.0)
    assert against_peers.is_current(ours)
    assert against_peers.is_current(theirs)
    assert not against_peers.is_current({**ours, "made_by": {**ours["made_by"], "pdpgd": "another"}})
    assert not against_peers.is_current({**theirs, "made_by": {**theirs["made_by"], "adv-lib": "0.0"}})
    others = row(replace(SMALL, first=2, last=4), "fmn", 1.0, 1.0)
    assert against_peers.key_of(others) != against_peers.key_of(theirs)


def test_an_attack_that_raises_is_a_row_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(attack: against_peers.Attack, net: nn.Module, inputs: Tensor, labels: Tensor, norm: str) -> Row:
        return {"norms": attack(net, inputs, labels), "forwards": 1, "backwards": 1, "seconds": 0.123}

    def broken(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("expected a net")

    monkeypatch.setattr(shared_zoo, "load", lambda module: SimpleNamespace(measure=measure))
    monkeypatch.setattr(against_peers, "subject", lambda *about: (nn.Identity(), torch.ones(2), torch.ones(2)))
    found = against_peers.measure(SMALL, "fmn", lambda net, inputs, labels: torch.tensor([1 / 3, torch.inf]))
    assert found["distances"] == [0.333333, None]
    error = against_peers.measure(SMALL, "ddn", broken)
    assert error["error"] == "ValueError: expected a net"
    page = peers_report.report([found, error, row(SMALL, OURS, 0.5, 1.0)], [SMALL], seed=0)
    assert "| mnist-plain | l2 | 200 | ddn | ValueError: expected a net |" in page
    assert "| mnist-plain | l2 | 200 | fmn | 50% | 0.3333 | 2 |" in page


def test_the_page_names_the_cells_in_which_auto_is_not_the_smallest() -> None:
    page = peers_report.report(rows(), PLANS, seed=0)
    assert "in 1 of 2 cells. Not in: `mnist-plain` l2 at 1000 (1.167 fmn)." in page
    assert "| mnist-plain | 0.667 fmn | 1.167 fmn (**behind**) |" in page
    assert "With 200 passes, `auto` is at least as good as the best peer with 1000 in 0 of 1 cells on MNIST." in page
    assert "Not measured" not in page


def test_cells_without_all_rows_are_listed_as_not_measured() -> None:
    page = peers_report.report(rows()[:-1], PLANS, seed=0)
    assert "in 1 of 1 cells. Cells not measured: 1." in page
    assert "- `mnist-plain`: l2 at 1000" in page
    assert "With a fifth" not in page
