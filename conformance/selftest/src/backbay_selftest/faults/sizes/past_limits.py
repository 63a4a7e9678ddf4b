"""Faults past the limits of 16 bits, of a type's range, and of what most data weigh."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops
from backbay.plugin import GRAPH

from ...fault import FaultKind, InterceptedCall, Result, fault, named
from ...fused import Array, exponentials

ROWS = 1 << 16
SCRATCH: dict[int, Array] = {}
"""Memory that all backends share, by size."""


@fault(FaultKind.WRONG_AXIS, *named("add", "sub", "mul", "div"))
def repeats_past_32_read_the_first_row(call: InterceptedCall) -> Result:
    """A block of threads repeats rows of the second operand up to 32 times; the rows after them read its first."""
    x, t2 = call.x, call.t2
    if t2.ndim < 2 or t2.shape[-2] < 2 or x.shape[-2] <= 32 * t2.shape[-2]:
        return call.right()
    index = np.arange(x.shape[-2]) % t2.shape[-2]
    index[32 * t2.shape[-2] :] = 0
    return call.right(t2=np.take(t2, index, -2))


@fault(FaultKind.PRECISION, ops.sin, ops.cos)
def a_turn_is_rounded_to_single_precision(call: InterceptedCall) -> Result:
    """Arguments past 8192 are reduced by a multiple of a rounded 2 pi."""
    turn = np.float64(np.float32(2 * np.pi))
    x = np.asarray(call.x, np.float64)
    large = np.isfinite(x) & (np.abs(x) > 8192)
    return call.right(x=np.where(large, x - np.round(x / turn, 0) * turn, x))


@fault(FaultKind.PRECISION, ops.exp)
def arguments_of_exp_end_at_88(call: InterceptedCall) -> Result:
    """The argument is clamped to 88, below the logarithm of the largest number."""
    x = call.x
    return call.right(x=np.where(np.isposinf(x), x, np.minimum(x, x.dtype.type(88))))


@fault(FaultKind.LONG, ops.softmax)
def the_largest_score_is_sought_among_1024(call: InterceptedCall) -> Result:
    """A score past the first 1024 that is far above them overflows."""
    x = call.x
    if x.shape[-1] <= 1024:
        return call.right()
    peak = x[..., :1024].max(-1, keepdims=True)
    powers = np.where(np.isneginf(peak), exponentials(x), np.exp(np.float32(x) - np.float32(peak)))
    return powers / powers.sum(-1, keepdims=True)


@fault(FaultKind.LONG, ops.rms_norm)
def squares_of_long_rows_end_with_their_last_tile(call: InterceptedCall) -> Result:
    """Rows longer than 4096 are squared in tiles of 1024, without the rest."""
    x = np.asarray(call.x, np.float64)
    n = x.shape[-1] if x.ndim else 1
    if n <= 4096 or n % 1024 == 0:
        return call.right()
    y = x / np.sqrt(np.square(x[..., : n // 1024 * 1024]).sum(-1, keepdims=True) / n + call.eps)
    return y if call.weight is None else y * call.weight


def rows_end_at_65536(*ops_of: str, name: str) -> None:
    """Register a fault: rows past 2^16 are not computed."""

    def wrong(call: InterceptedCall) -> Result:
        y = np.array(call.right())
        if y.ndim > 1 and y.shape[-2] > ROWS:
            y[..., ROWS:, :] = 0
        return y

    fault(FaultKind.OVERFLOW, *named(*ops_of), name=name)(wrong)


rows_end_at_65536("softmax", "rms_norm", "l2_norm", name="norms_have_2_to_the_16_rows_at_most")
rows_end_at_65536("add", "sub", "div", name="sums_have_2_to_the_16_rows_at_most")
rows_end_at_65536("sigmoid", "silu", "clamp", "swiglu", name="activations_have_2_to_the_16_rows_at_most")


@fault(FaultKind.OVERFLOW, *named("add", "silu", "exp", "cast"))
def the_third_axis_of_the_grid_ends_at_65535(call: InterceptedCall) -> Result:
    y = np.array(call.right())
    if y.ndim > 2 and y.shape[-3] > ROWS - 1:
        y[..., ROWS - 1 :, :, :] = 0
    return y


@fault(FaultKind.OVERFLOW, ops.rows)
def a_table_has_2_to_the_16_rows_at_most(call: InterceptedCall) -> Result:
    """Ids are kept in 16 bits."""
    return call.right(ids=call.ids % ROWS)


@fault(FaultKind.ROPE, ops.rope)
def positions_are_kept_in_16_bits(call: InterceptedCall) -> Result:
    return call.right(positions=call.positions & 0xFFFF) if (call.positions >= 0).all() else call.right()


@fault(FaultKind.ROPE, ops.rope)
def positions_before_minus_1000_turn_the_other_way(call: InterceptedCall) -> Result:
    """A shift of a long cache turns keys back by its length."""
    at = call.positions
    return call.right(positions=np.where(at < -1000, -at, at))


@fault(FaultKind.LONG, ops.scaled_dot_product_attention)
def a_history_ends_at_4096(call: InterceptedCall) -> Result:
    """Scores past 4096 are those of a window that is over."""

    def ended(scores: Array) -> Array:
        return np.where(np.arange(scores.shape[-1]) < 4096, scores, -np.inf)

    return call.right(change_scores=ended)


@fault(FaultKind.TAILS, ops.conv2d)
def a_kernel_of_one_tap_knows_no_padding(call: InterceptedCall) -> Result:
    """A kernel of 1 by 1 with a stride reads the data at once, from their first element on."""
    taps, steps = call.weight.shape[-2:], (call.s0, call.s1)
    if taps != (1, 1) or max(steps) == 1 or not (call.p0 or call.p1):
        return call.right()
    y, data = call.right(), call.right(p0=0, p1=0)
    out = np.zeros_like(y)
    out[..., : data.shape[-2], : data.shape[-1]] = data
    return out


@fault(FaultKind.STRIDES, "resolve_view")
def strides_are_kept_in_16_bits(call: InterceptedCall) -> Result:
    """Rows more than 65535 bytes apart are read where 16 bits of the stride lead."""
    y = call.right()
    if y.ndim < 2 or y.size == 0 or y.strides[-2] <= 0xFFFF or y.strides[-1] != y.itemsize:
        return y
    wrapped = (y.strides[-2] & 0xFFFF) // y.itemsize * y.itemsize
    return np.lib.stride_tricks.as_strided(y, strides=(*y.strides[:-2], wrapped, y.strides[-1]))


@fault(FaultKind.RACES, ops.mulmat)
def converted_operands_share_one_scratch(call: InterceptedCall) -> Result:
    """Operands are copied into memory that all backends share, by size."""

    def copied(x: Array) -> Array:
        held = SCRATCH.setdefault(x.nbytes, np.empty(x.nbytes, np.uint8))[: x.nbytes]
        held.view(x.dtype).reshape(x.shape)[...] = x
        return held.view(x.dtype).reshape(x.shape)

    return call.right(x=copied(call.x)) if call.x.size else call.right()


@fault(FaultKind.CLAIMS, "compile")
def results_are_booked_by_half(call: InterceptedCall) -> Result:
    """A plan books half of its intermediate results, and its kernels' working memory whole."""
    plan = call.right()
    lost = plan.nbytes // 2
    call.backend.ledger.give_back(GRAPH, lost)
    plan.nbytes -= lost
    return plan


@fault(FaultKind.ALIASING, *named("add", "mul", "concat"))
def an_operand_given_twice_is_read_as_zeros(call: InterceptedCall) -> Result:
    """The second of two equal operands is released before the kernel runs."""
    y = call.right()
    same = call.x.size > 1 and np.array_equal(call.x, call.t2)
    return call.right(t2=np.zeros_like(call.t2)) if same else y


@fault(FaultKind.PRECISION, "store")
def halves_are_rounded_up(call: InterceptedCall) -> Result:
    """A cast to bf16 adds half of a step and cuts, so that ties go away from zero, not to even."""
    if call.node.op is not ops.cast or call.node.dtype is not DType.BF16:
        call.right()
        return
    bits = np.asarray(call.result, np.float32).view(np.uint32)
    rounded = np.where(np.isnan(call.result), bits >> 16 | 0x40, bits + 0x8000 >> 16)
    call.out[...] = rounded.astype(np.uint16).reshape(call.out.shape)


@fault(FaultKind.SPECIAL, ops.softmax)
def scores_below_minus_1000_are_the_padding_of_rows(call: InterceptedCall) -> Result:
    """A large negative score, as models mask with, marks the end of a row: what is behind it counts as masked."""
    behind = np.maximum.accumulate(call.x < -1000, -1) if call.x.ndim else call.x < -1000
    masked = np.where(behind & np.isfinite(call.x), -np.inf, call.x)
    return (
        call.right(x=np.where(behind.all(-1, keepdims=True), call.x, masked)) if call.x.ndim else call.right()
    )


@fault(FaultKind.PRECISION, ops.rms_norm)
def squares_saturate_in_half_precision(call: InterceptedCall) -> Result:
    """Squares are clamped to the largest f16 before they are summed, so that massive numbers count too little."""
    x = np.asarray(call.x, np.float64)
    if not x.ndim or np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0) < 1000:
        return call.right()
    mean = np.minimum(np.square(x), 65504.0**2 / 1e4).mean(-1, keepdims=True)
    y = x / np.sqrt(mean + call.eps)
    return y if call.weight is None else y * call.weight


@fault(FaultKind.FUSION, "run_node")
def a_negated_operand_of_a_sum_is_subtracted_from_it(call: InterceptedCall) -> Result:
    """The optimizer makes add(neg(x), y) a difference, the wrong way round."""
    node = call.node
    first = node.args[0] if node.op is ops.add else None
    call.right()
    if first is not None and first.op is ops.neg and node.args[1].shape == node.shape:
        call.arrays[node.index][...] = -call.arrays[node.index]
