"""What a model must withstand: linf@0.1>=0.6, a gate for a pipeline."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdpgd.cli.options import add_model, add_run, add_samples, default_folder, norm_and_radius, number, run_settings
from pdpgd.errors import InvalidInputError, need

if TYPE_CHECKING:
    from pdpgd.runs.result import Evaluation
if TYPE_CHECKING:
    from pdpgd.runs.metrics import Curve
if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdpgd.runs.result import Evaluation


FORM = "NORM@RADIUS>=SHARE such as linf@0.1>=0.6, l2@1,linf@8/255>=0.5 (both at once), clean>=0.9, or trusted"


@dataclass(frozen=True)
class Requirement:
    """At least this share of the samples withstands all these norms at their radii; no radii: is right at all."""

    text: str
    radii: tuple[tuple[str, float], ...]
    share: float | None
    """None: the results were checked, and the reliability report raises no alarm."""

    @classmethod
    def parse(cls, text: str) -> Requirement:
        if text.strip() == "trusted":
            return cls(text, (), None)
        what, comparison, share = text.partition(">=")
        if not comparison:
            raise InvalidInputError(f"require: expected {FORM}, got {text!r}")
        parts = [] if what.strip() == "clean" else [_pair(part, text) for part in what.split(",")]
        value = number(share)
        if value is None or not 0 <= value <= 1:
            raise InvalidInputError(f"require: expected a share from 0 to 1 after >=, got {share!r} in {text!r}")
        return cls(text, tuple(parts), value)

    def check(self, norms: tuple[str, ...]) -> None:
        """Refuse, before anything runs, what the run will not measure."""
        for norm, _ in self.radii:
            if norm not in norms:
                raise InvalidInputError(
                    f"require: expected one of the run's norms, {', '.join(norms)}, got {norm!r} in {self.text!r}"
                )

    def found(self, evaluation: Evaluation) -> float:
        """The share that does; for trust, 1 or 0. A run whose results were not checked is not trusted."""
        if self.share is None:
            return float(evaluation.reliability.trusted)
        return evaluation.robust_accuracy(dict(self.radii)) if self.radii else evaluation.clean_accuracy

    def met(self, evaluation: Evaluation) -> bool:
        return self.found(evaluation) >= (1.0 if self.share is None else self.share)


def _pair(part: str, text: str) -> tuple[str, float]:
    match = re.fullmatch(r"\s*([\w-]+)\s*@\s*([^@]+)", part)
    radius = number(match.group(2)) if match else None
    if match is None or radius is None or not 0 <= radius < float("inf"):
        raise InvalidInputError(f"require: expected {FORM}, got {text!r}")
    return match.group(1), radius


WIDTH, HEIGHT = 80, 12
POINTS = 120
# The last few samples would squeeze the rest of the curve to the left.
SHOWN = 0.98


def drawn(curves: Mapping[str, Curve]) -> str:
    """Two curves in a row, each over its own radii."""
    plotext: Any = need("plotext", extra="cli", purpose="the plot of the curves")
    rows = (len(curves) + 1) // 2
    figure = plotext.figure
    figure.clear()
    figure.plot_size(WIDTH if len(curves) > 1 else WIDTH // 2, rows * HEIGHT)
    if len(curves) > 1:
        figure.subplots(rows, 2)
    for place, (norm, curve) in enumerate(curves.items()):
        plot = figure.subplot(place // 2 + 1, place % 2 + 1) if len(curves) > 1 else figure
        plot.draw(plot.signal(*_stairs(curve), marker="braille").lines())
        plot.title(f"{norm}: robust accuracy in %, by radius")
        plot.ruler("y").lim(0, 100)
        plot.ruler("y").ticks([0, 25, 50, 75, 100])
    # Without its colours: they would paint a white field into a dark terminal.
    text: str = plotext.uncolorize(str(figure.build()))
    return "\n".join(line.rstrip() for line in text.splitlines())


def _stairs(curve: Curve) -> tuple[list[float], list[float]]:
    import numpy as np

    fallen = curve.accuracy[0] * (1 - SHOWN)
    beyond = np.flatnonzero(curve.accuracy <= max(fallen, curve.accuracy[-1]))
    right = float(curve.radius[beyond[0]]) if len(beyond) else float(curve.radius[-1])
    radius = np.linspace(0.0, right or 1.0, POINTS)
    at = np.searchsorted(curve.radius, radius, side="right") - 1
    return radius.tolist(), (100 * curve.accuracy[at]).tolist()


NORMS = ("linf", "l2", "l1", "l0")
# Exit codes, besides 0 and those of every command (pdpgd.cli).
NOT_MET = 3
EPILOG = """examples:
  pdpgd evaluate mnist-linf-at mnist-1000 --norm linf --norm l2 --budget 200
  pdpgd evaluate nets:resnet cifar10 --weights resnet.safetensors --mean cifar10 --out runs/resnet
  pdpgd evaluate mnist-plain mnist-1000 --norm linf --require 'linf@0.1>=0.2' --require trusted
  pdpgd evaluate mnist-plain mnist-1000 --engine ray --workers 2 --threads 1

A run that was stopped, by whatever, goes on when the same command is given again.

exit codes:
  0    done, and every --require is met
  2    the call is wrong, or the model or the data cannot be used
  3    done, but a --require is not met
  4    not finished: what was done is kept, start the same command again
  130  stopped by Ctrl-C: the same"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="the robustness of a model in every norm, verified and kept",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    add_samples(parser)
    asked = parser.add_argument_group("what is measured")
    asked.add_argument("--norm", action="append", metavar="NORM", help="repeatable (default: linf, l2, l1, l0)")
    asked.add_argument("--attack", default="auto", help="a name of `pdpgd attacks` (%(default)s)")
    asked.add_argument(
        "--budget", type=int, default=1000, help="forward + backward passes a sample and norm (%(default)s)"
    )
    add_run(parser, asked)
    shown = parser.add_argument_group("what comes of it")
    shown.add_argument("--out", help="directory of the results (default: runs/MODEL-DATA-...)")
    shown.add_argument(
        "--radius", action="append", default=[], metavar="NORM:RADIUS", help="robust accuracy there; repeatable"
    )
    shown.add_argument(
        "--require", action="append", default=[], metavar="NORM@RADIUS>=SHARE", help="or trusted; repeatable"
    )
    shown.add_argument("--json", action="store_true", help="print the numbers as JSON, and nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from pdpgd.cli.progress import SampleBar
    from pdpgd.evaluation.engines import keep_freed_memory
    from pdpgd.evaluation.evaluate import evaluate

    keep_freed_memory()
    norms = tuple(options.norm or NORMS)
    requirements = [Requirement.parse(text) for text in options.require]
    for requirement in requirements:
        requirement.check(norms)
    radii = [norm_and_radius("--radius", text) for text in options.radius]
    with SampleBar(Console(stderr=True, highlight=False)) as bar:
        evaluation = evaluate(
            options.model,
            options.data,
            norms=norms,
            attack=options.attack,
            budget=options.budget,
            out=options.out or default_folder(options, "norm", "attack", "budget"),
            progress=bar,
            **run_settings(options),
        )
    if options.json:
        print(json.dumps(_as_json(evaluation, requirements, radii), indent=2))
    else:
        show(Console(highlight=False), evaluation, requirements, radii)
    return 0 if all(requirement.met(evaluation) for requirement in requirements) else NOT_MET


def defaults() -> dict[str, object]:
    """The value of every option that is not given, for a command that is this one with some of them set."""
    parser = argparse.ArgumentParser()
    add_to(parser.add_subparsers())
    return vars(parser.parse_args(["evaluate", "MODEL", "DATA"]))


def show(
    console: Console, evaluation: Evaluation, requirements: list[Requirement], radii: list[tuple[str, float]]
) -> None:

    spec = evaluation.spec
    budget = f", {spec.budget} passes a sample and norm" if spec.budget else ""
    console.print(
        f"{spec.model_name} on {evaluation.samples:,} samples of {spec.data['name']}: "
        f"{evaluation.clean_accuracy:.1%} right. Attack {spec.attack}{budget}.\n",
        soft_wrap=True,
    )
    console.print(_table(evaluation))
    console.print(_means(evaluation), soft_wrap=True)
    console.print(drawn({norm: evaluation.curve(norm) for norm in evaluation.norms}), markup=False)
    for norm, radius in radii:
        share = evaluation.robust_accuracy(radius, norm)
        console.print(f"robust accuracy, {norm} within {radius:.4g}: {share:.2%}")
    if len({norm for norm, _ in radii}) > 1:
        share = evaluation.robust_accuracy(_largest(radii))
        console.print(f"robust accuracy, all of these at once: {share:.2%}")
    console.print()
    _show_reliability(console, evaluation)
    for requirement in requirements:
        word = "met" if requirement.met(evaluation) else "NOT MET"
        console.print(f"required {requirement.text}: {word} ({requirement.found(evaluation):.4g})")
    passes = evaluation.as_json()
    console.print(
        f"{sum(passes['backwards'].values()):,} backward and {sum(passes['forwards'].values()):,} forward passes, "
        f"{passes['seconds']:.0f} s of work. Results: {evaluation.folder}",
        soft_wrap=True,
    )


def _table(evaluation: Evaluation) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pdpgd.runs.metrics import PARTIAL

    table = Table(
        title="The least change that fools the model", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("norm")
    for heading in ("fooled", "not fooled", "unverified", "mean", "median", "at 8 bits", "fragile"):
        table.add_column(heading, justify="right", no_wrap=True)
    for norm, numbers in evaluation.as_json()["norms"].items():
        counts = numbers["counts"]
        mean, *medians = (
            "-" if numbers[name] is None else f"{numbers[name]:.3g}" for name in ("mean", "median", "median_8bit")
        )
        table.add_row(
            norm,
            *(str(counts[name]) for name in ("fooled", "not fooled", "unverified")),
            mean if evaluation.whole(norm) else f"{mean}{PARTIAL}",
            *medians,
            str(numbers["fragile"]),
        )
    return table


def _means(evaluation: Evaluation) -> str:
    """What the distances of the table are over, below it."""
    from pdpgd.runs.metrics import PARTIAL

    if all(map(evaluation.whole, evaluation.norms)):
        return "Distances are of the samples that were right, all of them fooled; at 8 bits, the median again.\n"
    return (
        f"Mean: over the fooled samples; {PARTIAL} not all were fooled, so it is not comparable with a mean over all. "
        "Median: over all that were right, those not fooled counted as farthest; - if more than half were not. At 8 "
        "bits, the median again.\n"
    )


def _show_reliability(console: Console, evaluation: Evaluation) -> None:
    console.print(f"Reliability: {evaluation.reliability.verdict}", style="bold")
    for check in evaluation.reliability.checks:
        mark = {True: "ok", False: "LOOK", None: "-"}[check.passed]
        console.print(f"  {mark:<5}{check.name}: {check.sentence}", markup=False, soft_wrap=True)
    console.print()


def _as_json(
    evaluation: Evaluation, requirements: list[Requirement], radii: list[tuple[str, float]]
) -> dict[str, object]:
    return {
        **evaluation.as_json(),
        "robust_accuracy": [
            {"norm": norm, "radius": radius, "share": evaluation.robust_accuracy(radius, norm)}
            for norm, radius in radii
        ],
        "union_robust_accuracy": evaluation.robust_accuracy(_largest(radii)) if radii else None,
        "requirements": [
            {"text": each.text, "found": each.found(evaluation), "met": each.met(evaluation)} for each in requirements
        ],
    }


def _largest(radii: list[tuple[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for norm, radius in radii:
        largest[norm] = max(radius, largest.get(norm, 0.0))
    return largest
