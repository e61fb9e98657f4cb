"""Results of an invented experiment, in which every number is known."""

from __future__ import annotations

from pdpgd.experiments.results import Cell, DatasetInfo, IterationCost, ModelInfo, Results
from pdpgd.paper import PAPER_RADII

KINDS = ("plain", "linf-at", "l2-at")
# By attack and restarts: the mean distance in units of the paper's first radius; robust accuracy is proportional to it.
STRENGTHS: dict[tuple[str, int | None], float] = {
    ("deepfool", None): 2.0,
    ("bb", None): 1.5,
    ("pgd", 100): 1.3,
    ("fab", 100): 1.2,
    ("pdpgd", 10): 1.1,
    ("pdpgd", 100): 1.0,
    ("auto", None): 1.0,
}
NORMS_OF = {"deepfool": ("linf", "l2"), "fab": ("linf", "l2", "l1")}
SAMPLES = 100


def cell(attack: str, restarts: int | None, norm: str, model: str, *, dataset: str = "mnist", **other: object) -> Cell:
    """Return a cell with robust accuracy 90 %, 70 %, ..., 10 % at the five radii, times half the strength."""
    radii = PAPER_RADII[("mnist" if dataset == "mnist" else "cifar10"), norm, model]
    strength = STRENGTHS.get((attack, restarts), 1.0)
    entries: dict[str, object] = {
        "id": f"{dataset}-{model}-{norm}-{attack}-{restarts}",
        "role": "table",
        "dataset": dataset,
        "model": model,
        "norm": norm,
        "attack": attack,
        "restarts": restarts,
        "settings": {},
        "budget": None,
        "radii": tuple(map(float, radii)),
        "samples": SAMPLES,
        "right": 98,
        "fooled": 98,
        "robust_accuracy": tuple((0.9 - 0.2 * place) * strength / 2 for place in range(5)),
        "mean_distance": None if attack == "pgd" else strength * radii[0],
        "forwards": 1000.0,
        "backwards": 1000.0,
        "seconds": 12.5,
    }
    return Cell(**{**entries, **other})  # type: ignore[arg-type]  # each is of its field's type


def failed(attack: str, restarts: int | None, norm: str, model: str, why: str, **other: object) -> Cell:
    nothing = {"samples": 0, "right": 0, "fooled": 0, "robust_accuracy": (), "mean_distance": None, "seconds": 0.0}
    return cell(attack, restarts, norm, model, failure=why, **{**nothing, **other})


def dataset_info(name: str = "mnist", like: str | None = "mnist") -> DatasetInfo:
    models = {
        kind: ModelInfo(source=f"{name}-{kind}", like=kind if like else None, clean_accuracy=0.98) for kind in KINDS
    }
    return DatasetInfo(name=name, source=name, like=like, samples=SAMPLES, models=models)


def table_cells(dataset: str = "mnist", norms: tuple[str, ...] = ("linf", "l2", "l1", "l0")) -> list[Cell]:
    return [
        cell(attack, restarts, norm, model, dataset=dataset)
        for attack, restarts in STRENGTHS
        for norm in norms
        if norm in NORMS_OF.get(attack, norms)
        for model in KINDS
    ]


def restart_cells(dataset: str = "mnist") -> list[Cell]:
    return [
        cell(attack, restarts, norm, model, dataset=dataset, role="restarts", mean_distance=start * restarts**-0.1)
        for attack, start in (("pdpgd", 1.0), ("fab", 1.3))
        for restarts in (1, 3, 10, 30, 100)
        for norm in ("linf", "l2", "l1")
        for model in KINDS
    ]


def query_cells(dataset: str = "mnist") -> list[Cell]:
    return [
        cell(
            attack,
            None,
            norm,
            model,
            dataset=dataset,
            role="queries",
            gradients=gradients,
            penalty=penalty,
            robust_accuracy=tuple(min(0.98, (penalty or 5) * 20 / gradients / (place + 1)) for place in range(5)),
        )
        for attack, penalty in (("pgd", None), ("pdpgd", 0.1), ("pdpgd", 1.0), ("pdpgd", 10.0))
        for gradients in (25, 50, 100, 250, 500, 1000)
        for norm in ("linf", "l2", "l1", "l0")
        for model in KINDS
    ]


def results_of(*cells: Cell, datasets: tuple[DatasetInfo, ...] | None = None, **other: object) -> Results:
    entries: dict[str, object] = {"title": "A try", "about": "All of it.", "norms": ("linf", "l2", "l1", "l0")}
    return Results(
        datasets=datasets or (dataset_info(),),
        cells=cells,
        **{**entries, **other},  # type: ignore[arg-type]  # each is of its field's type
    )


COSTS = (
    IterationCost(attack="pdpgd", norm="linf", forwards=1.0, backwards=1.0, iteration="steps"),
    IterationCost(attack="pdpgd", norm="l2", forwards=1.0, backwards=1.0, iteration="steps"),
    IterationCost(attack="deepfool", norm="l2", forwards=1.0, backwards=9.0, iteration="steps"),
    IterationCost(attack="corner-search", norm="l0", forwards=1.0, backwards=0.0, iteration="draws"),
    IterationCost(attack="bb", norm="l2", forwards=1.254, backwards=1.0, iteration="steps"),
    IterationCost(attack="fmn", norm="l2", forwards=1.0, backwards=1.0, iteration="steps"),
)
