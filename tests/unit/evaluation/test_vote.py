"""A randomized model is judged by a vote over draws that the attack has not seen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pdpgd import Evaluation, auto, evaluate, load_data, load_evaluation, load_model
from pdpgd.errors import InvalidInputError
from pdpgd.evaluation.referee import OUTSIDE, STILL_RIGHT, UNPERTURBED, VERIFIED, Referee
from pdpgd.evaluation.vote import VOTES, VotingReferee
from support.models import NoisyInputs, TinyConv

KEY = (0, 1, 2)


class Coin(nn.Module):
    """Says class 1 with the probability that the first entry of the input is; class 2 has the rest of the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        entry = x.flatten(1)[:, 0]
        heads = (torch.rand(len(x)) < entry.detach()).to(x) + 0 * entry
        return torch.stack([1 - heads, heads, torch.full_like(heads, 0.25)], 1)


def coin_referee(count: int, *, draws: int = 4, key: tuple[int, ...] = KEY) -> VotingReferee:
    inputs, labels = torch.full((count, 1), 0.02), torch.zeros(count, dtype=torch.long)
    return VotingReferee(Coin(), inputs, labels, batch_size=7, draws=draws, key=key)


def test_a_point_counts_if_more_than_half_of_the_draws_misclassify_it() -> None:
    referee = coin_referee(6)
    points = torch.tensor([[0.95], [0.9], [0.1], [0.05], [0.02], [1.5]])
    verdicts = referee.judge(points, torch.ones(6, dtype=torch.bool))
    assert verdicts.word.tolist() == [VERIFIED, VERIFIED, STILL_RIGHT, STILL_RIGHT, UNPERTURBED, OUTSIDE]
    assert verdicts.valid.tolist() == [True, True, False, False, False, False]
    assert verdicts.prediction.tolist() == [1, 1, 0, 0, -1, -1]
    assert (verdicts.margin < 0).tolist() == verdicts.valid.tolist()
    assert referee.forwards == 4 * VOTES


def test_the_vote_of_a_single_judgment_is_not_swayed_by_its_luck() -> None:
    """Of points that a third of the draws misclassify, one judgment would accept a third."""
    count = 300
    referee = coin_referee(count)
    points = torch.full((count, 1), 1 / 3)
    every = torch.ones(count, dtype=torch.bool)
    torch.manual_seed(0)
    once = (Coin()(points).argmax(1) != 0).float().mean()
    assert float(once) > 0.25
    # 13 or more of 25 draws at 1/3 have a probability of 0.04.
    assert float(referee.judge(points, every).valid.float().mean()) < 0.1


def test_a_majority_against_the_label_elects_another_class_even_where_the_label_has_the_most_votes() -> None:
    class Three(nn.Module):
        """The label 0 has 40 % of the votes, classes 1 and 2 have 30 % each."""

        def forward(self, x: Tensor) -> Tensor:
            chance = torch.rand(len(x))
            return nn.functional.one_hot((chance > 0.4).long() + (chance > 0.7).long(), 3).to(x)

    inputs, labels = torch.zeros(200, 1), torch.zeros(200, dtype=torch.long)
    referee = VotingReferee(Three().eval(), inputs, labels, batch_size=200, draws=101, key=KEY)
    verdicts = referee.judge_inputs()
    assert float(verdicts.valid.float().mean()) > 0.9
    assert bool((verdicts.prediction[verdicts.valid] != 0).all())
    assert bool(((verdicts.confidence > 0) & (verdicts.confidence < 1)).all())


def test_judgments_are_determined_by_the_key_and_each_has_draws_of_its_own() -> None:
    points, every = torch.full((40, 1), 0.5), torch.ones(40, dtype=torch.bool)

    def judged(referee: VotingReferee) -> list[bool]:
        torch.manual_seed(int(torch.randint(1000, ())))  # what the attack has drawn does not matter
        verdict: list[bool] = referee.judge(points, every).valid.tolist()
        return verdict

    one, same, other = coin_referee(40), coin_referee(40), coin_referee(40, key=(0, 1, 3))
    first, second = judged(one), judged(one)
    assert first != second
    assert (judged(same), judged(same)) == (first, second)
    assert judged(other) != first


def test_the_random_numbers_of_the_attack_go_on_as_if_nobody_had_judged() -> None:
    referee = coin_referee(3)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    referee.judge(torch.full((3, 1), 0.5), torch.ones(3, dtype=torch.bool))
    assert torch.equal(torch.rand(2), expected)


def test_draws_are_no_drift_but_another_model_is() -> None:
    referee = coin_referee(20)
    referee.judge_inputs()
    assert referee.drift() == 0.0
    referee._classifier._model = lambda x: 2 * Coin()(x)
    assert referee.drift() > 1000


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_data("mnist-1000").batch(range(40))
    return images, labels


def noisy_digits(deviation: float) -> NoisyInputs:
    return NoisyInputs(load_model("mnist-plain").requires_grad_(False), deviation)


def test_points_move_outward_until_the_majority_is_clear(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = (part[:20] for part in digits)
    noisy = noisy_digits(0.2)
    referee = VotingReferee(noisy, images, labels, batch_size=20, draws=4, key=KEY)
    claimed = torch.arange(20) < 19
    torch.manual_seed(0)
    points = auto(noisy, images, labels, norm="l2", budget=400, draws=4).adversarials
    steady = referee.steadied(points, claimed)
    before, after = (int(referee.judge(these, claimed).valid.sum()) for these in (points, steady))
    assert before < 10
    assert after >= 15
    assert bool(((steady >= 0) & (steady <= 1)).all())
    assert bool((referee.sizes(steady, "l2") >= referee.sizes(points, "l2")).all())
    assert torch.equal(steady[19], points[19])


def test_one_judgment_inflates_success_on_a_noisy_net_and_the_vote_does_not(digits: tuple[Tensor, Tensor]) -> None:
    """An invisible change fools nothing, but a noisy net is wrong now and then, and an attack may try often."""
    (images, labels), noisy = digits, noisy_digits(0.5)
    points = (images + 1e-4).clamp(0, 1)
    torch.manual_seed(0)
    with torch.no_grad():
        right = torch.stack([noisy(points).argmax(1) == labels for _ in range(200)]).float().mean(0)
    claimed = right > 0.7
    plain = Referee(noisy, images, labels, batch_size=40)
    voting = VotingReferee(noisy, images, labels, batch_size=40, draws=51, key=KEY)
    lucky, elected = (
        torch.stack([referee.judge(points, claimed).valid for _ in range(8)]).any(0).sum()
        for referee in (plain, voting)
    )
    assert int(claimed.sum()) > 10
    assert int(lucky) > 1
    assert int(elected) == 0


def test_the_clean_accuracy_is_that_of_the_vote(digits: tuple[Tensor, Tensor]) -> None:
    noisy = noisy_digits(0.5)
    torch.manual_seed(0)
    with torch.no_grad():
        right = torch.stack([noisy(digits[0]).argmax(1) == digits[1] for _ in range(200)]).float().mean(0).numpy()
    evaluation = evaluate(noisy, digits, norms=["l2"], budget=8, draws=4, checks=False, threads=1)
    decided = np.abs(right - 0.5) > 0.3
    voted = evaluation.column("status", "l2") != "initially wrong"
    assert decided.sum() > 10
    np.testing.assert_array_equal(voted[decided], right[decided] > 0.5)


def run(model: nn.Module, images: Tensor, labels: Tensor, **settings: Any) -> Evaluation:
    return evaluate(model, (images, labels), **{"norms": ["l2"], "budget": 300, "threads": 1, **settings})


def test_the_passes_of_all_draws_are_counted_and_within_the_budget(
    model: TinyConv, images: Tensor, labels: Tensor
) -> None:
    evaluation = run(NoisyInputs(model, 0.05), images, labels, draws=4, norms=["linf", "l2"])
    checks = {check.name: check for check in evaluation.reliability.checks}
    assert checks["passes"].passed is True
    passes = evaluation.columns["forwards"] + evaluation.columns["backwards"]
    assert 200 < passes.max() <= 300
    assert checks["randomised"].passed is True
    assert "the mean of 4 draws" in checks["randomised"].sentence
    assert checks["unstable"].passed is None


def test_a_run_with_draws_is_the_same_twice_and_survives_the_disk(
    model: TinyConv, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    noisy = NoisyInputs(model, 0.05)
    first = run(noisy, images, labels, draws=4, out=tmp_path / "run", chunk_size=4)
    again = run(noisy, images, labels, draws=4, chunk_size=4)
    stored = load_evaluation(tmp_path / "run")
    assert stored.spec.draws == 4
    for name, column in first.columns.items():
        for other in (again, stored):
            np.testing.assert_array_equal(column, other.columns[name])


def test_a_single_draw_is_judged_as_before(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    plain, one = run(model, images, labels), run(model, images, labels, draws=1)
    assert plain.spec.digest() == one.spec.digest()
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(column, one.columns[name])


def test_draws_that_cannot_be_are_refused_before_anything_runs(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    with pytest.raises(InvalidInputError, match="draws: expected an integer of at least 1, got 0"):
        run(model, images, labels, draws=0)
    with pytest.raises(InvalidInputError, match="budget: expected at least 400"):
        run(model, images, labels, draws=400)


def test_an_attack_of_ones_own_sees_the_mean_as_well(model: TinyConv, images: Tensor, labels: Tensor) -> None:
    evaluation = run(NoisyInputs(model, 0.05), images, labels, attack=partial(auto, budget=50), budget=None, draws=4)
    assert evaluation.spec.draws == 4
    assert {check.name: check.passed for check in evaluation.reliability.checks}["passes"] is True
    assert (evaluation.columns["forwards"] % 4 == 0).all()
    assert replace(evaluation.spec, draws=1).digest() != evaluation.spec.digest()
