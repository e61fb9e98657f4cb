"""The settings that the paper ran its rivals with, and the grids it selected them from.

Sources: the paper's "Attack parameters", and the scripts that its authors released (github.com/aam-at/cpgd,
`experiments/*.sh`), where the two differ or the paper says nothing. docs/rivals.md says what was compared with what.

Three data sets: the paper runs some attacks shorter on the larger ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGE = "restricted-imagenet"

STEP_SHARES = (1.0, 1 / 2, 1 / 5, 1 / 10, 1 / 25, 1 / 50, 1 / 100)
"""Of epsilon: the steps of PGD and DAA."""
STEPS_L0 = (10.0, 20.0, 40.0, 100.0, 200.0, 400.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
"""The l1 lengths of a step of PGD in l0: `STEP_SHARES` of 1000 (MNIST) and of 10000 (CIFAR-10), as in the scripts."""

FAB_EPS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "mnist": {"linf": (0.15, 0.3), "l2": (2.0, 2.0), "l1": (40.0, 40.0)},
    "cifar10": {"linf": (0.02, 0.02), "l2": (0.5, 4.0), "l1": (10.0, 10.0)},
    LARGE: {"linf": (0.02, 0.08), "l2": (5.0, 5.0), "l1": (100.0, 250.0)},
}
"""The width of FAB's random starts: for the plain net, for the trained ones."""


def brendel_bethge(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # The start is in the authors' code, with Foolbox's numbers.
    start = {"start": "noise", "directions": 1000, "blends": 1000}
    return {"steps": 100 if dataset == LARGE else 1000, "lr": 1.0, "lr_decays": 20, **start}


def brendel_bethge_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    # The paper says that the rate decays "every {20, 100} steps"; in the authors' scripts these are numbers of decays.
    return {"lr": (1.0, 0.1, 0.01), "lr_decays": (20, 100)}


def carlini_wagner(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    steps = 1000 if dataset == LARGE else 10000
    return {"binary_search_steps": 9, "steps": steps, "stepsize": 0.01, "initial_const": 0.01}


def corner_search(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # The released scripts give the sparsity alone; the rest is the default of the released code. The paper did not run
    # it on Restricted ImageNet, for want of memory; ours streams, and is as on CIFAR-10.
    return {"iterations": 1000, "candidates": 100, "max_sparsity": 784 if dataset == "mnist" else 1024}


def ddn(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"steps": 10000 if dataset == "mnist" else 1000}


def ddn_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    return {"init_norm": (1.0, 0.1), "gamma": (0.1, 0.05, 0.01)}


def deepfool(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"steps": 100, "overshoot": 0.02}


def ball(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"steps": 500}


def ball_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    return {"step": STEP_SHARES, "surrogate": ("cross-entropy", "hinge")}


def pgd(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # In l1 the authors ran cleverhans' SparseL1Descent.
    return {**ball(dataset, norm, model_kind), **({"exact": False} if norm == "l1" else {})}


def pgd_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    if norm == "l0":
        return {**ball_grid(norm), "step": STEPS_L0}
    return {**ball_grid(norm), "sparsity": (0.1, 0.05, 0.01)} if norm == "l1" else ball_grid(norm)


def ead(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    steps = 1000 if dataset == LARGE else 10000
    return {
        "binary_search_steps": 9,
        "steps": steps,
        "initial_stepsize": 0.01,
        "initial_const": 0.01,
        "regularization": 0.05,
    }


def fab(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # From the authors' code; the paper says 100 iterations, and "the values recommended" by FAB's authors.
    plain, trained = FAB_EPS[dataset][norm]
    large = {"alpha_max": 0.05, "eta": 1.3} if dataset == LARGE else {"alpha_max": 0.1, "eta": 1.05}
    return {"steps": 100, "eps": plain if model_kind == "plain" else trained, **large, "beta": 0.9}


def jsma(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # ART's saliency, and the better of theta and -theta per sample: the authors' scripts. All targets; on Restricted
    # ImageNet the second class alone.
    targets = 1 if dataset == LARGE else None
    return {"gamma": 1.0, "targets": targets, "saliency": "target", "both_signs": True}


def jsma_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    return {"theta": (1.0, 0.1)}


def one_pixel(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"population": 400, "generations": 100, "strategy": "best"}


def sparsefool(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"steps": 20, "overshoot": 0.02, "lambdas": [1.0, 2.0, 3.0, 4.0, 5.0]}
