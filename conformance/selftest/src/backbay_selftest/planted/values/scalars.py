"""Attributes of an op that are ignored, swapped or mixed up."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, altered, fault
from ...fused import scaled

altered("rms_norm_ignores_its_eps", Kind.SCALARS, ops.rms_norm, eps=1e-6)
altered("softcap_is_ignored", Kind.SCALARS, ops.scaled_dot_product_attention, softcap=0.0)
altered("sinks_are_ignored", Kind.SCALARS, ops.scaled_dot_product_attention, sinks=None)
altered("clamp_has_only_an_upper_bound", Kind.SCALARS, ops.clamp, min=-np.inf)
altered("alpha_of_swiglu_is_fixed", Kind.SCALARS, ops.swiglu, alpha=1.702)
altered("the_base_of_rope_is_fixed", Kind.SCALARS, ops.rope, base=10000.0)
altered("solving_ignores_unit_diagonal", Kind.SCALARS, ops.solve_tri, unit_diagonal=False)


@fault(Kind.SCALARS, ops.layer_norm)
def layer_norm_adds_eps_after_the_root(call: BoundCall) -> Result:
    n = np.float64(call.x.shape[-1])
    centred = call.x - call.x.sum(-1, keepdims=True) / n
    spread = np.sqrt((centred**2).sum(-1, keepdims=True) / n)
    return scaled(centred / (spread + call.eps), call.weight, call.bias)


@fault(Kind.SCALARS, ops.l2_norm)
def l2_norm_adds_its_eps(call: BoundCall) -> Result:
    """eps is added under the root, instead of being the least divisor."""
    return call.x / np.sqrt((call.x**2).sum(-1, keepdims=True) + call.eps)


@fault(Kind.SCALARS, ops.scaled_dot_product_attention)
def the_cap_comes_before_the_scale(call: BoundCall) -> Result:
    return call.right(softcap=call.softcap * abs(call.scale) or call.softcap)


@fault(Kind.SCALARS, ops.scale)
def scale_is_rounded_to_half_precision(call: BoundCall) -> Result:
    return call.right(s=float(np.float16(call.s)))


@fault(Kind.SCALARS, ops.conv2d, ops.im2col)
def strides_of_convolutions_are_swapped(call: BoundCall) -> Result:
    """Where the shape allows it, the vertical stride serves both directions."""
    if call.s0 == call.s1:
        return call.right()
    y = call.right()
    other = call.right(s0=1)
    axis = y.ndim - 1 if call.name == "conv2d" else y.ndim - 2
    index = np.minimum(np.arange(y.shape[axis]) * call.s1, other.shape[axis] - 1)
    return np.take(other, index, axis)


@fault(Kind.SCALARS, ops.conv2d, ops.conv1d_dw)
def dilation_is_ignored(call: BoundCall) -> Result:
    plain = call.right(d=1) if call.name == "conv1d_dw" else call.right(d0=1, d1=1)
    return plain[tuple(slice(0, n) for n in call.right().shape)]


@fault(Kind.SCALARS, ops.pad_ext)
def padding_before_and_behind_is_swapped(call: BoundCall) -> Result:
    sides = {f"{side}p{n}": getattr(call, f"{other}p{n}") for side, other in ("lr", "rl") for n in range(4)}
    return call.right(**sides)


@fault(Kind.SCALARS, ops.swiglu)
def swiglu_limits_its_gate_from_below(call: BoundCall) -> Result:
    """The gate is clamped on both sides."""
    return call.right(x=np.maximum(call.x, -call.limit))


@fault(Kind.SCALARS, ops.variance)
def variance_divides_by_one_less(call: BoundCall) -> Result:
    """The divisor is N - 1."""
    n = call.x.shape[-1]
    return call.right() * (n / (n - 1) if n > 1 else 1)


@fault(Kind.SCALARS, ops.concat)
def concat_along_the_outer_axes_swaps_its_operands(call: BoundCall) -> Result:
    swapped = call.dim >= 2 and call.x.shape == call.t2.shape
    return call.right(x=call.t2, t2=call.x) if swapped else call.right()


@fault(Kind.SCALARS, ops.interpolate)
def bilinear_takes_corners_for_centres(call: BoundCall) -> Result:
    """Pixels are aligned at their corners in dimension 0, i*n/m instead of (i + 0.5)*n/m - 0.5."""
    x = call.x
    if call.mode != "bilinear" or 0 in call.dims or not x.ndim or call.dims[0] == x.shape[-1]:
        return call.right()
    n, m = x.shape[-1], call.dims[0]
    t = np.minimum(np.arange(m) * n / m, n - 1)
    low = np.floor(t).astype(int)
    wide = x[..., low] * (1 - (t - low)) + x[..., np.minimum(low + 1, n - 1)] * (t - low)
    return call.right(x=wide)


@fault(Kind.SCALARS, ops.conv2d)
def paddings_of_the_usual_convolution_are_swapped(call: BoundCall) -> Result:
    """Kernels of 3x3 without strides have code of their own, in which the paddings of width and height are swapped."""
    y = call.right()
    usual = call.weight.shape[-2:] == (3, 3) and {call.s0, call.s1, call.d0, call.d1} == {1}
    if not usual or call.p0 == call.p1:
        return y
    swapped, wrong = call.right(p0=call.p1, p1=call.p0), np.zeros_like(y)
    both = tuple(slice(0, min(sides)) for sides in zip(y.shape, swapped.shape, strict=True))
    wrong[both] = swapped[both]
    return wrong
