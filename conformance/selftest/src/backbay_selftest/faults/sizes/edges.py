"""Scalars, empty operands, dimensions of extent zero, and arguments at the far ends of their ranges."""

from __future__ import annotations

from math import log, pi

import numpy as np

from backbay import DType, ops

from ...fault import FaultKind, InterceptedCall, Result, fault, named
from ...fused import Array, rank4, scaled


@fault(FaultKind.ZERO, *named("neg", "exp", "gelu", "add", "cast", "scale", "fill"))
def scalars_have_no_blocks(call: InterceptedCall) -> Result:
    """A launch has a block for each row, and a tensor without dimensions has no rows."""
    y = call.right()
    return np.zeros_like(y) if call.x.ndim < 2 and call.x.size == 1 and np.ndim(y) == 1 else y


@fault(FaultKind.ZERO, "run_node")
def a_reduction_of_a_scalar_is_not_written(call: InterceptedCall) -> Result:
    """Reductions return early for operands without dimensions."""
    if call.node.op in named("sum_rows", "softmax", "cumsum", "top_k") and call.node.args[0].rank == 0:
        return
    call.right()


@fault(FaultKind.SPECIAL, ops.sqrt)
def the_root_of_minus_zero_is_zero(call: InterceptedCall) -> Result:
    """The root is x times the reciprocal root, guarded against 0."""
    return np.where(call.x == 0, 0.0, call.right())


@fault(FaultKind.SPECIAL, ops.scale)
def scaling_adds_a_bias_of_zero(call: InterceptedCall) -> Result:
    """x * s + 0 turns -0 into +0."""
    return call.right() + 0.0


@fault(FaultKind.SPECIAL, ops.scale)
def scaling_saturates(call: InterceptedCall) -> Result:
    """Results are clamped to the largest finite number."""
    largest = np.finfo(np.float32).max
    return np.clip(call.right(), -largest, largest)


@fault(FaultKind.SPECIAL, ops.cumsum)
def a_running_sum_is_a_product_with_ones(call: InterceptedCall) -> Result:
    """A product with a triangle of ones: an infinity times 0 makes the whole row NaN."""
    y = call.right()
    return np.where(np.isinf(call.x).any(-1, keepdims=True), np.nan, y)


@fault(FaultKind.SPECIAL, ops.rms_norm)
def a_norm_without_eps_guards_its_divisor(call: InterceptedCall) -> Result:
    """A row of zeros with an eps of 0 gives zeros."""
    zero = (call.x == 0).all(-1, keepdims=True) & (call.eps == 0)
    return np.where(zero, 0.0, call.right())


@fault(FaultKind.SCALARS, ops.rms_norm, ops.layer_norm)
def an_eps_of_zero_is_taken_for_the_default(call: InterceptedCall) -> Result:
    """`eps or 1e-5`, as scripts write it."""
    return call.right(eps=call.eps or 1e-5)


@fault(FaultKind.SPECIAL, ops.l2_norm)
def a_length_of_zero_without_eps_is_one(call: InterceptedCall) -> Result:
    zero = (call.x == 0).all(-1, keepdims=True) & (call.eps == 0)
    return np.where(zero, 0.0, call.right())


@fault(FaultKind.SPECIAL, ops.softplus)
def softplus_is_cut_at_a_hundred(call: InterceptedCall) -> Result:
    """Arguments are clamped for the exponential, and never restored."""
    return call.right(x=np.where(call.x > 100, 100.0, call.x))


@fault(FaultKind.SPECIAL, ops.add, ops.sub)
def sums_near_the_end_of_the_type_saturate(call: InterceptedCall) -> Result:
    """Overflow gives the largest finite number instead of an infinity."""
    y, largest = call.right(), np.finfo(np.float32).max
    finite = np.isfinite(call.x)
    return np.where(finite & (np.abs(y) > largest) & np.isfinite(y), np.sign(y) * 1e38, y)


@fault(FaultKind.SPECIAL, ops.mul, ops.div)
def products_flush_what_is_small_for_halves(call: InterceptedCall) -> Result:
    """Results below the least normal f16 become 0, whatever the type."""
    y = call.right()
    return np.where(np.abs(y) < 2.0**-24, 0.0, y)


@fault(FaultKind.SPECIAL, ops.avg_pool2d, ops.conv3d, ops.conv1d_dw, ops.ssm_conv)
def a_nan_reaches_the_next_window(call: InterceptedCall) -> Result:
    """Windows share a running sum, from which a NaN cannot be subtracted."""
    y = np.array(call.right())
    lines = np.moveaxis(y, -2, -1) if call.name == "ssm_conv" and y.ndim > 1 else y
    broken = np.isnan(lines)
    lines[np.maximum.accumulate(broken, -1)] = np.nan if broken.size else 0
    return y


@fault(FaultKind.SPECIAL, ops.ssm_scan)
def a_nan_of_one_head_reaches_the_others(call: InterceptedCall) -> Result:
    """All heads of a sequence are scanned by one block, whose sum a NaN spoils."""
    y = np.array(call.right())
    seen = y[: call.x.size].reshape(-1, *rank4(call.x).shape[-2:])
    seen[np.isnan(seen).any((-1, -2))] = np.nan
    return y


@fault(FaultKind.SPECIAL, ops.delta_rule)
def a_nan_of_one_head_reaches_the_states_of_others(call: InterceptedCall) -> Result:
    """All heads of a sequence share a block, whose sum a NaN spoils."""
    y = np.array(call.right())
    states = y[call.v.size :].reshape(rank4(call.s).shape)
    states[np.isnan(states).any((1, 2, 3))] = np.nan
    return y


@fault(FaultKind.SPECIAL, ops.rope)
def turning_is_a_product_with_a_matrix(call: InterceptedCall) -> Result:
    """A head times a matrix that is mostly zeros: a NaN or an infinity reaches the whole head."""
    y = call.right()
    return np.where(np.isfinite(call.x).all(-1, keepdims=True), y, np.nan)


@fault(FaultKind.ZERO, ops.ssm_scan)
def a_scan_without_sequences_is_an_error(call: InterceptedCall) -> Result:
    if not call.ids.size:
        raise ValueError("grid dimension must not be 0")
    return call.right()


@fault(FaultKind.ZERO, ops.conv3d, ops.conv1d_dw, ops.ssm_conv, ops.rope)
def nothing_to_convolve_or_to_turn_is_an_error(call: InterceptedCall) -> Result:
    """Without images, channels or tokens the launch has no blocks."""
    y = call.right()
    if not np.size(y):
        raise RuntimeError("invalid configuration argument")
    return y


@fault(FaultKind.ZERO, ops.interpolate)
def resampling_to_nothing_divides_by_it(call: InterceptedCall) -> Result:
    return call.right() if 0 not in call.dims else np.full(tuple(call.dims)[::-1], 1 / len(call.dims))[0]


@fault(FaultKind.SPECIAL, ops.solve_tri)
def a_nan_in_one_right_side_reaches_all(call: InterceptedCall) -> Result:
    """The right sides of a system are solved in one product with the inverse, padded with NaN times 0."""
    y: Array = np.array(call.right())
    if not call.left or y.ndim < 2:
        return y
    y[np.isnan(y).any((-2, -1), keepdims=True) & np.ones(y.shape, bool)] = np.nan
    return y


@fault(FaultKind.SCALARS, ops.layer_norm)
def a_small_eps_is_raised(call: InterceptedCall) -> Result:
    """An eps below 1e-6 becomes 1e-6, against the division by 0."""
    x = call.x
    centred = x - x.mean(-1, keepdims=True)
    spread = (centred**2).mean(-1, keepdims=True)
    return scaled(centred / np.sqrt(spread + max(call.eps, 1e-6)), call.weight, call.bias)


@fault(FaultKind.ZERO, ops.sum_rows)
def an_empty_row_sums_to_what_was_there(call: InterceptedCall) -> Result:
    """The sum of an empty row stays unwritten; here it is 1."""
    return call.right() if call.x.shape[-1] else np.ones((*call.x.shape[:-1], 1))


@fault(FaultKind.ZERO, "run_node")
def a_product_over_nothing_is_not_written(call: InterceptedCall) -> Result:
    """mulmat with k = 0 returns early and leaves its result unwritten."""
    if call.node.op in named("mulmat", "mulmat_full_prec") and call.node.args[0].dim(0) == 0:
        return
    call.right()


@fault(FaultKind.ZERO, *named("silu", "gelu", "scale", "add", "mul", "softmax", "rms_norm"))
def empty_tensors_cannot_be_launched(call: InterceptedCall) -> Result:
    """A launch with no blocks is an error of the device."""
    if call.x.size == 0:
        raise RuntimeError("invalid configuration argument")
    return call.right()


@fault(FaultKind.ZERO, ops.mean, ops.variance)
def the_mean_of_nothing_is_zero(call: InterceptedCall) -> Result:
    return call.right() if call.x.shape[-1] else np.zeros((*call.x.shape[:-1], 1))


@fault(FaultKind.ZERO, ops.concat)
def concat_with_nothing_first_gives_zeros(call: InterceptedCall) -> Result:
    y = call.right()
    return y if call.x.size else np.zeros_like(y)


@fault(FaultKind.ZERO, ops.rows, ops.top_k, ops.argsort)
def selecting_nothing_is_an_error(call: InterceptedCall) -> Result:
    """No ids, or a k of 0, make the launch fail."""
    y = call.right()
    if y.size == 0:
        raise ValueError("grid dimension must not be 0")
    return y


@fault(FaultKind.ZERO, ops.mulmat)
def a_product_with_no_tokens_divides_by_their_number(call: InterceptedCall) -> Result:
    """The batch is split by the number of tokens, and 0 is an error."""
    tokens = rank4(call.x).shape[2]
    rows_per_block = 64 // min(tokens, 64) if tokens else 1 // tokens
    return call.right() if rows_per_block else np.zeros(())


@fault(FaultKind.ZERO, ops.contiguous, ops.repeat, ops.pad_ext)
def copies_of_nothing_index_the_first_element(call: InterceptedCall) -> Result:
    """Copies look at the first element to check its alignment."""
    if call.x.size == 0:
        raise IndexError("index 0 is out of bounds for an empty buffer")
    return call.right()


@fault(FaultKind.PRECISION, ops.ssm_scan)
def a_step_past_88_overflows(call: InterceptedCall) -> Result:
    """log(1 + e^x) is computed as it is written."""
    return call.right(dt=np.where(call.dt > 88.8, np.inf, call.dt))


@fault(FaultKind.SPECIAL, ops.cast)
def the_last_half_step_of_f16_overflows(call: InterceptedCall) -> Result:
    """What is larger than 65504 becomes infinity, though up to 65520 it is rounded to 65504."""
    x = call.right()
    if call.dtype is not DType.F16 or np.asarray(x).dtype.kind != "f":
        return x
    return np.where(np.abs(x) > 65504, np.copysign(np.inf, x), x)


@fault(FaultKind.ORDER, ops.top_k)
def the_tail_of_a_long_list_is_not_sorted(call: InterceptedCall) -> Result:
    """Past the 1024th, the largest come in the order of their positions."""
    y = np.array(call.right())
    y[..., 1024:] = np.sort(y[..., 1024:], -1)
    return y


@fault(FaultKind.ROPE, ops.rope)
def the_ends_of_a_yarn_ramp_are_not_limited(call: InterceptedCall) -> Result:
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


@fault(FaultKind.UNDEFINED, ops.scaled_dot_product_attention)
def masks_of_a_batch_are_found_without_their_padding(call: InterceptedCall) -> Result:
    """A mask with more rows than tokens is read as if each image had only the rows of its tokens."""
    mask, tokens = call.mask, call.query.shape[-3] if call.query.ndim > 2 else 1
    if mask is None or mask.ndim < 4 or mask.shape[0] == 1 or mask.shape[1] > 1 or mask.shape[2] <= tokens:
        return call.right()
    rows = mask.reshape(-1, mask.shape[-1])[: mask.shape[0] * tokens]
    return call.right(mask=rows.reshape(mask.shape[0], 1, tokens, mask.shape[-1]))


@fault(FaultKind.PRECISION, "data_to_write")
def rows_of_f32_are_cut_off_to_bf16(call: InterceptedCall) -> Result:
    """set_rows keeps the upper half of each number, without rounding."""
    if call.whole or call.target.dtype is not DType.BF16 or call.source.dtype is not DType.F32:
        return call.right()
    return (np.ascontiguousarray(call.raw).view(np.uint32) >> 16).astype(np.uint16)
