"""How far an experiment has come, run by run."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pdpgd.experiments.runner import Observer


class RunBar(Observer):
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

    def begun(self, stage: str, runs: int, done: int) -> None:
        self._done, self._total = done, runs
        self._task = self._bar.add_task(stage, total=runs, completed=done, last="")
        if not self._console.is_terminal:
            self._console.print(f"{stage}: {done} of {runs} runs are done")

    def ended(self, what: str) -> None:
        self._done += 1
        if self._console.is_terminal and self._task is not None:
            self._bar.update(self._task, advance=1, last=what)
        else:
            self._console.print(f"{self._done}/{self._total} {what}", markup=False, soft_wrap=True)

    def noted(self, message: str) -> None:
        self._console.print(f"pdpgd: {message}", markup=False, soft_wrap=True)
