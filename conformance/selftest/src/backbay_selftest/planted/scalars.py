"""Attributes of an op that are ignored, swapped or mixed up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import ops

from ..faults import Array, Kernel, fault

SCALARS = "scalar parameters ignored or swapped"


@fault(SCALARS, ops.rms_norm, like="L20350")
def rms_norm_ignores_its_eps(right: Kernel, x: Array, weight: Array | None, eps: float) -> Array:
    """eps is always 1e-6."""
    return right(x, weight, 1e-6)


@fault(SCALARS, ops.layer_norm, like="L20350")
def layer_norm_adds_eps_after_the_root(
    right: Kernel, x: Array, weight: Array | None, bias: Array | None, eps: float
) -> Array:
    """The divisor is sqrt(variance) + eps."""
    centred = x - x.sum(-1, keepdims=True) / np.float64(x.shape[-1])
    spread = np.sqrt((centred**2).sum(-1, keepdims=True) / np.float64(x.shape[-1]))
    y = centred / (spread + eps)
    y = y if weight is None else y * weight.reshape(-1)
    return np.asarray(y if bias is None else y + bias.reshape(-1))


@fault(SCALARS, ops.l2_norm, like="L20350")
def l2_norm_adds_its_eps(right: Kernel, x: Array, eps: float) -> Array:
    """eps is added under the root instead of being the least divisor."""
    return np.asarray(x / np.sqrt((x**2).sum(-1, keepdims=True) + eps))


@fault(SCALARS, ops.scaled_dot_product_attention, like="L20350")
def softcap_is_ignored(right: Kernel, *args: Any, softcap: float = 0.0, **keywords: Any) -> Array:
    """Scores are not capped."""
    return right(*args, **keywords)


@fault(SCALARS, ops.scaled_dot_product_attention, like="L20350")
def sinks_are_ignored(right: Kernel, *args: Any, sinks: Array | None = None, **keywords: Any) -> Array:
    """The column of the sinks is left out."""
    return right(*args, **keywords)


@fault(SCALARS, ops.scaled_dot_product_attention, like="L12776")
def the_cap_comes_before_the_scale(
    right: Kernel, *args: Any, scale: float, softcap: float = 0.0, **keywords: Any
) -> Array:
    """Scores are capped first and scaled then."""
    if not softcap:
        return right(*args, scale=scale, **keywords)
    late = softcap * abs(scale)
    return right(*args, scale=scale, softcap=late or softcap, **keywords)


@fault(SCALARS, ops.clamp, like="L20350")
def clamp_has_only_an_upper_bound(right: Kernel, x: Array, min: float, max: float) -> Array:
    """The lower bound is never looked at."""
    return right(x, -np.inf, max)


@fault(SCALARS, ops.scale, like="L20350")
def scale_is_rounded_to_half_precision(right: Kernel, x: Array, s: float) -> Array:
    """The factor is passed as f16."""
    return right(x, float(np.float16(s)))


@fault(SCALARS, ops.conv2d, ops.im2col, like="L20350")
def strides_of_convolutions_are_swapped(
    right: Kernel, weight: Array, data: Array, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Array:
    """Where the shape allows it, the vertical stride serves both directions."""
    if s0 == s1:
        return right(weight, data, s0, s1, p0, p1, d0, d1)
    y = right(weight, data, s0, s1, p0, p1, d0, d1)
    other = right(weight, data, 1, s1, p0, p1, d0, d1)
    axis = y.ndim - 1 if right.__name__ == "conv2d" else y.ndim - 2
    index = np.minimum(np.arange(y.shape[axis]) * s1, other.shape[axis] - 1)
    return np.asarray(np.take(other, index, axis))


@fault(SCALARS, ops.conv2d, ops.conv1d_dw, like="L20350")
def dilation_is_ignored(right: Kernel, weight: Array, data: Array, *numbers: int) -> Array:
    """Taps of a kernel always adjoin."""
    half = len(numbers) * 2 // 3
    plain = right(weight, data, *numbers[:half], *[1] * (len(numbers) - half))
    y = right(weight, data, *numbers)
    return plain[tuple(slice(0, n) for n in y.shape)]


@fault(SCALARS, ops.pad_ext, like="L20350")
def padding_before_and_behind_is_swapped(right: Kernel, x: Array, *amounts: int) -> Array:
    """What should come before comes behind."""
    return right(x, *[amounts[i ^ 1] for i in range(len(amounts))])


@fault(SCALARS, ops.swiglu, like="L15660")
def alpha_of_swiglu_is_fixed(right: Kernel, x: Array, up: Array, alpha: float, limit: float) -> Array:
    """alpha is 1.702 whatever was given."""
    return right(x, up, 1.702, limit)


@fault(SCALARS, ops.swiglu, like="L15660")
def swiglu_limits_its_gate_from_below(
    right: Kernel, x: Array, up: Array, alpha: float, limit: float
) -> Array:
    """The gate is clamped on both sides."""
    return right(np.maximum(x, -limit), up, alpha, limit)


@fault(SCALARS, ops.rope, like="L15629")
def the_base_of_rope_is_fixed(
    right: Kernel, x: Array, positions: Array, dim: int, base: float, *rest: Any
) -> Array:
    """base is 10000 whatever was given."""
    return right(x, positions, dim, 10000.0, *rest)


@fault(SCALARS, ops.variance, like="T192212")
def variance_divides_by_one_less(right: Kernel, x: Array) -> Array:
    """The divisor is N - 1."""
    n = x.shape[-1]
    return right(x) * (n / (n - 1) if n > 1 else 1)


@fault(SCALARS, ops.concat, like="O17689")
def concat_along_the_outer_axes_swaps_its_operands(right: Kernel, x: Array, t2: Array, dim: int) -> Array:
    """Along dimension 2 and 3 the second operand comes first."""
    return right(t2, x, dim) if dim >= 2 and x.shape == t2.shape else right(x, t2, dim)


@fault(SCALARS, ops.solve_tri, like="L20350")
def solving_ignores_unit_diagonal(
    right: Kernel, a: Array, b: Array, lower: bool, left: bool, unit_diagonal: bool
) -> Array:
    """The diagonal is always divided by."""
    return right(a, b, lower, left, False)


@fault(SCALARS, ops.interpolate, like="O17689")
def bilinear_takes_corners_for_centres(right: Kernel, x: Array, dims: Sequence[int], mode: str) -> Array:
    """Pixels are aligned at their corners in dimension 0, i*n/m instead of (i + 0.5)*n/m - 0.5."""
    if mode != "bilinear" or 0 in dims or not x.ndim or dims[0] == x.shape[-1]:
        return right(x, dims, mode)
    n, m = x.shape[-1], dims[0]
    t = np.minimum(np.arange(m) * n / m, n - 1)
    low = np.floor(t).astype(int)
    wide = x[..., low] * (1 - (t - low)) + x[..., np.minimum(low + 1, n - 1)] * (t - low)
    return right(wide, dims, mode)
