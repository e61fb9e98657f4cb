"""The output of `pdpgd models` and `pdpgd data`."""

from __future__ import annotations

from pathlib import Path

import pooch
import pytest

from pdpgd.cli import main
from pdpgd.data.loading import describe_data
from pdpgd.models import zoo
from pdpgd.models.architectures import ARCHITECTURES
from pdpgd.models.paper_nets import PAPER_NETS


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_models_lists_every_shipped_net_with_its_size_and_accuracies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in zoo.names():
        card = zoo.card(name)
        (line,) = [line for line in lines if f" {name} " in line]
        assert f"{card.clean():.2%}" in line
        assert f"{zoo.path(name).stat().st_size / 1e6:.2f} MB" in line
        assert all(f"{share:.1%}" in line for _, _, share in card.robust())
        assert card.data in line


def test_models_cuts_no_name_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    for name in (*zoo.names(), *ARCHITECTURES):
        assert f" {name} " in out


def test_models_lists_every_net_of_the_paper_with_its_accuracy_and_whether_it_was_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper-nets").mkdir()
    (tmp_path / "paper-nets/mnist_weights_l2.mat").touch()
    monkeypatch.setenv("PDPGD_DATA", str(tmp_path))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "no cache")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, net in PAPER_NETS.items():
        (line,) = [line for line in lines if f" paper:{name} " in line]
        assert f" {net.architecture} " in line
        assert f"{net.clean:.2%}" in line
        assert ("yes" in line) == (name == "mnist-l2-at")


def test_models_lists_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out for name in ARCHITECTURES)
    assert "166,406" in out


def test_data_lists_every_known_data_set_with_its_size_origin_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "mnist-1000: embedded" in out
    for known in describe_data():
        assert f"\n {known.name} " in out
        assert f"\n{known.name}: {known.place}" in out
        assert known.origin[:30] in out
        assert f"{known.test:,}" in out
