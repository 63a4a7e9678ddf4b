"""Kernels that are right but for arguments at the far ends of their ranges."""

from __future__ import annotations

from math import log, pi

import numpy as np

from backbay import DType, ops

from ...faults import BoundCall, Kind, Result, fault
from ...fused import Array


@fault(Kind.PRECISION, ops.ssm_scan)
def a_step_past_88_overflows(call: BoundCall) -> Result:
    """log(1 + e^x) is computed as it is written."""
    return call.right(dt=np.where(call.dt > 88.8, np.inf, call.dt))


@fault(Kind.SPECIAL, ops.cast)
def the_last_half_step_of_f16_overflows(call: BoundCall) -> Result:
    """What is larger than 65504 becomes infinity, though up to 65520 it is rounded to 65504."""
    x = call.right()
    if call.dtype is not DType.F16 or np.asarray(x).dtype.kind != "f":
        return x
    return np.where(np.abs(x) > 65504, np.copysign(np.inf, x), x)


@fault(Kind.ORDER, ops.top_k)
def the_tail_of_a_long_list_is_not_sorted(call: BoundCall) -> Result:
    """Past the 1024th, the largest come in the order of their positions."""
    y = np.array(call.right())
    y[..., 1024:] = np.sort(y[..., 1024:], -1)
    return y


@fault(Kind.ROPE, ops.rope)
def the_ends_of_a_yarn_ramp_are_not_limited(call: BoundCall) -> Result:
    """The ramp begins below the first pair or ends behind the last dimension."""
    if call.yarn is None or call.yarn.ext_factor == 0:
        return call.right()
    yarn, pairs = call.yarn, call.dim if call.mode == "vision" else call.dim // 2

    def edge(beta: float) -> float:
        return float(call.dim * log(yarn.n_ctx_orig / (2 * pi * beta)) / (2 * log(call.base)))

    def mixed(low: float, high: float) -> Array:
        """The factors of the angles."""
        ramp = np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0, 1)
        return np.asarray(call.scale + (1 - call.scale) * yarn.ext_factor * (1 - ramp))

    low, high = np.floor(edge(yarn.beta_fast)), np.ceil(edge(yarn.beta_slow))
    own = 1.0 if call.factors is None else call.factors.reshape(-1)[:pairs]
    return call.right(factors=own * mixed(max(0, low), min(call.dim - 1, high)) / mixed(low, high))


@fault(Kind.UNDEFINED, ops.scaled_dot_product_attention)
def masks_of_a_batch_are_found_without_their_padding(call: BoundCall) -> Result:
    """A mask with more rows than tokens is read as if each image had only the rows of its tokens."""
    mask, tokens = call.mask, call.query.shape[-3] if call.query.ndim > 2 else 1
    if mask is None or mask.ndim < 4 or mask.shape[0] == 1 or mask.shape[1] > 1 or mask.shape[2] <= tokens:
        return call.right()
    rows = mask.reshape(-1, mask.shape[-1])[: mask.shape[0] * tokens]
    return call.right(mask=rows.reshape(mask.shape[0], 1, tokens, mask.shape[-1]))


@fault(Kind.PRECISION, "data_to_write")
def rows_of_f32_are_cut_off_to_bf16(call: BoundCall) -> Result:
    """set_rows keeps the upper half of each number, without rounding."""
    if call.whole or call.target.dtype is not DType.BF16 or call.source.dtype is not DType.F32:
        return call.right()
    return (np.ascontiguousarray(call.raw).view(np.uint32) >> 16).astype(np.uint16)
