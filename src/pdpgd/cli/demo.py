"""pdpgd demo: attack a shipped net on the embedded images in every norm of the paper."""

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
DATA = "mnist-1000"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("demo", help="attack a shipped net on embedded images in every norm")
    parser.add_argument("--model", default="mnist-plain", help="a shipped net for MNIST (default: mnist-plain)")
    parser.add_argument("--images", type=int, default=50, help="images to attack (default: 50)")
    parser.add_argument("--steps", type=int, default=500, help="iterations of the search (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the starts (default: 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from pdpgd.attacks.contract import Observation
    from pdpgd.subjects import load_data, load_model, zoo

    console = Console(highlight=False)
    data = load_data(DATA)
    if not 1 <= options.images <= len(data):
        raise PdpgdError(f"--images: expected 1 to {len(data)}, got {options.images}")
    images, labels = data.batch(range(options.images))
    card, model = zoo.card(options.model), load_model(options.model)
    if card.shape != images.shape[1:]:
        raise PdpgdError(f"--model: expected a net for images of shape {tuple(images.shape[1:])}, got {card.shape}")
    console.print(f"{options.model}: {card.parameters:,} parameters, {card.clean():.2%} right on the MNIST test set.")
    console.print(f"Attacking the first {options.images} test images.\n")

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
