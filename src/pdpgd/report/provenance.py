"""How far the numbers can be trusted, and how they were made."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdpgd.report import sheets, wording
from pdpgd.report.inputs import Source
from pdpgd.report.sheets import Cell, Sheet
from pdpgd.runs.receipts import HISTORY, read_history
from pdpgd.runs.result import Evaluation

MARKS = {True: "passed", False: "look", None: "not made"}


@dataclass(frozen=True)
class RunChecks:
    """The checks and notes of a source."""

    label: str
    verdict: str
    trusted: bool
    checks: tuple[tuple[str, str, str], ...]
    """Name, mark and sentence."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Provenance:
    """Where a source is from."""

    label: str
    command: str | None
    """What repeats it; None if it was not made by the command."""
    facts: tuple[tuple[str, str], ...]
    starts: tuple[str, ...]
    runs: Sheet


def verdict_of(run: Evaluation) -> str:
    """Attacks that are compared run without the checks of their results: only the model was looked at then."""
    reliability = run.reliability
    if reliability.checked:
        return reliability.verdict
    if reliability.alarms:
        return f"{reliability.verdict}, by a look at the model alone: the results were not checked"
    return f"{reliability.verdict}: a look at the model alone raised no alarm"


def checks_of(source: Source) -> RunChecks:
    reliability = source.evaluation.reliability
    notes = [
        f"{series.label} ({norm}): {note}" if source.comparison is not None else note
        for series in source.series
        for norm, run in series.runs.items()
        for note in run.notes
    ]
    checks = tuple((check.name, MARKS[check.passed], check.sentence) for check in reliability.checks)
    return RunChecks(
        source.label, verdict_of(source.evaluation), reliability.trusted, checks, tuple(dict.fromkeys(notes))
    )


def provenance_of(source: Source, number: int) -> Provenance:
    evaluation = source.evaluation
    history, _ = _history(evaluation.folder)
    command, starts = starts_of([evaluation.folder])
    facts = [(name, _shown(value)) for name, value in _flat(evaluation.spec.as_json()).items()]
    if source.comparison is not None:
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
    facts.append(("directory", str(source.folder or "kept in memory only")))
    return Provenance(source.label, command, tuple(facts), starts, _runs(source, number))


def starts_of(folders: Sequence[Path | None]) -> tuple[str | None, tuple[str, ...]]:
    """The last command that made these runs, if one did, and every start of them; damaged histories are named."""
    read = [_history(folder) for folder in folders]
    history = [start for starts, _ in read for start in starts]
    faults = [fault for _, fault in read if fault is not None]
    starts = tuple(
        f"{start.get('at', '?')}: {_command(start) or 'from Python'} (engine {start.get('engine', '?')})"
        for start in history
    )
    command = next((found for start in reversed(history) if (found := _command(start))), None)
    return command, (*starts, *faults)


# Of a comparison, what every run has for itself: they have a table.
VARYING = ("norms", "attack", "budget", "settings", "made_with")


def _runs(source: Source, number: int) -> Sheet:
    rows = []
    for series in source.series:
        for run in {id(run): run for run in series.runs.values()}.values():
            rows.append([sheets.words(series.label), sheets.words(", ".join(run.norms)), *_cost(run)])
    headings = ("run", "norms", "passes of the attack", "passes of the checks", "seconds", "seed", "spec digest")
    return sheets.sheet(f"cost-{number}", "What it cost", headings, rows)


def _cost(run: Evaluation) -> Sequence[Cell]:
    numbers = run.as_json()
    passes = [numbers["forwards"][who] + numbers["backwards"][who] for who in ("attacks", "checks")]
    return (
        *(sheets.number(each) for each in passes),
        Cell(f"{numbers['seconds']:,.1f}", round(numbers["seconds"], 3)),
        sheets.number(run.spec.seed),
        sheets.words(numbers["spec"][:16]),
    )


def _history(folder: Path | None) -> tuple[list[dict[str, Any]], str | None]:
    """Each start of a run that can be believed, and what is wrong with the others."""
    if folder is None:
        return [], None
    starts, fault = read_history(folder / HISTORY)
    return starts, None if fault is None else f"{folder / HISTORY} {fault}: not shown"


def _command(start: Mapping[str, Any]) -> str | None:
    """The command as a user would type it, if it was one."""
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


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return wording.NOTHING if value is None or (isinstance(value, float) and np.isnan(value)) else str(value)
