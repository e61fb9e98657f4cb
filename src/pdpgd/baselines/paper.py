"""The settings that the paper ran its rivals with, and the grids it selected them from ("Attack parameters").

Three data sets: the paper runs some attacks shorter on the larger ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGE = "restricted-imagenet"

STEP_SHARES = (1.0, 1 / 2, 1 / 5, 1 / 10, 1 / 25, 1 / 50, 1 / 100)
"""Of epsilon: the steps of PGD and DAA."""


def brendel_bethge(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"steps": 100 if dataset == LARGE else 1000}


def brendel_bethge_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    return {"lr": (1.0, 0.1, 0.01), "lr_decay_every": (20, 100)}


def carlini_wagner(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    steps = 1000 if dataset == LARGE else 10000
    return {"binary_search_steps": 9, "steps": steps, "stepsize": 0.01, "initial_const": 0.01}


def corner_search(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # The paper did not run it on Restricted ImageNet, for want of memory; ours streams, and is as on CIFAR-10.
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
    # In l0 a step of 1 moves all pixels together by no more than the ball has pixels: the paper's are too short to be
    # its authors', who had far longer ones, and both are tried.
    steps = (*STEP_SHARES, 10.0, 50.0) if norm == "l0" else STEP_SHARES
    grid: dict[str, tuple[Any, ...]] = {"step": steps, "surrogate": ("cross-entropy", "hinge")}
    return {**grid, "sparsity": (0.1, 0.05, 0.01)} if norm == "l1" else grid


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
    return {"steps": 100}


def jsma(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    # All targets; on Restricted ImageNet the second class alone.
    return {"gamma": 1.0, "targets": 1 if dataset == LARGE else None}


def jsma_grid(norm: str) -> Mapping[str, tuple[Any, ...]]:
    # The paper selects theta; which of the two saliencies it had, it does not say.
    return {"theta": (0.1, -0.1, 1.0, -1.0), "saliency": ("pair", "target")}


def one_pixel(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"population": 400, "generations": 100}


def sparsefool(dataset: str, norm: str, model_kind: str) -> dict[str, Any]:
    return {"steps": 20, "overshoot": 0.02, "lambdas": [1.0, 2.0, 3.0, 4.0, 5.0]}
