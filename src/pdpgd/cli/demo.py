"""pdpgd demo: train a small net on handwritten digits and attack it in every norm of the paper."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pdpgd.errors import PdpgdError

if TYPE_CHECKING:
    from rich.table import Table

    from pdpgd.attacks.contract import AttackResult

# The paper's norms, and what a distance is in each.
MEASURES = {"linf": "largest change", "l2": "length", "l1": "sum", "l0": "pixels"}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("demo", help="train a small net on digits and attack it in every norm")
    parser.add_argument("--images", type=int, default=100, help="test images to attack (default: 100)")
    parser.add_argument("--steps", type=int, default=500, help="iterations of the search (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="seed of training and of the starts (default: 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        from pdpgd.subjects import digits

        data = digits.load()
    except ImportError as error:
        raise PdpgdError(f"the demo needs more than the core: pip install 'pdpgd[demo]' ({error})") from error
    from pdpgd.attacks.contract import Observation

    console = Console()
    available = len(data.test_images)
    if not 1 <= options.images <= available:
        raise PdpgdError(f"--images: expected 1 to {available}, got {options.images}")

    console.print("Training a small convolutional net on 1400 handwritten digits (8 x 8) ...")
    model = digits.trained_net(data, seed=options.seed)
    accuracy = (model(data.test_images).argmax(1) == data.test_labels).float().mean().item()
    console.print(f"Accuracy on the other {available}: {accuracy:.1%}. Attacking the first {options.images} of them.\n")
    images, labels = data.test_images[: options.images], data.test_labels[: options.images]

    table = _table()
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True)
    with bar:
        for norm in MEASURES:
            name, attack = _attack_for(norm, options.steps)
            task = bar.add_task(f"{name} {norm}", total=None)

            def show(seen: Observation, task: TaskID = task) -> None:
                bar.update(task, completed=seen.done, total=seen.total)

            begin = time.perf_counter()
            result = attack(model, images, labels, norm=norm, seed=options.seed, observe=show)
            _add_row(table, norm, name, result, time.perf_counter() - begin)
    console.print(table)
    console.print("Pixels lie in [0, 1]. Passes are forward + backward passes an image.")
    return 0


def _attack_for(norm: str, steps: int) -> tuple[str, Callable[..., AttackResult]]:
    """The paper's choice: the gradient of l2 is smooth enough for PDGD, the other norms go through their prox."""
    import pdpgd

    if norm == "l2":
        return "PDGD", partial(pdpgd.pdgd, config=pdpgd.PDGDConfig(steps=steps, finetune_steps=steps))
    return "PDPGD", partial(pdpgd.pdpgd, config=pdpgd.PDPGDConfig(steps=steps, finetune_steps=steps))


def _table() -> Table:
    from rich.table import Table

    table = Table(title="The least change that fools the net")
    table.add_column("norm")
    table.add_column("attack")
    table.add_column("measures")
    for heading in ("fooled", "mean", "median", "passes", "seconds"):
        table.add_column(heading, justify="right")
    return table


def _add_row(table: Table, norm: str, name: str, result: AttackResult, seconds: float) -> None:
    attacked = result.distances > 0
    distances = result.distances[attacked & result.found]
    table.add_row(
        norm,
        name,
        MEASURES[norm],
        f"{int(result.found[attacked].sum())}/{int(attacked.sum())}",
        f"{distances.mean():.3f}",
        f"{distances.median():.3f}",
        f"{(result.forwards + result.backwards)[attacked].float().mean():.0f}",
        f"{seconds:.1f}",
    )
