"""The last sections of a page: the reliability of the results, and their provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdpgd.report import wording
from pdpgd.report.inputs import ReportedModel
from pdpgd.report.table import Table, TableCell, number_cell, table_of, text_cell
from pdpgd.runs.receipts import HISTORY, read_history
from pdpgd.runs.result import Evaluation
from pdpgd.runs.summary import run_cost

# The mark of a check on the page, by whether it passed; the style sheet has a class for each.
MARKS = {True: "passed", False: "alarm", None: "not run"}


@dataclass(frozen=True)
class ReportedCheck:
    """One reliability check as the page shows it."""

    name: str
    mark: str
    sentence: str


@dataclass(frozen=True)
class RunChecks:
    """The reliability checks and the notes of a model's runs."""

    label: str
    verdict: str
    trusted: bool
    checks: tuple[ReportedCheck, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Provenance:
    """How the results of a model, or of an experiment, were computed."""

    label: str
    command: str | None
    """The command that repeats it; None if it was started from Python."""
    facts: tuple[tuple[str, str], ...]
    """Names and values of the spec, the versions and the machine."""
    starts: tuple[str, ...]
    """One line per start of the command."""
    costs: Table


def verdict_of(run: Evaluation) -> str:
    """The reliability verdict. Compared attacks are run without checks of their results: only the model was checked."""
    reliability = run.reliability
    if reliability.checked:
        return reliability.verdict
    if reliability.alarms:
        return f"{reliability.verdict}, from the checks of the model alone: the results were not checked"
    return f"{reliability.verdict}: the checks of the model alone raised no alarm"


def checks_of(model: ReportedModel) -> RunChecks:
    """The checks of a model's first run, and the distinct notes of all of its runs."""
    reliability = model.evaluation.reliability
    notes = [
        f"{series.label} ({norm}): {note}" if model.comparison is not None else note
        for series in model.series
        for norm, run in series.runs.items()
        for note in run.notes
    ]
    checks = tuple(ReportedCheck(check.name, MARKS[check.passed], check.sentence) for check in reliability.checks)
    return RunChecks(
        model.label, verdict_of(model.evaluation), reliability.trusted, checks, tuple(dict.fromkeys(notes))
    )


def provenance_of(model: ReportedModel, number: int) -> Provenance:
    """The provenance of a model's results; `number` is the model's position on the page."""
    evaluation = model.evaluation
    history, _ = _history(evaluation.folder)
    command, starts = starts_of([evaluation.folder])
    facts = [(name, _as_text(value)) for name, value in _flat(evaluation.spec.as_json()).items()]
    if model.comparison is not None:
        facts = [(name, value) for name, value in facts if not name.startswith(VARYING)]
    if history:
        last = history[-1]
        versions = {name: version for name, version in last.get("versions", {}).items() if version}
        facts += [
            ("machine", str(last.get("platform"))),
            (
                "processor",
                ", ".join(str(last[name]) for name in ("processor", "capability") if name in last) or "unknown",
            ),
            ("python", str(last.get("python"))),
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
            ("git revision", str(last.get("git") or "none")),
        ]
    facts.append(("directory", str(model.folder or "none: results in memory only")))
    return Provenance(model.label, command, tuple(facts), starts, _costs(model, number))


def starts_of(folders: Sequence[Path | None]) -> tuple[str | None, tuple[str, ...]]:
    """Read how runs were started.

    Args:
        folders: Directories of the runs; None for runs in memory.

    Returns:
        The last command that started one of them, None if there was none; and one line per start. Damaged histories
        have a line that says so.
    """
    read = [_history(folder) for folder in folders]
    history = [start for starts, _ in read for start in starts]
    faults = [fault for _, fault in read if fault is not None]
    starts = tuple(
        f"{start.get('at', '?')}: {_command(start) or 'from Python'} (engine {start.get('engine', '?')})"
        for start in history
    )
    command = next((found for start in reversed(history) if (found := _command(start))), None)
    return command, (*starts, *faults)


# Entries of the spec that differ between the runs of a comparison: the table of costs covers them.
VARYING = ("norms", "attack", "budget", "settings", "made_with")


def _costs(model: ReportedModel, number: int) -> Table:
    rows = []
    for series in model.series:
        for run in {id(run): run for run in series.runs.values()}.values():
            rows.append([text_cell(series.label), text_cell(", ".join(run.norms)), *_cost(run)])
    headings = ("run", "norms", "attack passes", "check passes", "seconds", "seed", "spec digest")
    return table_of(f"cost-{number}", "Cost of the runs", headings, rows)


def _cost(run: Evaluation) -> Sequence[TableCell]:
    cost = run_cost(run)
    return (
        number_cell(cost.forwards.attacks + cost.backwards.attacks),
        number_cell(cost.forwards.checks + cost.backwards.checks),
        TableCell(round(cost.seconds, 3), shown=f"{cost.seconds:,.1f}"),
        number_cell(run.spec.seed),
        text_cell(run.spec.digest()[:16]),
    )


def _history(folder: Path | None) -> tuple[list[dict[str, Any]], str | None]:
    """The undamaged starts of a run, and a sentence on the damaged ones."""
    if folder is None:
        return [], None
    starts, fault = read_history(folder / HISTORY)
    return starts, None if fault is None else f"{folder / HISTORY} {fault}: not shown"


def _command(start: Mapping[str, Any]) -> str | None:
    """The command as a user would type it; None if the run was started from Python."""
    words = start.get("command")
    if not isinstance(words, list) or not words:
        return None
    program = Path(str(words[0]))
    if program.stem != "pdpgd" and program.parts[-2:] != ("pdpgd", "__main__.py"):
        return None
    return shlex.join(["pdpgd", *map(str, words[1:])])


def _flat(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif name != "classes":
            flat[f"{prefix}{name}"] = value
    return flat


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return wording.DASH if value is None or (isinstance(value, float) and np.isnan(value)) else str(value)
