"""With several draws of a randomized model, attacks see the mean over them and pay for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from pdpgd import AttackResult, PDGDConfig, PDPGDConfig, auto, load_data, load_model, pdgd, pdpgd
from pdpgd.attacks.catalogue import prepared
from pdpgd.attacks.pgd import PGDConfig, pgd
from pdpgd.classifier import Classifier, MeanOfDraws
from pdpgd.criteria import Criterion
from pdpgd.errors import InvalidInputError, ModelError
from support.models import Counting, NoisyInputs, TinyConv

DRAWS = 3
ATTACKS: dict[str, Callable[..., AttackResult]] = {
    "auto": partial(auto, norm="l2", budget=120),
    "auto in l0": partial(auto, norm="l0", budget=120),
    "pdpgd": partial(pdpgd, norm="linf", config=PDPGDConfig(steps=10, finetune_steps=5)),
    "pdgd": partial(pdgd, norm="l2", config=PDGDConfig(steps=10, finetune_steps=5)),
    "pgd": partial(pgd, norm="linf", config=PGDConfig(radius=0.1, steps=5)),
    "a port": partial(prepared("jsma", "l0", budget=20, max_batch=8), norm="l0"),
}


@pytest.fixture(params=ATTACKS)
def attack(request: pytest.FixtureRequest) -> Callable[..., AttackResult]:
    return ATTACKS[request.param]


def same(one: AttackResult, other: AttackResult) -> bool:
    fields = ("adversarials", "distances", "found", "labels")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


def test_a_single_draw_is_the_attack_as_it_was(
    attack: Callable[..., AttackResult], model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    plain, drawn = attack(model, images, labels), attack(model, images, labels, draws=1)
    assert same(plain, drawn)
    assert torch.equal(plain.forwards, drawn.forwards)
    assert torch.equal(plain.backwards, drawn.backwards)


def test_every_draw_is_counted(
    attack: Callable[..., AttackResult], model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    counting = Counting(model)
    result = attack(counting, images, labels, draws=DRAWS)
    assert int(result.forwards.sum()) == sum(counting.forwards)
    assert int(result.backwards.sum()) == sum(counting.backwards)
    assert bool((result.forwards % DRAWS == 0).all())


def test_a_budget_bounds_the_passes_of_all_draws(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    result = auto(NoisyInputs(model, 0.05), images, labels, norm="l2", budget=200, draws=DRAWS)
    spent = result.forwards + result.backwards
    assert int(spent.max()) <= 200
    assert int(spent.max()) > 200 - 4 * DRAWS
    assert result.history is not None
    assert torch.equal(result.history.passes.amax(1), spent)


def test_draws_of_a_model_that_is_not_random_change_nothing_but_the_cost(
    model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    """Two equal logits have exactly themselves as their mean."""
    once, twice = (
        auto(model, images, labels, norm="l2", budget=budget, draws=draws) for budget, draws in ((100, 1), (200, 2))
    )
    assert same(once, twice)
    assert torch.equal(2 * once.forwards, twice.forwards)


def test_logits_and_gradients_are_means_over_the_draws(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    noisy, rows = NoisyInputs(model, 0.1), torch.arange(len(images))
    torch.manual_seed(1)
    leaf = images.clone().requires_grad_()
    mean = torch.stack([noisy(leaf) for _ in range(DRAWS)]).mean(0)
    margin = Criterion(labels).margin(mean)
    (slope,) = torch.autograd.grad(margin.sum(), leaf)

    torch.manual_seed(1)
    answer = Classifier(noisy, draws=DRAWS).margin_and_gradient(
        images, rows, Criterion(labels), lambda margin, logits, criterion: margin
    )
    torch.testing.assert_close(answer.margin, margin.detach())
    torch.testing.assert_close(answer.gradient, slope)


def test_on_a_noisy_net_the_mean_of_draws_finds_points_that_hold() -> None:
    """With one draw, the smallest point is the luckiest one."""
    noisy = NoisyInputs(load_model("mnist-plain").requires_grad_(False), 0.2)
    images, labels = load_data("mnist-1000").batch(range(20))
    shares = []
    for draws in (1, 16):
        torch.manual_seed(2)
        result = auto(noisy, images, labels, norm="l2", budget=400, draws=draws)
        fooled = torch.stack([noisy(result.adversarials).argmax(1) != labels for _ in range(50)]).float()
        shares.append(float(fooled.mean()))
    assert shares[0] < 0.35 < shares[1]


def test_what_cannot_be_is_refused(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    for draws in (0, 1.5, True):
        with pytest.raises(InvalidInputError, match=re.escape(f"draws: expected an integer >= 1, got {draws!r}")):
            auto(model, images, labels, norm="l2", draws=draws)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="draws: expected an integer >= 1, got 0"):
        pdpgd(model, images, labels, norm="l1", draws=0)
    with pytest.raises(InvalidInputError, match="budget: expected at least 8, the passes of one mean"):
        auto(model, images, labels, norm="l2", budget=7, draws=8)


def test_what_is_no_tensor_of_logits_is_named_as_without_draws(images: Tensor) -> None:
    for output in ("logits", torch.zeros(len(images), 5, dtype=torch.long)):
        errors = []
        for draws in (1, 2):
            with pytest.raises(ModelError) as caught:
                Classifier(lambda points, output=output: output, draws=draws).logits(images, None)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]


def test_the_mean_leaves_the_model_to_its_owner(model: TinyConv) -> None:
    mean = MeanOfDraws(model, 2)
    assert list(mean.parameters()) == []
    mean.train()
    assert not model.training
