"""How far an evaluation has come, sample by sample."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pdpgd.evaluation.reliability import Check
from pdpgd.evaluation.run import Watcher

# Seconds between two movements of the bar.
PAUSE = 0.2


class SampleBar(Watcher):
    """A bar with rate and remaining time in a terminal; elsewhere only what the user must know."""

    def __init__(self, console: Console, what: str = "evaluating") -> None:
        self._console, self._what = console, what
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

    def begun(self, samples: int, done: int) -> None:
        self._task = self._bar.add_task(self._what, total=samples, completed=done, rate="")

    def moved(self, samples: float) -> None:
        """Called in every iteration of an attack: the bar hears of it a few times a second."""
        self._unsaid += samples
        if self._task is None or self._bar.disable or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE
        self._bar.advance(self._task, self._unsaid)
        self._unsaid = 0.0
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, rate=f"{speed:.3g}/s" if speed else "")

    def looked(self, checks: Sequence[Check]) -> None:
        for check in checks:
            if check.passed is False:
                self.noted(f"{check.name}: {check.sentence}; the result will say little")

    def noted(self, message: str) -> None:
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)
