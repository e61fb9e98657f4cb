"""Inner attacks of adversarial training: from a batch of images to the points that the net is trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from pdpgd.attacks.balls import project, spread, steepest
from pdpgd.attacks.config import PDPGDConfig
from pdpgd.attacks.primal_dual import pdpgd
from pdpgd.norms import norm_of
from pdpgd.tensors import per_sample
from pdpgd.training.config import Threat, TrainingConfig

# Step of a pixel in the first iteration of the short game, in units of the uniform change of all pixels whose norm is
# the radius. Norms with sparser perturbations need larger steps. The values for linf and l2 were the best in about a
# hundred games of 5 to 8 steps on MNIST nets trained with PGD; l1 was not tuned.
FIRST_STEP = {"linf": 0.5, "l2": 10.0, "l1": 12.0}


def training_points(
    model: nn.Module, images: Tensor, labels: Tensor, *, config: TrainingConfig, progress: float, generator: Generator
) -> Tensor:
    """Attack each image of a batch under the threat model whose turn it is.

    The attack sees the net in eval mode, as it will be used, so that it neither uses nor changes batch statistics.

    Args:
        model: The net that is trained; its mode is restored.
        images: Clean images.
        labels: Their classes.
        config: Settings of the training.
        progress: Fraction of the training that is done; the radius depends on it (`radius_warmup`).
        generator: Source of all random numbers.

    Returns:
        The points to train on, of the shape of `images`; the images themselves without an inner attack.
    """
    if config.inner == "none":
        return images
    growth = min(1.0, progress / config.radius_warmup) if config.radius_warmup > 0 else 1.0
    if growth == 0:
        return images
    was_training = model.training
    model.eval()
    points = images.clone()
    first = int(torch.randint(len(config.threats), (), generator=generator))
    turns = (torch.arange(len(images), device=images.device) + first) % len(config.threats)
    for turn, threat in enumerate(config.threats):
        mine = turns == turn
        if bool(mine.any()):
            now = Threat(threat.norm, threat.radius * growth)
            points[mine] = _attacked(model, images[mine], labels[mine], now, config, generator)
    model.train(was_training)
    return points


def _attacked(
    model: nn.Module, images: Tensor, labels: Tensor, threat: Threat, config: TrainingConfig, generator: Generator
) -> Tensor:
    """Attack images under one threat model: random start, then gradient ascent projected onto the ball."""
    if config.inner == "pdpgd":
        return _past_the_margin(model, images, labels, threat, config, generator)
    steps, rate = (1, config.fast_rate) if config.inner == "fast" else (config.inner_steps, config.inner_rate)
    draws = torch.rand(images.shape, generator=generator).mul_(2).sub_(1).to(images.device)
    delta = (images + spread(draws, threat.norm, threat.radius)).clamp_(0, 1) - images
    for _ in range(steps):
        gradient = _loss_gradient(model, images + delta, labels)
        delta = delta + rate / steps * threat.radius * steepest(gradient, threat.norm)
        delta = (images + project(delta, threat.norm, threat.radius)).clamp_(0, 1) - images
    return images + delta


def _past_the_margin(
    model: nn.Module, images: Tensor, labels: Tensor, threat: Threat, config: TrainingConfig, generator: Generator
) -> Tensor:
    """Find the smallest adversarial perturbation of each sample, scaled back to the radius where it is larger.

    An image that is misclassified already stays as it is. Training thus pushes the decision boundary away where it is
    nearer than the radius and leaves it where it is beyond (the idea of max-margin training, Ding et al. 2020).
    """
    seed = int(torch.randint(2**31, (), generator=generator))
    game = _short_game(threat, images, config.inner_steps)
    result = pdpgd(model, images, labels, norm=threat.norm, seed=seed, config=game)
    delta = result.adversarials - images
    size = norm_of(threat.norm).size(delta)
    shrink = (threat.radius / size.clamp(min=1e-12)).clamp(max=1.0)
    return images + per_sample(shrink, delta) * delta


def _short_game(threat: Threat, images: Tensor, steps: int) -> PDPGDConfig:
    """Return settings for a game of a few steps; its rates follow from the radius, in one of 500 steps from the box."""
    unit = threat.radius / float(norm_of(threat.norm).size(torch.ones_like(images[:1])))
    return PDPGDConfig(
        steps=steps,
        finetune_steps=0,
        primal_rate=FIRST_STEP[threat.norm] * unit,
        primal_decay=0.3,
        dual_rate=1.0 if threat.norm == "linf" else 0.3,
        dual_average=0.5 if threat.norm == "linf" else 0.9,
        penalty=1.0,
        start_radius=0.2 * unit,
        prox="exact",
        project_first=True,
        max_batch=len(images),
    )


def _loss_gradient(model: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of each sample's cross-entropy with respect to its point."""
    leaf = points.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels, reduction="sum"), leaf)
    return gradient
