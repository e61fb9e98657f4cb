"""The attacks of Foolbox: they come near the exact distance, pay what they say, and get starts that fool the model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd.attacks.loop import game_mode
from pdpgd.attacks.problem import pose
from pdpgd.attacks.task import Task
from pdpgd.baselines import from_foolbox as theirs
from pdpgd.errors import InvalidInputError, MissingExtraError, PdpgdError
from support.frames import assert_near_exact, framed
from support.models import Affine, Cliff, Counting, Stubborn
from support.rounding import assert_answers

FEATURES, SAMPLES = 30, 5
EXACT: dict[str, tuple[Any, tuple[str, ...], bool, tuple[int, int] | None, float]] = {
    "DDN": (theirs.DDN(steps=60, init_norm=0.2), ("l2",), True, (62, 60), 1.35),
    "DeepFool": (theirs.DeepFool(), ("linf", "l2"), False, None, 1.1),
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
        framed(theirs.DeepFool(), "l2")(affine, inputs, labels, norm="l2", targets=(labels + 1) % 4)


class Dark(nn.Module):
    """Class 1 is only the black image: what an attack cannot come to, and answers with where it found nothing."""

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


def look(model: Any, inputs: Tensor, labels: Tensor, **call: Any) -> tuple[Tensor, Tensor, list[int]]:
    """The starts of all rows, whether they are usable, and the rows of each look."""
    problem = pose(
        model, inputs, labels, norm="l2", bounds=(0.0, 1.0), seed=0, indices=None, **{"targets": None, **call}
    )
    task = Task(problem, torch.arange(len(inputs)), 4)
    counting = Counting(model)
    with game_mode():
        rows = torch.arange(len(inputs))
        starts, usable = theirs.starting_points(task, counting, inputs, task.criterion.classes, rows)
    return starts, usable, counting.forwards


def test_a_start_is_the_nearest_input_of_another_class_if_there_is_one(
    affine: Affine, generator: torch.Generator
) -> None:
    inputs = torch.rand(12, FEATURES, generator=generator)
    labels = affine.labels(inputs)
    assert len(labels.unique()) > 1
    starts, usable, looks = look(affine, inputs, labels)
    assert looks == [12]
    assert bool(usable.all())
    apart = torch.cdist(inputs, inputs).masked_fill(labels == labels[:, None], torch.inf)
    torch.testing.assert_close(starts, inputs[apart.argmin(1)])
    target = int(labels[0])
    others = labels != target
    starts, usable, _ = look(affine, inputs, labels, targets=torch.full_like(labels, target))
    assert bool(usable[others].all())
    assert affine.labels(starts[others]).unique().tolist() == [target]


def test_where_no_input_is_of_another_class_a_start_is_found_in_noise() -> None:
    # A feature above 0.9 is needed: noise of full strength has it, the inputs do not.
    model, inputs = Cliff(0.9), torch.full((3, 20), 0.2)
    starts, usable, looks = look(model, inputs, torch.zeros(3, dtype=torch.long))
    assert bool(usable.all())
    assert model(starts).argmax(1).tolist() == [1, 1, 1]
    assert 1 <= len(looks) < 2 * theirs.STRENGTHS


def test_a_hopeless_row_has_no_start_and_is_looked_at_a_bounded_number_of_times() -> None:
    inputs = torch.full((2, 6), 0.5)
    starts, usable, looks = look(Stubborn(), inputs, torch.zeros(2, dtype=torch.long))
    assert not bool(usable.any())
    assert torch.equal(starts, inputs)
    assert looks == [2] * 2 * theirs.STRENGTHS


BRENDEL_BETHGE = """
import torch
from support.plain_numba import compile_no_classes
compile_no_classes()
from pdpgd.attacks.task import Framed
from pdpgd.baselines.from_foolbox import BrendelBethge
from support.models import Counting, random_affine
from support.rounding import assert_answers
generator = torch.Generator().manual_seed(5)
model = random_affine(generator, features=8, classes=3, spread=0.1)
inputs = torch.rand(5, 8, generator=generator)
labels = model.labels(inputs)
for norm in ("linf", "l2", "l1", "l0"):
    for targets in (None, (labels + 1) % 3):
        counting = Counting(model)
        frame = Framed("theirs", (norm,), lambda classes: BrendelBethge(steps=20, lr_decay_every=4))
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
    result = framed(theirs.BrendelBethge(steps=1), "l2")(
        Stubborn(), torch.full((2, 6), 0.5), torch.zeros(2, dtype=torch.long), norm="l2"
    )
    assert not bool(result.found.any())
    assert not result.faults
    # The frame's look, all the noise, and the look at the answer, which is the input.
    assert result.forwards.tolist() == [1 + 2 * theirs.STRENGTHS + 1] * 2


def test_without_the_library_the_user_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, affine: Affine, inputs: Tensor
) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pdpgd\[foolbox\]'"):
        framed(theirs.DDN(), "l2")(affine, inputs, affine.labels(inputs), norm="l2")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (theirs.BrendelBethge, {"lr": 0.0}),
        (theirs.BrendelBethge, {"lr_decay_every": 0}),
        (theirs.CarliniWagner, {"steps": 0}),
        (theirs.EAD, {"regularization": -1.0}),
        (theirs.DDN, {"init_norm": 0.0}),
        (theirs.DeepFool, {"candidates": 1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(PdpgdError, match="expected"):
        kind(**settings)
