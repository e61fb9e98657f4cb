"""Progress of long tasks: one protocol for evaluations, comparisons, experiments and training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpgd.runs.reliability import Check


class ProgressListener:
    """Is told how far a task has come, and ignores it: subclass it to show progress.

    A task consists of stages that follow one another: the samples of a run, the runs of an experiment, the steps of a
    training.

    Example:
        >>> class Printed(pdpgd.ProgressListener):
        ...     def started(self, stage, total, done=0):
        ...         print(f"{stage}: {done} of {total}")
        >>> evaluation = pdpgd.evaluate(model, (images, labels), norms=["l2"], budget=20, progress=Printed())
        evaluating: 0 of 4
    """

    def started(self, stage: str, total: int, done: int = 0) -> None:
        """A stage begins.

        Args:
            stage: Name of the stage, for display.
            total: Number of units of work (samples, runs or steps) in it.
            done: Number of units that were completed earlier and are not repeated.
        """

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        """The current stage has advanced.

        Args:
            amount: Number of units completed since the last call; fractions of a unit are reported as well.
            detail: What was completed or measured, for display.
        """

    def checked(self, checks: Sequence[Check]) -> None:
        """The model was checked before the attack.

        Args:
            checks: Results of these checks, failed ones included.
        """

    def noted(self, message: str) -> None:
        """Something happened that the user should know.

        Args:
            message: One or more complete sentences.
        """


class Retitled(ProgressListener):
    """Passes everything on to another listener, with another name of the stage."""

    def __init__(self, listener: ProgressListener, stage: str) -> None:
        self._listener, self._stage = listener, stage

    def started(self, stage: str, total: int, done: int = 0) -> None:
        """Pass on the start of a stage under the other name."""
        self._listener.started(self._stage, total, done)

    def advanced(self, amount: float = 1.0, detail: str = "") -> None:
        """Pass on the progress."""
        self._listener.advanced(amount, detail)

    def checked(self, checks: Sequence[Check]) -> None:
        """Pass on the checks."""
        self._listener.checked(checks)

    def noted(self, message: str) -> None:
        """Pass on the message."""
        self._listener.noted(message)
