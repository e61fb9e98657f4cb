"""AutoAttack and its parts by pyautoattack: the authors' settings, the radius, the stated cost, and what is refused."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pdpgd.attacks.catalogue import ATTACKS, prepared
from pdpgd.attacks.prepare import Budget
from pdpgd.attacks.radius_search import AtRadii
from pdpgd.baselines import autoattack_parts
from pdpgd.baselines.autoattack import VERSIONS, AutoAttack
from pdpgd.baselines.autoattack_parts import (
    NORMS,
    AutoAttackAPGD,
    AutoAttackAPGDT,
    AutoAttackFABT,
    AutoAttackSquare,
    Part,
)
from pdpgd.data.loading import load_data
from pdpgd.errors import AttackError, InvalidInputError, MissingExtraError, UnknownNameError
from pdpgd.models.loading import load_model
from pdpgd.norms import norm_of
from support.frames import framed
from support.models import Affine, Counting, Stubborn, TinyConv
from support.rounding import assert_answers

# Exact in binary, as the radius of a task is in float32 and that of the library in double precision.
RADII = {"linf": 5 / 64, "l2": 1.25, "l1": 8.0}
SHORT = AutoAttack(steps=12, targets=2, queries=20, starts=1)
PARTS: dict[str, Part] = {
    "apgd-ce": AutoAttackAPGD(steps=12),
    "apgd-dlr": AutoAttackAPGD(steps=12, loss="dlr", starts=2),
    "apgd-t": AutoAttackAPGDT(steps=12, targets=2),
    "fab": AutoAttackFABT(steps=12, targets=0, starts=2),
    "fab-t": AutoAttackFABT(steps=12, targets=2),
    "square": AutoAttackSquare(queries=20),
}
each_part = pytest.mark.parametrize("name", PARTS)
each_norm = pytest.mark.parametrize("norm", NORMS)
OF_THE_CATALOGUE = [
    name for name, info in ATTACKS.items() if info.library is not None and info.library.name == "pyautoattack"
]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return load_model("mnist-plain").requires_grad_(False)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    return load_data("mnist-1000").batch(torch.arange(6))


def at(radius: float, ball: Any, norm: str) -> Any:
    return framed(AtRadii(balls=((radius, ball),)), norm)


def lasting(fooled_by: str) -> AutoAttack:
    return AutoAttack(attacks=[fooled_by], steps=12, targets=2, queries=20, starts=1)


@pytest.mark.parametrize("version", VERSIONS)
@each_norm
def test_the_parts_have_the_settings_of_the_librarys_own_versions(
    conv: TinyConv, images: Tensor, monkeypatch: pytest.MonkeyPatch, version: str, norm: str
) -> None:
    library = pytest.importorskip("pyautoattack").AutoAttack(
        conv, eps=0.25, norm=NORMS[norm], seed=3, version=version, device=images.device
    )
    own = AutoAttack(version=version)
    assert list(own.names) == library.attacks_to_run
    created: list[tuple[str, dict[str, Any]]] = []

    def perturb(self: Any, x: Tensor, y: Tensor) -> Tensor:
        created.append((type(self).__name__, {key: value for key, value in vars(self).items() if key not in LOCAL}))
        return x

    for kind in {type(engine) for engine in (library.apgd, library.apgd_targeted, library.fab, library.square)}:
        monkeypatch.setattr(kind, "perturb", perturb)
    monkeypatch.setattr(autoattack_parts, "_seed", lambda: 3)
    # The library's nine targets are all other classes here.
    at(0.25, own, norm)(Stubborn(10), images, torch.zeros(len(images), dtype=torch.long), norm=norm)
    engines = {"square": library.square, "fab": library.fab, "fab-t": library.fab, "apgd-t": library.apgd_targeted}
    expected = []
    for name in own.names:
        engine = engines.get(name, library.apgd)
        wanted = {key: value for key, value in vars(engine).items() if key not in LOCAL}
        if name.startswith("fab"):  # as `run_standard_evaluation` has it
            wanted |= {"targeted": name == "fab-t"} | ({"n_restarts": 1} if name == "fab-t" else {})
        wanted |= {"loss": name.removeprefix("apgd-")} if name in ("apgd-ce", "apgd-dlr") else {}
        expected.append((type(engine).__name__, wanted))
    for (kind_found, found), (kind_wanted, wanted) in zip(created, expected, strict=True):
        if kind_wanted == "FABAttack_PT" and not wanted["targeted"]:
            del found["n_target_classes"], wanted["n_target_classes"]
        assert (kind_found, found) == (kind_wanted, wanted)


# The model, the logger, and what the library adds while it runs.
LOCAL = ("model", "predict", "logger")


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_it_returns_the_points_of_the_librarys_own_evaluation(
    net: nn.Module, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, norm: str
) -> None:
    monkeypatch.setattr(autoattack_parts, "_seed", lambda: 3)
    images, labels = digits
    own = AutoAttack(steps=12, targets=2, queries=20, starts=1)
    library = pytest.importorskip("pyautoattack").AutoAttack(
        net, eps=RADII[norm], norm=NORMS[norm], seed=3, version="custom", attacks=list(own.names)
    )
    library.logger = logging.Logger("silent", logging.CRITICAL)
    common = {"norm": NORMS[norm], "eps": RADII[norm], "seed": 3, "device": "cpu"}
    phased = {"use_largereps": norm == "l1"}
    from pyautoattack import autopgd_base, fab_pt, square

    library.apgd = autopgd_base.APGDAttack(net, n_iter=12, **phased, **common)
    library.apgd_targeted = autopgd_base.APGDAttack_targeted(net, n_iter=12, n_target_classes=2, **phased, **common)
    library.fab = fab_pt.FABAttack_PT(net, n_iter=12, n_target_classes=2, **common)
    library.square = square.SquareAttack(net, n_queries=20, resc_schedule=False, **common)
    tracing = sys.gettrace()
    points, _ = library.run_standard_evaluation(images.clone(), labels)
    sys.settrace(tracing)
    result = at(RADII[norm], own, norm)(net, images, labels, norm=norm)
    assert torch.equal(result.found, (points != images).flatten(1).any(1))
    assert int(result.found.sum()) > 0
    assert torch.equal(result.adversarials, points)


@each_norm
@pytest.mark.parametrize("name", OF_THE_CATALOGUE)
def test_on_a_real_net_the_ball_is_respected_and_every_pass_counted(
    net: nn.Module, digits: tuple[Tensor, Tensor], name: str, norm: str
) -> None:
    images, labels = digits
    counting, radius = Counting(net), RADII[norm]
    attack = prepared(name, norm, budget=150, settings={"radii": [radius]}, max_batch=64)
    result = attack(counting, images, labels, norm=norm)
    assert int(result.forwards.sum()) == sum(counting.forwards)
    assert int(result.backwards.sum()) == sum(counting.backwards)
    assert bool(result.backwards.any()) is ATTACKS[name].needs_gradients
    assert float((result.forwards + result.backwards).max()) <= 1.05 * 150
    assert not result.faults
    found, points = result.found, result.adversarials
    if name != "square@pyautoattack":  # which has too few queries here
        assert int(found.sum()) >= 3
    with torch.no_grad():
        logits = net(points).double()
    # A thousand times the rounding of one operation: the net has four layers with sums of up to a few thousand terms.
    assert_answers(net, points, result.labels, error=1e3 * torch.finfo(points.dtype).eps * logits.abs())
    assert bool((result.labels != labels)[found].all())
    assert bool((norm_of(norm).size(points - images) <= radius * (1 + 1e-4)).all())
    assert 0 <= float(points.min()) <= float(points.max()) <= 1
    again = attack(net, images, labels, norm=norm)
    assert torch.equal(again.adversarials, points)


@each_norm
@each_part
def test_a_hopeless_sample_costs_what_a_part_says(images: Tensor, name: str, norm: str) -> None:
    labels, part = torch.zeros(len(images), dtype=torch.long), PARTS[name]
    result = at(0.1, part, norm)(Stubborn(5), images, labels, norm=norm)
    assert not result.found.any()
    # One more pass judges the inputs before any attack.
    assert (result.forwards + result.backwards).tolist() == [1 + part.passes(norm, 5)] * len(images)


def test_targets_beyond_the_number_of_classes_are_left_out(images: Tensor) -> None:
    labels = torch.zeros(len(images), dtype=torch.long)
    for part in (AutoAttackAPGDT(steps=2), AutoAttackFABT(steps=2)):
        result = at(0.1, part, "linf")(Stubborn(5), images, labels, norm="linf")
        assert not result.faults
        assert (result.forwards + result.backwards).tolist() == [1 + part.passes("linf", 5)] * len(images)
        assert (part.passes("linf", 5) - 2) / 4 == (part.passes("linf", 10) - 2) / 9


@each_norm
def test_a_hopeless_sample_costs_the_sum_of_the_parts(images: Tensor, norm: str) -> None:
    labels = torch.zeros(len(images), dtype=torch.long)
    result = at(0.1, SHORT, norm)(Stubborn(5), images, labels, norm=norm)
    cost = sum(PARTS[name].passes(norm, 5) for name in ("apgd-ce", "apgd-t", "fab-t", "square"))
    assert SHORT.passes(norm, 5) == cost
    assert (result.forwards + result.backwards).tolist() == [1 + cost] * len(images)


def test_without_a_budget_the_cost_is_that_of_the_standard_version() -> None:
    assert AutoAttack().passes("linf", 10) == AutoAttack().passes("l2", 10) == 9766
    assert AutoAttack().passes("l1", 10) == 9802
    assert ATTACKS["autoattack"].cost.startswith("9766 passes")


@pytest.mark.parametrize("classes", [5, 10, 100])
@pytest.mark.parametrize(
    "settings", [{}, {"version": "plus"}, {"attacks": ["square"]}, {"attacks": ["fab", "apgd-ce"]}]
)
@each_norm
def test_a_budget_below_the_standard_cost_is_kept_and_spent(norm: str, settings: dict[str, Any], classes: int) -> None:
    full = AutoAttack(**settings).passes(norm, classes)
    for passes in (1000, 3000, 8000):
        given = {**settings, "radii": [0.1, 0.2], "restarts": 2}
        chosen = AutoAttack.within(Budget(norm, 4 * passes, classes, given))
        if full <= passes:
            assert chosen == {}
            continue
        cost = AutoAttack(**{**chosen, **settings}).passes(norm, classes)
        assert 0.85 * passes <= cost <= 1.02 * passes
    assert AutoAttack.within(Budget(norm, full, classes, {**settings, "radii": [0.1]})) == {}


def test_a_larger_budget_buys_targets_and_then_steps() -> None:
    chosen = [AutoAttack.within(Budget("linf", passes, 10, {"radii": [0.1]})) for passes in (200, 1000, 3000, 9000)]
    assert [settings["targets"] for settings in chosen] == [1, 4, 9, 9]
    assert [settings["steps"] for settings in chosen] == [12, 21, 30, 94]
    assert [settings["queries"] for settings in chosen] == [96, 496, 1496, 4496]


@each_norm
def test_a_box_of_another_size_scales_the_radius(conv: TinyConv, images: Tensor, norm: str) -> None:
    with torch.no_grad():
        labels = conv(images).argmax(1)
    for part in (*PARTS.values(), SHORT):
        small = at(1.0, part, norm)(conv, images, labels, norm=norm)
        large = at(4.0, part, norm)(
            lambda points: conv((points + 1) / 4), 4 * images - 1, labels, norm=norm, bounds=(-1.0, 3.0)
        )
        assert bool(small.found.any())
        assert bool((large.distances[large.found] <= 4 * (1 + 1e-4)).all())
        assert float(large.adversarials.min()) >= -1
        assert float(large.adversarials.max()) <= 3
        assert int((small.found != large.found).sum()) <= 2


def test_samples_of_different_radii_are_attacked_at_their_own(net: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    radii = torch.tensor([0.2, 0.01, 0.2, 0.15, 0.01, 0.15])

    def method(task: Any) -> Any:
        return PARTS["apgd-ce"](task, radii[task.samples], 0)

    result = framed(method, "linf")(net, images, labels, norm="linf")
    assert result.found.tolist() == [True, False, True, True, False, True]
    assert torch.allclose(result.distances[result.found], radii[result.found], rtol=1e-4)


def test_without_radii_the_smallest_radius_is_searched(net: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:3], digits[1][:3]
    settings = {"evaluations": 8, "attacks": ["apgd-ce", "fab-t"], "steps": 10, "targets": 2}
    result = prepared("autoattack", "linf", settings=settings, max_batch=64)(net, images, labels, norm="linf")
    close = prepared("fab-t", "linf", settings={"steps": 30}, max_batch=64)(net, images, labels, norm="linf")
    assert bool(result.found.all())
    assert bool((result.distances <= 1.3 * close.distances).all())


def test_restarts_and_seeds_give_other_points_and_the_same_call_the_same(
    net: nn.Module, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits
    attack = at(0.2, PARTS["apgd-ce"], "linf")
    first, again = (attack(net, images, labels, norm="linf", seed=4).adversarials for _ in range(2))
    other = attack(net, images, labels, norm="linf", seed=5).adversarials
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Detached(nn.Module):
    """A net whose gradient is zero everywhere."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.detach()) + 0.0 * x.flatten(1).sum(1, keepdim=True)


@each_norm
def test_where_the_gradient_is_zero_the_other_parts_still_run(
    net: nn.Module, digits: tuple[Tensor, Tensor], norm: str
) -> None:
    images, labels = digits
    attack = AutoAttack(steps=3, targets=1, queries=300, starts=1)
    result = at(4 * RADII[norm], attack, norm)(Detached(net), images, labels, norm=norm)
    assert int(result.found.sum()) >= 3
    assert not set(result.faults) & set(result.found.nonzero().flatten().tolist())


def test_if_all_parts_fail_the_reason_of_the_first_is_given(
    net: nn.Module, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyautoattack import autopgd_base

    def broken(self: Any, x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(autopgd_base.APGDAttack, "perturb", broken)
    with pytest.raises(AttackError, match=r"AutoAttackAPGD: it failed on every sample \(RuntimeError: out of luck\)"):
        at(0.1, lasting("apgd-ce"), "linf")(net, *digits, norm="linf")
    result = at(0.2, SHORT, "linf")(net, *digits, norm="linf")
    assert bool(result.found.all())
    assert not result.faults


@pytest.mark.parametrize(("radius", "found"), [(0.2, True), (0.001, False)])
def test_a_sample_that_a_part_fails_on_goes_on_to_the_next_and_is_a_fault_only_if_nothing_is_found(
    net: nn.Module, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, radius: float, found: bool
) -> None:
    from pyautoattack import autopgd_base

    images, labels = digits
    perturb = autopgd_base.APGDAttack.perturb

    def picky(self: Any, x: Tensor, y: Tensor) -> Tensor:
        if bool((x == images[2]).flatten(1).all(1).any()):
            raise RuntimeError("not this one")
        points: Tensor = perturb(self, x, y)
        return points

    monkeypatch.setattr(autopgd_base.APGDAttack, "perturb", picky)
    result = at(radius, SHORT, "linf")(net, images, labels, norm="linf")
    assert result.found.tolist() == [found] * len(images)
    assert result.faults == ({} if found else {2: "RuntimeError: not this one"})


def test_the_models_own_tensors_are_not_overwritten(images: Tensor) -> None:
    class Cached(nn.Module):
        """Returns the same tensor for every image, as a model with a cache may."""

        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.tensor([[9.0, 1.0, 0.0, -1.0, -2.0]])
            self.eval()

        def forward(self, x: Tensor) -> Tensor:
            return self.logits

    model = Cached()
    at(0.1, PARTS["square"], "linf")(model, images[:1], torch.zeros(1, dtype=torch.long), norm="linf")
    assert bool(model.logits.isfinite().all())


@pytest.mark.parametrize(("classes", "refused"), [(2, {"apgd-dlr", "apgd-t"}), (3, {"apgd-t"}), (4, set())])
def test_a_loss_that_needs_more_classes_says_so_and_the_others_work(
    images: Tensor, classes: int, refused: set[str]
) -> None:
    labels = torch.zeros(len(images), dtype=torch.long)
    for name, part in PARTS.items():
        attack = at(0.1, part, "linf")
        if name in refused:
            with pytest.raises(InvalidInputError, match=rf"expected a model of at least \d classes.*got {classes}"):
                attack(Stubborn(classes), images, labels, norm="linf")
        else:
            spent = attack(Stubborn(classes), images, labels, norm="linf")
            assert int((spent.forwards + spent.backwards)[0]) == 1 + part.passes("linf", classes)
    if refused:
        with pytest.raises(InvalidInputError, match="AutoAttackAPGDT: expected a model of at least 4 classes"):
            at(0.1, SHORT, "linf")(Stubborn(classes), images, labels, norm="linf")


def test_square_needs_images_and_says_so(affine: Affine, inputs: Tensor, conv: TinyConv, images: Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"expected images of shape .* got inputs of shape \(30,\)"):
        at(0.1, SHORT, "linf")(affine, inputs, affine.labels(inputs), norm="linf")
    result = at(0.5, AutoAttack(attacks=["apgd-ce", "apgd-t", "fab-t"], steps=12), "linf")(
        affine, inputs, affine.labels(inputs), norm="linf"
    )
    assert bool(result.found.all())
    flat = Stubborn(5)
    low = images[:, :, :4]
    labels = torch.zeros(len(low), dtype=torch.long)
    assert not at(0.1, PARTS["square"], "linf")(flat, low, labels, norm="linf").faults
    with pytest.raises(InvalidInputError, match="at least 5 pixels high"):
        at(0.1, PARTS["square"], "l2")(flat, low, labels, norm="l2")


def test_targets_are_refused(net: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    for attack in (*PARTS.values(), SHORT):
        with pytest.raises(InvalidInputError, match="expected no targets"):
            at(0.1, attack, "linf")(net, images, labels, norm="linf", targets=(labels + 1) % 10)


def test_it_writes_nothing(
    net: nn.Module,
    digits: tuple[Tensor, Tensor],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        at(0.05, SHORT, "linf")(Detached(net), *digits, norm="linf")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_without_the_library_the_user_is_told_what_to_install(
    net: nn.Module, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(MissingExtraError, match=r"needs pyautoattack: pip install 'pdpgd\[autoattack\]'"):
        at(0.1, SHORT, "linf")(net, *digits, norm="linf")


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        (AutoAttack, {"version": "best"}, UnknownNameError),
        (AutoAttack, {"attacks": ["pgd"]}, UnknownNameError),
        (AutoAttack, {"attacks": []}, InvalidInputError),
        (AutoAttack, {"attacks": "square"}, InvalidInputError),
        (AutoAttack, {"steps": 0}, InvalidInputError),
        (AutoAttack, {"starts": 0}, InvalidInputError),
        (AutoAttack, {"draws": 1.5}, InvalidInputError),
        (AutoAttackAPGD, {"loss": "hinge"}, UnknownNameError),
        (AutoAttackAPGDT, {"targets": 0}, InvalidInputError),
        (AutoAttackFABT, {"targets": -1}, InvalidInputError),
        (AutoAttackSquare, {"queries": 0}, InvalidInputError),
        (AutoAttackSquare, {"share": 0.0}, InvalidInputError),
    ],
)
def test_a_setting_out_of_range_is_refused(kind: Any, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        kind(**settings)
