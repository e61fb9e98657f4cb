"""`pdpgd models` and `pdpgd data` as a user reads them."""

from __future__ import annotations

import pytest

from pdpgd.cli import main
from pdpgd.subjects import describe_data, zoo
from pdpgd.subjects.architectures import ARCHITECTURES


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
        assert f"│ {known.name} " in out
        assert f"\n{known.name}: {known.place}" in out
        assert known.origin[:30] in out
        assert f"{known.test:,}" in out
