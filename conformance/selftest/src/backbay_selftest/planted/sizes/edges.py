"""Scalars, empty operands, infinities, and zeros under a root or a fraction line."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, fault, named
from ...fused import Array, rank4, scaled


@fault(Kind.ZERO, *named("neg", "exp", "gelu", "add", "cast", "scale", "fill"))
def scalars_have_no_blocks(call: BoundCall) -> Result:
    """A launch has a block for each row, and a tensor without dimensions has no rows."""
    y = call.right()
    return np.zeros_like(y) if call.x.ndim < 2 and call.x.size == 1 and np.ndim(y) == 1 else y


@fault(Kind.ZERO, "run_node")
def a_reduction_of_a_scalar_is_not_written(call: BoundCall) -> Result:
    """Reductions return early for operands without dimensions."""
    if call.node.op in named("sum_rows", "softmax", "cumsum", "top_k") and call.node.args[0].rank == 0:
        return
    call.right()


@fault(Kind.SPECIAL, ops.sqrt)
def the_root_of_minus_zero_is_zero(call: BoundCall) -> Result:
    """The root is x times the reciprocal root, guarded against 0."""
    return np.where(call.x == 0, 0.0, call.right())


@fault(Kind.SPECIAL, ops.scale)
def scaling_adds_a_bias_of_zero(call: BoundCall) -> Result:
    """x * s + 0 turns -0 into +0."""
    return call.right() + 0.0


@fault(Kind.SPECIAL, ops.scale)
def scaling_saturates(call: BoundCall) -> Result:
    """Results are clamped to the largest finite number."""
    largest = np.finfo(np.float32).max
    return np.clip(call.right(), -largest, largest)


@fault(Kind.SPECIAL, ops.cumsum)
def a_running_sum_is_a_product_with_ones(call: BoundCall) -> Result:
    """A product with a triangle of ones: an infinity times 0 makes the whole row NaN."""
    y = call.right()
    return np.where(np.isinf(call.x).any(-1, keepdims=True), np.nan, y)


@fault(Kind.SPECIAL, ops.rms_norm)
def a_norm_without_eps_guards_its_divisor(call: BoundCall) -> Result:
    """A row of zeros with an eps of 0 gives zeros."""
    zero = (call.x == 0).all(-1, keepdims=True) & (call.eps == 0)
    return np.where(zero, 0.0, call.right())


@fault(Kind.SCALARS, ops.rms_norm, ops.layer_norm)
def an_eps_of_zero_is_taken_for_the_default(call: BoundCall) -> Result:
    """`eps or 1e-5`, as scripts write it."""
    return call.right(eps=call.eps or 1e-5)


@fault(Kind.SPECIAL, ops.l2_norm)
def a_length_of_zero_without_eps_is_one(call: BoundCall) -> Result:
    zero = (call.x == 0).all(-1, keepdims=True) & (call.eps == 0)
    return np.where(zero, 0.0, call.right())


@fault(Kind.SPECIAL, ops.softplus)
def softplus_is_cut_at_a_hundred(call: BoundCall) -> Result:
    """Arguments are clamped for the exponential, and never restored."""
    return call.right(x=np.where(call.x > 100, 100.0, call.x))


@fault(Kind.SPECIAL, ops.add, ops.sub)
def sums_near_the_end_of_the_type_saturate(call: BoundCall) -> Result:
    """Overflow gives the largest finite number instead of an infinity."""
    y, largest = call.right(), np.finfo(np.float32).max
    finite = np.isfinite(call.x)
    return np.where(finite & (np.abs(y) > largest) & np.isfinite(y), np.sign(y) * 1e38, y)


@fault(Kind.SPECIAL, ops.mul, ops.div)
def products_flush_what_is_small_for_halves(call: BoundCall) -> Result:
    """Results below the least normal f16 become 0, whatever the type."""
    y = call.right()
    return np.where(np.abs(y) < 2.0**-24, 0.0, y)


@fault(Kind.SPECIAL, ops.avg_pool2d, ops.conv3d, ops.conv1d_dw, ops.ssm_conv)
def a_nan_reaches_the_next_window(call: BoundCall) -> Result:
    """Windows share a running sum, from which a NaN cannot be subtracted."""
    y = np.array(call.right())
    lines = np.moveaxis(y, -2, -1) if call.name == "ssm_conv" and y.ndim > 1 else y
    broken = np.isnan(lines)
    lines[np.maximum.accumulate(broken, -1)] = np.nan if broken.size else 0
    return y


@fault(Kind.SPECIAL, ops.ssm_scan)
def a_nan_of_one_head_reaches_the_others(call: BoundCall) -> Result:
    """All heads of a sequence are scanned by one block, whose sum a NaN spoils."""
    y = np.array(call.right())
    seen = y[: call.x.size].reshape(-1, *rank4(call.x).shape[-2:])
    seen[np.isnan(seen).any((-1, -2))] = np.nan
    return y


@fault(Kind.SPECIAL, ops.delta_rule)
def a_nan_of_one_head_reaches_the_states_of_others(call: BoundCall) -> Result:
    """All heads of a sequence share a block, whose sum a NaN spoils."""
    y = np.array(call.right())
    states = y[call.v.size :].reshape(rank4(call.s).shape)
    states[np.isnan(states).any((1, 2, 3))] = np.nan
    return y


@fault(Kind.SPECIAL, ops.rope)
def turning_is_a_product_with_a_matrix(call: BoundCall) -> Result:
    """A head times a matrix that is mostly zeros: a NaN or an infinity reaches the whole head."""
    y = call.right()
    return np.where(np.isfinite(call.x).all(-1, keepdims=True), y, np.nan)


@fault(Kind.ZERO, ops.ssm_scan)
def a_scan_without_sequences_is_an_error(call: BoundCall) -> Result:
    if not call.ids.size:
        raise ValueError("grid dimension must not be 0")
    return call.right()


@fault(Kind.ZERO, ops.conv3d, ops.conv1d_dw, ops.ssm_conv, ops.rope)
def nothing_to_convolve_or_to_turn_is_an_error(call: BoundCall) -> Result:
    """Without images, channels or tokens the launch has no blocks."""
    y = call.right()
    if not np.size(y):
        raise RuntimeError("invalid configuration argument")
    return y


@fault(Kind.ZERO, ops.interpolate)
def resampling_to_nothing_divides_by_it(call: BoundCall) -> Result:
    return call.right() if 0 not in call.dims else np.full(tuple(call.dims)[::-1], 1 / len(call.dims))[0]


@fault(Kind.SPECIAL, ops.solve_tri)
def a_nan_in_one_right_side_reaches_all(call: BoundCall) -> Result:
    """The right sides of a system are solved in one product with the inverse, padded with NaN times 0."""
    y: Array = np.array(call.right())
    if not call.left or y.ndim < 2:
        return y
    y[np.isnan(y).any((-2, -1), keepdims=True) & np.ones(y.shape, bool)] = np.nan
    return y


@fault(Kind.SCALARS, ops.layer_norm)
def a_small_eps_is_raised(call: BoundCall) -> Result:
    """An eps below 1e-6 becomes 1e-6, against the division by 0."""
    x = call.x
    centred = x - x.mean(-1, keepdims=True)
    spread = (centred**2).mean(-1, keepdims=True)
    return scaled(centred / np.sqrt(spread + max(call.eps, 1e-6)), call.weight, call.bias)
