"""pdpgd evaluate and pdpgd demo: measure robustness, print it, and check it against requirements."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdpgd.cli.options import (
    OUT_HELP,
    RADIUS_HELP,
    add_data,
    add_execution,
    add_model,
    default_folder,
    norm_and_radius,
    number,
    plain_table,
    radii_by_norm,
    run_arguments,
)
from pdpgd.errors import InvalidInputError, need

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdpgd.runs.metrics import Curve
    from pdpgd.runs.result import Evaluation

NORMS = ("linf", "l2", "l1", "l0")
DEMO_MODEL, DEMO_DATA = "mnist-plain", "mnist-1000"
# Exit code for a requirement that is not met; pdpgd.cli has those that all commands share.
NOT_MET = 3
DESCRIPTION = """Measure the robustness of a model: search for a minimum-norm adversarial
example of every sample in every norm, verify it, and store the results. A run
that was interrupted resumes when the same command is given again."""
EPILOG = """examples:
  pdpgd evaluate mnist-linf-at mnist-1000 --norm linf --norm l2 --budget 200
  pdpgd evaluate nets:resnet cifar10 --weights resnet.safetensors --mean cifar10
  pdpgd evaluate mnist-plain mnist-1000 --require 'linf@0.1>=0.2'
  pdpgd evaluate mnist-linf-at mnist-1000 --radius linf:0.3 --only-radius
  pdpgd evaluate mnist-plain mnist-1000 --engine ray --workers 2 --threads 1

exit codes:
  0    finished, and every requirement is met
  2    invalid call, or the model or the data cannot be used
  3    finished, but a requirement is not met
  4    not finished; completed chunks are stored: give the command again
  130  interrupted by Ctrl-C; completed chunks are stored"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands."""
    _add_demo(commands)
    _add_evaluate(commands)


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="measure the robustness of a model in several norms",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    add_data(parser)
    attack = parser.add_argument_group("attack")
    attack.add_argument(
        "--norm", action="append", metavar="NORM", help="norm to attack in; repeatable (default: linf, l2, l1, l0)"
    )
    attack.add_argument(
        "--only-radius",
        action="store_true",
        help="ask only whether samples are fooled within the radii of --radius, in its norms: costs fewer passes, and "
        "gives no smallest distances; for auto and auto-shared",
    )
    attack.add_argument(
        "--attack", metavar="NAME", default="auto", help="attack, as listed by pdpgd attacks (%(default)s)"
    )
    attack.add_argument(
        "--budget",
        metavar="N",
        type=int,
        default=1000,
        help="maximum forward + backward passes per sample and norm (%(default)s)",
    )
    add_execution(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help=OUT_HELP)
    output.add_argument("--radius", action="append", default=[], metavar="NORM:RADIUS", help=RADIUS_HELP)
    output.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="NORM@RADIUS>=SHARE",
        help="robust accuracy to require, such as linf@0.1>=0.6; also clean>=0.9, or trusted for reliable results; "
        "repeatable",
    )
    output.add_argument("--json", action="store_true", help="print only the results, as JSON")
    parser.set_defaults(run=run)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add a command that is `evaluate` with defaults for everything."""
    parser = commands.add_parser(
        "demo",
        help="evaluate a shipped net on embedded images in all norms",
        description="Evaluate a shipped net on embedded MNIST images in all norms, as pdpgd evaluate does.",
    )
    parser.add_argument("--model", metavar="NAME", default=DEMO_MODEL, help="shipped MNIST net (%(default)s)")
    parser.add_argument(
        "--limit", metavar="N", type=int, default=100, help="number of images, from the first on (%(default)s)"
    )
    parser.add_argument(
        "--budget",
        metavar="N",
        type=int,
        default=1000,
        help="maximum forward + backward passes per image and norm (%(default)s)",
    )
    parser.add_argument("--out", metavar="DIR", help=OUT_HELP)
    own = vars(parser.parse_args([]))
    parser.set_defaults(**{**_evaluate_defaults(), **own, "data": DEMO_DATA})


def _evaluate_defaults() -> dict[str, object]:
    """Return the default of every option of `evaluate`."""
    parser = argparse.ArgumentParser()
    _add_evaluate(parser.add_subparsers())
    return vars(parser.parse_args(["evaluate", "MODEL", "DATA"]))


def run(options: argparse.Namespace) -> int:
    """Evaluate the model and print the results."""
    from rich.console import Console

    from pdpgd.cli.progress import SampleBar
    from pdpgd.evaluation.engines import keep_freed_memory
    from pdpgd.evaluation.evaluate import evaluate

    keep_freed_memory()
    radii = [norm_and_radius("--radius", text) for text in options.radius]
    only_radii = radii_by_norm(options.radius) if options.only_radius else None
    if only_radii is not None and not only_radii:
        raise InvalidInputError("--only-radius: expected at least one --radius such as linf:8/255, got none")
    norms = tuple(options.norm or only_radii or NORMS)
    requirements = [Requirement.parse(text) for text in options.require]
    for requirement in requirements:
        requirement.check(norms, only_radii)
    with SampleBar(Console(stderr=True, highlight=False)) as bar:
        evaluation = evaluate(
            options.model,
            options.data,
            norms=norms,
            attack=options.attack,
            budget=options.budget,
            only_radii=only_radii,
            out=options.out or default_folder(options, "norm", "attack", "budget"),
            progress=bar,
            **run_arguments(options),
        )
    if options.json:
        print(json.dumps(_as_json(evaluation, requirements, radii), indent=2))
    else:
        show(Console(highlight=False), evaluation, requirements, radii)
    return 0 if all(requirement.met(evaluation) for requirement in requirements) else NOT_MET


def show(
    console: Console, evaluation: Evaluation, requirements: list[Requirement], radii: list[tuple[str, float]]
) -> None:
    """Print the results for people."""
    from pdpgd.runs.summary import passes_sentence, robust_at_radii, run_cost

    spec = evaluation.spec
    budget = f", {spec.budget} passes per sample and norm" if spec.budget else ""
    budget += f", on the mean of {spec.draws} draws of the model" if spec.draws > 1 else ""
    console.print(
        f"{spec.model_name} on {evaluation.samples:,} samples of {spec.data['name']}: "
        f"{evaluation.clean_accuracy:.1%} correctly classified.\nAttack {spec.attack}{budget}.\n",
        soft_wrap=True,
    )
    if spec.only_radii:
        for line in (*robust_at_radii(evaluation), *(passes_sentence(evaluation, norm) for norm in evaluation.norms)):
            console.print(str(line), markup=False, soft_wrap=True)
    else:
        console.print(_table(evaluation))
        console.print(_means(evaluation), soft_wrap=True)
        console.print(drawn({norm: evaluation.curve(norm) for norm in evaluation.norms}), markup=False)
        for norm, radius in radii:
            share = evaluation.robust_accuracy(radius, norm)
            console.print(f"Robust accuracy at {norm} radius {radius:.4g}: {share:.2%}")
    if len({norm for norm, _ in radii}) > 1:
        share = evaluation.robust_accuracy(_largest(radii))
        digits = 1 if spec.only_radii else 2
        console.print(f"Robust accuracy in all of these norms at once: {share:.{digits}%}")
    console.print()
    _show_reliability(console, evaluation)
    for requirement in requirements:
        word = "met" if requirement.met(evaluation) else "NOT MET"
        console.print(f"Required {requirement.text}: {word} (measured {requirement.found(evaluation):.4g})")
    cost = run_cost(evaluation)
    console.print(
        f"{cost.backwards.total:,} backward and {cost.forwards.total:,} forward passes, "
        f"{cost.seconds:.0f} s of computation. Results: {evaluation.folder}",
        soft_wrap=True,
    )


def _table(evaluation: Evaluation) -> Table:
    from pdpgd.runs.metrics import PARTIAL
    from pdpgd.runs.summary import norm_summary

    table = plain_table("Smallest perturbations that fool the model")
    table.add_column("norm")
    for heading in ("fooled", "not fooled", "unverified", "mean", "median", "8-bit median", "fragile"):
        table.add_column(heading, justify="right", no_wrap=True)
    for norm in evaluation.norms:
        numbers = norm_summary(evaluation, norm)
        mean, *medians = (
            "-" if distance is None else f"{distance:.3g}"
            for distance in (numbers.mean, numbers.median, numbers.median_8bit)
        )
        table.add_row(
            norm,
            *(str(numbers.counts[name]) for name in ("fooled", "not fooled", "unverified")),
            mean if evaluation.fooled_all(norm) else f"{mean}{PARTIAL}",
            *medians,
            str(numbers.fragile),
        )
    return table


def _means(evaluation: Evaluation) -> str:
    """Say below the table over which samples its distances are taken."""
    from pdpgd.runs.metrics import PARTIAL

    if all(map(evaluation.fooled_all, evaluation.norms)):
        return (
            "Distances are over all correctly classified samples, which were all fooled.\n"
            "8-bit median: after quantizing the adversarial examples to 8 bits.\n"
        )
    return (
        "Mean: over the fooled samples.\n"
        f"{PARTIAL} not all were fooled, so it is not comparable with a mean over all samples.\n"
        "Median: over all correctly classified samples, those not fooled at infinity;\n"
        "- if more than half were not fooled.\n"
        "8-bit median: after quantizing the adversarial examples to 8 bits.\n"
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
    """Return the largest radius of each norm."""
    largest: dict[str, float] = {}
    for norm, radius in radii:
        largest[norm] = max(radius, largest.get(norm, 0.0))
    return largest


FORM = "NORM@RADIUS>=SHARE such as linf@0.1>=0.6, l2@1,linf@8/255>=0.5 (both at once), clean>=0.9, or trusted"


@dataclass(frozen=True)
class Requirement:
    """A lower bound on robust accuracy, which a pipeline can check: linf@0.1>=0.6.

    With several norms, a sample counts as robust if it withstands all of them at their radii; without any, if it is
    correctly classified.
    """

    text: str
    radii: tuple[tuple[str, float], ...]
    share: float | None
    """Lowest robust accuracy; None to require that the results were checked and that no check failed."""

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Parse a requirement.

        Raises:
            InvalidInputError: The text has another form.
        """
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

    def check(self, norms: tuple[str, ...], only_radii: Mapping[str, Sequence[float]] | None = None) -> None:
        """Raise InvalidInputError, before anything runs, if one of the norms or radii is not measured."""
        from pdpgd.runs.metrics import is_among

        for norm, radius in self.radii:
            if norm not in norms:
                raise InvalidInputError(
                    f"require: expected one of the run's norms, {', '.join(norms)}, got {norm!r} in {self.text!r}"
                )
            if only_radii is not None and not is_among(radius, only_radii.get(norm, ())):
                raise InvalidInputError(
                    f"require: expected a radius of --radius, because of --only-radius, got {radius:.6g} in "
                    f"{self.text!r}; add --radius {norm}:{radius:.6g}"
                )

    def found(self, evaluation: Evaluation) -> float:
        """Return the measured share; for trust 1 or 0. A run whose results were not checked is not trusted."""
        if self.share is None:
            return float(evaluation.reliability.trusted)
        return evaluation.robust_accuracy(dict(self.radii)) if self.radii else evaluation.clean_accuracy

    def met(self, evaluation: Evaluation) -> bool:
        """Return whether the evaluation meets the requirement."""
        return self.found(evaluation) >= (1.0 if self.share is None else self.share)


def _pair(part: str, text: str) -> tuple[str, float]:
    """Parse NORM@RADIUS, a part of the requirement `text`."""
    match = re.fullmatch(r"\s*([\w-]+)\s*@\s*([^@]+)", part)
    radius = number(match.group(2)) if match else None
    if match is None or radius is None or not 0 <= radius < float("inf"):
        raise InvalidInputError(f"require: expected {FORM}, got {text!r}")
    return match.group(1), radius


WIDTH, HEIGHT = 80, 12
POINTS = 120
# The curve is drawn until this share of its height is lost: the last few samples would squeeze the rest to the left.
SHOWN = 0.98


def drawn(curves: Mapping[str, Curve]) -> str:
    """Draw robust accuracy by radius as text: two curves per row, each over its own range of radii."""
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
    # Without colors, which would paint a white background in a dark terminal.
    text: str = plotext.uncolorize(str(figure.build()))
    return "\n".join(line.rstrip() for line in text.splitlines())


def _stairs(curve: Curve) -> tuple[list[float], list[float]]:
    """Return radii and robust accuracy in percent, as the points of a step function."""
    import numpy as np

    fallen = curve.accuracy[0] * (1 - SHOWN)
    beyond = np.flatnonzero(curve.accuracy <= max(fallen, curve.accuracy[-1]))
    right = float(curve.radius[beyond[0]]) if len(beyond) else float(curve.radius[-1])
    radius = np.linspace(0.0, right or 1.0, POINTS)
    at = np.searchsorted(curve.radius, radius, side="right") - 1
    return radius.tolist(), (100 * curve.accuracy[at]).tolist()
