"""The attacks of Foolbox: they approach the exact distance at the documented cost, from adversarial starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd.attacks.base import pose
from pdpgd.attacks.catalogue import ATTACKS, paper_settings
from pdpgd.attacks.frame import Task
from pdpgd.baselines import foolbox as theirs
from pdpgd.errors import InvalidInputError, MissingExtraError, PdpgdError
from support.frames import assert_near_exact, framed
from support.models import Affine, Cliff, Counting, Seesaw, Stubborn
from support.rounding import assert_answers

FEATURES, SAMPLES = 30, 5
EXACT: dict[str, tuple[Any, tuple[str, ...], bool, tuple[int, int] | None, float]] = {
    "DDN": (theirs.FoolboxDDN(steps=60, init_norm=0.2), ("l2",), True, (62, 60), 1.35),
    "DeepFool": (theirs.FoolboxDeepFool(), ("linf", "l2"), False, None, 1.1),
    "C&W": (theirs.CarliniWagner(binary_search_steps=6, steps=60, stepsize=0.05), ("l2",), True, (362, 360), 1.25),
    "EAD": (theirs.EAD(binary_search_steps=6, steps=60, regularization=0.01), ("l1",), True, (722, 360), 1.6),
}
CASES = [(name, norm) for name, case in EXACT.items() for norm in case[1]]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_an_attack_comes_near_the_exact_distance_and_pays_what_it_says(
    affine: Affine, inputs: Tensor, name: str, norm: str
) -> None:
    method, _, _, passes, slack = EXACT[name]
    assert_near_exact(method, affine, inputs, norm, slack=slack, passes=passes)


@pytest.mark.parametrize("name", ["DDN", "C&W", "EAD"])
def test_an_attack_that_can_aim_ends_at_its_target(affine: Affine, inputs: Tensor, name: str) -> None:
    labels, norm = affine.labels(inputs), EXACT[name][1][0]
    targets = (labels + 2) % 4
    result = framed(EXACT[name][0], norm)(affine, inputs, labels, norm=norm, targets=targets)
    assert bool(result.found.all())
    assert_answers(affine, result.adversarials, targets)


def test_ead_is_asked_for_the_smallest_point_in_l1(
    monkeypatch: pytest.MonkeyPatch, affine: Affine, inputs: Tensor
) -> None:
    foolbox, asked = theirs._library(), []
    original = foolbox.attacks.EADAttack

    def spy(**settings: Any) -> Any:
        asked.append(settings)
        return original(**settings)

    monkeypatch.setattr(foolbox.attacks, "EADAttack", spy)
    framed(theirs.EAD(binary_search_steps=1, steps=1), "l1")(affine, inputs, affine.labels(inputs), norm="l1")
    assert asked[0]["decision_rule"] == "L1"
    assert asked[0]["abort_early"] is False
    assert asked[0]["regularization"] == 0.05


def test_deepfool_refuses_targets(affine: Affine, inputs: Tensor) -> None:
    labels = affine.labels(inputs)
    with pytest.raises(InvalidInputError, match="expected no targets"):
        framed(theirs.FoolboxDeepFool(), "l2")(affine, inputs, labels, norm="l2", targets=(labels + 1) % 4)


class Dark(nn.Module):
    """Predicts class 1 for the black image only, which an attack cannot reach but returns where it found nothing."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.flatten(1).sum(1)
        return torch.stack([1 + 0.01 * total, 2 * (total == 0).float() + 0 * total], dim=1)


@pytest.mark.parametrize(
    ("method", "norm"),
    [
        (theirs.CarliniWagner(binary_search_steps=1, steps=2), "l2"),
        (theirs.EAD(binary_search_steps=1, steps=2), "l1"),
    ],
)
def test_the_black_image_of_a_row_that_was_not_solved_is_no_success(method: Any, norm: str) -> None:
    model, inputs = Dark().eval(), torch.full((2, 6), 0.5)
    assert int(model(torch.zeros(1, 6)).argmax(1)) == 1
    result = framed(method, norm)(model, inputs, torch.zeros(2, dtype=torch.long), norm=norm)
    assert not bool(result.found.any())


def searching(model: Any, inputs: Tensor, labels: Tensor, **call: Any) -> tuple[theirs.StartSearch, Counting]:
    """A search for starts of all rows, and the model that counts its passes."""
    problem = pose(
        model, inputs, labels, norm="l2", bounds=(0.0, 1.0), seed=0, indices=None, **{"targets": None, **call}
    )
    task, counting, rows = Task(problem, torch.arange(len(inputs)), 4), Counting(model), torch.arange(len(inputs))
    return theirs.StartSearch(task, counting, inputs, task.criterion.classes, rows), counting


def test_a_start_from_the_data_is_the_nearest_input_of_another_class(
    affine: Affine, generator: torch.Generator
) -> None:
    inputs = torch.rand(12, FEATURES, generator=generator)
    labels = affine.labels(inputs)
    assert len(labels.unique()) > 1
    search, counting = searching(affine, inputs, labels)
    search.images()
    assert counting.forwards == [12]
    assert bool(search.usable.all())
    apart = torch.cdist(inputs, inputs).masked_fill(labels == labels[:, None], torch.inf)
    torch.testing.assert_close(search.starts, inputs[apart.argmin(1)])
    target = int(labels[0])
    others = labels != target
    search, _ = searching(affine, inputs, labels, targets=torch.full_like(labels, target))
    search.images()
    assert bool(search.usable[others].all())
    assert affine.labels(search.starts[others]).unique().tolist() == [target]


def test_a_start_from_noise_is_its_least_blend_that_is_adversarial_and_each_look_is_paid_once() -> None:
    # A feature above 0.9 is needed: nearly all noise of 20 features has one, an input with a little noise has none.
    model, inputs, blends = Cliff(0.9), torch.full((3, 20), 0.2), 40
    search, counting = searching(model, inputs, torch.zeros(3, dtype=torch.long))
    search.blended_noise(directions=50, blends=blends)
    assert bool(search.usable.all())
    again, _ = searching(model, inputs, torch.zeros(3, dtype=torch.long))
    again.blended_noise(directions=50, blends=1)
    noise = again.starts
    assert model(noise).argmax(1).tolist() == [1, 1, 1]
    spent = 0
    for row in range(3):
        line = torch.stack([torch.lerp(inputs[row], noise[row], number / blends) for number in range(1, blends)])
        least = int(model(line).argmax(1).argmax())
        assert 0 < least < blends - 1
        torch.testing.assert_close(search.starts[row], line[least], rtol=0, atol=1e-6)
        spent += least + 1
    draws = sum(counting.forwards) - spent
    assert 3 <= draws <= 3 * 50


def test_of_noise_that_fools_only_at_full_strength_the_noise_itself_is_the_start() -> None:
    # Halfway to the noise, no feature is above 0.6.
    model, inputs = Cliff(0.9), torch.full((2, 20), 0.2)
    search, counting = searching(model, inputs, torch.zeros(2, dtype=torch.long))
    search.blended_noise(directions=50, blends=2)
    assert bool(search.usable.all())
    assert model(search.starts).argmax(1).tolist() == [1, 1]
    # The draws, and one blend of two: the noise itself was evaluated when it was drawn.
    assert counting.forwards[-1] == 2


def test_a_hopeless_row_has_no_start_and_is_looked_at_a_bounded_number_of_times() -> None:
    inputs = torch.full((2, 6), 0.5)
    search, counting = searching(Stubborn(), inputs, torch.zeros(2, dtype=torch.long))
    search.images()
    search.blended_noise(directions=7, blends=9)
    search.salt_and_pepper()
    assert not bool(search.usable.any())
    assert torch.equal(search.starts, inputs)
    assert counting.forwards == [2] * (7 + theirs.STRENGTHS)


class Bright(nn.Module):
    """Predicts class 1 for a mean above 0.7, which a bright image has but uniform noise does not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.full((len(x),), 0.7), x.flatten(1).mean(1)], dim=1)


class Given:
    """Replaces Foolbox's attack: records its arguments, and evaluates the starts and a few more points."""

    asked: dict[str, Any]
    starts: Tensor
    looks: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        Given.asked = settings

    def run(self, model: Any, inputs: Tensor, criterion: Any, *, starting_points: Tensor) -> Tensor:
        Given.starts = starting_points
        for points in (starting_points, *Given.looks):
            model(points)
        return inputs


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> type[Given]:
    for kind in ("Linfinity", "L2", "L1", "L0"):
        monkeypatch.setattr(theirs._library().attacks, f"{kind}BrendelBethgeAttack", Given)
    Given.looks = []
    return Given


def test_where_noise_is_not_adversarial_brendel_and_bethge_start_from_an_image(given: type[Given]) -> None:
    inputs = torch.tensor([0.2, 0.9, 0.3])[:, None].repeat(1, 40)
    labels = torch.tensor([0, 1, 0])
    method = theirs.BrendelBethge(start="noise", directions=5, blends=3)
    result = framed(method, "l2")(Bright().eval(), inputs, labels, norm="l2")
    assert torch.equal(given.starts[[0, 2]], inputs[[1, 1]])
    # Noise is adversarial for the bright image, so it starts from a blend.
    assert float(given.starts[1].std()) > 0
    assert bool(result.found.all())
    # The inputs, five draws for each dark image and one for the bright one, two blends of it, two images, the
    # starts once more, and the results.
    assert int(result.forwards.sum()) == 3 + 11 + 2 + 2 + 3 + 3
    targeted = framed(method, "l2")(Bright().eval(), inputs[:2], labels[:2], norm="l2", targets=1 - labels[:2])
    assert bool(targeted.found.all())


@pytest.mark.parametrize("norm", theirs.RATES)
def test_brendel_and_bethge_start_from_noise_unless_they_are_told_to_start_from_the_data(
    given: type[Given], norm: str
) -> None:
    inputs = torch.tensor([0.2, 0.95])[:, None].repeat(1, 20)
    model, labels = Cliff(0.9), torch.tensor([0, 1])
    framed(theirs.BrendelBethge(directions=50, blends=10), norm)(model, inputs, labels, norm=norm)
    assert not torch.equal(given.starts[0], inputs[1])
    # Foolbox multiplies by the entries of the whole batch.
    assert given.asked == {"steps": 1000, "lr": theirs.RATES[norm] / 2, "lr_num_decay": 20}
    framed(theirs.BrendelBethge(start="data", lr=0.5, lr_decays=7), norm)(model, inputs, labels, norm=norm)
    assert torch.equal(given.starts[0], inputs[1])
    assert given.asked == {"steps": 1000, "lr": 0.25, "lr_num_decay": 7}


def test_of_the_points_of_brendel_and_bethge_the_smallest_that_is_clearly_adversarial_is_kept(
    given: type[Given],
) -> None:
    inputs, labels = torch.tensor([0.7, 0.1])[:, None].repeat(1, 4), torch.tensor([1, 0])
    given.looks = [torch.full((2, 4), level) for level in (0.3, 0.45, 0.4, 0.5)]
    method = theirs.BrendelBethge(start="data")
    result = framed(method, "l2")(Seesaw(), inputs, labels, norm="l2")
    assert torch.equal(result.adversarials[0], given.looks[1][0])


def test_the_papers_brendel_and_bethge_start_as_the_authors_do() -> None:
    for dataset, steps in (("mnist", 1000), ("cifar10", 1000), ("restricted-imagenet", 100)):
        for norm in theirs.RATES:
            settings = paper_settings("bb", dataset, norm, "plain")
            start = {"start": "noise", "directions": 1000, "blends": 1000}
            assert settings == {"steps": steps, "lr": 1.0, "lr_decays": 20, **start}
    assert ATTACKS["bb"].combinations("l0")[0] == {"lr": 1.0, "lr_decays": 20}
    assert len(ATTACKS["bb"].combinations("l0")) == 6


BRENDEL_BETHGE = """
import torch
from support.plain_numba import compile_no_classes
compile_no_classes()
from pdpgd.attacks.frame import Framed
from pdpgd.baselines.foolbox import BrendelBethge
from support.models import Counting, random_affine
from support.rounding import assert_answers
generator = torch.Generator().manual_seed(5)
model = random_affine(generator, features=8, classes=3, spread=0.1)
inputs = torch.rand(5, 8, generator=generator)
labels = model.labels(inputs)
for norm in ("linf", "l2", "l1", "l0"):
    for targets in (None, (labels + 1) % 3):
        counting = Counting(model)
        frame = Framed("theirs", (norm,), lambda classes: BrendelBethge(steps=20, lr_decays=5))
        result = frame(counting, inputs, labels, norm=norm, targets=targets)
        assert not result.faults, result.faults
        assert bool(result.found.all()), norm
        assert bool((result.labels != labels if targets is None else result.labels == targets).all())
        assert_answers(model, result.adversarials, result.labels)
        assert int(result.forwards.sum()) == sum(counting.forwards)
        assert int(result.backwards.sum()) == sum(counting.backwards) == 5 * 20
        print(norm, targets is not None, [round(float(size), 6) for size in result.distances])
"""


def test_brendel_and_bethge_follow_the_boundary_in_four_norms() -> None:
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "tests")]),
    }
    done = subprocess.run([sys.executable, "-c", BRENDEL_BETHGE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8


def test_brendel_and_bethge_leave_out_what_has_no_start_and_never_compile_for_nothing() -> None:
    result = framed(theirs.BrendelBethge(steps=1, directions=30), "l2")(
        Stubborn(), torch.full((2, 6), 0.5), torch.zeros(2, dtype=torch.long), norm="l2"
    )
    assert not bool(result.found.any())
    assert not result.faults
    # One pass of the frame, all the noise, and one pass for the result, which is the input.
    assert result.forwards.tolist() == [1 + 30 + theirs.STRENGTHS + 1] * 2


def test_without_the_library_the_user_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, affine: Affine, inputs: Tensor
) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pdpgd\[foolbox\]'"):
        framed(theirs.FoolboxDDN(), "l2")(affine, inputs, affine.labels(inputs), norm="l2")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (theirs.BrendelBethge, {"lr": 0.0}),
        (theirs.BrendelBethge, {"lr_decays": 0}),
        (theirs.BrendelBethge, {"start": "images"}),
        (theirs.BrendelBethge, {"directions": 0}),
        (theirs.BrendelBethge, {"blends": 0}),
        (theirs.CarliniWagner, {"steps": 0}),
        (theirs.EAD, {"regularization": -1.0}),
        (theirs.FoolboxDDN, {"init_norm": 0.0}),
        (theirs.FoolboxDeepFool, {"candidates": 1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(PdpgdError, match="expected"):
        kind(**settings)
