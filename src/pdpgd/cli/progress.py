"""Progress of long commands: bars in a terminal, lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pdpgd.progress import ProgressListener

if TYPE_CHECKING:
    from pdpgd.runs.reliability import Check


# Number of lines that a log file gets per stage.
LINES_PER_STAGE = 20


class StageBar(ProgressListener):
    """A bar per stage in a terminal; in a log file, a line per twentieth of a stage.

    Args:
        console: Console to print to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._stage, self._done, self._total = "", 0.0, 0

    def __enter__(self) -> StageBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, stage: str, total: int, done: int = 0) -> None:
        """Begin the bar of a stage."""
        self._stage, self._done, self._total = stage, done, total
        self._task = self._bar.add_task(stage, total=total, completed=done, detail="")

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        """Move the bar, or print a line when another twentieth is complete."""
        before, self._done = self._done, self._done + amount
        if self._console.is_terminal and self._task is not None:
            self._bar.update(self._task, advance=amount, detail=detail)
        elif self._done * LINES_PER_STAGE // self._total > before * LINES_PER_STAGE // self._total:
            self._console.print(f"{self._stage} {self._done:.0f}/{self._total}  {detail}", markup=False)

    def noted(self, message: str) -> None:
        """Print the message."""
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)


class RunBar(ProgressListener):
    """Shows a bar over the runs of an experiment in a terminal, and prints a line per run in a log file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._done, self._total = 0, 0

    def __enter__(self) -> RunBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, stage: str, total: int, done: int = 0) -> None:
        """Start a bar for a stage."""
        self._done, self._total = done, total
        self._task = self._bar.add_task(stage, total=total, completed=done, last="")
        if not self._console.is_terminal:
            self._console.print(f"{stage}: {done} of {total} done")

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        """Advance the bar, or print a line in a log file."""
        self._done += round(amount)
        if self._console.is_terminal and self._task is not None:
            self._bar.update(self._task, advance=amount, last=detail)
        else:
            self._console.print(f"{self._done}/{self._total} {detail}", markup=False, soft_wrap=True)

    def noted(self, message: str) -> None:
        """Print the message above the bar."""
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)


# Seconds between two updates of the bar.
PAUSE = 0.2


class SampleBar(ProgressListener):
    """Shows a bar with rate and remaining time in a terminal; elsewhere only messages."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} samples"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._unshown, self._next = 0.0, 0.0

    def __enter__(self) -> SampleBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, stage: str, total: int, done: int = 0) -> None:
        """Start a bar for a stage."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._unshown = 0.0
        self._task = self._bar.add_task(stage, total=total, completed=done, rate="")

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        """Add to the amount, which the bar shows a few times per second: attacks call this in every iteration."""
        self._unshown += amount
        if self._task is None or self._bar.disable or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE
        self._bar.advance(self._task, self._unshown)
        self._unshown = 0.0
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, rate=f"{speed:.3g}/s" if speed else "")

    def checked(self, checks: Sequence[Check]) -> None:
        """Print the checks that failed."""
        for check in checks:
            if check.passed is False:
                self.noted(f"{check.name}: {check.sentence}; the results will have little meaning")

    def noted(self, message: str) -> None:
        """Print the message above the bar."""
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)
