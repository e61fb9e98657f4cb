"""What the paper evaluates: its data sets, kinds of models, norms and thresholds. Plain data, without torch.

[P] marks what is stated in the paper, under "Parameters for our attack" and in the tables of its supplement.
"""

from __future__ import annotations

from collections.abc import Mapping

MODEL_KINDS = ("plain", "linf-at", "l2-at")
PAPER_NORMS = ("linf", "l2", "l1", "l0")

# [P] Half the width of the uniform start.
START_RADIUS = {"mnist": 0.5, "cifar10": 0.25, "restricted-imagenet": 0.1}

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
