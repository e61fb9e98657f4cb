from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pdpgd import Norm, norms, proximal
from pdpgd.errors import InvalidInputError, UnknownNameError
from pdpgd.norms import L1, L2, LINF, BallShape, l0, norm_of, register_norm, size_l1, size_l2
from support.rounding import sum_error

NAMES = ["linf", "l2", "l1", "l0"]
DELTA = torch.tensor([[3.0, -4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 1.0, -1.0]])


@pytest.fixture
def own_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate register, so that no name leaks into another test."""
    monkeypatch.setattr(norms, "_NORMS", dict(norms._NORMS))


@pytest.mark.parametrize(
    ("name", "expected"), [("linf", [4, 0, 1]), ("l2", [5, 0, 2]), ("l1", [7, 0, 4]), ("l0", [2, 0, 4])]
)
def test_sizes_of_known_perturbations(name: str, expected: list[float]) -> None:
    assert norm_of(name).size(DELTA).tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_size_keeps_the_dtype_and_has_one_value_per_sample(name: str, generator: torch.Generator) -> None:
    for dtype in (torch.float32, torch.float64):
        size = norm_of(name).size(torch.randn(4, 3, 2, 2, generator=generator, dtype=dtype))
        assert size.shape == (4,)
        assert size.dtype == dtype


def colored() -> Tensor:
    """Two changed pixels, with three changed elements."""
    delta = torch.zeros(1, 3, 4, 4)
    delta[0, :2, 1, 2] = 0.1
    delta[0, 2, 3, 3] = -0.1
    return delta


def test_l0_counts_pixels_on_images() -> None:
    assert norm_of("l0").size(colored()).tolist() == [2]


def test_l0_counts_elements_on_request() -> None:
    assert l0(unit="element").size(colored()).tolist() == [3]


def test_l0_counts_features_on_flat_inputs() -> None:
    assert norm_of("l0").size(colored().flatten(1)).tolist() == [3]
    assert l0(unit="element").size(colored().flatten(1)).tolist() == [3]


def test_l0_counts_the_smallest_of_changes() -> None:
    assert norm_of("l0").size(torch.tensor([[0.0, 1e-40, -1e-30, 0.0]])).tolist() == [2]


@pytest.mark.parametrize("norm", [LINF, L2, L1], ids=lambda norm: norm.name)
@pytest.mark.parametrize("ties", [False, True])
def test_subgradient_supports_the_norm_from_below(norm: Norm, ties: bool, generator: torch.Generator) -> None:
    """||z|| >= ||d|| + <g, z - d> for every z: the definition."""
    delta = torch.randn(30, 12, generator=generator, dtype=torch.float64)
    if ties:
        delta = delta.round()
    others = torch.randn(200, 1, 12, generator=generator, dtype=torch.float64) * 2
    slope = norm.subgradient(delta)
    reached = norm.size(delta) + ((others - delta) * slope).sum(2)
    sizes = norm.size(others.reshape(-1, 12))[:, None]
    terms = sizes + norm.size(delta) + ((others - delta) * slope).abs().sum(2)
    assert (sizes - reached >= -sum_error(terms, 12 + 2)).all()


@pytest.mark.parametrize("norm", [LINF, L2, L1], ids=lambda norm: norm.name)
def test_subgradient_meets_the_norm_at_its_own_point(norm: Norm, generator: torch.Generator) -> None:
    """<g, d> = ||d||: otherwise the zero vector would pass for a subgradient."""
    delta = torch.randn(30, 3, 2, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close((norm.subgradient(delta) * delta).flatten(1).sum(1), norm.size(delta))


@pytest.mark.parametrize("norm", [LINF, L2, L1], ids=lambda norm: norm.name)
def test_subgradient_of_nothing_is_zero_and_not_nan(norm: Norm) -> None:
    assert torch.equal(norm.subgradient(torch.zeros(2, 3, 4, 4)), torch.zeros(2, 3, 4, 4))


def test_subgradient_of_a_smooth_size_comes_from_autograd_even_without_a_gradient_mode() -> None:
    smooth = Norm("root of squares", lambda d: d.square().sum(1).sqrt(), proximal.prox_l2)
    with torch.no_grad():
        assert smooth.subgradient(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
            pytest.approx([0.6, 0.8]),
            [0.0, 0.0],
        ]


@pytest.mark.parametrize("norm", [LINF, L2, L1], ids=lambda norm: norm.name)
def test_the_dual_norm_is_the_most_that_a_unit_perturbation_gains(norm: Norm, generator: torch.Generator) -> None:
    """dual(g) = max <g, z> over size(z) <= 1: no z of size 1 gains more, and one of the candidates below gains it."""
    assert norm.dual is not None
    slopes = torch.randn(30, 12, generator=generator, dtype=torch.float64)
    others = torch.randn(200, 12, generator=generator, dtype=torch.float64)
    corners = torch.eye(12, dtype=torch.float64)
    best = torch.full((30,), -torch.inf, dtype=torch.float64)
    for z in (others, corners, -corners, slopes, slopes.sign()):
        best = torch.maximum(best, (slopes @ (z / norm.size(z)[:, None]).T).amax(1))
    torch.testing.assert_close(norm.dual(slopes), best)


def test_a_norm_of_ones_own_declares_nothing_and_has_the_ball_of_its_size() -> None:
    mine = Norm("mine", size_l1, proximal.prox_l1)
    assert (mine.dual, mine.unit, mine.relaxed, mine.counts) == (None, "", None, False)
    assert (mine.sparse, mine.level_step) == (False, False)
    assert mine.ball is BallShape.CROSS_POLYTOPE
    assert Norm("l2", lambda delta: 2 * size_l2(delta), proximal.prox_l2).ball is None


def test_a_size_need_not_be_hashable() -> None:
    class Size:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, delta: Tensor) -> Tensor:
            return size_l2(delta)

    assert Norm("mine", Size(), proximal.prox_l2).ball is None


@pytest.mark.parametrize("unit", ["pixel", "element"])
def test_l0_says_what_it_counts(unit: str) -> None:
    norm = l0(unit=unit)
    assert norm.unit == f"{unit}s"
    assert norm.counts
    assert norm.sparse
    assert norm.ball is (BallShape.FEW_PIXELS if unit == "pixel" else BallShape.FEW_ELEMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_prox_in_a_flat_metric_is_the_plain_prox(name: str, generator: torch.Generator) -> None:
    v = torch.randn(6, 3, 3, 3, generator=generator)
    weight = torch.linspace(0.05, 0.8, 6)
    norm = norm_of(name)
    torch.testing.assert_close(norm.prox_in_metric(v, weight, torch.ones_like(v)), norm.prox(v, weight))


@pytest.mark.parametrize("name", ["linf", "l2", "l1"])
def test_norm_without_a_metric_prox_gets_close_to_it_by_the_inner_loop(name: str, generator: torch.Generator) -> None:
    known = norm_of(name)
    bare = Norm("bare", known.size, known.prox)
    v = torch.randn(6, 10, generator=generator, dtype=torch.float64)
    metric = 0.1 + torch.rand(6, 10, generator=generator, dtype=torch.float64)
    weight = torch.linspace(0.05, 0.4, 6, dtype=torch.float64)
    expected = known.prox_in_metric(v, weight, metric)
    torch.testing.assert_close(bare.prox_in_metric(v, weight, metric), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("operator", ["l2/3", "l1/2", "l1", "l0", "largest-channel"])
@pytest.mark.parametrize("unit", ["pixel", "element"])
def test_every_l0_operator_shrinks_what_it_counts(operator: str, unit: str, generator: torch.Generator) -> None:
    norm = l0(unit=unit, operator=operator)
    v = torch.randn(5, 3, 4, 4, generator=generator)
    shrunk = norm.prox(v, torch.full((5,), 1.0))
    assert (norm.size(shrunk) < norm.size(v)).all()
    assert (norm.size(shrunk) > 0).all()
    if unit == "pixel":
        changed = shrunk != 0
        assert torch.equal(changed.any(1), changed.all(1))


@pytest.mark.parametrize("wrong", ["l_inf", "l3"])
def test_unknown_norm_is_answered_with_the_list_and_a_suggestion(wrong: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        norm_of(wrong)
    message = str(caught.value)
    assert all(name in message for name in NAMES)
    assert f"got {wrong!r}" in message
    assert "did you mean 'l" in message


def test_l_inf_is_understood_as_linf() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'linf'"):
        norm_of("l_inf")


@pytest.mark.parametrize(("options", "near"), [({"unit": "pixels"}, "pixel"), ({"operator": "l2/4"}, "l2/3")])
def test_unknown_options_of_l0_are_answered_with_a_suggestion(options: dict[str, str], near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{near}'"):
        l0(**options)


@pytest.mark.usefixtures("own_register")
def test_registered_norm_is_found_by_its_name() -> None:
    mine = register_norm(Norm("mine", LINF.size, LINF.prox))
    assert norm_of("mine") is mine


@pytest.mark.usefixtures("own_register")
def test_register_refuses_a_name_that_is_taken() -> None:
    with pytest.raises(InvalidInputError, match=r"expected a norm name that is not taken, got 'l2'"):
        register_norm(Norm("l2", LINF.size, LINF.prox))
    assert norm_of("l2") is L2


def test_a_norm_of_ones_own_needs_no_name() -> None:
    mine = Norm("unregistered", LINF.size, LINF.prox)
    assert norm_of(mine) is mine
    with pytest.raises(UnknownNameError, match="'unregistered'"):
        norm_of("unregistered")
