"""How far a long command has come."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    from pdpgd.training.recipe import Observe


@contextmanager
def shown(console: Console) -> Iterator[Observe]:
    """A progress bar in a terminal; in a log file, where a bar is of no use, a line for every twentieth part."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}"),
        console=console,
    )
    tasks: dict[str, TaskID] = {}

    def show(phase: str, done: int, total: int, seen: str) -> None:
        if not console.is_terminal:
            if done * 20 // total > (done - 1) * 20 // total:
                console.print(f"{phase} {done}/{total}  {seen}")
            return
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, seen="")
        bar.update(tasks[phase], completed=done, total=total, seen=seen)

    if not console.is_terminal:
        yield show
        return
    with bar:
        yield show


class RunBar(ProgressListener):
    """A bar over the runs in a terminal; a line for each in a log file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("runs"),
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
        self._done, self._total = done, total
        self._task = self._bar.add_task(stage, total=total, completed=done, last="")
        if not self._console.is_terminal:
            self._console.print(f"{stage}: {done} of {total} runs are done")

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        self._done += round(amount)
        if self._console.is_terminal and self._task is not None:
            self._bar.update(self._task, advance=amount, last=detail)
        else:
            self._console.print(f"{self._done}/{self._total} {detail}", markup=False, soft_wrap=True)

    def noted(self, message: str) -> None:
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)


# Seconds between two movements of the bar.
PAUSE = 0.2


class SampleBar(ProgressListener):
    """A bar with rate and remaining time in a terminal; elsewhere only what the user must know."""

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
        self._unsaid, self._next = 0.0, 0.0

    def __enter__(self) -> SampleBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, stage: str, total: int, done: int = 0) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._unsaid = 0.0
        self._task = self._bar.add_task(stage, total=total, completed=done, rate="")

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        """Called in every iteration of an attack: the bar hears of it a few times a second."""
        self._unsaid += amount
        if self._task is None or self._bar.disable or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE
        self._bar.advance(self._task, self._unsaid)
        self._unsaid = 0.0
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, rate=f"{speed:.3g}/s" if speed else "")

    def checked(self, checks: Sequence[Check]) -> None:
        for check in checks:
            if check.passed is False:
                self.noted(f"{check.name}: {check.sentence}; the result will say little")

    def noted(self, message: str) -> None:
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)
