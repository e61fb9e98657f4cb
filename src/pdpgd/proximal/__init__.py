"""Proximal operators and projections: pure functions of (v, weight), batched over dimension 0.

`prox(v, weight)` minimizes w f(z) + 1/2 ||z - v||^2; the `_metric` forms measure the distance in a diagonal metric, and
the `_box` forms constrain z to bounds. Inputs are never modified; dtype and device are those of v. They are not
differentiable: pass tensors that do not require a gradient.
"""

from pdpgd.proximal.balls import project_l0_ball_box, project_l1_ball_box
from pdpgd.proximal.box import (
    prox_l0_box,
    prox_l1_box,
    prox_l2_box,
    prox_l12_box,
    prox_l23_box,
    prox_linf_box,
    prox_pixel_l0_box,
)
from pdpgd.proximal.convex import prox_l1, prox_l2, prox_linf
from pdpgd.proximal.metric import (
    prox_by_inner_loop,
    prox_l0_metric,
    prox_l1_metric,
    prox_l2_metric,
    prox_l12_metric,
    prox_l23_metric,
    prox_linf_metric,
    prox_pixel_l0_largest_channel_metric,
    prox_pixel_l0_metric,
    prox_pixel_l1_largest_channel_metric,
    prox_pixel_l12_largest_channel_metric,
    prox_pixel_l23_largest_channel_metric,
)
from pdpgd.proximal.simplex import project_l1_ball, project_simplex
from pdpgd.proximal.sparse import (
    prox_l0,
    prox_l12,
    prox_l23,
    prox_pixel_l0,
    prox_pixel_l0_largest_channel,
    prox_pixel_l1_largest_channel,
    prox_pixel_l12,
    prox_pixel_l12_largest_channel,
    prox_pixel_l23,
    prox_pixel_l23_largest_channel,
)

__all__ = [
    "project_l0_ball_box",
    "project_l1_ball",
    "project_l1_ball_box",
    "project_simplex",
    "prox_by_inner_loop",
    "prox_l0",
    "prox_l0_box",
    "prox_l0_metric",
    "prox_l1",
    "prox_l1_box",
    "prox_l1_metric",
    "prox_l2",
    "prox_l2_box",
    "prox_l2_metric",
    "prox_l12",
    "prox_l12_box",
    "prox_l12_metric",
    "prox_l23",
    "prox_l23_box",
    "prox_l23_metric",
    "prox_linf",
    "prox_linf_box",
    "prox_linf_metric",
    "prox_pixel_l0",
    "prox_pixel_l0_box",
    "prox_pixel_l0_largest_channel",
    "prox_pixel_l0_largest_channel_metric",
    "prox_pixel_l0_metric",
    "prox_pixel_l1_largest_channel",
    "prox_pixel_l1_largest_channel_metric",
    "prox_pixel_l12",
    "prox_pixel_l12_largest_channel",
    "prox_pixel_l12_largest_channel_metric",
    "prox_pixel_l23",
    "prox_pixel_l23_largest_channel",
    "prox_pixel_l23_largest_channel_metric",
]
