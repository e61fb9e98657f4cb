"""Adding an attack takes a class and one row of the catalogue."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pdpgd.attacks import roster
from pdpgd.attacks.best import Best
from pdpgd.attacks.catalogue import AttackInfo, info_of, paper_settings, prepared
from pdpgd.attacks.frame import Task
from pdpgd.attacks.info import PaperSetup
from pdpgd.attacks.prepare import Budget, Preparable
from pdpgd.cli import main
from pdpgd.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Noise(Preparable):
    """Random signs of increasing strength."""

    steps: int = 3
    strength: float = 1.0

    @classmethod
    def within(cls, budget: Budget) -> dict[str, Any]:
        return {"steps": budget.steps(1)}

    @classmethod
    def paper(cls, setup: PaperSetup) -> dict[str, Any]:
        return {"steps": 5}

    @classmethod
    def paper_grid(cls, norm: str) -> dict[str, tuple[Any, ...]]:
        return {"strength": (0.5, 1.0)}

    def __call__(self, task: Task) -> Best:
        best = Best.none(task.inputs)
        signs = torch.rand(task.inputs.shape, generator=torch.Generator().manual_seed(0)).sub(0.5).sign()
        for step in range(self.steps):
            points = task.problem.box.clip(task.inputs + self.strength * (step + 1) / self.steps * signs)
            best.improve(task.judged(points, task.logits(points)), at=torch.arange(len(task)))
        return best


ROW = AttackInfo(
    name="noise",
    norms=("linf", "l2"),
    about="random signs of increasing strength",
    citation="this test",
    cost="1f",
    factory=f"{__name__}:Noise",
    needs_gradients=False,
    in_paper=True,
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(roster._ATTACKS, ROW.name, ROW)


def test_the_catalogue_looks_it_up_and_prepares_it() -> None:
    assert info_of("noise", "l2") is ROW
    assert paper_settings("noise", "mnist", "l2", "plain") == {"steps": 5}
    assert ROW.combinations("l2") == [{"strength": 0.5}, {"strength": 1.0}]
    attack: Any = prepared("noise", "l2", budget=40, settings={"strength": 0.7}, max_batch=8)
    assert attack.method_for(10) == Noise(steps=40, strength=0.7)
    with pytest.raises(InvalidInputError, match="attack noise: expected settings among steps, strength, got wings"):
        prepared("noise", "l2", settings={"wings": 2}, max_batch=8)
    with pytest.raises(InvalidInputError, match="attack noise: expected one of the norms linf, l2, got 'l1'"):
        prepared("noise", "l1", max_batch=8)


def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attacks", "--norm", "linf", "--json"]) == 0
    (listed,) = (row for row in json.loads(capsys.readouterr().out) if row["name"] == "noise")
    assert (listed["norms"], listed["cost"], listed["library"]) == (["linf", "l2"], "1f", None)
    assert main(["attacks"]) == 0
    assert "random signs of increasing strength. this test" in capsys.readouterr().out


def test_it_is_compared_with_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", "mnist-plain", "mnist-1000", "--limit", "6", "--threads", "1", "--budget", "20"]
    assert main([*call, "--norm", "linf", "--attacks", "auto,noise", "--out", str(tmp_path / "run"), "--json"]) == 0
    ours, new = json.loads(capsys.readouterr().out)["linf"]["attacks"]
    assert (ours["attack"], new["attack"]) == ("auto", "noise")
    # The budget is spent on 20 steps; one pass judges the input, and one the warm start.
    assert new["passes"] == 22
