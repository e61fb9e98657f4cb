"""How far a long command has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from pdpgd.training.recipe import Observe


@contextmanager
def shown(console: Console) -> Iterator[Observe]:
    """A progress bar in a terminal; in a log file, where a bar is of no use, a line for every twentieth part."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
