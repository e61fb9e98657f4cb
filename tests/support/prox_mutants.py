"""Operators broken on purpose, each with the defect it shows and the checks that must notice it.

The defects of the public implementations come first; the rest give every check something to catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pdpgd import proximal
from pdpgd.tensors import flat, length, per_sample
from support import prox_checks as checks
from support.prox_cases import Operator


@dataclass(frozen=True)
class Mutant:
    defect: str
    of: str
    apply: Callable[..., Tensor]
    killed_by: tuple[checks.Check, ...]

    @property
    def operator(self) -> Operator:
        return Operator(self.of, self.apply)

    @property
    def original(self) -> Operator:
        return Operator(self.of, getattr(proximal, self.of))


def unsigned_inside_ball(v: Tensor, radius: float | Tensor = 1.0) -> Tensor:
    inside = flat(v.abs()).sum(1) <= flat(per_sample(radius, v)).flatten()
    return v.abs() if bool(inside.all()) else proximal.project_l1_ball(v, radius)


def linf_by_unsigned_projection(v: Tensor, weight: float | Tensor) -> Tensor:
    return v - unsigned_inside_ball(v, weight)


def linf_by_dividing(v: Tensor, weight: float | Tensor) -> Tensor:
    w = per_sample(weight, v)
    return v - w * proximal.project_l1_ball(v / w, 1.0)


def l23_without_threshold(v: Tensor, weight: float | Tensor) -> Tensor:
    """y^4 - a y + 2w/3 = 0 by its resolvent cubic, with 0 wherever the algebra leaves the real numbers.

    (y^2 + r)^2 = 2r y^2 + a y + r^2 - 2w/3 is a square if r^3 - (2/3) w r = a^2/8; then 2y = q + sqrt(2a/q - q^2) with
    q = sqrt(2r). Cardano's r is real from a = 1.295 w^(3/4) on, before the jump; at small w the second cube root is
    taken of a difference that float32 rounds to a negative number.
    """
    a, w = v.abs(), per_sample(weight, v)
    root = (a**4 / 256 - 8 * w**3 / 729).sqrt()
    r = (a**2 / 16 + root).pow(1 / 3) + (a**2 / 16 - root).pow(1 / 3)
    q = (2 * r).sqrt()
    y = (q + (2 * a / q - q.square()).sqrt()) / 2
    return v.sign() * y.pow(3).nan_to_num(0.0)


def l0_by_pixel(v: Tensor, weight: float | Tensor) -> Tensor:
    return proximal.prox_pixel_l0(v, weight)


def l1_in_five_steps(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_by_inner_loop(proximal.prox_l1, v, weight, metric)


def linf_in_five_steps(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_by_inner_loop(proximal.prox_linf, v, weight, metric)


def l2_in_five_steps(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_by_inner_loop(proximal.prox_l2, v, weight, metric)


def soft_at_twice_the_weight(v: Tensor, weight: float | Tensor) -> Tensor:
    return proximal.prox_l1(v, 2 * per_sample(weight, v))


def soft_with_a_floor(v: Tensor, weight: float | Tensor) -> Tensor:
    w = per_sample(weight, v)
    return proximal.prox_l1(v, torch.where(w > 0, w + 0.05 * v.abs().amax(), w))


def soft_of_positive_part(v: Tensor, weight: float | Tensor) -> Tensor:
    return torch.where(v > 0, proximal.prox_l1(v, weight), v)


def soft_in_place(v: Tensor, weight: float | Tensor) -> Tensor:
    w = per_sample(weight, v)
    return v.sub_(v.clamp(-w, w))


def soft_in_float64(v: Tensor, weight: float | Tensor) -> Tensor:
    return proximal.prox_l1(v.double(), weight)


def soft_with_weights_along_the_last_axis(v: Tensor, weight: float | Tensor) -> Tensor:
    if isinstance(weight, Tensor) and weight.ndim == 1:
        weight = weight.mean()
    return proximal.prox_l1(v, 0.5 * weight if isinstance(weight, float) else weight)


def soft_without_a_stop(v: Tensor, weight: float | Tensor) -> Tensor:
    return v - v.sign() * per_sample(weight, v)


def hard_at_root_of_weight(v: Tensor, weight: float | Tensor) -> Tensor:
    return proximal.prox_l0(v, per_sample(weight, v) / 2)


def half_at_the_end_of_stationarity(v: Tensor, weight: float | Tensor) -> Tensor:
    """Non-zero as soon as a stationary point exists, although 0 is still cheaper."""
    w, s = per_sample(weight, v), torch.ones_like(v)
    c = (w / 2 / v.abs().clamp(min=1e-30).pow(1.5)).clamp(max=2 / 27**0.5)
    for _ in range(60):
        s = (2 * s**3 - c) / (3 * s**2 - 1).clamp(min=1e-7)
    return v * s**2 * (c < 2 / 27**0.5)


def l2_without_positive_part(v: Tensor, weight: float | Tensor) -> Tensor:
    n = per_sample(flat(length(flat(v), 1)).flatten(), v).clamp(min=1e-38)
    return (1 - per_sample(weight, v) / n) * v


def l2_of_unscaled_squares(v: Tensor, weight: float | Tensor) -> Tensor:
    n = per_sample(flat(v).square().sum(1).sqrt(), v)
    return (1 - per_sample(weight, v) / n).clamp(min=0) * v


def linf_with_one_level_for_the_batch(v: Tensor, weight: float | Tensor) -> Tensor:
    t = per_sample(proximal.prox_linf(v, weight).abs().flatten(1).amax(1), v).amax()
    return v.clamp(-t, t)


def linf_level_off_by_a_thousandth(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_linf_metric(v, 1.001 * per_sample(weight, v), metric)


def linf_by_running_sums(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    """t = max_j (A_j - w)/H_j over the j largest entries, with sums that add one entry after the other."""
    a, order = v.abs().flatten(1).sort(1, descending=True)
    h = metric.flatten(1).gather(1, order)
    mass, slope = (torch.from_numpy(np.add.accumulate(x.numpy(), axis=1)) for x in (h * a, h))
    t = per_sample(((mass - flat(per_sample(weight, v))) / slope).amax(1).clamp(min=0), v)
    return v.clamp(-t, t)


def metric_ignored(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_l1(v, weight)


def metric_multiplied(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_linf_metric(v, weight, 1 / metric)


def metric_scaled(v: Tensor, weight: float | Tensor, metric: Tensor) -> Tensor:
    return proximal.prox_l2_metric(v, weight, 2 * metric)


def l0_clipped_afterwards(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_l0(v, weight).clamp(low, high)


def l0_clipped_before(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_l0(v.clamp(low, high), weight)


def l23_clipped_afterwards(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_l23(v, weight).clamp(low, high)


def pixel_l0_clipped_afterwards(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_pixel_l0(v, weight).clamp(low, high)


def linf_clipped_afterwards(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_linf(v, weight).clamp(low, high)


def l2_clipped_afterwards(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_l2(v, weight).clamp(low, high)


def l2_outside_the_box(v: Tensor, weight: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    return proximal.prox_l2(v, weight)


def largest_channel_scales_its_pixel(v: Tensor, weight: float | Tensor) -> Tensor:
    return proximal.prox_pixel_l12(v, weight)


def pixel_never_one_channel(v: Tensor, weight: float | Tensor) -> Tensor:
    return v * (v.norm(dim=-1, keepdim=True) > (2 * per_sample(weight, v)).sqrt())


def simplex_by_rescaling(v: Tensor, radius: float | Tensor = 1.0) -> Tensor:
    positive = v.clamp(min=0)
    total = per_sample(flat(positive).sum(1), v).clamp(min=torch.finfo(v.dtype).tiny)
    return positive / total * per_sample(radius, v)


def ball_by_one_newton_step(v: Tensor, radius: float | Tensor = 1.0) -> Tensor:
    t = (flat(v.abs()).sum(1) - flat(per_sample(radius, v)).flatten()) / flat(v)[0].numel()
    return proximal.prox_l1(v, t.clamp(min=0))


def ball_with_least_radius(v: Tensor, radius: float | Tensor = 1.0) -> Tensor:
    return proximal.project_l1_ball(v, per_sample(radius, v).clamp(min=1e-6))


MUTANTS = [
    Mutant("returns |v| when the whole batch is inside the ball", "project_l1_ball", unsigned_inside_ball,
           (checks.leaves_points_inside_as_they_are, checks.is_odd, checks.treats_each_sample_alone)),
    Mutant("loses signs through that projection", "prox_linf", linf_by_unsigned_projection,
           (checks.is_zero_at_a_large_weight, checks.splits_v_as_moreau_says, checks.is_cheapest_on_a_grid,
            checks.has_an_optimality_certificate, checks.is_odd)),
    Mutant("has NaN -> 0 for a threshold", "prox_l23", l23_without_threshold,
           (checks.jumps_where_the_definition_does, checks.is_cheapest_on_a_grid,
            checks.is_the_identity_at_weight_zero)),
    Mutant("is NaN at weight 0", "prox_linf", linf_by_dividing,
           (checks.is_the_identity_at_weight_zero, checks.stays_between_zero_and_v_at_the_extremes)),
    Mutant("thresholds pixels while it counts elements", "prox_l0", l0_by_pixel, (checks.is_cheapest_on_a_grid,)),
    Mutant("takes five inner steps for the minimum", "prox_l1_metric", l1_in_five_steps,
           (checks.is_cheapest_on_a_grid, checks.has_an_optimality_certificate)),
    Mutant("takes five inner steps for the minimum", "prox_linf_metric", linf_in_five_steps,
           (checks.agrees_with_a_slow_search, checks.has_an_optimality_certificate)),
    Mutant("takes five inner steps for the minimum", "prox_l2_metric", l2_in_five_steps,
           (checks.agrees_with_a_slow_search, checks.has_an_optimality_certificate)),
    Mutant("thresholds at 2w", "prox_l1", soft_at_twice_the_weight,
           (checks.has_an_optimality_certificate, checks.splits_v_as_moreau_says, checks.is_cheapest_on_a_grid)),
    Mutant("thresholds too much at any positive weight", "prox_l1", soft_with_a_floor,
           (checks.moves_little_at_a_small_weight, checks.treats_each_sample_alone)),
    Mutant("shrinks positive entries only", "prox_l1", soft_of_positive_part,
           (checks.is_odd, checks.is_zero_at_a_large_weight)),
    Mutant("works in place", "prox_l1", soft_in_place, (checks.leaves_its_inputs_untouched,)),
    Mutant("answers in float64", "prox_l1", soft_in_float64, (checks.keeps_dtype_and_shape,)),
    Mutant("mixes up the forms of the weight", "prox_l1", soft_with_weights_along_the_last_axis,
           (checks.takes_the_weight_in_every_form, checks.treats_each_sample_alone)),
    Mutant("shrinks past 0", "prox_l1", soft_without_a_stop,
           (checks.is_non_expansive, checks.is_zero_at_a_large_weight,
            checks.stays_between_zero_and_v_at_the_extremes)),
    Mutant("thresholds at sqrt(w)", "prox_l0", hard_at_root_of_weight,
           (checks.jumps_where_the_definition_does, checks.is_cheapest_on_a_grid)),
    Mutant("keeps every stationary point", "prox_l12", half_at_the_end_of_stationarity,
           (checks.jumps_where_the_definition_does,)),
    Mutant("lacks the positive part", "prox_l2", l2_without_positive_part,
           (checks.is_zero_at_a_large_weight, checks.has_an_optimality_certificate, checks.is_non_expansive)),
    Mutant("squares without scaling", "prox_l2", l2_of_unscaled_squares,
           (checks.stays_between_zero_and_v_at_the_extremes, checks.is_the_identity_at_weight_zero)),
    Mutant("has one level for the whole batch", "prox_linf", linf_with_one_level_for_the_batch,
           (checks.treats_each_sample_alone,)),
    Mutant("finds the level for 1.001 w", "prox_linf_metric", linf_level_off_by_a_thousandth,
           (checks.has_an_optimality_certificate, checks.agrees_with_a_slow_search)),
    Mutant("finds the level by adding 30000 float32 in a row", "prox_linf_metric", linf_by_running_sums,
           (checks.stays_accurate_on_a_long_row,)),
    Mutant("ignores the metric", "prox_l1_metric", metric_ignored, (checks.is_cheapest_on_a_grid,)),
    Mutant("inverts the metric", "prox_linf_metric", metric_multiplied,
           (checks.is_cheapest_on_a_grid, checks.agrees_with_a_slow_search)),
    Mutant("doubles the metric", "prox_l2_metric", metric_scaled,
           (checks.equals_the_plain_form_in_a_metric_of_ones, checks.is_cheapest_on_a_grid)),
    Mutant("clips the free answer", "prox_l0_box", l0_clipped_afterwards, (checks.is_cheapest_on_a_grid,)),
    Mutant("clips v first", "prox_l0_box", l0_clipped_before, (checks.is_cheapest_on_a_grid,)),
    Mutant("clips the free answer", "prox_l23_box", l23_clipped_afterwards, (checks.is_cheapest_on_a_grid,)),
    Mutant("clips the free answer", "prox_pixel_l0_box", pixel_l0_clipped_afterwards,
           (checks.is_cheapest_on_a_grid,)),
    Mutant("clips the free answer", "prox_linf_box", linf_clipped_afterwards,
           (checks.is_cheapest_on_a_grid, checks.agrees_with_a_slow_search)),
    Mutant("clips the free answer", "prox_l2_box", l2_clipped_afterwards,
           (checks.is_cheapest_on_a_grid, checks.agrees_with_a_slow_search)),
    Mutant("leaves the box", "prox_l2_box", l2_outside_the_box,
           (checks.is_cheapest_on_a_grid, checks.is_the_identity_at_weight_zero)),
    Mutant("is the rule of the largest channel", "prox_pixel_l12", proximal.prox_pixel_l12_largest_channel,
           (checks.is_cheapest_on_a_grid,)),
    Mutant("is the rule of the largest channel", "prox_pixel_l0", proximal.prox_pixel_l0_largest_channel,
           (checks.is_cheapest_on_a_grid,)),
    Mutant("is the exact pixel form", "prox_pixel_l12_largest_channel", largest_channel_scales_its_pixel,
           (checks.follows_the_largest_channel,)),
    Mutant("shrinks every channel", "prox_pixel_l1_largest_channel", proximal.prox_l1,
           (checks.follows_the_largest_channel,)),
    Mutant("takes the last axis for the channels", "prox_pixel_l0", pixel_never_one_channel,
           (checks.equals_the_element_form_on_one_channel, checks.is_cheapest_on_a_grid)),
    Mutant("rescales instead of projecting", "project_simplex", simplex_by_rescaling,
           (checks.is_the_nearest_point_of_its_set,)),
    Mutant("stops after one step of the level search", "project_l1_ball", ball_by_one_newton_step,
           (checks.is_the_nearest_point_of_its_set,)),
    Mutant("keeps a least radius", "project_l1_ball", ball_with_least_radius, (checks.collapses_at_radius_zero,)),
]  # fmt: skip
