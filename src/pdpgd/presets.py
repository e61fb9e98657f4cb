"""The settings that the paper's results were made with.

Sources: [P] the paper, "Parameters for our attack"; [S] the scripts its authors released; [O] ours, where neither says.
"""

from __future__ import annotations

from collections.abc import Mapping

from pdpgd.attacks.config import GameConfig, PDGDConfig, PDPGDConfig
from pdpgd.errors import UnknownNameError

MODEL_KINDS = ("plain", "linf-at", "l2-at")
PAPER_NORMS = ("linf", "l2", "l1", "l0")

# [P] Half the width of the uniform start.
START_RADIUS = {"mnist": 0.5, "cifar10": 0.25, "restricted-imagenet": 0.1}

# Adam's first rate, picked by the authors from {1, 0.1, 0.01} with one restart [P].
_PRIMAL_RATE = {
    # [S] 1.0 throughout.
    "mnist": dict.fromkeys(PAPER_NORMS, 1.0),
    # [S] l2 depends on the model, see below.
    "cifar10": {"linf": 0.1, "l2": 1.0, "l1": 1.0, "l0": 1.0},
    # [O] Not published for this data set: those of CIFAR-10.
    "restricted-imagenet": {"linf": 0.1, "l2": 1.0, "l1": 1.0, "l0": 1.0},
}

# [P] The five thresholds at which robust accuracy is reported, in the tables of the supplement.
PAPER_RADII: Mapping[tuple[str, str, str], tuple[float, ...]] = {
    ("mnist", "linf", "plain"): (0.03, 0.05, 0.07, 0.09, 0.11),
    ("mnist", "linf", "linf-at"): (0.2, 0.25, 0.3, 0.325, 0.35),
    ("mnist", "linf", "l2-at"): (0.05, 0.1, 0.15, 0.2, 0.25),
    ("mnist", "l2", "plain"): (0.5, 1, 1.5, 2, 2.5),
    ("mnist", "l2", "linf-at"): (1, 1.5, 2, 2.5, 3),
    ("mnist", "l2", "l2-at"): (1, 1.5, 2, 2.5, 3),
    ("mnist", "l1", "plain"): (2, 4, 6, 8, 10),
    ("mnist", "l1", "linf-at"): (2.5, 5, 7.5, 10, 12.5),
    ("mnist", "l1", "l2-at"): (5, 8.75, 12.5, 16.25, 20),
    ("mnist", "l0", "plain"): (1, 3, 5, 8, 12),
    ("mnist", "l0", "linf-at"): (1, 3, 5, 8, 12),
    ("mnist", "l0", "l2-at"): (5, 10, 15, 20, 25),
    ("cifar10", "linf", "plain"): (1 / 255, 1.5 / 255, 2 / 255, 2.5 / 255, 3 / 255),
    ("cifar10", "linf", "linf-at"): (2 / 255, 4 / 255, 6 / 255, 8 / 255, 10 / 255),
    ("cifar10", "linf", "l2-at"): (2 / 255, 4 / 255, 6 / 255, 8 / 255, 10 / 255),
    ("cifar10", "l2", "plain"): (0.1, 0.15, 0.2, 0.3, 0.4),
    ("cifar10", "l2", "linf-at"): (0.25, 0.5, 0.75, 1, 1.25),
    ("cifar10", "l2", "l2-at"): (0.25, 0.5, 0.75, 1, 1.25),
    ("cifar10", "l1", "plain"): (2, 4, 6, 8, 10),
    ("cifar10", "l1", "linf-at"): (5, 8.75, 12.5, 16.25, 20),
    ("cifar10", "l1", "l2-at"): (3, 6, 9, 12, 15),
    ("cifar10", "l0", "plain"): (1, 3, 5, 8, 12),
    ("cifar10", "l0", "linf-at"): (1, 3, 5, 8, 12),
    ("cifar10", "l0", "l2-at"): (1, 3, 5, 10, 15),
    ("restricted-imagenet", "linf", "plain"): (0.25 / 255, 0.5 / 255, 0.75 / 255, 1 / 255, 1.25 / 255),
    ("restricted-imagenet", "linf", "linf-at"): (2 / 255, 4 / 255, 6 / 255, 8 / 255, 10 / 255),
    ("restricted-imagenet", "linf", "l2-at"): (2 / 255, 4 / 255, 6 / 255, 8 / 255, 10 / 255),
    ("restricted-imagenet", "l2", "plain"): (0.2, 0.4, 0.6, 0.8, 1),
    ("restricted-imagenet", "l2", "linf-at"): (1, 2, 3, 4, 5),
    ("restricted-imagenet", "l2", "l2-at"): (2, 3, 4, 5, 6),
    ("restricted-imagenet", "l1", "plain"): (5, 16, 27, 38, 49),
    ("restricted-imagenet", "l1", "linf-at"): (15, 25, 40, 60, 100),
    ("restricted-imagenet", "l1", "l2-at"): (50, 100, 150, 200, 250),
    ("restricted-imagenet", "l0", "plain"): (10, 20, 30, 40, 50),
    ("restricted-imagenet", "l0", "linf-at"): (10, 30, 50, 80, 100),
    ("restricted-imagenet", "l0", "l2-at"): (50, 100, 150, 200, 250),
}


def paper_config(dataset: str, norm: str, model_kind: str, *, restarts: int = 1) -> PDGDConfig | PDPGDConfig:
    """The authors' settings for a data set, a norm and a kind of model; the paper reports 1, 10 and 100 restarts.

    Returns a PDGDConfig for l2 and a PDPGDConfig for the others, as in the paper [S].
    """
    for kind, name, known in (
        ("data set", dataset, START_RADIUS),
        ("norm", norm, PAPER_NORMS),
        ("kind of model", model_kind, MODEL_KINDS),
    ):
        if name not in known:
            raise UnknownNameError(kind, name, known)
    game = GameConfig(
        steps=500,  # [P]
        primal_rate=_primal_rate(dataset, norm, model_kind, restarts),
        primal_decay=0.01,  # [P] exponential
        dual_rate=0.1,  # [P]
        dual_decay=0.1,  # [P] linear
        dual_average=0.9,  # [S] the paper names the moving average, not its memory
        weight_floor=1e-6,  # [S]
        penalty=_penalty(dataset, norm, model_kind, restarts),
        start_radius=START_RADIUS[dataset],
        restarts=restarts,
        finetune_steps=500,  # [P]
        finetune_primal=0.01,  # [S]
        finetune_dual=0.1,  # [S]
        surrogate="logistic",  # [P]; [S] scales it by 1 / ln 2
        keras_adam=True,  # [S]
    )
    if norm == "l2":
        return PDGDConfig(**vars(game))
    return PDPGDConfig(
        **vars(game),
        prox="released",  # [S] at most 5 inner iterations, tolerance 1e-2, each of them ends in the box
        project_first=False,  # [S] and Algorithm 2
    )


def _penalty(dataset: str, norm: str, model_kind: str, restarts: int) -> float:
    """C = lambda_1 / lambda_2 at the beginning, which the paper calls the initial value of the dual variable [S]."""
    return 10.0 if (dataset, norm, model_kind) == ("mnist", "l1", "plain") and restarts > 1 else 0.1


def _primal_rate(dataset: str, norm: str, model_kind: str, restarts: int) -> float:
    if (dataset, norm, model_kind) == ("mnist", "l0", "linf-at") and restarts > 1:
        return 0.1  # [S]
    if dataset != "mnist" and norm == "l2" and model_kind == "plain":
        return 0.1  # [S] for CIFAR-10
    return _PRIMAL_RATE[dataset][norm]


def paper_case(model: str, data: str) -> tuple[str, str] | None:
    """Tell from names which data set and kind of model of the paper a model is like.

    Args:
        model: Name of the model, such as `mnist-linf-at` or `paper:mnist-linf-at`.
        data: Name of the data it is attacked on.

    Returns:
        The data set and the kind of model; None if the names do not say both.
    """
    name = model.removeprefix("paper:")
    kinds = [kind for kind in MODEL_KINDS if name.endswith(f"-{kind}")]
    datasets = [dataset for dataset in START_RADIUS if name.startswith(f"{dataset}-") or data.startswith(dataset)]
    return (datasets[0], kinds[0]) if kinds and datasets else None
