"""Progress of a training as a user sees it: a bar in a terminal, some lines in a log file."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from pdpgd.cli.progress import StageBar


def test_a_log_file_gets_a_line_per_twentieth_of_a_stage_with_its_detail() -> None:
    log = StringIO()
    with StageBar(Console(file=log, width=100)) as bar:
        bar.started("training", 100)
        for step in range(1, 101):
            bar.advanced(1, f"[epoch] {step // 50}")
    lines = log.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "training 5/100  [epoch] 0"
    assert lines[-1] == "training 100/100  [epoch] 2"


def test_a_log_file_gets_a_line_per_batch_where_there_are_few_and_begins_where_the_stage_was_resumed() -> None:
    log = StringIO()
    with StageBar(Console(file=log, width=100)) as bar:
        bar.started("clean accuracy", 600, 250)
        bar.advanced(250)
        bar.advanced(100)
    assert [line.strip() for line in log.getvalue().splitlines()] == [
        "clean accuracy 500/600",
        "clean accuracy 600/600",
    ]


def test_a_terminal_shows_stage_share_and_detail() -> None:
    screen = StringIO()
    with StageBar(Console(file=screen, width=100, force_terminal=True)) as bar:
        bar.started("PGD linf 0.3", 4)
        bar.advanced(3, "loss 0.125")
    shown = screen.getvalue()
    assert "PGD linf 0.3" in shown
    assert " 75%" in shown
    assert "loss 0.125" in shown
